"""Schemes x compressors x lifetimes x backends: each trains, or is refused with the reason.

A residual does not know which compressor left what is in it, so that not all pairs can tell anything new: those go with
every scheme that stand for a kind, and all with the scheme that has one residual of each kind, streamed and kept in
turn. That streamed is kept is found in tests/contracts.
"""

import hashlib
import json
from collections import Counter
from functools import partial
from itertools import cycle, product
from pathlib import Path

import pytest
from torch import nn

from resireduce.comm.base import Communicator
from resireduce.errors import ConfigError
from resireduce.scheme import COMPRESSORS, GRADIENTS, SCHEMES
from tests.processes import on_processes
from tests.ranks.test_horovod import NEEDED, on_horovod
from tests.worlds import seeded, train

Outcomes = dict[str, dict[str, str]]
ONE = "w+2d"
"""The scheme of all others: with a group, a specific layer and a full residual."""
KINDS = ("none", "topk", "fp16", "dgc-momentum")
PAIRS = [pair for pair in product(SCHEMES, COMPRESSORS) if pair[0] == ONE or pair[1] in KINDS]
ROWS = [f"{scheme} {name} {gradients}" for (scheme, name), gradients in zip(PAIRS, cycle(GRADIENTS), strict=False)]


def small() -> nn.Module:
    """A specific layer, a group of two, and two small tensors: what every scheme needs, in few messages."""
    first, *group = [nn.Linear(size, 104, bias=False) for size in (600, 104, 104)]
    return nn.Sequential(first, nn.ReLU(), group[0], nn.ReLU(), group[1], nn.ReLU(), nn.Linear(104, 10))


def digest(model: nn.Module) -> str:
    """Equal for models whose parameters are equal bit for bit."""
    values = hashlib.sha256()
    for parameter in model.parameters():
        values.update(parameter.detach().numpy().tobytes())
    return values.hexdigest()


def outcome(communicator: Communicator, row: str) -> dict[str, str]:
    """What became of one row: the parameters that it trained, or why it was refused."""
    scheme, compressor, gradients = row.split(" ")
    options = {"scheme": scheme, "compressor": compressor, "gradients": gradients}
    try:
        model, _ = train(communicator, seeded(small), optimizer="sgd", steps=2, **options)
    except ConfigError as error:
        return {"refused": str(error)}
    return {"trained": digest(model)}


def walk(folder: Path, rows: list[str], communicator: Communicator) -> None:
    """Leave this rank's outcomes in `folder`."""
    outcomes = {row: outcome(communicator, row) for row in rows}
    (folder / f"rank{communicator.rank}.json").write_text(json.dumps(outcomes))


def agreed(folder: Path) -> Outcomes:
    """The outcomes of both ranks, which must be the same."""
    first, second = (json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2))
    assert first == second, "ranks drifted apart"
    return first


@pytest.fixture(scope="module")
def over_torch(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    folder = tmp_path_factory.mktemp("torch")
    on_processes(2, partial(walk, folder, ROWS))
    return agreed(folder)


def trained(outcomes: Outcomes, scheme: str, compressor: str) -> set[str]:
    """The parameters that a pair ended with."""
    rows = (row for name, row in outcomes.items() if name.split(" ")[:2] == [scheme, compressor])
    return {row["trained"] for row in rows if "trained" in row}


def test_every_row_trains_or_is_refused_with_the_reason(over_torch: Outcomes) -> None:
    untrained = digest(seeded(small))
    for row, outcome in over_torch.items():
        if "refused" in outcome:
            assert any(f"{name!r}" in outcome["refused"] for name in row.split(" ")), "the reason must name what it is"
        else:
            assert outcome["trained"] != untrained, row


def test_no_scheme_and_no_compressor_stands_for_another(over_torch: Outcomes) -> None:
    by_scheme = Counter(result for scheme in SCHEMES for result in trained(over_torch, scheme, "topk"))
    assert len(by_scheme) == len(SCHEMES), "each trains with top-k, to parameters of its own"
    by_compressor = {
        name: set().union(*(trained(over_torch, scheme, name) for scheme in SCHEMES)) for name in COMPRESSORS
    }
    packed = {name: by_compressor.pop(name) for name in COMPRESSORS if name.endswith("+packed")}
    assert by_compressor.pop("adtopk-threshold") == trained(over_torch, ONE, "topk"), "its first steps are exact"
    seen = Counter(result for results in by_compressor.values() for result in results)
    assert all(by_compressor.values()) and set(seen.values()) == {1}
    for name, results in packed.items():
        assert results == trained(over_torch, ONE, name.removesuffix("+packed")), "packing changes nothing but bytes"


@NEEDED
def test_every_compressor_is_the_same_over_horovod(over_torch: Outcomes, tmp_path: Path) -> None:
    """With one scheme: what travels does not depend on it."""
    rows = [row for row in ROWS if row.startswith(f"{ONE} ")]
    on_horovod(2, [partial(walk, tmp_path, rows)])
    assert agreed(tmp_path) == {row: over_torch[row] for row in rows}
