"""The simulated steps of many cases: by merging rules, or as Espresso and HiPress plan them tensor by tensor."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from benchmarks.analysis.grouping import grouped
from benchmarks.simulation.cluster import paths
from benchmarks.simulation.rules import RULES
from benchmarks.simulation.step_time import Rows, Settings, Timed, in_message, merged, rows_of, timed
from benchmarks.simulation.wire import FLOAT_BYTES, LOSSLESS, Case, Curve, works
from resireduce.merging.rules import Array
from resireduce.scheme import COMPRESSORS

# --- Planners: systems that choose for each tensor whether and how it is compressed; each tensor has a message ---


def mixed(options: Rows, choices: np.ndarray) -> Rows:
    """Return one row for each of `choices`, (cases, tensors): tensor t is sent as in row `choices[case, t]` of
    `options`, rows of the same cluster and model."""
    alone = replace(
        options,
        more=np.maximum(options.compress(options.compressed) + options.more, 0.0),
        transfer=options.latency + options.transfer,
        latency=np.zeros_like(options.latency),
        moved=np.where(options.in_node_per_byte[:, None] > 0, options.moved, 0.0),
    )

    def chosen(values: Any) -> Any:
        if values is None or values.ndim == 1:
            return None if values is None else np.full(len(choices), values.max())
        return np.take_along_axis(values, choices, axis=0)

    rows = {one.name: chosen(getattr(alone, one.name)) for one in fields(Rows) if one.name != "compress"}
    nothing = np.zeros((len(choices), 1))
    return Rows(**rows, compress=Curve(nothing[:, 0], nothing, nothing))


def _stepped(rows: Rows) -> Timed:
    return timed(rows, np.ones(rows.backward.shape, dtype=bool))


HALF_ELEMENTS = 2**17
"""Espresso sends larger tensors in 16 bits."""
COMPRESSED_ELEMENTS = {"pcie": (2**20, 2**23), "nvlink": (2**19, 2**22)}
"""It tries to compress larger ones between nodes, and those above the second number on both levels."""
NVLINK_BYTES_PER_SECOND = 100e9
"""Links within a node are taken for NVLink from here on."""
ROUNDING_SECONDS = 1e-9
"""Shorter pauses of the link are none."""


def espresso(case: Case, settings: Settings) -> Rows:
    """Return the row of `case` as the planner of Espresso sends its tensors (Wang et al., EuroSys 2023; the search of
    its released code, without compression on CPUs).

    What is sent before the link's last pause delays nothing. After it, tensors are sent in 16 bits; then, from the
    largest and the latest on, each is compressed if the step becomes shorter by it.
    """
    plain, dense = replace(case, compressor=LOSSLESS, density=1.0), replace(case, compressor="fp16", density=1.0)
    tried = [plain, dense, case, *([replace(case, hierarchy="flat")] if case.hierarchy == "node" else [])]
    options = rows_of(tried, settings, works(tried, settings.layers, settings.micro))
    elements = settings.layers.elements
    inner = case.cluster.in_node
    is_nvlink = inner is not None and inner.bandwidth_bytes_per_second >= NVLINK_BYTES_PER_SECOND
    least, both = COMPRESSED_ELEMENTS["nvlink" if is_nvlink else "pcie"]
    choices = np.zeros((1, len(elements)), dtype=np.int64)
    choices[0, _after_pause(options, choices) & (elements > HALF_ELEMENTS)] = 1
    best = float(_stepped(mixed(options, choices)).step[0])
    places = np.flatnonzero(_after_pause(options, choices) & (elements > least))
    for place in sorted(places, key=lambda place: (-elements[place], -place)):
        trial = choices.copy()
        trial[0, place] = len(tried) - 1 if elements[place] > both else 2
        step = float(_stepped(mixed(options, trial)).step[0])
        if step < best:
            choices, best = trial, step
    return mixed(options, choices)


def _after_pause(options: Rows, choices: np.ndarray) -> np.ndarray:
    """Return which tensors are sent after the last pause of the link."""
    times = _stepped(mixed(options, choices))
    pauses = np.flatnonzero(times.begun[0] > np.concatenate(([-np.inf], times.sent[0, :-1])) + ROUNDING_SECONDS)
    return np.arange(choices.shape[1]) >= pauses[-1]


def hipress(case: Case, settings: Settings) -> Rows:
    """Return the row of `case` as the planner of HiPress sends its tensors (Bai et al., SOSP 2021; SeCoPa of its
    released code, with parameter servers).

    Each tensor, cut into as many partitions as are best, is gathered by servers and broadcast; it is compressed if that
    takes less time. Compression is then part of its time on the link, and delays no other computing.
    """
    plain = replace(case, compressor=LOSSLESS, density=1.0)
    known = works([plain, case], settings.layers, settings.micro)
    (sent,) = (work for work in known.values() if work.lossy)
    rows = rows_of([plain], settings, known)
    device, place = case.cluster.device, paths(case.cluster, case.ranks, case.hierarchy)
    others = place.peers - 1
    partitions = np.arange(1, place.peers + 1)[:, None]

    def moved(nbytes: Array) -> Array:
        return 2 * (place.gather.latency / others + place.gather.per_byte * nbytes / partitions)

    encoding = sent.curve((sent.elements / partitions)[None])[0] + sent.more / partitions
    touched = sent.payload + 2 * FLOAT_BYTES * sent.touched
    decoding = device.launch_seconds + touched / partitions / device.bytes_per_second
    encodings, decodings = np.minimum(partitions + 1, others + 1), np.minimum(others + partitions, 2 * others)
    whole = moved(FLOAT_BYTES * sent.elements).min(axis=0)
    lossy = (moved(sent.payload) + encodings * encoding + decodings * decoding).min(axis=0)
    sends = sent.elements > 0
    payload = np.where(lossy < whole, sent.payload, rows.payload)
    return replace(
        rows,
        latency=np.zeros_like(rows.latency),
        transfer=np.where(sends, np.minimum(whole, lossy), rows.transfer),
        payload=payload,
        nbytes=np.where(sends, payload, rows.nbytes),
    )


PLANNERS: dict[str, Callable[[Case, Settings], Rows]] = {"espresso": espresso, "hipress": hipress}
"""All planners, by the name that a case has as its rule."""


# --- All cases of a grid ---


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
    found: dict[int, Result] = {}
    known = works(cases, settings.layers, settings.micro)
    for rule, places in grouped((case.rule, place) for place, case in enumerate(cases)).items():
        count = 1 if rule in PLANNERS else max(1, NUMBERS_AT_ONCE // len(settings.layers.names))
        for start in range(0, len(places), count):
            chosen = places[start : start + count]
            rows, times = _steps([cases[place] for place in chosen], settings)
            sent = rows.nbytes.sum(axis=-1)
            messages = (in_message(rows.nbytes, times.ends) > 0).sum(axis=-1)  # those that are not empty
            for number, place in enumerate(chosen):
                case = cases[place]
                step, exposed = float(times.step[number]), float(times.exposed[number])
                basis = known[case.key].basis
                found[place] = Result(case, step, exposed, int(messages[number]), float(sent[number]), basis)
    return [found[place] for place in range(len(cases))]


def _steps(cases: Sequence[Case], settings: Settings) -> tuple[Rows, Timed]:
    """Return the rows and the steps of `cases`, all of one merging rule, or of one case that a planner plans."""
    rule = cases[0].rule
    if rule in PLANNERS:
        rows = PLANNERS[rule](cases[0], settings)
        return rows, _stepped(rows)
    rows = rows_of(cases, settings, works(cases, settings.layers, settings.micro))
    return rows, timed(rows, merged(rows, RULES[rule]), RULES[rule])


def fastest_first(results: Iterable[Result]) -> list[Result]:
    """Return `results` ordered by step time; equal ones, to a millionth, by number of messages."""
    return sorted(results, key=lambda one: (float(f"{one.step_seconds:.6e}"), one.messages))


def fastest_dense(results: Sequence[Result]) -> dict[tuple[str, int], float]:
    """Return the shortest step without compression, by cluster and ranks."""
    found: dict[tuple[str, int], float] = {}
    for one in results:
        if one.case.compressor == LOSSLESS:
            place = one.case.cluster.name, one.case.ranks
            found[place] = min(found.get(place, np.inf), one.step_seconds)
    return found


def name_of(case: Case) -> str:
    """Return the name of a case among others of its cluster: compressor, density, scheme, rule and levels."""
    how = "merged" if case.rule in RULES else "planned by"
    return ", ".join([compressor_of(case), f"{how} {case.rule}", *(["by node"] * (case.hierarchy == "node"))])


def compressor_of(case: Case) -> str:
    """Return the name of a case's compressor, with its density and scheme."""
    if case.compressor == LOSSLESS:
        return "no compression"
    scheme = "" if case.scheme == "baseline" else f" ({case.scheme})"
    return case.compressor + f" {case.density:g}" * COMPRESSORS[case.compressor].selects + scheme
