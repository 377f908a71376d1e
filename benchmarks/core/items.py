"""The itemised model states of one rank as a record holds them: every name and every usual shape once. No torch.

`names` are the parameters' names, `shapes` their shapes. Each of `kinds` (state, part, dtype) has `of`, the numbers of
the names that it applies to; `shapes`, by number, where a shape differs from the parameter's; `element_bytes`; and
`bytes`, its sum. `shared` has the members of each group, by the first one's number. GPT-2 large takes some 50 KB.
"""

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any

from resireduce.errors import is_count
from resireduce.planning.item import STATES, Item


def pack(items: Iterable[Item]) -> dict[str, Any]:
    """Return `items` as plain values for a record; `unpack` restores them."""
    names: dict[str, int] = {}
    shapes: list[list[int]] = []
    kinds: dict[tuple[str, str, str], dict[str, Any]] = {}
    shared: dict[str, tuple[str, ...]] = {}
    for item in items:
        number, shape = names.setdefault(item.name, len(names)), list(item.shape)
        if number == len(shapes):
            shapes.append(shape)
        new = {"state": item.state, "part": item.part, "dtype": item.dtype, "element_bytes": 0, "bytes": 0}
        kind = kinds.setdefault((item.state, item.part, item.dtype), {**new, "of": [], "shapes": {}})
        kind["bytes"] += item.nbytes
        kind["element_bytes"] = max(kind["element_bytes"], item.nbytes // max(1, prod(shape)))
        kind["of"].append(number)
        if shape != shapes[number]:
            kind["shapes"][str(number)] = shape
        if item.members:
            shared[str(number)] = item.members
    members = {number: [names.setdefault(name, len(names)) for name in those] for number, those in shared.items()}
    shapes += [[]] * (len(names) - len(shapes))
    return {"names": list(names), "shapes": shapes, "kinds": list(kinds.values()), "shared": members}


def unpack(packed: Mapping[str, Any]) -> list[Item]:
    """Return the items of a record, by kind; [] if it has none. Raises KeyError and the like if they are damaged."""
    items = []
    for kind in packed.get("kinds", ()):
        for number in kind["of"]:
            shape = kind["shapes"].get(str(number), packed["shapes"][number])
            shared = packed["shared"].get(str(number), ()) if kind["state"] == "residuals" else ()
            members = tuple(packed["names"][member] for member in shared)
            name = packed["names"][number]
            nbytes = prod(shape) * kind["element_bytes"]
            items.append(Item(kind["state"], name, kind["part"], tuple(shape), kind["dtype"], nbytes, members))
    return items


def items_problem(packed: Any, bytes_by_state: Mapping[str, int | None]) -> str | None:
    """Return what is wrong with a record's items, in one line; None if they are right or missing.

    `bytes_by_state` has the sums that they must have; those that are None are not compared.
    """
    if not isinstance(packed, dict):
        return f"{packed!r} is not a mapping"
    if not packed:
        return None
    try:
        for wrong in _wrong(packed):
            return wrong
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return f"damaged: {type(error).__name__}: {error}; names, shapes, kinds and shared belong together"
    for state, expected in bytes_by_state.items():
        found = sum(kind["bytes"] for kind in packed["kinds"] if kind["state"] == state)
        if expected is not None and found != expected:
            return f"the {state} add up to {found} bytes, not to {state}_bytes, {expected}"
    return None


def _wrong(packed: Mapping[str, Any]) -> Iterator[str]:
    """Yield each error within, one line each."""
    names, shapes = packed["names"], packed["shapes"]
    if not is_count(packed["rank"]):
        yield f"rank: {packed['rank']!r} is not the number of a rank"
    if len(set(names)) != len(shapes) or len(names) != len(shapes) or not all(isinstance(name, str) for name in names):
        yield f"{len(names)} names and {len(shapes)} shapes do not belong together"
    if not all(is_count(number) and number < len(names) for members in packed["shared"].values() for number in members):
        yield "shared: the number of a name is missing or too large"
    sizes = [_elements(shape) for shape in shapes]
    for kind in packed["kinds"]:
        title = " ".join(map(str, filter(None, (kind["state"], kind["part"], kind["dtype"]))))
        of, own = kind["of"], {int(number): _elements(shape) for number, shape in kind["shapes"].items()}
        if kind["state"] not in STATES:
            yield f"{title}: not a state; allowed: {', '.join(STATES)}"
        if len(set(of)) != len(of) or not _are_counts(of) or not own.keys() <= set(of):
            yield f"{title}: a tensor is there twice, or has a shape but is not there"
        held = sum(own.get(number, sizes[number]) for number in of) if own else sum(map(sizes.__getitem__, of))
        held *= kind["element_bytes"]
        if held != kind["bytes"] or not is_count(kind["bytes"]):
            yield f"{title}: its tensors add up to {held} bytes, not to {kind['bytes']}"


def _elements(shape: list[int]) -> int:
    if not _are_counts(shape):
        raise TypeError(f"{shape!r} is not a shape")
    return prod(shape)


def _are_counts(numbers: list[int]) -> bool:
    """Whether all are whole numbers, 0 or more; there are many of them."""
    return set(map(type, numbers)) <= {int} and min(numbers, default=0) >= 0
