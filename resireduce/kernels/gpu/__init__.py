"""Kernels in Triton, with the bits of the plain forms in torch; `kernels/on_gpu.py` says where they are used."""
