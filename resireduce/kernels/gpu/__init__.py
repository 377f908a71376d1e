"""Kernels in Triton, with the bits of the plain forms in torch; `kernels/native.py` says where they are used."""
