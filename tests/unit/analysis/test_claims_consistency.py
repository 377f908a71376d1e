"""Claims that need no run: their arithmetic, and the counts it uses against the library."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks.analysis.claims.claim import Claim
from benchmarks.analysis.claims.consistency import consistency
from benchmarks.analysis.claims.kinds import CONSISTENCY
from benchmarks.analysis.claims.ledger import ledger
from benchmarks.analysis.claims.load_claims import load_claims
from benchmarks.core.registry import MODELS
from benchmarks.core.workloads import WORKLOADS
from resireduce.grouping import compressible, find_groups
from resireduce.scheme import load
from tests.claim_records import listed

BOOK = load_claims()
CLAIMS = [claim for claim in BOOK.claims if claim.kind == CONSISTENCY]
VERDICTS = listed()


@pytest.mark.parametrize("model", BOOK.counts)
def test_counts_are_those_of_the_library(model: str) -> None:
    """T, R0 and what `w+2d` saves, from the model on tensors without storage."""
    with torch.device("meta"):
        built = load(MODELS[model])()
    sizes = {name: tensor.numel() for name, tensor in compressible(built).items()}
    grouping = find_groups(built, compressible(built))
    saved = sum(sum(sizes[name] for name in group) - sizes[group[0]] for group in grouping.groups)
    for name in grouping.specific:
        rows = compressible(built)[name].shape[0]
        columns = sizes[name] // rows
        saved += sizes[name] - (rows // 2) * (columns // 2)
    counts = BOOK.counts[model]
    assert counts.parameters == sum(one.numel() for one in built.parameters())
    assert (counts.residuals, counts.saved) == (sum(sizes.values()), saved)
    assert counts.copies == (1 if WORKLOADS[model].optimizer == "sgd" else 2)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_what_the_paper_states_follows_or_not(claim: Claim) -> None:
    found = consistency(BOOK, claim.paper)
    assert found.status == VERDICTS[claim.id]
    one = ledger(book=replace(BOOK, claims=(claim,)))[0]
    assert (one.status, one.scope, one.value, one.cells) == (found.status, "paper", found.value, ())


STATED = [claim for claim in CLAIMS if claim.paper.limits["arithmetic"] != "w_over_2d"]


@pytest.mark.parametrize("claim", STATED, ids=lambda claim: claim.id)
@pytest.mark.parametrize("right", [True, False])
def test_another_stated_value_turns_the_verdict(claim: Claim, right: bool) -> None:
    found = consistency(BOOK, claim.paper)
    assert found.value is not None
    name = claim.paper.limits.get("stated") or claim.paper.limits["high"]
    less = name in claim.paper.limits.get("of", ()) or (
        claim.paper.limits["arithmetic"] == "best" and found.unit != "ppl"
    )
    worse = 0.5 if less else 2.0
    value = round(found.value, 2) if right else worse * found.value
    published = {**BOOK.published, name: replace(BOOK.published[name], value=value, digits=2)}
    book = replace(BOOK, published=published)
    assert consistency(book, claim.paper).status == ("reproduced" if right else "not reproduced")


ARITHMETIC: list[tuple[str, str]] = [
    (
        "exp1-cloud-arithmetic-resnet50",
        "14,065,664 of (3 x 23,705,252 + 23,441,408) elements = 14.88 %; 15.6 % would need a state of 3.80 T, "
        "here it is 3.99 T (T = 23,705,252); stated 15.6 %",
    ),
    ("exp4-gain-stated", "relative: 100 x (63.1 - 63) / 63 = 0.16 %; absolute: 0.10 points; stated 0.16 %"),
    ("table1-size-vgg19", "4 x 143,678,248 bytes = 548.09 MiB = 574.71 MB = 0.57 GB; stated 548.1 MiB"),
    ("exp1-inter-layer-sums-vgg19", "w saves 2.26 % of 2,298,742,240 bytes, 2d 13.41 %"),
]


@pytest.mark.parametrize(("name", "reason"), ARITHMETIC)
def test_the_reason_shows_the_arithmetic(name: str, reason: str) -> None:
    claim = next(claim for claim in CLAIMS if claim.id == name)
    assert consistency(BOOK, claim.paper).reason == reason


def test_a_range_whose_lower_end_is_wrong_does_not_follow() -> None:
    claim = next(claim for claim in CLAIMS if claim.id == "exp5-range-stated-0.1")
    low: Any = replace(BOOK.published["exp5-loss-min-0.1"], value=0.1)
    book = replace(BOOK, published={**BOOK.published, low.id: low})
    assert consistency(book, claim.paper).status == "not reproduced"
