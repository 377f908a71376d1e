"""A plan for FSDP2: what is refused, what is listed, and slices of one rank; tests/ranks has a real run."""

from typing import Any

import pytest
import torch
from torch import nn

from resireduce.__main__ import main
from resireduce.errors import ConfigError
from resireduce.plan import plan
from tests.worlds import Net


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shards": 3}, "shards: 3 is not allowed with 8 ranks; give a divisor"),
        ({"shards": 0}, "shards: 0 is not allowed"),
        ({"shards": 2.0}, "shards: 2.0 is not allowed"),
        ({"shards": True}, "shards: True is not allowed"),
        ({"shards": 2, "max_grad_norm": 1.0}, "max_grad_norm: 1.0 means nothing with shards"),
        ({"shards": 2, "hierarchy": "node", "ranks_per_node": 2}, "hierarchy: .* means nothing with shards"),
    ],
)
def test_what_means_nothing_to_fsdp_is_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(Net, **settings)


class Wide(nn.Module):
    """Layers of few rows, a group, of which PowerSGD would send more than they have; and a name with brackets."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(5000, 3) for _ in range(3))
        self.more = nn.ParameterDict({"w[0]": nn.Parameter(torch.empty(200, 100)), "v": nn.Parameter(torch.empty(9))})


@pytest.mark.parametrize(
    ("build", "options"), [(Net, {}), (Net, {"scheme": "w", "itemised": True}), (Wide, {"compressor": "powersgd"})]
)
def test_one_shard_is_the_plan_of_kept_gradients(build: type[nn.Module], options: dict[str, Any]) -> None:
    """Items say who shares a residual; layers that a compressor leaves alone are in no group."""
    whole, sharded = plan(build, gradients="kept", **options), plan(build, shards=1, **options)
    assert {key: whole[key] for key in sharded} == sharded
    assert "itemised" not in options or any(item.members for item in sharded["items"])


def test_a_compressor_that_knows_the_ranks_knows_the_replicas_alone() -> None:
    """Ok-Topk remembers where the region of each rank begins: of eight ranks in fours, two hold the same slices."""
    given = {"scheme": "none", "compressor": "ok-topk"}
    of_two = plan(Net, world_size=2, gradients="kept", **given)["residuals"]
    assert plan(Net, world_size=8, shards=4, **given)["residuals"] == of_two > 0


def test_the_command_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", "gpt2-bytes", "--shards", "4", "--optimizer", "adamw"]) == 0
    said = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert "peak_states" not in said and said["total"].endswith("MiB")
