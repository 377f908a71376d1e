"""Claims that need no run: their arithmetic, and the counts it uses against the library."""

from dataclasses import replace

import pytest
import torch

from benchmarks.analysis.claims.claim import Claim, LedgerRow
from benchmarks.analysis.claims.claims_command import ledger
from benchmarks.analysis.claims.kinds import KINDS, load_claims
from benchmarks.core.registry import MODELS
from benchmarks.core.workloads import WORKLOADS
from resireduce.grouping import compressible, find_groups
from resireduce.scheme import load
from tests.claim_records import listed

BOOK = load_claims()
CLAIMS = [claim for claim in BOOK.claims if KINDS[claim.kind].of == "numbers"]
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


def judged(claim: Claim, **published: float) -> LedgerRow:
    """The row of a claim; with other values that the paper would state, by role."""
    numbers = {role: replace(claim.published[role], value=value, digits=2) for role, value in published.items()}
    claim = replace(claim, published={**claim.published, **numbers})
    return ledger(book=replace(BOOK, claims=(claim,)))[0]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_what_the_paper_states_follows_or_not_and_another_value_turns_the_verdict(claim: Claim) -> None:
    found = judged(claim)
    assert (found.status, found.scope, found.cells) == (VERDICTS[claim.id], "paper", ())
    assert found.value is not None
    for role in {"value", "high"} & claim.published.keys():
        # That many are the largest, or the best, is not refuted by more.
        less = claim.kind == "best" and found.unit != "ppl"
        assert judged(claim, **{role: round(found.value, 2)}).status == "reproduced"
        assert judged(claim, **{role: (0.5 if less else 2) * found.value}).status == "not reproduced"


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


def test_the_reason_shows_the_arithmetic_and_a_wrong_lower_end_of_a_range_counts() -> None:
    claims = {claim.id: claim for claim in CLAIMS}
    for name, reason in ARITHMETIC:
        assert judged(claims[name]).reason == reason
    assert judged(claims["exp5-range-stated-0.1"], low=0.1).status == "not reproduced"
