"""Texts of the command line: what its arguments mean, and the lines in which it shows a plan. Imports no torch."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resireduce.errors import ConfigError
from resireduce.planning.item import Item

if TYPE_CHECKING:
    from resireduce.grouping import Grouping


# --- Values that a command line gives as text. What is no value of the kind stays a text, and is refused by name later
# ---
#
# Imports no torch.


PYTHONS = {"True": True, "False": False, "None": None}
"""Values that are often written as in Python, not as in JSON."""


def as_number(text: str) -> float | str:
    """Return the float that `text` says, or `text` itself."""
    try:
        return float(text)
    except ValueError:
        return text


def as_count(text: str) -> int | str:
    """Return the int that `text` says, or `text` itself."""
    try:
        return int(text)
    except ValueError:
        return text


def as_pair(text: str) -> tuple[str, object]:
    """Return name and value of the `text` "name=value": a value in JSON or as Python writes it, or as it is."""
    name, _, value = text.partition("=")
    if value in PYTHONS:
        return name, PYTHONS[value]
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def arguments_in(field: str, texts: list[str]) -> dict[str, object]:
    """Return arguments from `texts` "name=value". Raises ConfigError of `field` for other forms, or a name twice."""
    found: dict[str, object] = {}
    for text in texts:
        name, value = as_pair(text)
        if not name.isidentifier() or "=" not in text:
            raise ConfigError(f"{field}: {text!r} is not allowed; give NAME=VALUE, such as layers=12")
        if name in found:
            raise ConfigError(f"{field}: {name!r} is given twice; give it once")
        found[name] = value
    return found


def patterns_in(path: str | None) -> str | dict[str, object]:
    """Return the groups that the file at `path` describes; "auto" without one. Raises ConfigError for a bad file."""
    if path is None:
        return "auto"
    try:
        patterns = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"groups: {path!r} cannot be read as JSON: {error}; give a file of patterns") from error
    if not isinstance(patterns, dict):
        raise ConfigError(f"groups: {path!r} holds no JSON object with the keys groups and specific")
    return patterns


# --- Lines in which the command line shows a plan, and groups of tensors. Imports no torch ---


MIB = 2**20


def figure_lines(result: Mapping[str, float]) -> list[str]:
    """Return a line for each of the figures of a plan, its `result`: bytes, or shares."""
    return [
        f"{key:<17} {value / MIB:12,.2f} MiB" if isinstance(value, int) else f"{key:<17} {value:12.1%}"
        for key, value in result.items()
    ]


FULLEST = ("memory_bytes", "fits", "largest_batch")
"""What a plan says beside the bytes of the fullest moment, if it was given a memory."""
WAYS = {
    "fullest_bytes": "plain",
    "checkpointed_fullest_bytes": "checkpointed",
    "checkpointed_chunked_fullest_bytes": "and loss in chunks",
}
"""The columns of the choices, and how each is headed."""


def fullest_lines(result: Mapping[str, Any], choices: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return lines about the fullest moment with activations, its `result`; nothing if it was not planned.

    choices: what would be held then with others.
    """
    if not result:
        return []
    memory = result.get("memory_bytes")
    lines = [
        "",
        f"The fullest moment of a step on a GPU, with activations, lies in the {_PLACES[result['fullest_at']]}",
    ]
    lines += [
        f"  {key.removeprefix('fullest_').removesuffix('_bytes').replace('_', ' '):<25} {value / MIB:12,.2f} MiB"
        for key, value in result.items()
        if key.startswith("fullest_") and key not in ("fullest_at", "fullest_bytes")
    ]
    lines.append(f"  {'together':<25} {result['fullest_bytes'] / MIB:12,.2f} MiB")
    if memory is not None:
        fits = "fits into" if result["fits"] else "does not fit into"
        lines.append(f"It {fits} {memory / MIB:,.2f} MiB; the largest batch that does is {result['largest_batch']}")
    ways = [way for way in WAYS if way in choices[0]]
    marked = "" if memory is None else " (* fits)"
    lines += ["", f"{f'MiB then{marked}':<32}" + "".join(f"{WAYS[way]:>20}" for way in ways)]
    for row in choices:
        cells = [f"{row[way] / MIB:,.0f}{'' if memory is None else ' *'[row[way] <= memory]}" for way in ways]
        lines.append(f"{row['choice']:<32}" + "".join(f"{cell:>20}" for cell in cells).rstrip())
    return lines


_PLACES = {"forward": "forward pass", "backward": "backward pass", "update": "update of parameters"}


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
