"""Starts the two ranks of a way, one way after another. Imports no torch."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.beside.ways import way
from benchmarks.files import load_json
from benchmarks.measure.provenance import ROOT
from benchmarks.runtimes.malloc import MALLOC

RANKS = 2
EXACT = {"MALLOC_MMAP_THRESHOLD_": "65536"}
"""Every block from 64 KiB on has pages of its own, which go back when it is freed: what is resident is what lives."""
MALLOCS: dict[str, Mapping[str, str]] = {"exact": EXACT, "default": {}, "cells": MALLOC}
"""Variables of glibc's malloc that ranks are started with."""


class Failed(Exception):
    """A way cannot be measured here; the text is the last line of what it said."""


def measure(name: str, model: str, malloc: str = "exact", timeout_seconds: float = 3600.0) -> dict[str, Any]:
    """Return what the rank that held most has found; see `benchmarks.beside.rank`. Raises Failed."""
    with tempfile.TemporaryDirectory(prefix="resireduce-beside-") as folder:
        ranks = [_start(name, model, malloc, rank, Path(folder)) for rank in range(RANKS)]
        try:
            said = [process.communicate(timeout=timeout_seconds)[1] for process in ranks]
        except subprocess.TimeoutExpired:
            raise Failed(f"not done after {timeout_seconds:g} s") from None
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        for process, text in zip(ranks, said, strict=True):
            if process.returncode:
                raise Failed((text.strip().splitlines() or ["it said nothing"])[-1])
        found = [load_json(Path(folder) / f"rank{rank}.json") for rank in range(RANKS)]
    most: dict[str, Any] = max(found, key=lambda values: values["peak_bytes"])
    return {"name": name, "title": way(name).title, "model": model, "malloc": malloc, **most}


def _start(name: str, model: str, malloc: str, rank: int, folder: Path) -> "subprocess.Popen[str]":
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("MALLOC_", "THP_", "GLIBC_"))}
    place = {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "benchmarks.beside.rank", "--way", name, "--model", model, "--folder", str(folder)]
    environment = {**plain, **place, **MALLOCS[malloc], "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
