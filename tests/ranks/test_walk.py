"""The whole product: every scheme x compressor x gradient lifetime x backend trains, or is refused with the reason.

But for pairs of scheme and compressor that `walk` leaves out, as it says.
"""

import json
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from resireduce.scheme import COMPRESSORS, GRADIENTS, SCHEMES
from tests.covering import CROSSED
from tests.ranks.test_gloo import on_processes
from tests.ranks.test_horovod import NEEDED, on_horovod
from tests.ranks.walk import ONE, OVER_HOROVOD, ROWS, digest, small, walk
from tests.worlds import seeded

Outcomes = dict[str, dict[str, str]]


def agreed(folder: Path, rows: list[str]) -> Outcomes:
    """The outcomes of both ranks, which must be the same, and of all `rows`."""
    first, second = (json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2))
    assert list(first) == rows
    assert first == second, "ranks drifted apart"
    return first


@pytest.fixture(scope="module")
def over_torch(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    folder = tmp_path_factory.mktemp("torch")
    on_processes(2, partial(walk, folder, ROWS))
    return agreed(folder, ROWS)


def trained(outcomes: Outcomes, scheme: str, compressor: str) -> set[str]:
    """The parameters that a pair ended with, in either lifetime."""
    rows = (outcomes.get(f"{scheme} {compressor} {gradients}", {}) for gradients in GRADIENTS)
    return {row["trained"] for row in rows if "trained" in row}


def test_every_row_trains_or_is_refused_with_the_reason(over_torch: Outcomes) -> None:
    untrained = digest(seeded(small))
    for row, outcome in over_torch.items():
        if "refused" in outcome:
            assert any(f"{name!r}" in outcome["refused"] for name in row.split(" ")), "the reason must name what it is"
        else:
            assert outcome["trained"] != untrained, row


def test_streamed_is_kept_in_every_row(over_torch: Outcomes) -> None:
    for scheme in SCHEMES:
        for compressor in COMPRESSORS:
            assert len(trained(over_torch, scheme, compressor)) <= 1, (scheme, compressor)


def test_no_scheme_and_no_compressor_stands_for_another(over_torch: Outcomes) -> None:
    by_scheme = Counter(result for scheme in SCHEMES for result in trained(over_torch, scheme, "topk"))
    by_compressor = {
        name: set().union(*(trained(over_torch, scheme, name) for scheme in (SCHEMES if name in CROSSED else [ONE])))
        for name in COMPRESSORS
    }
    assert len(by_scheme) == len(SCHEMES), "each trains with top-k, to parameters of its own"
    packed = {name: by_compressor.pop(name) for name in COMPRESSORS if name.endswith("+packed")}
    assert by_compressor.pop("adtopk-threshold") == trained(over_torch, ONE, "topk"), "its first steps are exact"
    seen = Counter(result for results in by_compressor.values() for result in results)
    assert all(by_compressor.values()) and set(seen.values()) == {1}
    for name, results in packed.items():
        assert results == trained(over_torch, ONE, name.removesuffix("+packed")), "packing changes nothing but bytes"


@NEEDED
def test_every_row_is_the_same_over_horovod(over_torch: Outcomes, tmp_path: Path) -> None:
    on_horovod("tests.ranks.walk", tmp_path, tmp_path)
    assert agreed(tmp_path, OVER_HOROVOD) == {row: over_torch[row] for row in OVER_HOROVOD}
