"""Checks which of a cell's tensors are to travel together, before anything runs. Standard library only."""

import json
from typing import Any

from benchmarks.core.content import text_hash
from resireduce.errors import ConfigError, choose, is_count, short
from resireduce.scheme import COMPRESSORS, MERGES
from resireduce.settings import dear_bytes

MOST_BYTES = 2**63 - 1
"""Most bytes that a field may name: no memory has more, and the name of a cell contains them."""
CURE = f"give {', '.join(MERGES)}, a number of bytes, or lists of names of parameters"


def freeze(merge: Any, compressor: str) -> Any:
    """Return `merge`, as `resireduce.distribute` takes it, in a hashable form.

    Raises ConfigError, one line, for a value that is not allowed, or a `compressor` whose payloads cannot be merged.
    """
    most = merge if is_count(merge) else dear_bytes(merge)
    if most is not None and most > MOST_BYTES:
        raise ConfigError(f"merge: {short(merge)} is not allowed; give a number of bytes up to {MOST_BYTES}")
    if isinstance(merge, str) and dear_bytes(merge) is None:
        choose("merge", merge, MERGES)
    elif isinstance(merge, list | tuple):
        if not is_plan(merge):
            raise ConfigError(f"merge: {merge!r} is not allowed; {CURE}")
        merge = tuple(tuple(names) for names in merge)
    elif not isinstance(merge, str) and (isinstance(merge, bool) or not isinstance(merge, int) or merge < 1):
        raise ConfigError(f"merge: {merge!r} is not allowed; {CURE}")
    if merge != "none" and COMPRESSORS[compressor].in_rounds:
        raise ConfigError(
            f"merge: {merge!r} is not allowed with compressor {compressor!r}, whose payloads ranks make in rounds of "
            "one tensor each; allowed: none"
        )
    return merge


def refuse_dear(merge: Any, **given: str) -> None:
    """Raise ConfigError, one line, if frozen `merge` is DeAR's and a cell's field, `given` by name, conflicts with it.

    DeAR needs compressor none, gradients kept and hierarchy flat.
    """
    needed = {"compressor": "none", "gradients": "kept", "hierarchy": "flat"}
    for field, value in given.items() if dear_bytes(merge) is not None else ():
        if value != needed[field]:
            raise ConfigError(
                f"merge: {merge!r} is not allowed with {field} {value!r}, only with {needed[field]}: it sums whole "
                "gradients of all ranks in parts, each when its group is there"
            )


def thaw(merge: Any) -> Any:
    """Return frozen `merge` as plain values."""
    return [list(names) for names in merge] if isinstance(merge, tuple) else merge


def is_plan(merge: Any) -> bool:
    """Whether `merge` is lists of names, one for each message."""
    lists = isinstance(merge, list | tuple) and merge and all(isinstance(names, list | tuple) for names in merge)
    return bool(lists) and all(names and all(isinstance(name, str) for name in names) for names in merge)


def name(merge: Any) -> list[str]:
    """Return frozen `merge` as parts of a file name, none if nothing is merged; lists are hashed."""
    if merge == "none":
        return []
    return [f"merge-{text(merge)}"]


def text(merge: Any) -> str:
    """Return frozen `merge` in one word; lists are hashed."""
    return text_hash(json.dumps(merge))[:8] if isinstance(merge, tuple) else str(merge)
