"""Times the library's kernels in Triton beside plain torch, and compares their bits, on one device.

`python -m benchmarks.training.time_kernels --device D --output FILE [--tiny]`. On a CPU they run in Triton's
interpreter, if there is a Triton, whose times say nothing.
"""

import argparse
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks.core.devices import DEVICES
from benchmarks.core.files import save_json
from resireduce.kernels.ops import GPU_SWITCH

INTERPRET = "TRITON_INTERPRET"


def measured(device: str, tiny: bool) -> dict[str, Any]:
    """Return the version of Triton, and a row for each kernel, size and dtype on `device`; none without Triton.

    tiny: a small gradient, for trying it out. On the CPU this sets Triton to interpret, for the whole process.
    """
    if find_spec("triton") is None:
        return {"triton": None, "rows": []}
    if device == "cpu":
        os.environ[INTERPRET] = "1"  # read when kernels are defined, that is, imported
    os.environ[GPU_SWITCH] = "0"  # so that plain torch uses no kernels
    from benchmarks.training.kernel_cases import rows
    from resireduce.kernels.gpu.one_pass import triton

    return {"triton": triton.__version__, "rows": list(rows(torch.device(device), tiny))}


def main() -> int:
    """Write the measurements to the file; return 1 if a kernel failed or its bits differ, and say which."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", choices=DEVICES)
    parser.add_argument("--tiny", action="store_true", help="a small gradient, to try it out")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    found = measured(args.device, args.tiny)
    save_json(found, args.output)
    wrong = [f"{row['kernel']} of {row['elements']} {row['dtype']}" for row in found["rows"] if not row["same"]]
    if args.device == "cuda" and found["triton"] is None:
        wrong = ["Triton is not installed, so that plain torch is used: pip install triton"]
    if wrong:
        print("; ".join(wrong))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
