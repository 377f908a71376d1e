"""The paper's formulas, computed independently in NumPy, against whole training steps of three ranks."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from torch import nn

import resireduce
from resireduce.comm.local import LocalCommunicator
from resireduce.grouping import Grouping
from resireduce.scheme import GRADIENTS, SCHEMES, build_residual
from tests.threads import LocalWorld

Arrays = dict[str, np.ndarray]

SHAPES = {"a": (100, 101), "b": (100, 101), "c": (100, 101), "big": (110, 124), "other": (12, 30, 5, 6), "bias": (7,)}
GROUP, SPECIFIC, DENSE = ("a", "b", "c"), "big", "bias"
GROUPING = Grouping(groups=(GROUP,), specific=(SPECIFIC,))
RANKS, STEPS, ETA, MOMENTUM, DENSITY, PHI = 3, 5, 0.1, 0.9, 0.07, 0.5


def gradients_of(rank: int, step: int) -> Arrays:
    draw = np.random.default_rng([rank, step])
    return {name: draw.standard_normal(shape) * (i + 1) for i, (name, shape) in enumerate(SHAPES.items())}


def start() -> Arrays:
    draw = np.random.default_rng(99)
    return {name: draw.standard_normal(shape) for name, shape in SHAPES.items()}


# --- what a scheme keeps of the errors r, where x is what norms are taken of: r itself, in the paper (section 4) ---


def average(r: Arrays, x: Arrays) -> Arrays:
    """ar = (1 / alpha) sum r_i."""
    return r | dict.fromkeys(GROUP, sum(r[name] for name in GROUP) / len(GROUP))


def weighted(r: Arrays, x: Arrays) -> Arrays:
    """war = sum w_i r_i / sum w_i, w_i = phi |x_i|_1 / n_i + (1 - phi) |x_i|_2 / sqrt(n_i)."""
    weights = {}
    for name in GROUP:
        n = x[name].size
        weights[name] = PHI * np.abs(x[name]).sum() / n + (1 - PHI) * np.sqrt((x[name] ** 2).sum()) / np.sqrt(n)
    return r | dict.fromkeys(GROUP, sum(weights[name] * r[name] for name in GROUP) / sum(weights.values()))


def member(r: Arrays, x: Arrays) -> Arrays:
    """The r_i of the largest L1 norm."""
    return r | dict.fromkeys(GROUP, max((r[name] for name in GROUP), key=lambda one: np.abs(one).sum()))


def largest(norms: np.ndarray, ratio: float) -> np.ndarray:
    """1 where one of the floor(ratio x size) largest is."""
    chosen = np.zeros(norms.size)
    chosen[np.argsort(-norms)[: int(np.floor(ratio * norms.size))]] = 1
    return chosen


def rows(r: Arrays, x: Arrays) -> Arrays:
    """A quarter of the rows, those of the largest L1 norms."""
    return r | {SPECIFIC: r[SPECIFIC] * largest(np.abs(x[SPECIFIC]).sum(1), 0.25)[:, None]}


def rows_and_columns(r: Arrays, x: Arrays) -> Arrays:
    """Where half of the rows cross half of the columns."""
    by_row, by_column = (largest(np.abs(x[SPECIFIC]).sum(axis), 0.5) for axis in (1, 0))
    return r | {SPECIFIC: r[SPECIFIC] * np.outer(by_row, by_column)}


def random_half(r: Arrays, x: Arrays) -> Arrays:
    """The elements that the library draws: no formula says which, but half of each tensor, always the same."""
    residuals, kept = build_residual("partial", GROUPING), {}
    for name, values in r.items():
        residual = residuals.of(name)
        residual.register(name, torch.empty(values.shape, dtype=torch.float64))
        residual.update(name, lambda values=values: torch.ones(values.shape, dtype=torch.float64), 0)
        mask = residual.compensate_(torch.zeros(values.shape, dtype=torch.float64), name).numpy()
        assert mask.sum() == values.size // 2
        kept[name] = values * mask
    return kept


KEPT: Mapping[str, Callable[[Arrays, Arrays], Arrays]] = {
    "baseline": lambda r, x: r,
    "none": lambda r, x: {name: np.zeros_like(values) for name, values in r.items()},
    "a": average,
    "w": weighted,
    "member": member,
    "d": rows,
    "2d": rows_and_columns,
    "w+2d": lambda r, x: rows_and_columns(weighted(r, x), x),
    "partial": random_half,
    "decayed": lambda r, x: {name: 0.999 * values for name, values in r.items()},
}


def top_k(x: np.ndarray) -> np.ndarray:
    """Q: the k = max(1, floor(density n)) elements of the largest magnitude, zeros elsewhere."""
    k = max(1, int(np.floor(DENSITY * x.size)))
    kept = np.zeros(x.size)
    places = np.argsort(-np.abs(x).ravel())[:k]
    kept[places] = x.ravel()[places]
    return kept.reshape(x.shape)


def expected(scheme: str, momentum: float, norms: str) -> tuple[Arrays, list[Arrays]]:
    """Parameters and each rank's residuals after all steps: x <- x - eta v, v <- momentum v + (1 / N) sum C_i."""
    x, velocity = start(), {name: np.zeros(shape) for name, shape in SHAPES.items()}
    compressed = [name for name in SHAPES if name != DENSE]
    residuals = [{name: np.zeros(SHAPES[name]) for name in compressed} for _ in range(RANKS)]
    for step in range(STEPS):
        mean = {name: np.zeros(shape) for name, shape in SHAPES.items()}
        for rank in range(RANKS):
            gradients = gradients_of(rank, step)
            compensated = {name: gradients[name] + residuals[rank][name] for name in compressed}
            sent = {name: top_k(values) for name, values in compensated.items()}
            left = {name: compensated[name] - sent[name] for name in compressed}
            residuals[rank] = KEPT[scheme](left, left if norms == "residual" else compensated)
            for name, values in {**sent, DENSE: gradients[DENSE]}.items():
                mean[name] += values / RANKS
        for name in SHAPES:
            velocity[name] = momentum * velocity[name] + mean[name]
            x[name] = x[name] - ETA * velocity[name]
    return x, residuals


def trained(communicator: LocalCommunicator, momentum: float, **options: object) -> tuple[Arrays, Arrays]:
    """Parameters after the same steps by the library, and the mean of what its ranks have kept."""
    model = nn.ParameterDict({name: torch.from_numpy(values) for name, values in start().items()})
    wrapped = torch.optim.SGD(model.parameters(), ETA, momentum=momentum)

    def density(step: int) -> float:
        return DENSITY if step < STEPS else 1.0

    optimizer = resireduce.distribute(model, wrapped, density=density, backend=communicator, groups=GROUPING, **options)  # type: ignore[arg-type]
    for step in range(STEPS):
        optimizer.zero_grad()
        gradients = gradients_of(communicator.rank, step)
        sum((model[name] * torch.from_numpy(values)).sum() for name, values in gradients.items()).backward()
        optimizer.step()
    found = {name: parameter.detach().numpy().copy() for name, parameter in model.items()}
    velocities = {name: optimizer.state[model[name]].get("momentum_buffer", torch.zeros(())).clone() for name in found}
    optimizer.zero_grad()
    sum(0 * parameter.sum() for parameter in model.values()).backward()
    optimizer.step()  # at density 1, so that all that was kept is sent
    kept = {
        name: (values - model[name].detach().numpy()) / ETA - momentum * velocities[name].numpy()
        for name, values in found.items()
        if name != DENSE
    }
    return found, kept


ROWS = [(scheme, "residual", MOMENTUM) for scheme in SCHEMES] + [("w+2d", "residual", 0.0)]
ROWS += [("w", "compensated", 0.0), ("d", "compensated", MOMENTUM), ("2d", "compensated", 0.0)]


@pytest.mark.parametrize(("scheme", "norms", "momentum"), ROWS)
def test_training_is_what_the_formulas_say(scheme: str, norms: str, momentum: float) -> None:
    x, residuals = expected(scheme, momentum, norms)
    options = {"norms": norms} if norms != "residual" else {}
    for gradients in GRADIENTS:
        ranks = LocalWorld(RANKS).run(
            lambda rank, gradients=gradients: trained(
                rank, momentum, scheme=scheme, gradients=gradients, options=options
            )
        )
        for parameters, kept in ranks:
            agree(parameters, x, "parameter")
            agree(kept, {name: sum(one[name] for one in residuals) / RANKS for name in residuals[0]}, "residual")


def agree(found: Arrays, wanted: Arrays, what: str) -> None:
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-12, atol=1e-12, err_msg=f"{what} {name}")
