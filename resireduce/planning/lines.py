"""Lines in which the command line shows a plan, and groups of tensors. Imports no torch."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from resireduce.planning.item import Item

if TYPE_CHECKING:
    from resireduce.grouping import Grouping

MIB = 2**20


def figure_lines(result: Mapping[str, float]) -> list[str]:
    """Return a line for each of the figures of a plan, its `result`: bytes, or shares."""
    return [
        f"{key:<17} {value / MIB:12,.2f} MiB" if isinstance(value, int) else f"{key:<17} {value:12.1%}"
        for key, value in result.items()
    ]


def item_line(item: Item) -> str:
    """Return a line about one tensor, an `item`: whose, which, how many bytes, and with whom it is shared."""
    shape = " x ".join(map(str, item.shape)) or "one number"
    shared = f", shared by {len(item.members)}" if item.members else ""
    part = f" ({item.part})" if item.part else ""
    return f"{item.state:<17} {item.nbytes:12,} bytes  {item.name}{part}, {shape}, {item.dtype}{shared}"


def group_lines(
    grouping: "Grouping", others: Sequence[str], sizes: Mapping[str, int], whole: int, saved: Mapping[str, int]
) -> list[str]:
    """Return lines about the tensors of a model, and what schemes save by their kinds.

    Args:
        grouping: the reusable groups and specific layers.
        others: the names of all other tensors that are compressed.
        sizes: the bytes of each tensor.
        whole: the bytes of full residuals.
        saved: what each scheme saves of these.
    """
    lines = [f"{len(grouping.groups)} groups of {len(grouping.grouped)} tensors"]
    lines += [f"  {sizes[g[0]] / MIB:10,.2f} MiB x {len(g)}  {g[0]} ... {g[-1]}" for g in grouping.groups]
    lines += [f"{len(grouping.specific)} specific"]
    lines += [f"  {sizes[name] / MIB:10,.2f} MiB      {name}" for name in grouping.specific]
    lines += [f"{len(others)} others, {sum(sizes[name] for name in others) / MIB:,.2f} MiB, keep a full residual"]
    return [*lines, *_savings(whole, saved)]


def _savings(whole: int, saved: Mapping[str, int]) -> list[str]:
    """Return lines of what schemes save of `whole` bytes; those that save the same share one."""
    alike: dict[int, list[str]] = {}
    for scheme, nbytes in saved.items():
        if scheme != "none":
            alike.setdefault(nbytes, []).append(scheme)
    lines = [f"Full residuals take {whole / MIB:,.2f} MiB. Of that is saved by"]
    return lines + [f"  {n / MIB:10,.2f} MiB {n / max(1, whole):6.1%}  {'/'.join(names)}" for n, names in alike.items()]
