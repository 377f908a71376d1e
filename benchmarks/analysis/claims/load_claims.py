"""Read results/paper/claims.yaml. Errors take one line: the claim, the field, the value, the cure."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.analysis.claims.claim import Book, Claim, Counts, Margin, Scope
from benchmarks.analysis.claims.consistency import ARITHMETIC
from benchmarks.analysis.claims.kinds import CONSISTENCY, KINDS
from benchmarks.analysis.claims.one_gpu import MEASURES, ONE_GPU, RUNGS
from benchmarks.analysis.published import Published, load_published
from benchmarks.core.cell import Cell
from benchmarks.core.checks import allow, is_number, is_text, known_keys, mapping, several, within
from benchmarks.core.config_reader import read_yaml
from benchmarks.core.paths import ROOT
from benchmarks.core.workloads import WORKLOADS
from resireduce.errors import ConfigError, choose, is_count

CLAIMS_FILE = ROOT / "results/paper/claims.yaml"
TOP = ("noise", "margins", "counts", "stand_ins", "claims")
FIELDS = ("id", "source", "statement", "each", "models", "published", "cells", "test", "command", "small")
SMALL_FIELDS = ("of", "statement", "cells", "test", "command")
ITSELF = "python -m benchmarks claims"


@lru_cache
def load_claims(path: Path = CLAIMS_FILE) -> Book:
    """Return all claims in file order. Raises ConfigError, with one line, for invalid entries."""
    values = read_yaml(path)
    with within(path):
        return _book(values)


def _book(values: dict[str, Any]) -> Book:
    known_keys("claims.yaml", values, TOP)
    for key in TOP:
        if not values.get(key):
            raise ConfigError(f"{key}: missing; allowed: {', '.join(TOP)}, all of them")
    shared = _shared(values)
    claims: dict[str, Claim] = {}
    for number, entry in enumerate(several("claims", values["claims"]), start=1):
        name = entry.get("id") if isinstance(entry, dict) else None
        where = f"claim {name!r}" if name else f"claims entry {number}"
        for claim in _claims(where, known_keys(where, entry, FIELDS), shared):
            if claim.id in claims:
                raise ConfigError(f"{where}: id: {claim.id!r} is there twice; give each claim an id of its own")
            claims[claim.id] = claim
    return replace(shared, claims=tuple(claims.values()))


def _shared(values: Mapping[str, Any]) -> Book:
    """Check the values before the claims, which all entries share; returns a book without claims."""
    noise = values["noise"]
    allow("noise", noise, is_number(noise) and 0 < noise < math.inf, "a number above 0")
    given = {name: mapping(name, values[name]) for name in TOP[1:-1]}
    published = load_published()
    for model, small in given["stand_ins"].items():
        choose("stand_ins: model", model, WORKLOADS)
        choose(f"stand_ins: {model}", small, WORKLOADS)
    return Book(
        claims=(),
        noise=float(values["noise"]),
        margins={name: margin(f"margins: {name}", one, published) for name, one in given["margins"].items()},
        counts={name: element_counts(f"counts: {name}", one) for name, one in given["counts"].items()},
        stand_ins=given["stand_ins"],
        published=published,
    )


def _claims(where: str, entry: dict[str, Any], shared: Book) -> list[Claim]:
    """Return the claims of an entry: one, or one for each model that it is stated for."""
    for name in ("id", "source", "statement", "test"):
        if not entry.get(name):
            raise ConfigError(f"{where}: {name}: missing; give it")
    allow(f"{where}: id", entry["id"], isinstance(entry["id"], str), "a text")
    given = mapping(f"{where}: test", entry["test"]).get("kind")
    kind = choose(f"{where}: test: kind", given, (*KINDS, CONSISTENCY, ONE_GPU))
    if kind == CONSISTENCY:
        return [_consistency(where, entry, shared)]
    if kind == ONE_GPU:
        return list(_one_gpu(where, entry, shared))
    if ("each" in entry) == ("models" in entry):
        raise ConfigError(f"{where}: each: give either `each`, one claim a model, or `models`, one claim of all")
    if "models" in entry:
        models = tuple(several(f"{where}: models", entry["models"]))
        return [_claim(where, entry, entry["id"], models, entry.get("published"), shared)]
    each = mapping(f"{where}: each", entry["each"])
    return [_claim(where, entry, f"{entry['id']}-{model}", (model,), ids, shared) for model, ids in each.items()]


def _claim(where: str, entry: Mapping[str, Any], name: str, models: tuple[str, ...], ids: Any, shared: Book) -> Claim:
    kind = str(entry["test"]["kind"])
    numbers = stated(f"{where}: published", kind, ids, shared.published)
    paper = _scope(where, kind, entry, models, shared)
    small = _small(where, kind, entry, paper, shared)
    text = " to ".join(f"{numbers[role].value:g}" for role in ("value", "low", "high") if role in numbers)
    return Claim(
        id=name,
        source=str(entry["source"]),
        kind=kind,
        published=numbers,
        paper=_worded(where, paper, {"published": text}),
        small=_worded(f"{where}: small", small, {"published": text}) if small else None,
    )


def _small(where: str, kind: str, entry: Mapping[str, Any], paper: Scope, shared: Book) -> Scope | None:
    """Return the scope of the small models: the paper's, on any number of ranks, with the changes given in `small`."""
    where = f"{where}: small"
    given = known_keys(where, entry.get("small") or {}, SMALL_FIELDS)
    if not given or not set(given.get("of", paper.models)) & set(paper.models):
        return None
    other = roles(f"{where}: cells", given.get("cells") or {})
    cells = {
        role: {name: value for name, value in criteria.items() if name != "world_size"} | other.get(role, {})
        for role, criteria in paper.roles.items()
    }
    test = {name: value for name, value in entry["test"].items() if name != "why"}
    test |= mapping(f"{where}: test", given.get("test") or {})
    models = dict.fromkeys(shared.stand_ins[choose(f"{where}: of", one, shared.stand_ins)] for one in paper.models)
    merged = {"statement": entry["statement"], "command": entry.get("command"), **given, "cells": cells, "test": test}
    return _scope(where, kind, merged, tuple(models), shared)


def _scope(where: str, kind: str, entry: Mapping[str, Any], models: tuple[str, ...], shared: Book) -> Scope:
    cells = roles(f"{where}: cells", entry.get("cells"))
    for role in KINDS[kind].roles:
        if role not in cells:
            raise ConfigError(f"{where}: cells: {role}: missing; kind {kind} has {', '.join(KINDS[kind].roles)}")
    for role, criteria in cells.items():
        choose(f"{where}: cells", role, KINDS[kind].roles)
        for model in models:
            with within(f"{where}: cells: {role}"):
                Cell.from_dict({**criteria, "model": model})
    command = entry.get("command")
    allow(f"{where}: command", command, is_text(command), "what runs its cells")
    test = limits(f"{where}: test", kind, entry["test"], shared.published)
    return Scope(statement=str(entry["statement"]), models=models, roles=cells, limits=test, command=str(command))


def _consistency(where: str, entry: Mapping[str, Any], shared: Book) -> Claim:
    test = arithmetic(f"{where}: test", entry["test"], shared.published, shared.counts)
    scope = Scope(statement=str(entry["statement"]), models=(), roles={}, limits=test, command=ITSELF)
    number = shared.published.get(str(test.get("stated")))
    paper = _worded(where, scope, {"published": f"{number.value:g}" if number else ""})
    return Claim(id=str(entry["id"]), source=str(entry["source"]), kind=CONSISTENCY, paper=paper)


def _one_gpu(where: str, entry: Mapping[str, Any], shared: Book) -> Iterator[Claim]:
    """Yield a claim of one GPU, or one for each model; the model stands among the limits, as no cells of runs count."""
    each = mapping(f"{where}: each", entry.get("each") or {})
    for model, one in each.items() or [(None, None)]:
        of_model = {} if model is None else {"model": choose(f"{where}: each", model, WORKLOADS)}
        test = of_one_gpu(f"{where}: test", entry["test"] | of_model)
        if ("tolerance" in test) != (one is not None):
            raise ConfigError(f"{where}: test: tolerance: it belongs to a published value, and each of these to it")
        number = shared.published[choose(f"{where}: published", one, shared.published)] if one else None
        command = entry.get("command")
        allow(f"{where}: command", command, is_text(command), "what measures it")
        scope = Scope(statement=str(entry["statement"]), models=(), roles={}, limits=test, command=str(command))
        yield Claim(
            id=f"{entry['id']}-{model}" if model else str(entry["id"]),
            source=str(entry["source"]),
            kind=ONE_GPU,
            paper=_worded(where, scope, {**of_model, "published": f"{number.value:g}" if number else ""}),
            published={"value": number} if number else {},
        )


def _worded(where: str, scope: Scope, values: Mapping[str, str]) -> Scope:
    """Return the scope with {model}, {published} and {limits} filled into its statement."""
    known = {"model": ", ".join(scope.models), **scope.limits, **values}
    try:
        return replace(scope, statement=scope.statement.format(**known))
    except (KeyError, IndexError, ValueError) as error:
        allowed = ", ".join(sorted(known.keys() - {"why"}))
        raise ConfigError(f"{where}: statement: {error} in braces is not known; allowed: {allowed}") from None


# --- The fields of an entry: each function returns plain values or raises a one-line ConfigError ---


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
