#!/usr/bin/env bash
# Lays out a CUDA compiler as a CUDA_HOME: bash lay_out_toolkit.sh PACKAGES CUDA_HOME VENV
# From Debian's package of nvcc (a .deb in PACKAGES), the headers of the same release (wheels in PACKAGES), and the headers and
# libraries of the wheels that torch brought into VENV. For the builder only: nvcc is not free software.
set -euo pipefail
packages=$1 cuda=$2 wheels=$3/lib/python3.11/site-packages/nvidia

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
dpkg-deb --extract "$packages"/nvidia-cuda-toolkit_*.deb "$work"
tools=$work/usr/lib/nvidia-cuda-toolkit
mkdir -p "$cuda/bin" "$cuda/nvvm/bin" "$cuda/include" "$cuda/lib64/stubs"
for program in bin2c cudafe++ fatbinary nvlink ptxas __nvcc_device_query; do cp "$work/usr/bin/$program" "$cuda/bin/"; done
cp "$tools/bin/nvcc" "$cuda/bin/"
cp -r "$tools/bin/crt" "$cuda/bin/"
cp "$tools/bin/cicc" "$cuda/nvvm/bin/"
cp -r "$tools/libdevice" "$cuda/nvvm/"
cat >"$cuda/bin/nvcc.profile" <<'PROFILE'
TOP = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH += $(TOP)/nvvm/bin:$(_HERE_):
INCLUDES += "-I$(TOP)/include" $(_SPACE_)
LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib64/stubs" "-L$(TOP)/lib64"
PROFILE

# torch's headers ask for those of the mathematical libraries; those of the compiler itself must be of its release.
for library in cublas cusolver cusparse cufft curand; do cp -r "$wheels/$library/include/." "$cuda/include/"; done
for wheel in "$packages"/nvidia_cuda_*.whl; do python3 -m zipfile --extract "$wheel" "$work/headers"; done
cp -r "$work"/headers/nvidia/*/include/. "$cuda/include/"
ln -s "$wheels"/cuda_runtime/lib/libcudart.so.12 "$cuda/lib64/libcudart.so"
# The linker asks for both; nothing of them is used: device code is not linked, and the driver's library is the host's.
ar rc "$cuda/lib64/libcudadevrt.a"
gcc -shared -o "$cuda/lib64/stubs/libcuda.so" -Wl,-soname,libcuda.so.1 -x c /dev/null
"$cuda/bin/nvcc" --version
