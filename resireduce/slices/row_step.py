"""An elementwise optimizer's step of one large parameter, taken on slices of rows, without a whole gradient."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

ELEMENTWISE = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad")
"""Classes of torch.optim in whose step each element of a parameter depends only on its own gradient and state, and on
numbers that all elements share."""


def is_elementwise(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the class of `optimizer` is one of ELEMENTWISE. A subclass may do anything, so it does not count."""
    return any(type(optimizer) is getattr(torch.optim, name) for name in ELEMENTWISE)


def footprint(optimizer: torch.optim.Optimizer) -> tuple[int, int]:
    """Return how many tensors of the parameter's size the state of `optimizer`, one of ELEMENTWISE, has at least, and
    how many of the gradient's size, itself included, a step needs at once at most.

    This holds for implementations that update one parameter after the other: fused ones need less.
    """
    held, made = {"SGD": (0, 1), "Adam": (2, 3), "AdamW": (2, 3), "RMSprop": (1, 2), "Adagrad": (1, 2)}[
        type(optimizer).__name__
    ]
    groups = optimizer.param_groups
    if type(optimizer) is torch.optim.SGD:
        held = int(all(group["momentum"] for group in groups))
    return held, made + max(map(_made_first, groups))


def _made_first(group: Mapping[str, Any]) -> int:
    """Return how many more tensors are made of a gradient for the options of its `group`: at most two of three."""
    decays = bool(group["weight_decay"]) and not group.get("decoupled_weight_decay", False)
    return min(2, decays + bool(group.get("maximize")) + bool(group.get("nesterov")))


def step_in_rows(
    optimizer: torch.optim.Optimizer,
    step: Callable[[], object],
    parameter: Tensor,
    averages: Iterable[tuple[slice, Tensor]],
) -> None:
    """Have `optimizer`, one of ELEMENTWISE, update `parameter` as by one step with all `averages` of its rows.

    While `step` is called, a view of the rows replaces the parameter in its group, and views of its state replace the
    state. State made by the first step is allocated whole. Numbers that all elements share, like the count of steps,
    advance once.

    Args:
        optimizer: holds the parameter in one of its groups.
        step: updates what is in the groups and has a gradient.
        parameter: of one dimension at least.
        averages: slices that together cover all rows, with the averaged gradient of each.
    """
    before = optimizer.state.get(parameter)
    state: dict[str, Any] = dict(before or {})
    whole = {key: value for key, value in state.items() if not _is_shared(value, parameter)}
    alike = {key: value for key, value in state.items() if key not in whole}
    shared, plain = dict(alike), parameter.detach()
    with _alone(optimizer, parameter) as place:
        for rows, average in averages:
            view = place[0] = plain[rows]
            view.grad = average
            cut = {key: value[rows] for key, value in whole.items()}
            if before is not None:
                optimizer.state[view] = cut | {key: _copied(value) for key, value in alike.items()}
            step()
            made = optimizer.state.pop(view, {}).items()
            new = {key: value for key, value in made if key not in cut or value is not cut[key]}
            shared |= _put_back(new, state, parameter, rows)
            view.grad = None
            del average  # before the next is made
    _update(state, shared)
    if state or before is not None:
        optimizer.state[parameter] = state if before is None else before
        optimizer.state[parameter].update(state)


@contextmanager
def _alone(optimizer: torch.optim.Optimizer, parameter: Tensor) -> Iterator[list[Tensor]]:
    """Return a context in which `optimizer` holds only the tensor that is put into the list, in the group of
    `parameter`."""
    held = [group["params"] for group in optimizer.param_groups]
    place = [parameter]
    for group in optimizer.param_groups:
        group["params"] = place if any(one is parameter for one in group["params"]) else []
    try:
        yield place
    finally:
        for group, parameters in zip(optimizer.param_groups, held, strict=True):
            group["params"] = parameters


def _is_shared(value: object, parameter: Tensor) -> bool:
    """Whether `value` of a state is shared by all elements of `parameter`."""
    return not (isinstance(value, Tensor) and value.dim() == parameter.dim())


def _update(state: dict[str, Any], shared: Mapping[str, Any]) -> None:
    """Put the `shared` values into a `state`: into the tensors that it has, or in their place."""
    for key, value in shared.items():
        if isinstance(state.get(key), Tensor):
            state[key].copy_(value)
        else:
            state[key] = value


def _copied(value: Any) -> Any:
    """Return a copy of `value`, which the step may change in place."""
    return value.clone() if isinstance(value, Tensor) else value


def _put_back(made: dict[str, Any], state: dict[str, Any], parameter: Tensor, rows: slice) -> dict[str, Any]:
    """Put what a step on `rows` has newly `made` into `state`, that of all rows; return what all elements share."""
    shared = {}
    for key, value in made.items():
        if _is_shared(value, parameter):
            shared[key] = value
            continue
        if not isinstance(state.get(key), Tensor):
            state[key] = torch.empty_like(parameter, dtype=value.dtype).detach_()
        target = state[key][rows]
        if target.data_ptr() != value.data_ptr() or target.is_meta:
            target.copy_(value)
    return shared
