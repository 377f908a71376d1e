"""Simulate all cases of a grid in chunks, those of one merging rule together."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.analysis.grouping import grouped
from benchmarks.simulation.grid import Case
from benchmarks.simulation.rows import Rows, Settings, rows_of
from benchmarks.simulation.step_time import Timed, in_message, merged, timed
from benchmarks.simulation.wire import works
from resireduce.merging import RULES

NUMBERS_AT_ONCE = 300_000
"""Cases x tensors of a chunk, small enough for its arrays to stay in the processor's caches."""


@dataclass(frozen=True)
class Result:
    """The simulated results of one case; nothing was measured."""

    case: Case
    step_seconds: float
    exposed_seconds: float
    """The part of the step outside of forward pass, backward pass and update."""
    messages: int
    sent_bytes: float
    """Bytes that a rank sends in messages; by node, those of all its ranks."""
    basis: str
    """Source of the compression times."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values: those of the case, with its cluster's name, and its results."""
        case = asdict(self.case) | {"cluster": self.case.cluster.name}
        own = {name: value for name, value in vars(self).items() if name != "case"}
        return case | own


def simulate(cases: Sequence[Case], settings: Settings) -> list[Result]:
    """Return the results of `cases`, in order. Raises ConfigError for a model of which too little is known."""
    found: list[Result | None] = [None] * len(cases)
    count = max(1, NUMBERS_AT_ONCE // len(settings.layers.names))
    known = works(cases, settings.layers, settings.micro)
    for rule, places in grouped((case.rule, place) for place, case in enumerate(cases)).items():
        for start in range(0, len(places), count):
            chosen = places[start : start + count]
            some = [cases[place] for place in chosen]
            rows = where_it_pays(rows_of(some, settings, known), np.array([case.where_it_pays for case in some]))
            times = timed(rows, merged(rows, RULES[rule]), RULES[rule])
            sent = rows.nbytes.sum(axis=-1)
            messages = (in_message(rows.nbytes, times.ends) > 0).sum(axis=-1)  # those that are not empty
            for number, (place, case) in enumerate(zip(chosen, some, strict=True)):
                work = known[case.cluster.device, case.compressor, case.density, case.scheme]
                step, exposed = float(times.step[number]), float(times.exposed[number])
                found[place] = Result(case, step, exposed, int(messages[number]), float(sent[number]), work.basis)
    return [one for one in found if one is not None]


def where_it_pays(rows: Rows, chosen: NDArray[np.bool_]) -> Rows:
    """Return `rows` in which, for the `chosen` cases, tensors are sent uncompressed if that takes no longer.

    The comparison is with compressing, sending and decompressing the tensor by itself, with nothing hidden. An
    uncompressed tensor has a message of its own.
    """
    compressing = rows.compress(rows.compressed) + rows.more
    takes = compressing + rows.latency + rows.transfer + rows.unpack
    dense = chosen[:, None] & (rows.compressed > 0) & (takes >= rows.dense)
    return replace(
        rows,
        compressed=np.where(dense, 0.0, rows.compressed),
        more=np.where(dense, 0.0, rows.more),
        latency=np.where(dense, 0.0, rows.latency),
        transfer=np.where(dense, rows.dense, rows.transfer),
        nbytes=np.where(dense, rows.moved, rows.nbytes),
        copied=np.where(dense, 0.0, rows.copied),
        unpack=np.where(dense, 0.0, rows.unpack),
    )


def fastest_first(results: Iterable[Result]) -> list[Result]:
    """Return `results` ordered by step time; equal ones, to a millionth, by number of messages."""
    return sorted(results, key=lambda one: (float(f"{one.step_seconds:.6e}"), one.messages))


def one_step(case: Case, settings: Settings) -> Timed:
    """Return the step of one case, with the busy times of its streams."""
    rows = rows_of([case], settings, works([case], settings.layers, settings.micro))
    rows = where_it_pays(rows, np.array([case.where_it_pays]))
    return timed(rows, merged(rows, RULES[case.rule]), RULES[case.rule])
