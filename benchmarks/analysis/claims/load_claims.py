"""Read results/paper/claims.yaml. Errors take one line: the claim, and what is wrong with it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
from benchmarks.core.checks import known_keys, within
from benchmarks.core.config_reader import read_yaml
from benchmarks.core.paths import ROOT
from benchmarks.core.workloads import WORKLOADS
from resireduce.errors import ConfigError, choose

CLAIMS_FILE = ROOT / "results/paper/claims.yaml"
TOP = ("noise", "margins", "counts", "stand_ins", "claims")
FIELDS = ("id", "source", "statement", "each", "models", "published", "cells", "test", "command", "small")
SMALL_FIELDS = ("of", "statement", "cells", "test", "command")
ITSELF = "python -m benchmarks claims"
WRONG = (KeyError, TypeError, AttributeError, IndexError, ValueError)


@lru_cache
def load_claims(path: Path = CLAIMS_FILE) -> Book:
    """Return all claims in file order. Raises ConfigError, with one line, for invalid entries."""
    values = read_yaml(path)
    with within(path), _wrong_as("the values before the claims"):
        published = load_published()
        known_keys("claims.yaml", values, TOP)
        margins = {
            name: Margin(published[one["against"]], published[one["tested"]], bool(one.get("percent")))
            for name, one in values["margins"].items()
        }
        counts = {
            model: Counts(**{name: count for name, count in one.items() if name != "source"})
            for model, one in values["counts"].items()
        }
        stand_ins = {model: choose(f"stand_ins: {model}", one, WORKLOADS) for model, one in values["stand_ins"].items()}
        noise = float(values["noise"])
        shared = Book(claims=(), noise=noise, margins=margins, counts=counts, stand_ins=stand_ins, published=published)
        claims: dict[str, Claim] = {}
        for number, entry in enumerate(values["claims"], start=1):
            name = entry.get("id") if isinstance(entry, dict) else None
            with within(f"claim {name!r}" if name else f"claims entry {number}"), _wrong_as("entry"):
                for claim in _claims(known_keys("entry", entry, FIELDS), shared):
                    if claim.id in claims:
                        raise ConfigError(f"id: {claim.id!r} is there twice; give each claim an id of its own")
                    claims[claim.id] = claim
    return replace(shared, claims=tuple(claims.values()))


@contextmanager
def _wrong_as(what: str) -> Iterator[None]:
    """Turn an error of Python in reading `what` into a ConfigError of one line."""
    try:
        yield
    except ConfigError:
        raise
    except WRONG as error:
        raise ConfigError(f"{what}: {type(error).__name__}: {error}") from None


def _claims(entry: dict[str, Any], shared: Book) -> Iterator[Claim]:
    """Yield the claims of an entry: one, or one for each model that it is stated for."""
    name, kind = entry["id"], choose("test: kind", entry["test"]["kind"], (*KINDS, CONSISTENCY, ONE_GPU))
    if kind == CONSISTENCY:
        yield _consistency(entry, shared)
    elif kind == ONE_GPU:
        yield from _one_gpu(entry, shared)
    elif ("each" in entry) == ("models" in entry):
        raise ConfigError("each: give either `each`, one claim a model, or `models`, one claim of all")
    elif "models" in entry:
        yield _claim(entry, name, tuple(entry["models"]), entry.get("published"), shared)
    else:
        for model, ids in entry["each"].items():
            yield _claim(entry, f"{name}-{model}", (model,), ids, shared)


def _claim(entry: Mapping[str, Any], name: str, models: tuple[str, ...], ids: Any, shared: Book) -> Claim:
    kind = str(entry["test"]["kind"])
    given = ids if isinstance(ids, dict) else {} if ids is None else {"value": ids}
    known_keys("published", given, KINDS[kind].published)
    numbers = {
        role: shared.published[choose(f"published: {role}", one, shared.published)] for role, one in given.items()
    }
    paper = _scope(kind, entry, models, shared)
    with within("small"):
        small = _small(kind, entry, paper, shared)
    text = " to ".join(f"{numbers[role].value:g}" for role in ("value", "low", "high") if role in numbers)
    return Claim(
        id=name,
        source=str(entry["source"]),
        kind=kind,
        published=numbers,
        paper=_worded(paper, {"published": text}),
        small=_worded(small, {"published": text}) if small else None,
    )


def _small(kind: str, entry: Mapping[str, Any], paper: Scope, shared: Book) -> Scope | None:
    """Return the scope of the small models: the paper's, on any number of ranks, with the changes given in `small`."""
    given = known_keys("small", entry.get("small") or {}, SMALL_FIELDS)
    if not given or not set(given.get("of", paper.models)) & set(paper.models):
        return None
    other = _roles(given.get("cells") or {})
    cells = {
        role: {name: value for name, value in criteria.items() if name != "world_size"} | other.get(role, {})
        for role, criteria in paper.roles.items()
    }
    test = {name: value for name, value in entry["test"].items() if name != "why"} | (given.get("test") or {})
    models = dict.fromkeys(shared.stand_ins[choose("of", one, shared.stand_ins)] for one in paper.models)
    merged = {"statement": entry["statement"], "command": entry.get("command"), **given, "cells": cells, "test": test}
    return _scope(kind, merged, tuple(models), shared)


def _scope(kind: str, entry: Mapping[str, Any], models: tuple[str, ...], shared: Book) -> Scope:
    cells = _roles(entry["cells"])
    if set(cells) != set(KINDS[kind].roles):
        raise ConfigError(f"cells: {', '.join(cells)}; kind {kind} has {', '.join(KINDS[kind].roles)}")
    for role, criteria in cells.items():
        for model in models:
            with within(f"cells: {role}"):
                Cell.from_dict({**criteria, "model": model})
    test = _limits(kind, entry["test"], shared.published)
    return Scope(
        statement=str(entry["statement"]), models=models, roles=cells, limits=test, command=str(entry["command"])
    )


def _consistency(entry: dict[str, Any], shared: Book) -> Claim:
    """Return a claim about the paper's own numbers: it names its arithmetic, and the numbers and models it takes."""
    test = dict(entry["test"])
    _, needs = ARITHMETIC[choose("test: arithmetic", test.get("arithmetic"), ARITHMETIC)]
    known_keys("test", test, ("kind", "why", "arithmetic", "tolerance", *needs))
    for need in needs:
        for one in _flat(test[need]):
            choose(f"test: {need}", one, shared.counts if need == "model" else shared.published)
    number = shared.published.get(str(test.get("stated")))
    return _without_cells({**entry, "command": ITSELF}, CONSISTENCY, test, number)


def _one_gpu(entry: Mapping[str, Any], shared: Book) -> Iterator[Claim]:
    """Yield a claim of one GPU, or one for each model; the model stands among the limits, as no cells of runs count."""
    for model, one in (entry.get("each") or {None: None}).items():
        of_model = {} if model is None else {"model": choose("each", model, WORKLOADS)}
        test = entry["test"] | of_model
        measure = choose("test: measure", test.get("measure"), MEASURES)
        needs, limits = MEASURES[measure][1], ("tolerance", "at_least") if measure == "saving" else ()
        known_keys("test", test, ("kind", "why", "measure", *needs, *limits))
        if missing := [name for name in needs if name not in test]:
            raise ConfigError(f"test: {missing[0]}: missing")
        if "rung" in test:
            choose("test: rung", test["rung"], RUNGS)
        if (limits and ("tolerance" in test) == ("at_least" in test)) or ("tolerance" in test) != (one is not None):
            raise ConfigError("test: tolerance: give it beside a published value, or at_least without one")
        number = shared.published[choose("published", one, shared.published)] if one else None
        known = {name: value for name, value in test.items() if name != "kind"}
        claim = _without_cells({**entry, **of_model}, ONE_GPU, known, number)
        yield replace(claim, published={"value": number} if number else {})


def _without_cells(entry: Mapping[str, Any], kind: str, limits: dict[str, Any], number: Published | None) -> Claim:
    """Return a claim that no cells of runs test."""
    statement, command = str(entry["statement"]), str(entry["command"])
    scope = Scope(statement=statement, models=(), roles={}, limits=limits, command=command)
    of_model = {"model": entry["model"]} if "model" in entry else {}
    paper = _worded(scope, {**of_model, "published": f"{number.value:g}" if number else ""})
    name = f"{entry['id']}-{entry['model']}" if of_model else str(entry["id"])
    return Claim(id=name, source=str(entry["source"]), kind=kind, paper=paper)


def _worded(scope: Scope, values: Mapping[str, str]) -> Scope:
    """Return the scope with {model}, {published} and {limits} filled into its statement."""
    with _wrong_as("statement"):
        words = {"model": ", ".join(scope.models), **scope.limits, **values}
        return replace(scope, statement=scope.statement.format(**words))


def _limits(kind: str, test: Mapping[str, Any], published: Mapping[str, Published]) -> dict[str, Any]:
    """Return the deciding limits by name; a margin may be the id of a stated number."""
    known_keys("test", test, ("kind", "why", *KINDS[kind].limits))
    if isinstance(test.get("margin"), str):
        choose("test: margin", test["margin"], published)
    return {name: value for name, value in test.items() if name != "kind"}


def _roles(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return criteria by role; those under `all` apply to every role."""
    return {role: {**(given.get("all") or {}), **one} for role, one in given.items() if role != "all"}


def _flat(given: Any) -> list[Any]:
    return [one for item in given for one in _flat(item)] if isinstance(given, list) else [given]
