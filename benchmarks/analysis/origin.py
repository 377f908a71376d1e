"""Where the records of a run come from: each fact once, or all its values if the records differ."""

from collections.abc import Iterable
from typing import Any

from benchmarks.core.record import CellResult

WORDS = {
    "commit": "Commit",
    "dirty": "Uncommitted changes",
    "python": "Python",
    "packages": "Packages",
    "system": "System",
    "cpu": "Processor",
    "cores": "Cores",
    "device": "Device",
    "driver": "Driver",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "nccl": "NCCL",
    "image_digest": "Image",
    "process_group": "Process group",
    "backend": "Backend",
    "horovod": "Horovod",
    "ranks_per_host": "Ranks by host",
    "link_rates": "Links slowed to",
    "threads": "Threads a rank",
    "data_hash": "Data (SHA-256)",
    "weights_hash": "Weights started from (SHA-256)",
    "date": "Measured",
}
SOFTWARE = ("commit", "python", "packages", "device", "driver", "cuda", "nccl", "image_digest")


def provenance_rows(results: Iterable[CellResult]) -> list[tuple[str, list[str]]]:
    """Return (fact, its different values); hashes differ between models, so their entries name the model."""
    found: dict[str, dict[str, None]] = {}
    for result in results:
        for key, value in result.provenance.items():
            if key in WORDS and value is not None:
                found.setdefault(key, {})[_text(key, value, result)] = None
    if "date" in found:
        found["date"] = dict.fromkeys([f"{min(found['date'])} to {max(found['date'])}"])
    return [(word, list(found[key])) for key, word in WORDS.items() if key in found]


def is_mixed(results: Iterable[CellResult]) -> bool:
    """Say whether the records come from different commits or software versions, which makes them less comparable."""
    return len({str([result.provenance.get(key) for key in SOFTWARE]) for result in results}) > 1


def _text(key: str, value: Any, result: CellResult) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_yes_or_no(item)}" for name, item in value.items())
    return f"{result.cell.model}: {value}" if key.endswith("_hash") else _yes_or_no(value)


def _yes_or_no(value: Any) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
