"""One training run of the matrix, as plain validated values. Standard library only."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

from benchmarks.core import scheme_options
from benchmarks.core.checks import allow, integer, known_keys
from benchmarks.core.registry import OBSERVATIONS, WATCHES
from benchmarks.core.workloads import OPTIMIZERS, WORKLOADS, Workload
from resireduce.errors import ConfigError, check_share, choose
from resireduce.scheme import COMPRESSORS, GRADIENTS, HIERARCHIES, RESIDUAL_DTYPES, SCHEMES

LAUNCHED = ("local", "torch", "horovod")
"""Backends that a cell's ranks can be started with."""
DATA = ("real", "synthetic")
"""Synthetic data are random inputs of the right shapes, for memory and speed; weights are then random too."""

SHORTEST = 8
"""Smallest number of tokens of a text: room for a question, an answer and their markers."""
OWN = ("optimizer", "learning_rate", "schedule")
"""Fields of a recipe that a cell may have its own value of."""
SHAPES = ("constant", "linear", "cosine")
"""Schedules that a cell can choose; that of steps needs milestones, which belong to a recipe."""
NAME_LISTS = ("released", "observe")
"""Fields of a cell that are themselves lists of names."""
CHOICES: dict[str, Iterable[str]] = {
    **{"model": WORKLOADS, "compressor": COMPRESSORS, "scheme": SCHEMES, "gradients": GRADIENTS, "backend": LAUNCHED},
    **{"residual_dtype": RESIDUAL_DTYPES, "data": DATA, "optimizer": OPTIMIZERS, "schedule": SHAPES},
    "hierarchy": HIERARCHIES,
}
NUMBERS = {
    **{"seed": (0, 2**32 - 1), "world_size": (1, 128), "threads": (1, 1024), "nodes": (1, 128)},
    **{"ranks_per_node": (1, 128), "steps": (1, 10**9), "batch_per_rank": (1, 10**6), "length": (1, 10**6)},
}
OPTIONAL = ("residual_dtype", "optimizer", "schedule", "nodes", "ranks_per_node", "steps", "batch_per_rank", "length")
"""What each field may be: one of some names (CHOICES), or a number between two (NUMBERS); these may also be None."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training run. Settings that a cell does not name (batch, schedule, ...) are its model's workload's."""

    model: str
    compressor: str = "topk"
    scheme: str = "baseline"
    gradients: str = "kept"
    residual_dtype: str | None = None
    """None stores residuals in the gradient's own type."""
    density: float = 0.01
    """Share of elements sent; always 1 with a compressor that sends all of them."""
    optimizer: str | None = None
    """A name in `benchmarks.core.workloads.OPTIMIZERS`; None: the recipe's."""
    learning_rate: float | None = None
    """Largest learning rate, as the recipe's, which None takes."""
    schedule: str | None = None
    """How the learning rate changes: a name in SHAPES; None: as in the recipe."""
    seed: int = 0
    world_size: int = 2
    nodes: int | None = None
    """Machines that its ranks are spread over evenly; None: as few as hold them. More than one needs Slurm."""
    backend: str = "torch"
    steps: int | None = None
    """Optimizer steps; None takes the workload's."""
    threads: int = 1
    """CPU threads that a rank computes with, however many CPUs it is given: the order of sums depends on it."""
    data: str = "real"
    batch_per_rank: int | None = None
    """Samples of one rank in a step; None takes the workload's."""
    length: int | None = None
    """Tokens of a sample; None takes the workload's."""
    released: tuple[str, ...] = ()
    """Deviations of the paper's released code that this cell reproduces: names in the workload's `released`."""
    options: Any = ()
    """Options of the scheme's residuals, given as a mapping, stored in a hashable form: `core.scheme_options`."""
    observe: tuple[str, ...] = ()
    """Additional observations: names in OBSERVATIONS and WATCHES of `benchmarks.core.registry`."""
    hierarchy: str = "flat"
    """Whether every rank compresses by itself, or each rank of a node compresses a slice of the node's mean."""
    ranks_per_node: int | None = None
    """Ranks that count as one node if the hierarchy is by nodes; None: all ranks that share a machine."""
    merge: Any = "none"
    """Which compressed tensors travel in one message: a name, bytes, or lists of names, stored in a hashable form:
    `core.merge_option`."""

    def __post_init__(self) -> None:
        """Raise ConfigError for the first field that is not allowed."""
        for name, allowed in CHOICES.items():
            if getattr(self, name) is not None or name not in OPTIONAL:
                choose(name, getattr(self, name), allowed)
        object.__setattr__(self, "density", check_share("density", self.density))
        for name, (least, most) in NUMBERS.items():
            if getattr(self, name) is not None or name not in OPTIONAL:
                integer(name, getattr(self, name), least, most)
        rate = self.learning_rate
        if rate is not None:
            fits = isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate < math.inf
            allow("learning_rate", rate, fits, "a finite number greater than 0")
            object.__setattr__(self, "learning_rate", float(rate))
        for name in OWN:  # those of the recipe become None, so that each cell has one name
            if getattr(self, name) == getattr(WORKLOADS[self.model], name):
                object.__setattr__(self, name, None)
        object.__setattr__(self, "merge", scheme_options.freeze_merge(self.merge, self.compressor))
        object.__setattr__(self, "options", scheme_options.freeze(self.options, self.scheme))
        self._check_workload()
        self._check_combinations()
        self._check_places()

    def _check_workload(self) -> None:
        workload = WORKLOADS[self.model]
        self._set_names("released", workload.released)
        if self.data == "synthetic" and not workload.data:
            raise ConfigError(f"data: 'synthetic' is not allowed for {self.model!r}, whose data are always at hand")
        if self.length is not None and workload.length is None:
            raise ConfigError(f"length: {self.length} is not allowed for {self.model!r}; allowed: null")
        if self.length is not None and workload.positions is not None:
            integer("length", self.length, SHORTEST, workload.positions)

    def _check_combinations(self) -> None:
        if not COMPRESSORS[self.compressor].selects:
            object.__setattr__(self, "density", 1.0)
        if self.compressor == "none" and self.scheme != "none":
            raise ConfigError(f"scheme: {self.scheme!r} is not allowed with compressor 'none'; allowed: none")
        optimizer = self.workload.optimizer
        if COMPRESSORS[self.compressor].corrects_momentum and optimizer != "sgd":
            raise ConfigError(
                f"compressor: {self.compressor!r} takes the place of SGD's momentum; {self.model!r} is trained by "
                f"{optimizer}; give another compressor"
            )
        self._set_names("observe", OBSERVATIONS | WATCHES)
        if {*self.observe} & OBSERVATIONS.keys() and (self.scheme, self.residual_dtype) != ("baseline", None):
            raise ConfigError(
                f"observe: {self.observe[0]!r} needs every tensor's own residual; allowed with scheme baseline and "
                "residual_dtype null"
            )

    def _check_places(self) -> None:
        ranks, nodes, together = self.world_size, self.nodes, self.ranks_per_node
        if self.backend == "local" and ranks != 1:
            raise ConfigError(f"world_size: {ranks} is not allowed with backend 'local'; allowed: 1")
        if nodes is not None and ranks % nodes:
            raise ConfigError(f"nodes: {nodes} is not allowed with world_size {ranks}, which it must divide evenly")
        if self.hierarchy == "node" and ranks == 1:
            raise ConfigError("hierarchy: 'node' is not allowed with world_size 1; allowed: flat")
        if together is not None and self.hierarchy != "node":
            raise ConfigError(f"ranks_per_node: {together} is allowed with hierarchy 'node' only")
        if together is not None and ranks // (nodes or 1) % together:
            raise ConfigError(
                f"ranks_per_node: {together} is not allowed with {ranks // (nodes or 1)} ranks on a machine, which it "
                "must divide evenly"
            )

    def _set_names(self, field: str, allowed: Iterable[str]) -> None:
        """Check a list of names, and put it into a fixed order."""
        given = getattr(self, field)
        allow(field, given, isinstance(given, list | tuple), "a list of names")
        object.__setattr__(self, field, tuple(sorted({choose(field, name, allowed) for name in given})))

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """Build a cell from plain values. Raises ConfigError, one line, for unknown, missing or disallowed values.

        Records of earlier versions have the field `slices`, which is null in all cells that can still be run.
        """
        if isinstance(values, dict) and values.get("slices", 0) is None:
            values = {name: value for name, value in values.items() if name != "slices"}
        known_keys("cell", values, CELL_FIELDS)
        if "model" not in values:
            raise ConfigError(f"model: missing; allowed: {', '.join(sorted(WORKLOADS))}")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values, from which from_dict makes the same cell."""
        lists = {name: list(getattr(self, name)) for name in NAME_LISTS}
        plain = {"options": scheme_options.thaw(self.options), "merge": scheme_options.thaw_merge(self.merge)}
        return asdict(self) | lists | plain

    @property
    def workload(self) -> Workload:
        """The recipe, with this cell's own optimizer, learning rate and schedule."""
        own = {name: value for name in OWN if (value := getattr(self, name)) is not None}
        return replace(WORKLOADS[self.model], **own)

    @property
    def update(self) -> str:
        """When parameters change. Uncompressed streamed gradients are used and freed in the backward pass instead of
        waiting for the step: this is the least memory that training needs. Averages gathered within a node are used in
        the step."""
        plain = (self.compressor, self.gradients, self.hierarchy) == ("none", "streamed", "flat")
        return "in_backward" if plain else "in_step"

    @property
    def data_name(self) -> str | None:
        """Name in `benchmarks.core.registry.DATASETS` of the training data; None if installed packages contain them."""
        return "wikitext-2" if "wikitext-2" in self.released else WORKLOADS[self.model].data

    @property
    def needs(self) -> tuple[str, ...]:
        """Names in `benchmarks.core.registry.DATASETS` of everything that it reads; none with synthetic data."""
        workload = WORKLOADS[self.model]
        names = (self.data_name, workload.vocabulary, workload.weights) if self.data == "real" else ()
        return tuple(name for name in names if name)

    @property
    def name(self) -> str:
        """Unique name, safe as a file name; it contains the rarer fields only where they differ from the default."""
        parts = [self.model, self.compressor, self.scheme, self.gradients]
        parts += [self.residual_dtype] if self.residual_dtype else []
        parts += [f"d{self.density!r}"] if COMPRESSORS[self.compressor].selects else []
        parts += [self.optimizer] if self.optimizer else []
        parts += [f"lr{self.learning_rate!r}"] if self.learning_rate is not None else []
        parts += [self.schedule] if self.schedule else []
        parts += [f"s{self.seed}"]
        parts += [f"n{self.world_size}"] if self.world_size != 2 else []
        parts += [f"nodes{self.nodes}"] if self.nodes is not None else []
        parts += [f"by-node{self.ranks_per_node or ''}"] if self.hierarchy == "node" else []
        parts += scheme_options.merge_name(self.merge)
        parts += [self.backend] if self.backend != "torch" else []
        parts += [f"steps{self.steps}"] if self.steps is not None else []
        parts += [f"t{self.threads}"] if self.threads != 1 else []
        parts += [self.data] if self.data != "real" else []
        parts += [f"b{self.batch_per_rank}"] if self.batch_per_rank is not None else []
        parts += [f"l{self.length}"] if self.length is not None else []
        parts += [f"as-{name}" for name in self.released]
        parts += scheme_options.names(self.options)
        parts += [f"observe-{name}" for name in self.observe]
        return ".".join(parts)


CELL_FIELDS = tuple(f.name for f in fields(Cell))
