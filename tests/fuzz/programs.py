"""Small models and training scripts, as data that a generator composes and that prints as what failed."""

from dataclasses import dataclass

import hypothesis.strategies as st

WIDTH = 100
"""So that a square matrix has just the 10,000 elements from which on it is compressed."""


@dataclass(frozen=True)
class Layer:
    """One layer; those that keep the width of their input can be used again, tied or frozen."""

    kind: str
    """A key of `tests.fuzz.build.KINDS`."""
    bias: bool = True
    frozen: bool = False
    uses: int = 1
    """How often in a row it is applied."""
    tied_to: int | None = None
    """The layer before it (modulo their number) whose weight it shares, if that is of the same kind."""
    skipped_by: int | None = None
    """The rank that does not use it in odd steps."""


@dataclass(frozen=True)
class Model:
    """An optional embedding, layers, and a head."""

    embedding: bool
    layers: tuple[Layer, ...]
    tied_head: bool
    """With an embedding: its weight is the head's, too."""
    unused: bool
    """Whether there is a layer that nobody uses."""


@dataclass(frozen=True)
class Step:
    """One step of training."""

    how: str
    """backward, by_hand, part_by_hand, closure, inputs, nothing."""
    passes: int = 1
    idle: int | None = None
    """The rank that has no batch in this step."""
    norms_logged: bool = False
    """Whether parameters are read between backward() and step()."""
    rate: float | None = None
    """Set between backward() and step(), as so many times the first; large ones saturate, and make gradients equal."""
    shrunk: bool = False
    """Whether weights are scaled in place after the step, through .data."""
    frozen: int | None = None
    """A layer that has no gradient in this step, by requires_grad_."""


@dataclass(frozen=True)
class Program:
    """All that a script does."""

    model: Model
    steps: tuple[Step, ...]
    optimizer: str
    groups: bool
    """Whether biases and norms have options of their own."""
    zero_grad: str
    """before, after, twice, zeros, model, forgotten."""
    accumulation: str
    """no_sync or announced: how several passes are told; all steps have the same number where announced."""
    scheduler: str | None
    """step, cycle, or none; before or after the step."""
    scheduler_first: bool
    compressor: str
    density: float
    max_grad_norm: float | None
    warm_up_steps: int
    saved_after: int | None
    """The step after which model and optimizer are saved and loaded."""
    redistributed_after: int | None
    """The step after which the optimizer is closed and distributed again."""
    seed: int


OPTIMIZERS = ("sgd", "momentum", "adamw", "adamw-fused", "rmsprop", "counting", "clipping")

layers = st.builds(
    Layer,
    kind=st.sampled_from(("wide", "wide", "tall", "small", "norm", "scale", "scalar", "turned", "detached", "normed")),
    bias=st.booleans(),
    frozen=st.sampled_from((False, False, False, True)),
    uses=st.sampled_from((1, 1, 1, 2)),
    tied_to=st.none() | st.integers(0, 3),
    skipped_by=st.none() | st.sampled_from((0, 1)),
)
models = st.builds(
    Model,
    embedding=st.booleans(),
    layers=st.lists(layers, min_size=1, max_size=5).map(tuple),
    tied_head=st.booleans(),
    unused=st.booleans(),
)
steps = st.builds(
    Step,
    how=st.sampled_from(("backward",) * 5 + ("by_hand", "part_by_hand", "closure", "inputs", "nothing")),
    passes=st.sampled_from((1, 1, 1, 2, 3)),
    idle=st.sampled_from((None, None, None, 0, 1)),
    norms_logged=st.booleans(),
    rate=st.none() | st.sampled_from((0.0, 0.1, 2.0)),
    shrunk=st.booleans(),
    frozen=st.none() | st.integers(0, 4),
)
programs = st.builds(
    Program,
    model=models,
    steps=st.lists(steps, min_size=2, max_size=5).map(tuple),
    optimizer=st.sampled_from(OPTIMIZERS),
    groups=st.booleans(),
    zero_grad=st.sampled_from(("before", "after", "twice", "zeros", "model", "forgotten")),
    accumulation=st.sampled_from(("no_sync", "announced")),
    scheduler=st.none() | st.sampled_from(("step", "cycle")),
    scheduler_first=st.booleans(),
    compressor=st.sampled_from(("topk", "topk", "topk", "none")),
    density=st.sampled_from((0.001, 0.02, 0.3, 1.0)),
    max_grad_norm=st.none() | st.sampled_from((0.01, 0.5, float("inf"))),
    warm_up_steps=st.sampled_from((0, 0, 0, 2)),
    saved_after=st.none() | st.integers(0, 3),
    redistributed_after=st.none() | st.integers(0, 3),
    seed=st.integers(0, 1000),
)
