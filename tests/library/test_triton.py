"""Triton's kernels without a GPU: in Triton's interpreter, and compiled. And the library without Triton.

Each in a process of its own: how Triton works is settled when it is imported, and other tests must not find it.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
APART = Path(sys.prefix) / "triton"
"""Where make puts it."""
needs_triton = pytest.mark.skipif(
    find_spec("triton") is None and not APART.is_dir(), reason="Triton is not installed: make .venv/tests"
)


@needs_triton
@pytest.mark.parametrize(("files", "interpret"), [(("bucket", "blocks", "interpreted"), "1"), (("compiled",), "0")])
def test_kernels(files: tuple[str, ...], interpret: str, tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", ""), str(APART)])
    own = {
        "TRITON_INTERPRET": interpret,
        "TRITON_CACHE_DIR": str(tmp_path),
        "RESIREDUCE_NATIVE": "0",
        "PYTHONPATH": path,
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += [f"tests/triton/{file}.py" for file in files]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | own, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and " skipped" not in done.stdout, done.stdout[-6000:] + done.stderr[-2000:]


def test_the_library_loads_without_triton() -> None:
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch, resireduce, resireduce.api\n"
        "from resireduce.kernels.gpu import bucket, one_pass, self_check\n"
        "from resireduce.kernels.ops import largest_magnitudes\n"
        "assert largest_magnitudes(torch.tensor([1.0, -3.0, 2.0]), 1).tolist() == [1]\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
