"""Check what a record says of its origin: its ranks, their places and devices, its dates. Imports no torch.

Records of several ranks, which the launcher made, must say all: what was removed cannot be told from what agrees. Ranks
of the backend local may have run in the process that asked.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks.core.record import CellResult

NO_GPU = ("no CUDA device", "trained on the CPU")
"""What the ladder of a rank says that trained on a CPU (`benchmarks.training.measure.probe`)."""
OF_GPUS = ("cuda", "device_memory_bytes")
"""Facts that each rank on a GPU knows."""
OF_LAUNCHED = ("content", "backend", "ranks_per_host", "data_hash", "threads")
"""Facts that each record has whose ranks were launched."""
EARLIEST = datetime(2024, 1, 1, tzinfo=UTC)
"""There was nothing to measure before."""
AHEAD = timedelta(days=1)
"""How far clocks of two machines may be apart."""


def wrong_origin(record: CellResult) -> Iterator[str]:
    """Yield one line for each statement of a finished record about its origin that cannot be true, or is missing."""
    yield from _missing(record)
    yield from _wrong_device(record)
    yield from _wrong_places(record)
    yield from _wrong_dates(record)


def _missing(record: CellResult) -> Iterator[str]:
    if not record.metrics:
        yield "metrics: missing"
    if len(record.per_rank) != record.cell.world_size:
        yield f"per_rank: {len(record.per_rank)} ranks, its cell has {record.cell.world_size}"
    needed = ("device", *(OF_LAUNCHED if record.cell.backend != "local" else ()))
    missing = [name for name in needed if not record.provenance.get(name)]
    content = record.provenance.get("content")
    if content and not (isinstance(content, dict) and "cell" in content):
        missing.append("content: cell")
    if missing:
        yield f"provenance: {', '.join(missing)}: missing"


def _wrong_device(record: CellResult) -> Iterator[str]:
    source, device = record.provenance, record.provenance.get("device")
    given = source.get("gpu_uuids")
    uuids = [one for one in given if one] if isinstance(given, list) else []
    if device in (None, "cpu"):
        if uuids or source.get("device_memory_bytes"):
            yield f"provenance: device: {device}, but gpu_uuids and device_memory_bytes are those of a GPU"
        return
    absent = [name for name in OF_GPUS if not source.get(name)]
    absent += ["gpu_uuids"] if len(uuids) != record.cell.world_size else []
    if absent:
        yield f"provenance: device: {device}, but {', '.join(absent)} as on a CPU"
    if any(text.endswith("+cpu") for text in _torch_versions(source)):
        yield f"provenance: device: {device}, but its torch is one for CPUs alone"
    if any(str(rung.get("reason")).startswith(NO_GPU) for rung in record.ladder):
        yield f"provenance: device: {device}, but its ladder was measured on a CPU"
    if source.get("process_group") == "gloo" and len(set(map(str, uuids))) == len(uuids) > 1:
        yield f"provenance: device: {device}, but gloo, which joins ranks that share a GPU, and each has its own"


def _torch_versions(source: dict[str, Any]) -> Iterator[str]:
    packages, content = source.get("packages"), source.get("content")
    if isinstance(packages, dict):
        yield str(packages.get("torch"))
    if isinstance(content, dict):
        yield str(content.get("packages")).partition(",")[0]


def _wrong_places(record: CellResult) -> Iterator[str]:
    cell, source = record.cell, record.provenance
    if source.get("backend") not in (None, cell.backend):
        yield f"provenance: backend: {source['backend']}, its cell has {cell.backend}"
    if source.get("process_group") and cell.backend != "torch":
        yield f"provenance: process_group: {source['process_group']}, which backend {cell.backend} does not use"
    counts = source.get("ranks_per_host")
    if counts is None:
        return
    ranks = [*counts.values()] if isinstance(counts, dict) else []
    if not all(type(one) is int and one > 0 for one in ranks) or sum(ranks) != cell.world_size:
        yield f"provenance: ranks_per_host: {counts}, its cell has {cell.world_size} ranks"
    elif cell.nodes is not None and ranks != [cell.world_size // cell.nodes] * cell.nodes:
        yield f"provenance: ranks_per_host: {counts}, its cell has {cell.nodes} nodes"
    hosts = source.get("host_of_rank")
    if hosts is not None and {str(host): hosts.count(host) for host in hosts} != counts:
        yield f"provenance: host_of_rank: {hosts}, by ranks_per_host {counts}"


def date_of(record: CellResult) -> datetime | None:
    """Return when a record was measured; None if it gives no date, or one that is no date with a time zone."""
    try:
        found = datetime.fromisoformat(str(record.provenance.get("date")))
    except ValueError:
        return None
    return found if found.tzinfo else None


def _wrong_dates(record: CellResult) -> Iterator[str]:
    given, date = record.provenance.get("date"), date_of(record)
    if date is None:
        yield f"provenance: date: {str(given)[:40]!r} is not a date with a time zone"
    if date is not None and not EARLIEST <= date <= datetime.now(UTC) + AHEAD:
        yield f"provenance: date: {given} is not from {EARLIEST:%Y} to now"
    starts = record.provenance.get("resumed_at_steps") or []
    whole = isinstance(starts, list) and all(type(one) is int for one in starts)
    if not whole or starts != sorted(starts) or (starts and not 0 <= starts[0] <= starts[-1] < record.steps):
        yield f"provenance: resumed_at_steps: {str(starts)[:40]} of a training of {record.steps} steps"
