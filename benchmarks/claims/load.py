"""Read and check results/paper/claims.yaml. All that is wrong is one line: the claim, the field, the value, the cure."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.cell import Cell
from benchmarks.cells import read_yaml
from benchmarks.checks import is_number, known_keys
from benchmarks.claims.claim import Book, Claim, Counts, Margin, Scope
from benchmarks.claims.consistency import ARITHMETIC, NEEDS
from benchmarks.claims.kinds import CONSISTENCY, KINDS
from benchmarks.report.published import Published, load_published
from benchmarks.workloads import WORKLOADS
from resireduce.errors import ConfigError, choose, is_count

CLAIMS_FILE = Path(__file__).parents[2] / "results/paper/claims.yaml"
TOP = ("margins", "counts", "stand_ins", "claims")
FIELDS = ("id", "source", "statement", "each", "models", "published", "cells", "test", "command", "small")
SMALL_FIELDS = ("of", "statement", "cells", "test", "command")


@lru_cache
def load_claims(path: Path = CLAIMS_FILE) -> Book:
    """Return all claims in the file's order. Raises ConfigError, one line, for what cannot be used."""
    try:
        return _book(read_yaml(path), load_published())
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _book(values: dict[str, Any], published: Mapping[str, Published]) -> Book:
    known_keys("claims.yaml", values, TOP)
    for name in TOP:
        if not values.get(name):
            raise ConfigError(f"{name}: missing; allowed: {', '.join(TOP)}, all of them")
    margins = {str(name): _margin(f"margins: {name}", one) for name, one in values["margins"].items()}
    counts = {str(name): _counts(f"counts: {name}", one) for name, one in values["counts"].items()}
    for model, small in values["stand_ins"].items():
        choose("stand_ins: model", model, WORKLOADS)
        choose(f"stand_ins: {model}", small, WORKLOADS)
    claims: dict[str, Claim] = {}
    for number, entry in enumerate(_list("claims", values["claims"]), start=1):
        name = entry.get("id") if isinstance(entry, dict) else None
        where = f"claim {name!r}" if name else f"claims entry {number}"
        for claim in _claims(where, known_keys(where, entry, FIELDS), values["stand_ins"], published, margins, counts):
            if claim.id in claims:
                raise ConfigError(f"{where}: id: {claim.id!r} is there twice; give each claim an id of its own")
            claims[claim.id] = claim
    return Book(claims=tuple(claims.values()), margins=margins, counts=counts, published=published)


def _claims(
    where: str,
    entry: dict[str, Any],
    stand_ins: Mapping[str, str],
    published: Mapping[str, Published],
    margins: Mapping[str, Margin],
    counts: Mapping[str, Counts],
) -> list[Claim]:
    """Return the claim of an entry, or one for each model that it is stated of."""
    for name in ("id", "source", "statement", "test"):
        if not entry.get(name):
            raise ConfigError(f"{where}: {name}: missing; give it")
    test = entry["test"] if isinstance(entry["test"], dict) else {}
    kind = choose(f"{where}: test: kind", test.get("kind"), (*KINDS, CONSISTENCY))
    if kind == CONSISTENCY:
        return [_consistency(where, entry, test, published, counts)]
    if ("each" in entry) == ("models" in entry):
        raise ConfigError(f"{where}: each: give either `each`, one claim a model, or `models`, one claim of all")
    if "each" in entry:
        return [
            _claim(where, entry, (str(model),), stated, stand_ins, published, f"{entry['id']}-{model}")
            for model, stated in _mapping(f"{where}: each", entry["each"]).items()
        ]
    models = tuple(str(model) for model in _list(f"{where}: models", entry["models"]))
    return [_claim(where, entry, models, entry.get("published"), stand_ins, published, entry["id"])]


def _claim(
    where: str,
    entry: Mapping[str, Any],
    models: tuple[str, ...],
    stated: Any,
    stand_ins: Mapping[str, str],
    published: Mapping[str, Published],
    name: str,
) -> Claim:
    kind = str(entry["test"]["kind"])
    numbers = _published(f"{where}: published", kind, stated, published)
    paper = _scope(where, kind, entry, entry["test"], models, published)
    small = None
    given = known_keys(f"{where}: small", entry.get("small") or {}, SMALL_FIELDS)
    if given and set(given.get("of", models)) & set(models):
        roles = _roles(f"{where}: small: cells", given.get("cells") or {})
        merged = {role: {**_without_world(criteria), **roles.get(role, {})} for role, criteria in paper.roles.items()}
        test = {**{k: v for k, v in entry["test"].items() if k != "why"}, **(given.get("test") or {})}
        chosen = [stand_ins[choose(f"{where}: small: stand_ins", model, stand_ins)] for model in models]
        small = _scope(
            f"{where}: small",
            kind,
            {"statement": entry["statement"], "command": entry.get("command"), **given, "cells": merged},
            test,
            tuple(dict.fromkeys(chosen)),
            published,
        )
    values = {"published": _number_text(numbers), "model": ", ".join(models)}
    return Claim(
        id=name,
        source=str(entry["source"]),
        kind=kind,
        published=numbers,
        paper=_worded(where, paper, values),
        small=_worded(where, small, {**values, "model": ", ".join(small.models)}) if small else None,
    )


def _scope(
    where: str,
    kind: str,
    entry: Mapping[str, Any],
    test: Mapping[str, Any],
    models: tuple[str, ...],
    published: Mapping[str, Published],
) -> Scope:
    roles = _roles(f"{where}: cells", entry.get("cells"))
    if missing := [role for role in KINDS[kind].roles if role not in roles]:
        raise ConfigError(f"{where}: cells: {missing[0]}: missing; kind {kind} has {', '.join(KINDS[kind].roles)}")
    for role, criteria in roles.items():
        choose(f"{where}: cells", role, KINDS[kind].roles)
        for model in models:
            try:
                Cell(model=model, **criteria)
            except (ConfigError, TypeError) as error:
                raise ConfigError(f"{where}: cells: {role}: {error}") from None
    if not isinstance(entry.get("command"), str) or not entry["command"].strip():
        raise ConfigError(f"{where}: command: {entry.get('command')!r} is not allowed; give what runs its cells")
    limits = _limits(f"{where}: test", kind, test, published)
    return Scope(statement=str(entry["statement"]), models=models, roles=roles, limits=limits, command=entry["command"])


def _limits(where: str, kind: str, test: Any, published: Mapping[str, Published]) -> dict[str, Any]:
    """What decides: numbers, `relative` yes or no, and for a margin also a number that the paper states."""
    known_keys(where, test, ("kind", "why", *KINDS[kind].limits))
    for name in KINDS[kind].limits:
        value = test.get(name)
        if value is None or (name == "relative" and isinstance(value, bool)):
            continue
        if name == "margin" and isinstance(value, str):
            choose(f"{where}: {name}", value, published)
        elif name == "relative" or not is_number(value):
            allowed = "true or false" if name == "relative" else "a number"
            raise ConfigError(f"{where}: {name}: {value!r} is not allowed; give {allowed}")
    needed = {"throughput": ("margin",), "duration": ("margin",), "overlap": ("at_most", "ratio")}.get(kind, ())
    for name in needed:
        if test.get(name) is None:
            raise ConfigError(f"{where}: {name}: missing; kind {kind} needs {', '.join(needed)}")
    if kind in ("share", "saving", "maximum") and not {"tolerance", "at_least", "at_most"} & test.keys():
        raise ConfigError(f"{where}: tolerance: missing; kind {kind} needs tolerance, at_least or at_most")
    return {name: value for name, value in test.items() if name != "kind"}


def _published(where: str, kind: str, stated: Any, published: Mapping[str, Published]) -> dict[str, Published]:
    """By role; a name alone is the value."""
    if stated is None:
        return {}
    given = stated if isinstance(stated, dict) else {"value": stated}
    known_keys(where, given, KINDS[kind].published)
    return {role: published[choose(f"{where}: {role}", name, published)] for role, name in given.items()}


def _consistency(
    where: str,
    entry: Mapping[str, Any],
    test: Mapping[str, Any],
    published: Mapping[str, Published],
    counts: Mapping[str, Counts],
) -> Claim:
    name = choose(f"{where}: test: arithmetic", test.get("arithmetic"), ARITHMETIC)
    known_keys(f"{where}: test", dict(test), ("kind", "why", "arithmetic", "tolerance", *NEEDS[name]))
    for need in NEEDS[name]:
        if need not in test:
            raise ConfigError(f"{where}: test: {need}: missing; arithmetic {name} needs {', '.join(NEEDS[name])}")
        if need == "model":
            choose(f"{where}: test: model", test[need], counts)
            continue
        for one in _flat(test[need]):
            choose(f"{where}: test: {need}", one, published)
    command = str(entry.get("command") or "python -m benchmarks claims")
    scope = Scope(statement=str(entry["statement"]), models=(), roles={}, limits=dict(test), command=command)
    return Claim(id=str(entry["id"]), source=str(entry["source"]), kind=CONSISTENCY, paper=_stated(scope, published))


def _stated(scope: Scope, published: Mapping[str, Published]) -> Scope:
    values = [published[one].value for one in (scope.limits.get("stated"),) if one]
    return _worded(scope.statement, scope, {"published": f"{values[0]:g}" if values else ""})


def _worded(where: str, scope: Scope, values: Mapping[str, Any]) -> Scope:
    """The scope with its statement's {model}, {published} and {limits} filled in."""
    try:
        text = scope.statement.format(**{**scope.limits, **values})
    except (KeyError, IndexError, ValueError) as error:
        allowed = ", ".join(sorted({*values, *scope.limits} - {"why"}))
        raise ConfigError(f"{where}: statement: {{{error}}} is not known; allowed in braces: {allowed}") from None
    return Scope(statement=text, models=scope.models, roles=scope.roles, limits=scope.limits, command=scope.command)


def _number_text(numbers: Mapping[str, Published]) -> str:
    return " to ".join(f"{numbers[role].value:g}" for role in ("value", "low", "high") if role in numbers)


def _roles(where: str, given: Any) -> dict[str, dict[str, Any]]:
    """Criteria by role; what stands under `all` belongs to every role."""
    roles = _mapping(where, given)
    common = _mapping(f"{where}: all", roles.get("all") or {})
    own = {str(role): _mapping(f"{where}: {role}", one) for role, one in roles.items() if role != "all"}
    return {role: {**common, **one} for role, one in own.items()}


def _without_world(criteria: Mapping[str, Any]) -> dict[str, Any]:
    """Small models run on as many ranks as there are."""
    return {name: value for name, value in criteria.items() if name != "world_size"}


def _margin(where: str, given: Any) -> Margin:
    known_keys(where, given, ("points", "percent", "why"))
    numbers = {name: given[name] for name in ("points", "percent") if given.get(name) is not None}
    if len(numbers) != 1 or not all(is_number(value) and value > 0 for value in numbers.values()):
        raise ConfigError(f"{where}: {numbers} is not allowed; give points or percent, a number above 0")
    return Margin(**numbers)


def _counts(where: str, given: Any) -> Counts:
    names = ("parameters", "residuals", "saved", "copies")
    known_keys(where, given, (*names, "source"))
    for name in names:
        if not is_count(given.get(name)):
            raise ConfigError(f"{where}: {name}: {given.get(name)!r} is not allowed; give a whole number")
    return Counts(**{name: given[name] for name in names})


def _mapping(where: str, given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise ConfigError(f"{where}: {given!r} is not a mapping of names to values")
    return given


def _list(where: str, given: Any) -> list[Any]:
    if not isinstance(given, list | tuple) or not given:
        raise ConfigError(f"{where}: {given!r} is not allowed; give a list of at least one")
    return list(given)


def _flat(given: Any) -> list[Any]:
    return [one for item in given for one in _flat(item)] if isinstance(given, list) else [given]
