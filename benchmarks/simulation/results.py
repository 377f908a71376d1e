"""The simulated steps of many cases: by merging rules, or as Espresso and HiPress plan them tensor by tensor."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np

from benchmarks.analysis.grouping import grouped
from benchmarks.simulation.cluster import Device, paths
from benchmarks.simulation.rules import RULES, Rule
from benchmarks.simulation.wire import FLOAT_BYTES, LOSSLESS, Case, Curve, Key, Layers, Work, works
from resireduce.merging.rules import Array, Arrivals, Ends
from resireduce.scheme import COMPRESSORS

# --- Cases as arrays: one row per case, one column per tensor, in the order of gradients ---

Passes = tuple[float, Array, float]
"""Seconds of the forward pass, of the backward pass before each gradient, and of the update."""


@dataclass(frozen=True)
class Settings:
    """The settings that all cases share."""

    layers: Layers
    micro: Sequence[Mapping[str, Any]] = ()
    """Rows of `make micro`'s record; without them, compression takes the time of its memory bytes."""
    compute_seconds: float | None = None
    """Measured time of forward and backward pass; None: computed from operations."""

    def passes(self, device: Device) -> Passes:
        """Return what a rank computes on a device. Raises ConfigError if too little is known of the model."""
        return *self.layers.seconds(device, self.compute_seconds), self.layers.update_seconds(device)


@dataclass(frozen=True)
class Rows:
    """Seconds and bytes of cases, of shape (cases,) or (cases, tensors)."""

    forward: Array
    update: Array
    late: Array
    """Delay of the latest rank."""
    backward: Array
    compressed: Array
    """Elements of each tensor that a rank compresses."""
    compress: Curve
    more: Array
    """Seconds that the scheme adds to that."""
    moved: Array
    """Bytes of dense gradients that a node sums before anything is sent."""
    in_node_latency: Array
    in_node_per_byte: Array
    latency: Array
    """Seconds before the first byte of a message with only this tensor."""
    transfer: Array
    payload: Array
    """Bytes of each tensor sent in messages."""
    nbytes: Array
    """Bytes of each tensor sent in messages, with those of the bucket of small tensors that ends with it."""
    copied: Array
    """Seconds to copy each tensor into a merged message and out of it."""
    unpack: Array
    """Seconds to decompress what all ranks sent of the tensor."""
    gather_latency: Array
    """(cases,): of the subsequent gather within a node."""
    gather_per_byte: Array
    """(cases,): per byte of a dense tensor."""
    trailing: Array
    """(cases,): seconds for which a message is still under way when the link is free for the next."""
    busy_latency: Array
    """Seconds by which a message with only this tensor delays concurrent computing, if processors are shared."""
    busy_transfer: Array
    """Seconds by which the bytes of each tensor delay concurrent computing, if processors are shared."""
    in_node_busy: Array
    """Seconds by which summing each tensor within a node delays concurrent computing, if processors are shared."""
    beside: Array
    """Seconds of the bucket of small tensors that ends with each tensor; included in its transfer."""
    settle: Array
    """(cases,): seconds of the small collectives with which ranks end a step."""
    sending: Curve | None = None
    """Measured seconds of a message by its bytes, without buckets; None: from latency and transfer."""


def rows_of(cases: Sequence[Case], settings: Settings, known: Mapping[Key, Work]) -> Rows:
    """Return the rows of `cases`, with the data to send from `known`. Raises ConfigError if too little is known of the
    model."""
    passes = cache(settings.passes)
    return stacked([row_of(case, known[case.key], passes(case.cluster.device)) for case in cases])


def stacked(rows: Sequence[Mapping[str, Any]]) -> Rows:
    """Return the rows of single cases, by field, as one."""
    found: dict[str, Any] = {}
    for name in rows[0]:
        join = Curve.together if name in ("compress", "sending") else np.stack
        found[name] = join([row[name] for row in rows])
    return Rows(**found)


def row_of(case: Case, work: Work, passes: Passes) -> dict[str, Any]:
    """Return the row of one case, by field: of the `work` that it does, and the `passes` that a rank computes.

    A gather of unequal sizes is two collectives: of the sizes, then of the payloads. Dense buckets are wholly in what
    is transferred. To decompress takes a launch for each received payload, and all data are read and added.
    """
    device, place = case.cluster.device, paths(case.cluster, case.ranks, case.hierarchy)
    forward, backward, update = passes
    memory, reduce, dense = device.bytes_per_second, place.reduce, work.dense_bytes
    own, peers = (place.gather, place.peers) if work.gathered else (reduce, 1)
    beside = np.where(dense > 0, reduce.latency + reduce.per_byte * dense, 0.0)
    nbytes, nothing = work.payload + dense, np.zeros_like(dense)
    touched = work.payload + 2 * FLOAT_BYTES * work.touched
    unpack = device.launch_seconds * peers + (FLOAT_BYTES * work.elements + peers * touched) / place.slices / memory
    return {
        "forward": forward,
        "update": update,
        # The mean of the largest of N exponentially distributed delays, N being the number of ranks.
        "late": case.cluster.jitter_seconds * (1 / np.arange(1, case.ranks + 1)).sum(),
        "backward": backward,
        "compressed": work.elements / place.slices * work.lossy,
        "compress": work.curve,
        "more": work.more / place.slices,
        "moved": np.where(work.elements > 0, FLOAT_BYTES * work.elements, dense),
        "in_node_latency": place.in_node.latency,
        "in_node_per_byte": place.in_node.per_byte,
        "gather_latency": place.in_node.latency,
        "gather_per_byte": place.in_node.per_byte,
        "latency": own.latency * (1 + work.ragged) * (work.payload > 0),
        "transfer": own.per_byte * work.payload + beside,
        "beside": beside,
        "payload": work.payload,
        "nbytes": nbytes,
        "copied": (2 if work.gathered else 4) * nbytes / memory,
        "unpack": np.where(work.elements > 0, unpack, 0.0) * work.lossy,
        # What only a testbed's measurements fill.
        "busy_latency": nothing,
        "busy_transfer": nothing,
        "in_node_busy": nothing,
        "trailing": 0.0,
        "settle": 0.0,
    }


# --- One step: tensors pass from stream to stream, and each stream serves one message at a time ---


@dataclass(frozen=True)
class Timed:
    """One step of each case, in seconds; time 0 is the start of the backward pass. Shape (cases,) unless noted."""

    ends: Ends
    """(cases, tensors): where messages end."""
    begun: Array
    """(cases, tensors): when the link begins with the message that ends at each tensor."""
    sent: Array
    """(cases, tensors): when it is done with it."""
    step: Array
    """From the start of one forward pass to that of the next."""
    exposed: Array
    """The part of the step outside of forward pass, backward pass and update: waiting and decompressing."""


def served(arrive: Array, duration: Array) -> Array:
    """Return when each item is done that arrives at `arrive` and is served for `duration`, in order, one at a time."""
    done = np.cumsum(duration, axis=-1)
    return done + np.maximum.accumulate(arrive - (done - duration), axis=-1)


def in_message(values: Array, ends: Ends) -> Array:
    """Return the sum of `values` over each message, at the place where it ends; 0 elsewhere."""
    total = np.cumsum(values, axis=-1)
    at_end = np.where(ends, total, 0.0)
    before = np.zeros_like(at_end)
    before[..., 1:] = np.maximum.accumulate(at_end, axis=-1)[..., :-1]
    return np.where(ends, total - before, 0.0)


def merged(rows: Rows, rule: Rule) -> Ends:
    """Return where messages end under a `rule`, given when each tensor could be sent by itself."""
    alone = np.ones(rows.backward.shape, dtype=bool)
    ready, _ = _sendable(rows, alone, False)
    arrivals = Arrivals(
        np.maximum.accumulate(ready, axis=-1),
        rows.transfer,
        rows.latency,
        rows.nbytes,
        backward=rows.backward,
        elements=rows.compressed,
        compress=rows.compress,
    )
    return rule.function(arrivals)


def _compression(rows: Rows, ends: Ends, whole: bool) -> Array:
    """Return the seconds to compress: for each tensor, or at the end of each message if these are compressed whole."""
    if whole:
        return np.maximum(rows.compress(in_message(rows.compressed, ends)) + in_message(rows.more, ends), 0.0)
    return np.maximum(rows.compress(rows.compressed) + rows.more, 0.0)


def _sendable(rows: Rows, ends: Ends, whole: bool) -> tuple[Array, Array]:
    """Return when messages can be sent, and the end of the backward pass and the compression that delays it.

    Sums within a node are not merged: each tensor, and each bucket of small ones, has its own.
    """
    computing = rows.backward + _compression(rows, ends, whole) + _delays(rows, ends)
    backward = np.cumsum(computing, axis=-1)
    summing = _around(rows.in_node_latency, rows.in_node_per_byte, rows.moved)
    return served(backward + rows.late[:, None], summing), backward[:, -1]


def _delays(rows: Rows, ends: Ends) -> Array:
    """Return by what messages sent earlier delay the backward pass before each gradient, on shared processors."""
    sending = _slowest(rows.busy_latency, ends) + in_message(rows.busy_transfer, ends) + rows.in_node_busy
    delays = np.zeros_like(sending)
    delays[:, 1:] = sending[:, :-1]
    return delays


def _around(latency: Array, per_byte: Array, moved: Array) -> Array:
    """Return the time of a collective within a node for each tensor that has one, which moves its bytes `moved`."""
    return np.where(moved > 0, latency[:, None] + per_byte[:, None] * moved, 0.0)


def timed(rows: Rows, ends: Ends, rule: Rule = RULES["none"]) -> Timed:
    """Return the steps of cases whose messages end at `ends` and are sent as under `rule`."""
    ready, computed = _sendable(rows, ends, rule.compresses_messages)
    if rule.cycle_seconds:
        ready = np.ceil(ready / rule.cycle_seconds) * rule.cycle_seconds
    several = in_message((rows.nbytes > 0).astype(float), ends) > 1
    copying = np.where(several, in_message(rows.copied, ends), 0.0)
    sending = _sending(rows, ends) + copying
    if rule.in_halves:
        return _in_halves(rows, ends, ready, sending, computed)
    sent = served(ready, sending)
    come = sent + np.where(sending > 0, rows.trailing[:, None], 0.0)
    # In the library the thread that ended the backward pass decompresses and gathers, tensor after tensor.
    gathering = _around(rows.gather_latency, rows.gather_per_byte, rows.moved)
    averaged = served(np.maximum(come, computed[:, None]), in_message(rows.unpack, ends) + in_message(gathering, ends))
    finish = np.maximum(averaged[:, -1], computed) + rows.settle
    return Timed(ends, sent - sending, sent, rows.forward + finish + rows.update, finish - computed)


def _sending(rows: Rows, ends: Ends) -> Array:
    """Return the time of each message on the link, at the place where it ends."""
    if rows.sending is None:
        return _slowest(rows.latency, ends) + in_message(rows.transfer, ends)
    return rows.sending(in_message(rows.payload, ends)) + in_message(rows.beside, ends)


def _slowest(latency: Array, ends: Ends) -> Array:
    """Return the latency of each message where it ends; all tensors of a case with a latency have the same one."""
    each = latency.max(axis=-1, keepdims=True)
    return np.where(in_message((latency > 0).astype(float), ends) > 0, each, 0.0)


def _in_halves(rows: Rows, ends: Ends, ready: Array, sending: Array, computed: Array) -> Timed:
    """Return steps whose all-reduces are cut in two (Zhang et al., "DeAR", ICDCS 2023).

    The reduce-scatters take half of the time, during the backward pass. When all have ended, the all-gathers follow in
    the order of the next forward pass; each of its layers waits for its own all-gather, is updated, and computes.
    """
    half = sending / 2
    scattered = served(ready, half)
    begin = np.maximum(scattered[:, -1], computed)[:, None]
    order = slice(None, None, -1)
    gathered = served(np.broadcast_to(begin, half.shape), half[:, order])
    share = rows.backward / rows.backward.sum(axis=-1, keepdims=True)
    weight = rows.moved / rows.moved.sum(axis=-1, keepdims=True)
    layers = in_message(rows.forward[:, None] * share + rows.update[:, None] * weight, ends)
    # A message's layers are consecutive, and the first of them is where the message ends in backward order.
    step = served(np.where(ends[:, order], gathered, begin), layers[:, order])[:, -1]
    return Timed(ends, scattered - half, scattered, step, step - computed - rows.forward - rows.update)


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
