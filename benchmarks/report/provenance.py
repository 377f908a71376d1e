"""Where the records of a run come from: each fact once, or all its values where the records differ."""

from collections.abc import Iterable
from typing import Any

from benchmarks.record import CellResult

WORDS = {
    "commit": "Commit",
    "dirty": "Uncommitted changes",
    "versions": "Versions",
    "cpu": "Processor",
    "cpu_count": "Processors",
    "threads": "Threads a rank",
    "data_hash": "Data (SHA-256)",
    "checkpoint_hash": "Weights started from (SHA-256)",
}
SKIPPED = ("seed",)


def provenance_rows(results: Iterable[CellResult]) -> list[tuple[str, list[str]]]:
    """Return (fact, its different values); data differ by model, so theirs name the model."""
    found: dict[str, dict[str, None]] = {}
    for result in results:
        for key, value in result.provenance.items():
            if key not in SKIPPED:
                found.setdefault(key, {})[_text(key, value, result)] = None
    known = [key for key in WORDS if key in found]
    return [
        (WORDS.get(key, key.replace("_", " ").capitalize()), list(found[key]))
        for key in dict.fromkeys([*known, *found])
    ]


def is_mixed(results: Iterable[CellResult]) -> bool:
    """Say whether the records come from different commits or software versions, so that they compare less well."""
    keys = {(str(r.provenance.get("commit")), str(r.provenance.get("versions"))) for r in results}
    return len(keys) > 1


def _text(key: str, value: Any, result: CellResult) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name} {item}" for name, item in value.items())
    by_model = key.endswith("_hash") and value is not None
    return f"{result.cell.model}: {value}" if by_model else str(value)
