"""Kernels in Triton, with the bits of the plain forms in torch; `kernels/ops.py` says where they are used."""
