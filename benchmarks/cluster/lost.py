"""Nodes that failed during a run, which its later jobs avoid: Slurm itself uses a node again as soon as it is back."""

from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from benchmarks.cluster.job import ask
from benchmarks.cluster.working import WORKING
from benchmarks.files import load_json, save_json
from resireduce.errors import ConfigError

LOST = "lost-nodes.json"
FAILED = ("DOWN", "FAIL", "NOT_RESPONDING", "*")
"""In the state that Slurm gives a node."""


def lost_nodes(run: Path, cell: str, needed: int) -> list[str]:
    """Return nodes that jobs of a run are to avoid, and note those that an earlier try of this cell was lost with.

    A job whose node fails is killed, so that what it worked with is left. Of the nodes that it was on those have failed
    which are down, or which were started after it. Nothing if fewer than `needed` nodes were left to the cell.
    """
    known = set(_known(run))
    places = {file: load_json(file)["host"] for file in (run / WORKING / cell).glob("rank*.place.json")}
    found = {host for file, host in places.items() if host not in known and has_failed(host, file.stat().st_mtime)}
    if found:
        save_json(sorted(known | found), run / LOST)
    avoided = sorted(known | found)
    return avoided if avoided and _others(avoided) >= needed else []


def has_failed(node: str, since: float, said: str | None = None) -> bool:
    """Say whether a node is down or was started after a time (seconds since the epoch); `said` is scontrol's answer."""
    try:
        text = said if said is not None else ask(["scontrol", "--oneliner", "show", "node", node])
    except ConfigError:
        return False  # nobody knows
    fields = dict(word.split("=", 1) for word in text.split() if "=" in word)
    if any(word in fields.get("State", "") for word in FAILED):
        return True
    with suppress(ValueError):
        return datetime.fromisoformat(fields.get("SlurmdStartTime", "")).timestamp() > since
    return False


def _others(avoided: Iterable[str]) -> int:
    with suppress(ConfigError):
        return len(set(ask(["sinfo", "--noheader", "--Node", "--responding", "--format", "%N"]).split()) - set(avoided))
    return 0


def _known(run: Path) -> list[str]:
    with suppress(OSError, ValueError):
        return [str(name) for name in load_json(run / LOST)]
    return []
