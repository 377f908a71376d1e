"""The GPU and its software, asked in a process of its own: a context in this one would lie in the measured memory."""

import json
import os
import subprocess
import sys
from typing import Any

from resireduce.errors import ConfigError

DEVICES = ("cuda", "cpu")


def find_device(device: str) -> dict[str, Any]:
    """Return what is known of the device that cells will run on, and have their processes see no other kind.

    Raises ConfigError, one line, if it is to be a GPU and there is none.
    """
    if device == "cpu":
        os.environ |= {"RESIREDUCE_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    # The last line: packages may greet on the standard output.
    done = subprocess.run([sys.executable, "-m", __name__], stdout=subprocess.PIPE, text=True, check=False)
    facts: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1]) if done.returncode == 0 else {}
    if device == "cuda" and not facts.get("uuid"):
        raise ConfigError(
            f"device: 'cuda' is not allowed here: torch {facts.get('torch')} sees no NVIDIA GPU; run it where there is "
            "one, or try it out with: --device cpu --models resnet50 --steps 1"
        )
    return facts


def describe() -> dict[str, Any]:
    """Return versions, and properties of the first GPU: those of a GPU are None where there is none."""
    import torch

    facts: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda, "device": "cpu", "uuid": None}
    facts |= {"driver": None, "nccl": None, "cudnn": torch.backends.cudnn.version()}
    if not torch.cuda.is_available():
        return facts
    properties = torch.cuda.get_device_properties(0)
    return facts | {
        "device": properties.name,
        "uuid": str(getattr(properties, "uuid", "unknown")),
        "device_memory_bytes": properties.total_memory,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "driver": _driver(),
        "nccl": _nccl(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
    }


def _driver() -> str | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        driver = pynvml.nvmlSystemGetDriverVersion()
    except Exception:  # whatever NVML lacks here, the check goes on without it
        return None
    return driver.decode() if isinstance(driver, bytes) else str(driver)


def _nccl() -> str | None:
    import torch

    try:
        version = torch.cuda.nccl.version()
    except (AttributeError, RuntimeError, ImportError):
        return None
    return ".".join(map(str, version)) if isinstance(version, tuple) else str(version)


if __name__ == "__main__":
    print(json.dumps(describe()))
