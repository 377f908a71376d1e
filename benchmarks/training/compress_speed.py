"""Times the compression of a gradient, by plain torch and by the library in turn, for `measure micro`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.training.measure_rank import in_turn, now
from resireduce.comm.local import LocalCommunicator
from resireduce.core.feedback import ErrorFeedback
from resireduce.core.messages import Payload, Round
from resireduce.errors import ConfigError
from resireduce.grouping import Grouping
from resireduce.pieces import share
from resireduce.pipeline import build_feedback, find_compressor
from resireduce.scheme import COMPRESSORS
from resireduce.settings import Settings

Step = Callable[[Sequence[Tensor], int], object]
"""Compresses contiguous gradients, whose memory it may overwrite, in step number 0, 1, ..."""
COPY, TOPK, NAIVE, GRACE = "copy", "torch.topk", "naive", "GRACE's form"
GROUPED, SPECIFIC, BOTH = ("a", "w", "member"), ("d", "2d"), ("w+2d",)
PRECISIONS = ("bfloat16", "float8_e4m3", "int8", "int4")
LEFT_OUT = ("none", "threshold")
"""Compressors that leave nothing in a residual, or have no comparable density."""


@dataclass(frozen=True)
class Case:
    """One way, and the number of gradients in its step: two for groups, which share a residual; three for w+2d."""

    name: str
    make: Callable[[Tensor, float], Step]
    gradients: int = 1


def list_cases() -> list[Case]:
    """Return all cases: of plain torch first, then top-k by scheme and by precision, then the other compressors."""
    plain = [Case(COPY, _copy), Case(TOPK, _topk), Case(NAIVE, _naive), Case(GRACE, partial(_naive, grace=True))]
    schemes = ("baseline", *GROUPED, *SPECIFIC, *BOTH)
    others = [name for name in COMPRESSORS if name not in ("topk", *LEFT_OUT)]
    return [
        *plain,
        *(Case(f"topk, {scheme}", _library("topk", scheme, None), _gradients(scheme)) for scheme in schemes),
        *(Case(f"topk, baseline, {one}", _library("topk", "baseline", one)) for one in PRECISIONS),
        *(Case(f"{name}, baseline", _library(name, "baseline", None)) for name in others),
    ]


def _gradients(scheme: str) -> int:
    """Return the number of gradients: two that share a residual and one specific, if the scheme has these."""
    return 3 if scheme in BOTH else 2 if scheme in GROUPED else 1


def _copy(like: Tensor, density: float) -> Step:
    """Copy once to memory that was used before: the speed of this machine's memory."""
    target = like.clone()
    return lambda gradients, _: target.copy_(gradients[0])


def _topk(like: Tensor, density: float) -> Step:
    """Only select, by plain torch: what no exact top-k can do without."""
    k = share(density, like.numel())
    return lambda gradients, _: torch.topk(gradients[0].view(-1).abs(), k, sorted=False).indices


def _naive(like: Tensor, density: float, grace: bool = False) -> Step:
    """Follow the definition: a sum, `torch.topk` of its magnitudes, the values sent, and zeros in their places.

    With `grace` as GRACE (Xu et al., ICDCS 2021) does: scaled sums, a dense copy of the payload, and a difference.
    """
    k, held, beta, gamma = share(density, like.numel()), [torch.zeros_like(like).view(-1)], 1.0, 1.0

    def step(gradients: Sequence[Tensor], number: int) -> tuple[Tensor, Tensor]:
        gradient = gradients[0].view(-1)
        compensated = beta * held.pop() + gamma * gradient if grace else held.pop() + gradient
        places = torch.topk(compensated.abs(), k, sorted=False).indices
        values = compensated[places]
        if grace:
            held.append(compensated - torch.zeros_like(compensated).scatter_(0, places, values))
        else:
            compensated[places] = 0
            held.append(compensated)
        return values, places

    return step


def _library(compressor: str, scheme: str, precision: str | None) -> Callable[[Tensor, float], Step]:
    def make(like: Tensor, density: float) -> Step:
        model = nn.ParameterList(torch.empty_like(like) for _ in range(_gradients(scheme)))
        parameters = dict(model.named_parameters())
        names = tuple(parameters)
        grouping = Grouping(
            groups=(names[:2],) if scheme in (*GROUPED, *BOTH) else (),
            specific=names[-1:] if scheme in (*SPECIFIC, *BOTH) else (),
        )
        settings = Settings(scheme, compressor, density, groups=grouping, residual_dtype=precision)
        feedback, _ = build_feedback(model, parameters, find_compressor(settings), LocalCommunicator(), settings)
        for name, parameter in parameters.items():
            feedback.register(name, parameter)

        def step(gradients: Sequence[Tensor], number: int) -> list[Payload]:
            feedback.begin_step(number)
            pairs = zip(reversed(parameters), reversed(gradients), strict=True)
            sent = [_payload_of(feedback, gradient, name, number) for name, gradient in pairs]
            feedback.residual.end_step(number)
            feedback.states.commit()
            return sent

        return step

    return make


def _payload_of(feedback: ErrorFeedback, gradient: Tensor, name: str, number: int) -> Payload:
    """Return the payload of a gradient, after all rounds that find it."""
    feedback.finiteness.check(gradient, name)
    made = feedback.compress({name: gradient}, number)
    while isinstance(made, Round):
        feedback.send(made)
        made = feedback.end_round(made)
    return made.payloads[0]


WARM_UP_ROUNDS = 1


def measured(settings: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Time all cases at each size and density that the settings name, report progress, and return the rows.

    Raises ConfigError if they name a case that there is not.
    """
    cases = chosen(settings["cases"])
    torch.set_num_threads(settings["threads"])
    device, rows = torch.device(settings["device"]), list[dict[str, Any]]()
    for elements in settings["sizes"]:
        for density in settings["densities"]:
            shape = elements // settings["row"], settings["row"]
            rows += timed(cases, shape, density, settings["rounds"], device)
            print(f"{elements:,} elements, density {density:g}: timed", flush=True)
    return rows


def chosen(patterns: Sequence[str]) -> list[Case]:
    """Return the cases that `patterns` name, and those that all others are compared with.

    Raises ConfigError if there is none for one of them.
    """
    cases = list_cases()
    for pattern in patterns:
        if not any(fnmatchcase(case.name, pattern) for case in cases):
            names = "; ".join(case.name for case in cases)
            raise ConfigError(f"cases: {pattern!r} is not known; there are: {names}")
    wanted = {*patterns, COPY, NAIVE}
    return [case for case in cases if any(fnmatchcase(case.name, pattern) for pattern in wanted)]


def timed(
    cases: list[Case], shape: tuple[int, int], density: float, rounds: int, device: torch.device
) -> list[dict[str, Any]]:
    """Return a row for each case: its seconds for one gradient in each round, in the order of rounds.

    Each step has gradients of its own, as in training; making them is not timed.
    """
    source = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device)

    def took(step: Step, count: int, number: int) -> float:
        gradients = [source.clone() for _ in range(count)]
        started = now(source)
        step(gradients, number)
        return (now(source) - started) / count

    timings = [partial(took, case.make(source, density), case.gradients) for case in cases]
    seconds = in_turn(timings, range(WARM_UP_ROUNDS + rounds), WARM_UP_ROUNDS)
    at = {"elements": source.numel(), "density": density}
    return [{"case": case.name, **at, "seconds": found} for case, found in zip(cases, seconds, strict=True)]
