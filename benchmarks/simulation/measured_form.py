"""The required form of a record of `python -m benchmarks testbed`, so that missing or damaged values are named."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from benchmarks.core.checks import Check, is_number, is_text
from benchmarks.simulation.grid import HIERARCHIES
from resireduce.errors import ConfigError, is_count, short
from resireduce.merging import RULES

MAKE = "make it with: python -m benchmarks testbed"


class One(NamedTuple):
    """The form of one value in a record: what is allowed, in words, and a function that says whether a value is."""

    allowed: str
    is_allowed: Check


class Each(NamedTuple):
    """A mapping from any names to values of one form."""

    form: Any


COUNT = One("a whole number, 1 or more", lambda value: is_count(value) and 0 < value < 10**9)
NUMBER = One("a number, 0 or more", lambda value: is_number(value) and 0 <= value < math.inf)
POSITIVE = One("a number, more than 0", lambda value: is_number(value) and 0 < value < math.inf)
TEXT = One("a text", is_text)
RULES_OF = (*RULES, "hybrid")
MERGE = One(
    f"a size in bytes, or one of {', '.join(RULES_OF)}",
    lambda value: value in RULES_OF if is_text(value) else is_count(value) and value > 0,
)
LEVEL = One(" or ".join(HIERARCHIES), lambda value: is_text(value) and value in HIERARCHIES)
PASSES = {"forward_seconds": NUMBER, "step_seconds": NUMBER, "arrived_seconds": Each(NUMBER)}
MESSAGES = [{"bytes": POSITIVE, "in_turn": NUMBER, "at_once": NUMBER, "processor": NUMBER}]
TENSORS = {"compressor": TEXT, "density": NUMBER, "elements": POSITIVE, "compress_seconds": NUMBER}
ROW = {"compressor": TEXT, "density": NUMBER, "hierarchy": LEVEL, "merge": MERGE}
ROW |= dict.fromkeys(("median", "low", "high"), POSITIVE)
INPUTS = {
    "cores": COUNT,
    "copied_bytes_per_second": POSITIVE,
    "passes": Each(PASSES),
    "compression": [TENSORS | {"average_seconds": Each(NUMBER)}],
    "messages": Each(MESSAGES),
}
SETTING = {"nodes": COUNT, "ranks_per_node": COUNT, "rate": TEXT, "inputs": INPUTS, "rows": [ROW]}
FORM = {"model": TEXT, "rounds": COUNT, "steps": COUNT, "settings": [SETTING]}
FLAT = tuple(f"flat {kind}" for kind in ("all_reduce", "all_reduce_half", "all_gather"))
BY_NODES = tuple(f"between {kind}" for kind in ("all_reduce", "all_reduce_half", "all_gather"))
BY_NODES += ("in_node all_reduce", "in_node all_gather")
"""Messages that a setting must have, and further ones for nodes with several ranks."""


def check_form(found: Any, where: str) -> None:
    """Raise ConfigError, one line with field, value and cure, for the first unusable value in a record.

    where: the beginning of that line.
    """
    _check(where, found, FORM)
    for number, setting in enumerate(found["settings"]):
        inputs = f"{where}: settings {number}: inputs"
        needed = {"messages": [*FLAT, *(BY_NODES if setting["ranks_per_node"] > 1 else ())]}
        needed["passes"] = [row["hierarchy"] for row in setting["rows"]]
        for part, names in needed.items():
            if missing := next((name for name in names if name not in setting["inputs"][part]), None):
                raise ConfigError(f"{inputs}: {part}: {missing}: missing; {MAKE}")


def _check(where: str, value: Any, form: Any) -> None:
    if isinstance(form, One):
        if not form.is_allowed(value):
            raise ConfigError(f"{where}: {short(value)} is not allowed, but {form.allowed}; {MAKE}")
    elif isinstance(form, list):
        if not isinstance(value, list) or not value:
            raise ConfigError(f"{where}: {short(value)} is not allowed, but a list of at least one; {MAKE}")
        for number, one in enumerate(value):
            _check(f"{where} {number}", one, form[0])
    else:
        if not isinstance(value, Mapping) or not value:
            raise ConfigError(f"{where}: {short(value)} is not allowed, but values by name; {MAKE}")
        for name in value if isinstance(form, Each) else form:
            if name not in value:
                raise ConfigError(f"{where}: {name}: missing; {MAKE}")
            _check(f"{where}: {name}", value[name], form.form if isinstance(form, Each) else form[name])
