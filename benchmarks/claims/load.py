"""Read results/paper/claims.yaml. What is wrong is said in one line: the claim, the field, the value, the cure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.cell import Cell
from benchmarks.cells import read_yaml
from benchmarks.checks import is_number, known_keys
from benchmarks.claims.claim import Book, Claim, Counts, Margin, Scope
from benchmarks.claims.fields import arithmetic, element_counts, items, limits, mapping, margin, roles, stated
from benchmarks.claims.kinds import CONSISTENCY, KINDS
from benchmarks.report.published import Published, load_published
from benchmarks.workloads import WORKLOADS
from resireduce.errors import ConfigError, choose

CLAIMS_FILE = Path(__file__).parents[2] / "results/paper/claims.yaml"
TOP = ("noise", "margins", "counts", "stand_ins", "claims")
FIELDS = ("id", "source", "statement", "each", "models", "published", "cells", "test", "command", "small")
SMALL_FIELDS = ("of", "statement", "cells", "test", "command")
ITSELF = "python -m benchmarks claims"


@dataclass(frozen=True)
class _Shared:
    """What all entries refer to."""

    noise: float
    margins: Mapping[str, Margin]
    counts: Mapping[str, Counts]
    stand_ins: Mapping[str, str]
    published: Mapping[str, Published]


@lru_cache
def load_claims(path: Path = CLAIMS_FILE) -> Book:
    """Return all claims in the file's order. Raises ConfigError, one line, for what cannot be used."""
    values = read_yaml(path)
    try:
        return _book(values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _book(values: dict[str, Any]) -> Book:
    known_keys("claims.yaml", values, TOP)
    for key in TOP:
        if not values.get(key):
            raise ConfigError(f"{key}: missing; allowed: {', '.join(TOP)}, all of them")
    shared = _shared(values)
    claims: dict[str, Claim] = {}
    for number, entry in enumerate(items("claims", values["claims"]), start=1):
        name = entry.get("id") if isinstance(entry, dict) else None
        where = f"claim {name!r}" if name else f"claims entry {number}"
        for claim in _claims(where, known_keys(where, entry, FIELDS), shared):
            if claim.id in claims:
                raise ConfigError(f"{where}: id: {claim.id!r} is there twice; give each claim an id of its own")
            claims[claim.id] = claim
    return Book(
        claims=tuple(claims.values()),
        noise=shared.noise,
        margins=shared.margins,
        counts=shared.counts,
        stand_ins=shared.stand_ins,
        published=shared.published,
    )


def _shared(values: Mapping[str, Any]) -> _Shared:
    """What stands before the claims, checked."""
    if not is_number(values["noise"]):
        raise ConfigError(f"noise: {values['noise']!r} is not allowed; give a number above 0")
    given = {name: mapping(name, values[name]) for name in TOP[1:-1]}
    published = load_published()
    for model, small in given["stand_ins"].items():
        choose("stand_ins: model", model, WORKLOADS)
        choose(f"stand_ins: {model}", small, WORKLOADS)
    return _Shared(
        float(values["noise"]),
        {name: margin(f"margins: {name}", one, published) for name, one in given["margins"].items()},
        {name: element_counts(f"counts: {name}", one) for name, one in given["counts"].items()},
        given["stand_ins"],
        published,
    )


def _claims(where: str, entry: dict[str, Any], shared: _Shared) -> list[Claim]:
    """Return the claim of an entry, or one for each model that it is stated of."""
    for name in ("id", "source", "statement", "test"):
        if not entry.get(name):
            raise ConfigError(f"{where}: {name}: missing; give it")
    if not isinstance(entry["id"], str):
        raise ConfigError(f"{where}: id: {entry['id']!r} is not allowed; give a text")
    kind = choose(f"{where}: test: kind", mapping(f"{where}: test", entry["test"]).get("kind"), (*KINDS, CONSISTENCY))
    if kind == CONSISTENCY:
        return [_consistency(where, entry, shared)]
    if ("each" in entry) == ("models" in entry):
        raise ConfigError(f"{where}: each: give either `each`, one claim a model, or `models`, one claim of all")
    if "models" in entry:
        models = tuple(items(f"{where}: models", entry["models"]))
        return [_claim(where, entry, entry["id"], models, entry.get("published"), shared)]
    each = mapping(f"{where}: each", entry["each"])
    return [_claim(where, entry, f"{entry['id']}-{model}", (model,), ids, shared) for model, ids in each.items()]


def _claim(
    where: str, entry: Mapping[str, Any], name: str, models: tuple[str, ...], ids: Any, shared: _Shared
) -> Claim:
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


def _small(where: str, kind: str, entry: Mapping[str, Any], paper: Scope, shared: _Shared) -> Scope | None:
    """The scope of the small models: the paper's, on as many ranks as there are, and what `small` says otherwise."""
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


def _scope(where: str, kind: str, entry: Mapping[str, Any], models: tuple[str, ...], shared: _Shared) -> Scope:
    cells = roles(f"{where}: cells", entry.get("cells"))
    for role in KINDS[kind].roles:
        if role not in cells:
            raise ConfigError(f"{where}: cells: {role}: missing; kind {kind} has {', '.join(KINDS[kind].roles)}")
    for role, criteria in cells.items():
        choose(f"{where}: cells", role, KINDS[kind].roles)
        for model in models:
            try:
                Cell.from_dict({**criteria, "model": model})
            except ConfigError as error:
                raise ConfigError(f"{where}: cells: {role}: {error}") from None
    command = entry.get("command")
    if not isinstance(command, str) or not command.strip():
        raise ConfigError(f"{where}: command: {command!r} is not allowed; give what runs its cells")
    test = limits(f"{where}: test", kind, entry["test"], shared.published)
    return Scope(statement=str(entry["statement"]), models=models, roles=cells, limits=test, command=command)


def _consistency(where: str, entry: Mapping[str, Any], shared: _Shared) -> Claim:
    test = arithmetic(f"{where}: test", entry["test"], shared.published, shared.counts)
    scope = Scope(statement=str(entry["statement"]), models=(), roles={}, limits=test, command=ITSELF)
    number = shared.published.get(str(test.get("stated")))
    paper = _worded(where, scope, {"published": f"{number.value:g}" if number else ""})
    return Claim(id=str(entry["id"]), source=str(entry["source"]), kind=CONSISTENCY, paper=paper)


def _worded(where: str, scope: Scope, values: Mapping[str, str]) -> Scope:
    """The scope with its statement's {model}, {published} and {limits} filled in."""
    known = {"model": ", ".join(scope.models), **scope.limits, **values}
    try:
        return replace(scope, statement=scope.statement.format(**known))
    except (KeyError, IndexError, ValueError) as error:
        allowed = ", ".join(sorted(known.keys() - {"why"}))
        raise ConfigError(f"{where}: statement: {error} in braces is not known; allowed: {allowed}") from None
