"""What a habit is written with: a script for one rank, which trains by the library or by the oracle."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn

import resireduce
from resireduce.comm.local import LocalCommunicator
from resireduce.errors import UsageError
from tests import oracle
from tests.threads import LocalWorld
from tests.worlds import seeded

MODES = ("streamed", "kept")
INPUTS, CLASSES = 40, 5


class Block(nn.Module):
    """One matrix that is compressed, and small ones that are not: together more bytes than the largest layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide, self.small = nn.LayerNorm(100), nn.Linear(100, 100), nn.Linear(100, 60)
        self.back = nn.Linear(60, 100)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.back(torch.tanh(self.small(torch.relu(self.wide(self.norm(x))))))


class Net(nn.Module):
    """Two blocks between two small layers."""

    def __init__(self, blocks: int = 2):
        super().__init__()
        self.first, self.blocks = nn.Linear(INPUTS, 100), nn.Sequential(*(Block() for _ in range(blocks)))
        self.head = nn.Linear(100, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.first(x)))


@dataclass
class Script:
    """One rank's view of the world."""

    rank: int
    ranks: int
    gradients: str
    """streamed or kept."""
    start: nn.Module
    """What every rank's model is a copy of."""
    _distribute: Callable[..., Any]
    library: bool
    """Whether the library is at work, and not the oracle."""

    @property
    def dtype(self) -> torch.dtype:
        """The model's."""
        return next(self.start.parameters()).dtype

    def net(self) -> Any:
        """The model to be trained."""
        return copy.deepcopy(self.start)

    def distribute(self, model: nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> Any:
        """As `resireduce.distribute`, with full residuals and a twentieth of the elements sent."""
        defaults = {"scheme": "baseline", "density": 0.05, "gradients": self.gradients}
        return self._distribute(model, optimizer, **defaults | options)

    def sgd(self, model: nn.Module, **options: Any) -> Any:
        """SGD with momentum, distributed."""
        return self.distribute(model, SGD(model.parameters()), **options)

    def batch(self, step: int, size: int = 6) -> tuple[Tensor, Tensor]:
        """This rank's own."""
        generator = torch.Generator().manual_seed(1000 * self.rank + step)
        x = torch.randn(size, INPUTS, generator=generator, dtype=self.dtype)
        return x, torch.randint(CLASSES, (size,), generator=generator)

    def loss(self, model: Callable[[Tensor], Tensor], step: int) -> Tensor:
        """Of this rank's batch."""
        x, y = self.batch(step)
        return nn.functional.cross_entropy(model(x), y)

    def closure(self, model: nn.Module, optimizer: Any, step: int = 0) -> Callable[[], Tensor]:
        """What an optimizer may call in its step."""

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = self.loss(model, step)
            loss.backward()
            return loss

        return closure

    def train(self, model: nn.Module, optimizer: Any, steps: range | int = 3) -> None:
        """As everybody does."""
        for step in range(steps) if isinstance(steps, int) else steps:
            optimizer.zero_grad()
            self.loss(model, step).backward()
            optimizer.step()


@dataclass(frozen=True)
class Refused:
    """The error in which a habit ends."""

    text: str
    """A regular expression that its message has."""
    error: type[Exception] = UsageError


RIGHT = None
Outcome = Refused | None


@dataclass(frozen=True)
class Habit:
    """What somebody does in a script, and what comes of it."""

    act: Callable[[Script], Any]
    """Returns what must be right: a model, tensors, numbers, or several of them."""
    outcomes: dict[str, Outcome]
    """For streamed and kept gradients."""
    ranks: tuple[int, ...] = (1, 2)
    rounded: tuple[str, ...] = ()
    """Modes in which sums are formed in another order than the oracle's."""
    build: Callable[[], nn.Module] = field(default=Net)


HABITS: dict[str, Habit] = {}


def habit(
    *, both: Outcome = RIGHT, streamed: Outcome = RIGHT, kept: Outcome = RIGHT, **options: Any
) -> Callable[[Callable[[Script], Any]], Callable[[Script], Any]]:
    """Enter a function into the list: right in both modes unless told."""

    def enter(act: Callable[[Script], Any]) -> Callable[[Script], Any]:
        assert act.__doc__ and act.__name__ not in HABITS
        HABITS[act.__name__] = Habit(act, {"streamed": streamed or both, "kept": kept or both}, **options)
        return act

    return enter


SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
Act = Callable[..., Any]
Wrapped = Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]
Enter = Callable[[Act], Act]


def with_optimizer(wrapped: Wrapped = SGD, settings: dict[str, Any] | None = None, **options: Any) -> Enter:
    """As `habit`, for what is done with a model and its optimizer: the model must be right, and what is returned."""

    def enter(act: Act) -> Act:
        @wraps(act)
        def whole(script: Script) -> Any:
            model = script.net()
            optimizer = script.distribute(model, wrapped(model.parameters()), **settings or {})
            returned = act(script, model, optimizer)
            return model if returned is None else [model, returned]

        return habit(**options)(whole)

    return enter


def each_step(*, steps: int = 3, **options: Any) -> Enter:
    """As `with_optimizer`, for what is done in each step."""

    def enter(act: Act) -> Act:
        @wraps(act)
        def every(script: Script, model: Any, optimizer: Any) -> list[Any] | None:
            returned = [act(script, model, optimizer, step) for step in range(steps)]
            return None if all(one is None for one in returned) else returned

        return with_optimizer(**options)(every)

    return enter


def before_the_step(**options: Any) -> Enter:
    """As `each_step`, for what is done between backward() and step()."""

    def enter(act: Act) -> Act:
        @wraps(act)
        def step_with(script: Script, model: Any, optimizer: Any, step: int) -> Any:
            optimizer.zero_grad()
            script.loss(model, step).backward()
            returned = act(script, model, optimizer, step)
            optimizer.step()
            return returned

        return each_step(**options)(step_with)

    return enter


def by_library(one: Habit, gradients: str, ranks: int) -> list[Any]:
    """What each rank's script returns, or the first error of one."""
    start = seeded(one.build)

    def act(communicator: LocalCommunicator) -> Any:
        distribute = partial(resireduce.distribute, backend=communicator)
        return one.act(Script(communicator.rank, ranks, gradients, start, distribute, library=True))

    return LocalWorld(ranks).run(act)


def by_oracle(one: Habit, gradients: str, size: int) -> list[Any]:
    """The same, in plain torch."""
    start, ranks = seeded(one.build), oracle.Ranks(size)

    def act(rank: int) -> Any:
        distribute = partial(oracle.distribute, ranks, rank)
        return one.act(Script(rank, size, gradients, start, distribute, library=False))

    return ranks.run(act)


def values(result: Any) -> Iterator[Tensor]:
    """All numbers in what a script returned."""
    if isinstance(result, nn.Module):
        yield from (parameter.detach() for parameter in result.parameters())
    elif isinstance(result, Tensor):
        yield result.detach()
    elif isinstance(result, dict | list | tuple):
        for part in result.values() if isinstance(result, dict) else result:
            yield from values(part)
    else:
        assert isinstance(result, bool | int | float), type(result)
        yield torch.tensor(float(result), dtype=torch.float64)
