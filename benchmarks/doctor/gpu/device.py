"""Query the GPU and its software in a separate process, as a context here would count in the measured memory."""

import json
import os
import re
import subprocess
import sys
from importlib import import_module
from typing import Any

from benchmarks.core.devices import DEVICE_VARIABLE
from benchmarks.core.nvml import Nvml, NvmlUnavailable
from resireduce.errors import ConfigError


def find_device(device: str) -> dict[str, Any]:
    """Return the facts about the device that cells will run on, and hide other GPUs from their processes.

    It is the first visible GPU, which two ranks may share. Raises ConfigError, with one line, if a GPU is required and
    there is none.
    """
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    chosen = {DEVICE_VARIABLE: device, "CUDA_VISIBLE_DEVICES": first if device == "cuda" else ""}
    command = [sys.executable, "-m", __name__]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=os.environ | chosen)
    # Only the last line: packages may print greetings.
    facts: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1]) if done.returncode == 0 else {}
    if device == "cuda" and not facts.get("uuid"):
        raise ConfigError(
            f"device: 'cuda' is not allowed here: torch {facts.get('torch')} sees no NVIDIA GPU; run it where there is "
            "one, or try it out with: --device cpu --tiny"
        )
    os.environ |= chosen
    return facts


def folder_name(facts: dict[str, Any], tiny: bool) -> str:
    """Return the folder name for results of a device: nvidia-h200; cpu-tiny for a trial run."""
    name = re.sub(r"[^a-z0-9]+", "-", str(facts.get("device") or "cpu").lower()).strip("-")
    return f"{name}-tiny" if tiny else name


def describe() -> dict[str, Any]:
    """Return versions and the properties of the first GPU, which are None without one."""
    import torch

    facts_of = import_module("benchmarks.training.measure.rank_facts")
    facts: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda, "device": "cpu", "uuid": None}
    facts |= {"driver": None, "nccl": None, "cudnn": torch.backends.cudnn.version()}
    if not torch.cuda.is_available():
        return facts
    properties = torch.cuda.get_device_properties(0)
    return facts | {
        "device": properties.name,
        "uuid": facts_of.gpu_uuid(torch.device("cuda", 0)),
        "device_memory_bytes": properties.total_memory,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "driver": _driver(),
        "nccl": facts_of.nccl_version(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
    }


def _driver() -> str | None:
    try:
        return Nvml.load().driver_version()
    except NvmlUnavailable:  # the check works without it
        return None


if __name__ == "__main__":
    print(json.dumps(describe()))
