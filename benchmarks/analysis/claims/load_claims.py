"""Read results/paper/claims.yaml. An error takes one line: the claim, and what is wrong with it."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.analysis.claims.claim import Book, Claim, Counts, Margin, Scope
from benchmarks.analysis.claims.kinds import KINDS
from benchmarks.analysis.published import load_published
from benchmarks.core.checks import known_keys
from benchmarks.core.config_reader import read_yaml
from benchmarks.core.paths import ROOT
from resireduce.errors import ConfigError, choose

CLAIMS_FILE = ROOT / "results/paper/claims.yaml"
FIELDS = ("id", "source", "statement", "each", "models", "published", "cells", "test", "command", "small")
SMALL_FIELDS = ("of", "statement", "cells", "test", "command")
STATED = ("value", "low", "high", "tested", "against")
"""Roles of published numbers."""
ITSELF = "python -m benchmarks claims"
"""The command of claims that name none."""


@lru_cache
def load_claims(path: Path = CLAIMS_FILE) -> Book:
    """Return all claims in file order. Raises ConfigError for an invalid claim."""
    values, published = read_yaml(path), load_published()
    pairs = {name: (published[one["against"]], published[one["tested"]]) for name, one in values["margins"].items()}
    book = Book(
        claims=(),
        margins={name: Margin(*pairs[name], one.get("percent", False)) for name, one in values["margins"].items()},
        noise=values["noise"],
        counts={model: Counts(**one) for model, one in values["counts"].items()},
        stand_ins=values["stand_ins"],
        published=published,
    )
    claims: dict[str, Claim] = {}
    for entry in values["claims"]:
        try:
            known_keys("entry", entry, FIELDS)
            named = {f"{entry['id']}-{model}": ((model,), stated) for model, stated in entry.get("each", {}).items()}
            alone = {entry["id"]: (tuple(entry.get("models", ())), entry.get("published"))}
            for name, (models, stated) in (named or alone).items():
                if name in claims:
                    raise ConfigError(f"id: {name!r} is there twice; give each claim an id of its own")
                claims[name] = _claim(book, entry, name, models, stated)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            what = "" if isinstance(error, ConfigError) else f"{type(error).__name__}: "
            raise ConfigError(f"{path}: claim {str(entry)[:40]}: {what}{error}") from None
    return replace(book, claims=tuple(claims.values()))


def _claim(book: Book, entry: Mapping[str, Any], name: str, models: tuple[str, ...], stated: Any) -> Claim:
    """Return the claim of an entry about these models; `stated` is the id of a number, or several by role."""
    kind = choose("test: kind", entry["test"]["kind"], KINDS)
    given = stated if isinstance(stated, dict) else {"value": stated} if stated else {}
    numbers = {role: book.published[one] for role, one in given.items() if role in STATED}
    words = {
        "published": " to ".join(f"{numbers[role].value:g}" for role in ("value", "low", "high") if role in numbers)
    }
    words |= {"title": book.counts[models[0]].title} if models and models[0] in book.counts else {}
    # What is stated for one model, and is no number, is a limit.
    limits = {role: one for role, one in given.items() if role not in numbers}
    paper = _scope({**entry, "test": entry["test"] | limits}, models, words)
    small, changed = None, known_keys("small", entry.get("small") or {}, SMALL_FIELDS)
    if changed and set(models) & set(changed.get("of", models)):
        other = _roles(changed.get("cells"))
        roles = {role: {**_anywhere(criteria), **other.get(role, {})} for role, criteria in paper.roles.items()}
        test = {limit: value for limit, value in entry["test"].items() if limit != "why"} | (changed.get("test") or {})
        there = tuple(dict.fromkeys(book.stand_ins[one] for one in models))
        small = _scope({**entry, **changed, "cells": roles, "test": test}, there, words)
    return Claim(id=name, source=entry["source"], kind=kind, published=numbers, paper=paper, small=small)


def _scope(entry: Mapping[str, Any], models: tuple[str, ...], words: Mapping[str, str]) -> Scope:
    """Return a scope, with {model}, {published}, {title} and {limits} filled into its statement."""
    test, roles = entry["test"], _roles(entry.get("cells"))
    kind = KINDS[test["kind"]]
    known_keys("test", test, ("kind", "why", *kind.limits))
    if set(roles) != set(kind.roles):
        raise ConfigError(f"cells: {', '.join(roles)}; kind {test['kind']} has {', '.join(kind.roles)}")
    limits = {name: value for name, value in test.items() if name != "kind"}
    statement = entry["statement"].format(**{"model": ", ".join(models), **limits, **words})
    command = entry.get("command", ITSELF)
    return Scope(statement=statement, models=models, roles=roles, limits=limits, command=command)


def _roles(given: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """Return criteria by role; those under `all` apply to every role."""
    given = given or {}
    return {role: {**(given.get("all") or {}), **one} for role, one in given.items() if role != "all"}


def _anywhere(criteria: Mapping[str, Any]) -> dict[str, Any]:
    """Return criteria for any number of ranks."""
    return {name: value for name, value in criteria.items() if name != "world_size"}
