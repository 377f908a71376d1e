"""Check the fields of an entry of claims.yaml: each function returns plain values or raises a one-line ConfigError."""

from collections.abc import Mapping
from typing import Any

from benchmarks.analysis.claims.claim import Counts, Margin
from benchmarks.analysis.claims.consistency import ARITHMETIC
from benchmarks.analysis.claims.kinds import KINDS
from benchmarks.analysis.claims.one_gpu import MEASURES, RUNGS
from benchmarks.analysis.published import Published
from benchmarks.core.checks import allow, is_number, known_keys, mapping
from resireduce.errors import ConfigError, choose, is_count

NUMBERED = {"throughput": ("margin",), "duration": ("margin",), "overlap": ("at_most", "ratio")}
"""Limits that these kinds cannot decide without."""
BOUNDED = ("share", "saving", "maximum")
BOUNDED_SAVING = ("tolerance", "at_least")
"""Limits of a saving on one GPU, of which it has one."""


def limits(where: str, kind: str, test: Any, published: Mapping[str, Published]) -> dict[str, Any]:
    """Return the deciding limits: numbers, `relative` yes or no, for a margin perhaps the id of a stated number."""
    known_keys(where, test, ("kind", "why", *KINDS[kind].limits))
    for name in KINDS[kind].limits:
        _limit(f"{where}: {name}", name, test.get(name), published)
    for name in NUMBERED.get(kind, ()):
        if test.get(name) is None:
            raise ConfigError(f"{where}: {name}: missing; kind {kind} needs {', '.join(NUMBERED[kind])}")
    if kind in BOUNDED and all(test.get(name) is None for name in KINDS[kind].limits):
        raise ConfigError(f"{where}: tolerance: missing; kind {kind} needs tolerance, at_least or at_most")
    return {name: value for name, value in test.items() if name != "kind"}


def _limit(where: str, name: str, value: Any, published: Mapping[str, Published]) -> None:
    if value is None or (name == "relative" and isinstance(value, bool)):
        return
    if name == "margin" and isinstance(value, str):
        choose(where, value, published)
    else:
        is_relative = name == "relative"
        allow(where, value, not is_relative and is_number(value), "true or false" if is_relative else "a number")


def arithmetic(
    where: str, test: Mapping[str, Any], published: Mapping[str, Published], counts: Mapping[str, Counts]
) -> dict[str, Any]:
    """Return what a claim of the kind consistency names: its arithmetic, and the numbers and models it takes."""
    name = choose(f"{where}: arithmetic", test.get("arithmetic"), ARITHMETIC)
    _, needs = ARITHMETIC[name]
    known_keys(where, dict(test), ("kind", "why", "arithmetic", "tolerance", *needs))
    for need in needs:
        if need not in test:
            raise ConfigError(f"{where}: {need}: missing; arithmetic {name} needs {', '.join(needs)}")
        for one in _flat(test[need]):
            choose(f"{where}: {need}", one, counts if need == "model" else published)
    return dict(test)


def of_one_gpu(where: str, test: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a claim of one GPU names: its measure, and the model, setting, rung and limits that it takes."""
    name = choose(f"{where}: measure", test.get("measure"), MEASURES)
    _, needs = MEASURES[name]
    known_keys(where, dict(test), ("kind", "why", "measure", *needs, *(BOUNDED_SAVING if name == "saving" else ())))
    for need in needs:
        if need not in test:
            raise ConfigError(f"{where}: {need}: missing; measure {name} needs {', '.join(needs)}")
    if "rung" in test:
        choose(f"{where}: rung", test["rung"], RUNGS)
    if name == "saving" and sum(one in test for one in BOUNDED_SAVING) != 1:
        raise ConfigError(f"{where}: tolerance: give either tolerance, beside a published value, or at_least")
    for limit in (*BOUNDED_SAVING, "within"):
        allow(f"{where}: {limit}", test.get(limit), is_number(test.get(limit, 0)), "a number")
    return {key: value for key, value in test.items() if key != "kind"}


def stated(where: str, kind: str, ids: Any, published: Mapping[str, Published]) -> dict[str, Published]:
    """Return the paper's numbers by role; a single id has the role `value`."""
    if ids is None:
        return {}
    given = ids if isinstance(ids, dict) else {"value": ids}
    known_keys(where, given, KINDS[kind].published)
    return {role: published[choose(f"{where}: {role}", name, published)] for role, name in given.items()}


def roles(where: str, given: Any) -> dict[str, dict[str, Any]]:
    """Return criteria by role; those under `all` apply to every role."""
    roles = mapping(where, given)
    common = mapping(f"{where}: all", roles.get("all") or {})
    own = {str(role): mapping(f"{where}: {role}", one) for role, one in roles.items() if role != "all"}
    return {role: {**common, **one} for role, one in own.items()}


def margin(where: str, given: Any, published: Mapping[str, Published]) -> Margin:
    """Return the published values that a metric's margin is derived from."""
    known_keys(where, given, ("against", "tested", "percent", "why"))
    sides = {name: published[choose(f"{where}: {name}", given.get(name), published)] for name in ("against", "tested")}
    percent = given.get("percent", False)
    return Margin(**sides, percent=allow(f"{where}: percent", percent, isinstance(percent, bool), "true or false"))


def element_counts(where: str, given: Any) -> Counts:
    """Return the element counts of a model at full size."""
    names = ("parameters", "residuals", "saved", "copies")
    known_keys(where, given, (*names, "source"))
    for name in names:
        allow(f"{where}: {name}", given.get(name), is_count(given.get(name)), "a whole number")
    return Counts(**{name: given[name] for name in names})


def _flat(given: Any) -> list[Any]:
    return [one for item in given for one in _flat(item)] if isinstance(given, list) else [given]
