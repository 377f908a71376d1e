"""The origin of a result: code, versions, machine. Imports no torch."""

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.core.paths import ROOT

PACKAGES = ("torch", "numpy", "transformers", "scikit-learn", "snakemake", "resireduce")
DIGEST_VARIABLE = "RESIREDUCE_IMAGE_DIGEST"
MAPS = Path("/proc/self/maps")
CODE: tuple[str, ...] = ("resireduce", "benchmarks", ":!benchmarks/config", "results/paper", "Snakefile", "containers")
CODE = (*CODE, "constraints.txt", "*.toml")
"""Files whose changes can change a result or a verdict; configs are not among them, since every cell records all its
fields."""
STATUS = ("status", "--porcelain", "--untracked-files=normal")
"""The changes, new files too, which a user's settings of git may hide."""
TIMING_FACTS = ("commit", "dirty", "python", "packages", "system", "cpu", "cores", "date")
OWN_FACTS = ("host", "gpu_uuid", "visible_gpus", "link_rate")
"""Facts that differ between the ranks of a job."""


def provenance(image: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return commit, versions and machine; what cannot be found out is None.

    image: the ranks' image, whose versions then count: `benchmarks.launching.containers.runtime.Runtime.facts`.
    """
    found = versions()
    if image is not None:
        packages = {package: image["versions"].get(package) for package in PACKAGES}
        found = {"python": image["versions"].get("python"), "packages": packages, "image": dict(image)}
    return {
        "commit": (git("rev-parse", "HEAD") or "").strip() or None,
        "dirty": None if (changes := git(*STATUS, "--", *CODE)) is None else bool(changes),
        **found,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": cores(),
        "device": "cpu",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def timing_provenance() -> dict[str, Any]:
    """Return the facts of the provenance that tell where and by which code something was timed on this machine."""
    here = provenance()
    return {name: here[name] for name in TIMING_FACTS}


def versions() -> dict[str, Any]:
    """Return the versions of this interpreter and of what results depend on."""
    return {"python": platform.python_version(), "packages": {name: installed_version(name) for name in PACKAGES}}


def job_facts(facts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what the ranks of a job ran on: rank 0's facts, and each rank's place."""
    hosts = [fact["host"] for fact in facts]
    shared = {key: value for key, value in facts[0].items() if key not in OWN_FACTS}
    counts = {host: hosts.count(host) for host in hosts}
    each = {"gpu_uuids": "gpu_uuid", "visible_gpus": "visible_gpus", "host_of_rank": "host"}
    rates = {fact["host"]: fact["link_rate"] for fact in facts if fact.get("link_rate")}
    places = {"hosts": list(counts), "ranks_per_host": counts, "link_rates": rates or None}
    return shared | places | {name: [fact.get(key) for fact in facts] for name, key in each.items()}


def image_digest() -> str | None:
    """Return the digest of the image that this process runs in."""
    return os.environ.get(DIGEST_VARIABLE)


def loaded_files(name: str, maps: Path = MAPS) -> list[str]:
    """Return the files of a library that are loaded into this process, each once; none on a system without /proc."""
    try:
        lines = maps.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found = (line.split(maxsplit=5) for line in lines if name in line)
    return list(dict.fromkeys(words[5] for words in found if len(words) == 6))


def git(*arguments: str) -> str | None:
    """Return what git prints of the source tree; None if this is no checkout, or git is missing.

    Its repository is named, since git would look for one in the folders above, or take that of GIT_DIR, and would not
    read one that another user owns.
    """
    command = ["git", "-C", str(ROOT), "--git-dir=.git", "--work-tree=.", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="backslashreplace")


def installed_version(package: str) -> str | None:
    """Return the version of a package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def cores() -> int:
    """Return how many processors this process may use; a job, a container or taskset may leave it only some."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None)
