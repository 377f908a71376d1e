"""Which programs for containers a node has, and whether they run one there. Nothing is fetched or built."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.doctor.slurm.programs import Ask
from benchmarks.runtimes.options import RUNTIMES, has_nvidia
from benchmarks.workflow.content import ROOT

IMAGES = ROOT / "results/cache/images"


def look(ask: Ask, which: Callable[[str], str | None] = shutil.which, images: Path = IMAGES) -> list[dict[str, Any]]:
    """Return name, version, and an error or what was tried, of each program that is on PATH."""
    found = []
    for name in RUNTIMES[1:]:
        if which(name):
            version = ask([name, "--version"])
            tried, error = _apptainer(ask, images) if name == "apptainer" else _engine(ask, name)
            said = (version.text.strip().splitlines() or [name])[0] if version.error is None else name
            found.append({"name": name, "version": said, "tried": tried, "error": version.error or error})
    return found


def _engine(ask: Ask, name: str) -> tuple[str, str | None]:
    """Of docker the daemon answers; podman has none, and says what it would run containers with."""
    return "it answers", ask([name, "info"]).error


def _apptainer(ask: Ask, images: Path) -> tuple[str | None, str | None]:
    """Run an image of the suite, with the node's GPUs if it has some; if none was made yet nothing is tried."""
    sif = next(iter(sorted(images.glob("*.sif"))), None)
    if sif is None:
        return None, None
    nv = ["--nv"] if has_nvidia() else []
    return f"exec {' '.join([*nv, sif.name])}", ask(["apptainer", "exec", *nv, str(sif), "true"]).error
