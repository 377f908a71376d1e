"""Check the bytes that a record says its ranks hold: each rank's, and those of the moments of a step. No torch.

A record has the bytes of the rank whose fullest moment is the fullest, so no rank may hold more at its own.
"""

from collections.abc import Iterator
from typing import Any

from benchmarks.core.moments import unpack_moments
from benchmarks.core.record import BYTE_FIELDS, STATE_FIELDS, CellResult
from resireduce.errors import is_count

ITEMISED = "model_state_itemised"
STEADY = ("parameters", "optimizer_states")
"""Bands of a step's moments that never change: these tensors are changed in place. They come first and second."""


def wrong_ranks(record: CellResult) -> Iterator[str]:
    """Yield one line for each statement about a finished record's ranks that contradicts its bytes or its cell."""
    if int(record.peak_states_bytes or 0) != int(record.total_bytes or 0) + int(record.in_flight_bytes or 0):
        yield f"peak_states_bytes: {record.peak_states_bytes} is not total_bytes and in_flight_bytes together"
    own = [getattr(record, name) for name in BYTE_FIELDS]
    if record.per_rank and own not in map(_bytes, record.per_rank):
        yield f"per_rank: no rank holds the bytes of the record, {record.total_bytes} in total"
    ended = [rank["status"] for rank in record.per_rank if rank.get("status") not in (None, "ok")]
    if record.failure or ended:
        yield f"failure: {record.failure or ended[0]} in the record of a training that finished"
    if record.provenance.get("threads") not in (None, record.cell.threads):
        yield f"threads: a rank computed with {record.provenance['threads']}, its cell has {record.cell.threads}"
    if record.per_rank and len(record.per_rank) != record.cell.world_size:
        yield f"per_rank: {len(record.per_rank)} ranks, its cell has {record.cell.world_size}"
    for rung in record.ladder:
        if rung["name"] == ITEMISED and rung["bytes"] not in (None, record.total_bytes):
            yield f"ladder: {ITEMISED} is {rung['bytes']} bytes, total_bytes {record.total_bytes}"
    for rank, held in enumerate(record.per_rank):
        yield from (f"per_rank: rank {rank}: {problem}" for problem in _wrong_bytes(record, held))


def _bytes(rank: dict[str, Any]) -> list[Any]:
    return [rank.get(name) for name in BYTE_FIELDS]


def _wrong_bytes(record: CellResult, rank: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the bytes of one rank."""
    if not all(map(is_count, _bytes(rank))):
        yield f"{_bytes(rank)} are not all whole numbers of bytes, 0 or more"
        return
    if rank["total_bytes"] != (total := sum(rank[name] for name in STATE_FIELDS)):
        yield f"total_bytes: {rank['total_bytes']} is not the sum of its four states, {total}"
    if rank["peak_states_bytes"] != (peak := rank["total_bytes"] + rank["in_flight_bytes"]):
        yield f"peak_states_bytes: {rank['peak_states_bytes']} is not total_bytes and in_flight_bytes together, {peak}"
    if rank["peak_states_bytes"] > int(record.peak_states_bytes or 0):
        yield f"peak_states_bytes: {rank['peak_states_bytes']} is more than that of the fullest rank"


def wrong_moments(record: CellResult) -> Iterator[str]:
    """Yield one line for each contradiction between a record's bytes and its step, or the rank that was followed."""
    for name, packed in (("items", record.items), ("moments", record.moments)):
        ranks = [_bytes(rank) for rank in record.per_rank]
        own = [getattr(record, field) for field in BYTE_FIELDS]
        if packed and ranks and packed["rank"] not in (rank for rank, held in enumerate(ranks) if held == own):
            yield f"{name}: rank: {packed['rank']} does not hold the bytes of the record"
    held = [getattr(record, f"{band}_bytes") for band in STEADY]
    if others := [moment[:2] for moment in unpack_moments(record.moments) if [*moment[:2]] != held]:
        yield f"moments: {' and '.join(STEADY)} are {others[0]} bytes at one moment, {held} between steps"
