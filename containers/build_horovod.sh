#!/usr/bin/env bash
# Builds and installs Horovod into a Python environment: bash containers/build_horovod.sh .venv/bin/python
#
# Horovod ships as source only, and its last release asks for an older C++ than today's torch. The wheel is built once for
# each torch, Python, setting and state of this file, and kept in the user's cache. With Gloo, on CPUs, whatever torch is for;
# HOROVOD_WITH_MPI=1, HOROVOD_GPU=CUDA and the other variables of Horovod's installation guide add to that, as
# containers/cuda12/Containerfile does.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PYTHON=$(realpath --no-symlinks "${1:?usage: build_horovod.sh PYTHON}")
LOCKS=("$HERE/horovod.lock" "$HERE/build-tools.lock")

# Not those of just this machine.
if [ "$(uname -m)" = x86_64 ]; then export HOROVOD_BUILD_ARCH_FLAGS="-mavx -mf16c -mfma"; fi
export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_GLOO=1
if [ -z "${HOROVOD_WITH_MPI:-}" ]; then export HOROVOD_WITHOUT_MPI=1; fi

torch=$("$PYTHON" -c 'import torch; print(torch.__version__)')
abi=$("$PYTHON" -c 'import sys, sysconfig; print(sys.implementation.cache_tag, sysconfig.get_platform())')
key=$({ echo "$torch $abi"; env | grep ^HOROVOD_ | sort; cat "${BASH_SOURCE[0]}" "${LOCKS[@]}"; } | sha256sum | cut -c1-16)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/resireduce/horovod/$key

build() {
  command -v g++ >/dev/null || {
    echo "error: Horovod cannot be built: there is no g++; install a C++ compiler (Debian: apt install g++)" >&2
    exit 3
  }
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  echo "Building Horovod for torch $torch, once (about three minutes on 2 cores) ..."
  "$PYTHON" -m venv "$work/tools"
  "$work/tools/bin/pip" install --quiet --no-deps --require-hashes --requirement "$HERE/build-tools.lock"
  "$work/tools/bin/pip" download --quiet --no-deps --no-binary=:all: --no-build-isolation --require-hashes \
    --dest "$work" --requirement "$HERE/horovod.lock"
  mkdir "$work/source"
  tar -xzf "$work"/horovod-*.tar.gz --strip-components=1 -C "$work/source"
  cd "$work/source"
  # The tools' Python sees the torch of the environment that Horovod is for.
  local site standard
  site=$("$PYTHON" -c 'import torch, pathlib; print(pathlib.Path(torch.__file__).parents[1])')
  # C++ as torch asks for, for CUDA too; and the one libcudart that torch brings, not another one linked in.
  standard=17
  if grep -q 'C++20 or later' "$site/torch/include/torch/csrc/api/include/torch/all.h"; then standard=20; fi
  find . -name CMakeLists.txt -exec sed -i -E -e "s/CMAKE_CXX_STANDARD 14/CMAKE_CXX_STANDARD $standard/" \
    -e "s/CMAKE_CUDA_STANDARD 11/CMAKE_CUDA_STANDARD $standard/" \
    -e 's/(CMAKE_CUDA_RUNTIME_LIBRARY "?)Static/\1Shared/' {} +
  # A torch for CUDA, as package indexes have it, beside no toolkit, a part of one, or one of another version.
  if [ -z "${HOROVOD_GPU:-}" ]; then sed -i 's/torch.version.cuda is not None/False/' cmake/Modules/FindPytorch.cmake; fi
  # Its sources name what they do not include, and flatbuffers has a function that cannot compile: older GCCs let both pass.
  PATH="$work/tools/bin:$PATH" PYTHONPATH="$site" CXXFLAGS="${CXXFLAGS:-} -include string -include cstdint -include stdexcept -fpermissive" \
    "$work/tools/bin/pip" wheel --quiet --no-deps --no-build-isolation --wheel-dir "$work/wheel" . \
    >"$work/log" 2>&1 || { grep -m 5 -A 3 -iE 'error[: ]|fatal' "$work/log" >&2; tail -n 15 "$work/log" >&2; echo "error: Horovod cannot be built; its first errors and the end of the log are above" >&2; exit 1; }
  mkdir -p "$cache"
  mv "$work"/wheel/horovod-*.whl "$cache/" # last, so that what is there is whole
}

ls "$cache"/horovod-*.whl >/dev/null 2>&1 || (build)
"$PYTHON" -m pip install --quiet --no-deps --no-index --force-reinstall "$cache"/horovod-*.whl
"$PYTHON" -c 'import horovod.torch' 2>/dev/null || {
  # An image has what Horovod needs from its own lock file.
  "$PYTHON" -m pip install --quiet --constraint "$HERE/../constraints.txt" cloudpickle psutil pyyaml packaging cffi
  "$PYTHON" -c 'import horovod.torch'
}
