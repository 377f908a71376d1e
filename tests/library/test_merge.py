"""Merged messages: whatever travels together, training is the same, bit for bit, and what travels is what was asked."""

import json

import pytest
import torch
from torch import Tensor, nn

from resireduce.comm.base import Communicator
from resireduce.compressors.thresholds import Threshold
from resireduce.errors import ConfigError
from resireduce.merging.rules import TIMED, Costs
from resireduce.plan import plan
from resireduce.scheme import COMPRESSORS
from tests.threads import LocalWorld
from tests.worlds import Net, distributed, same, seeded, train_world

LARGE = ["head.weight", *[f"blocks.{i}.{way}.weight" for i in (2, 1, 0) for way in ("down", "up")], "first.weight"]
"""Tensors of `Wide` that are compressed, in the order in which their gradients come."""


class Wide(Net):
    """A net of which every weight is compressed."""

    def __init__(self) -> None:
        super().__init__(width=100, blocks=3)
        self.head = nn.Linear(100, 110)


def loss_of(model: nn.Module, generator: torch.Generator) -> Tensor:
    """The loss of a batch that the generator makes."""
    return model(torch.randn(6, 600, generator=generator)).square().mean()


WAYS: list[object] = [
    [["first.weight", "head.weight", "norm.bias"], ["blocks.1.up.weight", "blocks.2.down.weight"]],
    6000,
]


ROUNDS = [name for name, listed in COMPRESSORS.items() if listed.in_rounds]
"""Compressors whose payloads are made in rounds of one tensor each."""


@pytest.mark.parametrize("compressor", [name for name in COMPRESSORS if name not in ROUNDS])
def test_whatever_travels_together_parameters_are_the_same(compressor: str) -> None:
    scheme = "none" if compressor == "none" else "w+2d"
    options = {"compressor": compressor, "steps": 2, "loss": loss_of, "scheme": scheme}
    start = seeded(Wide)
    alone = train_world(2, start, **options)
    together = train_world(2, start, merge="one", **options)
    for (first, a), (second, b) in zip(alone, together, strict=True):
        assert same(first, second)
        held, found = a.residual_state_dict(), b.residual_state_dict()
        assert held.keys() == found.keys() and all(torch.equal(held[name], found[name]) for name in held)
    assert LARGE in b.messages


class Deep(nn.Module):
    """Equal layers."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(100, 100, bias=False) for _ in range(12))


def loss_without_some(model: nn.Module, generator: torch.Generator) -> Tensor:
    """The loss of a batch; rank 1, whose generator has that seed, leaves two layers out."""
    x = torch.randn(6, 100, generator=generator)
    for number, block in enumerate(model.blocks):
        if generator.initial_seed() != 1 or number not in (1, 2):
            x = x + torch.tanh(block(x))
    return x.square().mean()


@pytest.mark.parametrize("gradients", ["kept", "streamed"])
@pytest.mark.parametrize("scheme", ["w", "member"])
def test_a_message_that_waits_for_room_and_for_gradients_that_never_come_is_that_of_its_own_step(
    scheme: str, gradients: str
) -> None:
    """Payloads of four ranks at this density wait for one another; residuals have ended the step by then."""
    lists = [[f"blocks.{number}.weight" for number in range(first, first + 4)] for first in (0, 4, 8)]
    options = {"scheme": scheme, "gradients": gradients, "density": 0.25, "steps": 3, "loss": loss_without_some}
    start = seeded(Deep)
    alone, together = (train_world(4, start, merge=merge, **options) for merge in ("none", lists))
    for (first, a), (second, b) in zip(alone, together, strict=True):
        held, found = a.residual_state_dict(), b.residual_state_dict()
        assert same(first, second) and all(torch.equal(held[name], found[name]) for name in held)


CASES: list[dict[str, object]] = [
    {"scheme": "w+2d", "residual_dtype": "int8"},
    {"compressor": Threshold(0.01), "residual_dtype": "int4"},
    {"scheme": "a", "max_grad_norm": 0.1},
    {"scheme": "baseline", "gradients": "kept"},
    {"scheme": "w+2d", "warm_up_steps": 1},
    {"scheme": "baseline", "dense": ["first.weight"]},
    {"scheme": "w", "backward_passes_per_step": 2, "steps": 4},
    {"scheme": "baseline", "hierarchy": [[0, 1], [2, 3]]},
    {"scheme": "w+2d", "hierarchy": [[0, 1], [2, 3]], "gradients": "kept", "compressor": Threshold(0.01)},
    {"scheme": "none", "compressor": "none", "update": "in_backward"},
    {"scheme": "baseline", "compressor": "block4-two-phase", "hierarchy": [[0, 1], [2, 3]]},
    {"scheme": "w+2d", "compressor": "block8-two-phase", "backward_passes_per_step": 2, "steps": 4},
]
"""Settings on which something in the way of messages depends."""


@pytest.mark.parametrize("number", range(len(CASES)))
def test_it_goes_with_all_other_settings(number: int) -> None:
    options = {"steps": 2, "loss": loss_of, "density": 0.05} | CASES[number]
    merge = WAYS[number % len(WAYS)]
    start = seeded(Wide)

    alone, together = (train_world(4, start, merge=way, **options) for way in ("none", merge))
    assert all(same(one, other) for (one, _), (other, _) in zip(alone, together, strict=True))
    assert not same(alone[0][0], start)


def test_messages_are_those_that_were_asked_for() -> None:
    def messages(**options: object) -> list[list[str]]:
        with distributed(seeded(Wide), **options) as optimizer:
            return [names for names in optimizer.messages if set(names) & set(LARGE)]

    assert messages() == messages(merge="none") == [[name] for name in LARGE]
    assert messages(merge="one") == [LARGE]
    sizes = {name: 8 * int(0.01 * p.numel()) for name, p in seeded(Wide).named_parameters() if name in LARGE}
    limit = sizes["head.weight"] + sizes["blocks.2.down.weight"]
    first, *others = messages(merge=limit)
    assert first == LARGE[:2] and others[-1] == ["first.weight"], "one that is larger goes alone"
    assert all(sum(sizes[name] for name in names) <= limit for names in others[:-1])
    asked = [["first.weight", "norm.bias"], ["blocks.0.up.weight", "head.weight"]]
    found = messages(merge=asked)
    assert found == [*[[name] for name in LARGE[1:-2]], ["blocks.0.up.weight", "head.weight"], ["first.weight"]]


def test_hybrid_is_one_gather_and_one_sum() -> None:
    """Whatever is sent dense, beyond what a bucket holds too."""
    options = {"scheme": "baseline", "dense": ["first.weight", "head.weight"], "loss": loss_of, "steps": 1}
    (alone, _), (together, optimizer) = (
        train_world(2, seeded(Wide), merge=merge, **options)[0] for merge in (None, "hybrid")
    )
    dense = {name for name, _ in seeded(Wide).named_parameters()} - {*LARGE[1:-1]}
    assert sorted(map(sorted, optimizer.messages)) == sorted([sorted(dense), sorted(LARGE[1:-1])])
    assert same(alone, together), "of two ranks nothing rounds otherwise"


@pytest.mark.parametrize("hierarchy", ["flat", [[0, 1], [2, 3]]])
@pytest.mark.parametrize("compressor", ["topk", "block4-two-phase"])
@pytest.mark.parametrize("norm", [None, 0.1])  # with which averages are received twice
def test_messages_with_tensors_that_some_ranks_do_not_use(
    norm: float | None, compressor: str, hierarchy: object
) -> None:
    """A layer that one rank alone uses, first in its message, and one that none does but in the first and last step."""
    options = {"compressor": compressor, "hierarchy": hierarchy, "max_grad_norm": norm}

    def rank(communicator: Communicator, merge: object) -> list[Tensor]:
        model = layers[communicator.rank]
        optimizer = distributed(model, backend=communicator, merge=merge, **options)
        for step in range(4):
            optimizer.zero_grad()
            used = [0] * (communicator.rank == step % 2) + [1] + [2] * (step in (0, 3)) + [3]
            x = torch.full((2, 120), float(communicator.rank + 1))
            for i in used:
                x = model[i](x)
            x.square().mean().backward()
            optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    found = []
    for merge in ("none", "one", [["0.weight", "2.weight"], ["1.weight", "3.weight"]]):
        ranks = 2 if hierarchy == "flat" else 4
        layers = [seeded(lambda: nn.Sequential(*[nn.Linear(120, 120) for _ in range(4)])) for _ in range(ranks)]
        first, *others = LocalWorld(ranks).run(lambda one, merge=merge: rank(one, merge))
        assert all(all(map(torch.equal, first, other)) for other in others)
        found.append(first)
    assert all(map(torch.equal, found[0], found[1])) and all(map(torch.equal, found[0], found[2]))


@pytest.mark.parametrize(("compressor", "merge"), [("topk", 3000), ("block8-two-phase", 80_000)])
def test_ranks_of_a_node_find_the_same_buckets_where_their_slices_differ(compressor: str, merge: object) -> None:
    """Layers have three or four rows by turns, and a slice of three rows is larger on the first rank of a node."""

    def rank(communicator: Communicator) -> list[list[str]]:
        model = models[communicator.rank]
        nodes = {"hierarchy": [[0, 1], [2, 3]], "scheme": "baseline"}
        optimizer = distributed(model, backend=communicator, compressor=compressor, merge=merge, **nodes)
        for _ in range(2):
            optimizer.zero_grad()
            sum(one(torch.ones(1, one.in_features)).square().sum() for one in model).backward()
            optimizer.step()
        return optimizer.messages

    sizes = [(6000, 3 + number % 2) for number in range(70)]
    models = [seeded(lambda: nn.Sequential(*[nn.Linear(*size, bias=False) for size in sizes])) for _ in range(4)]
    first, *others = LocalWorld(4).run(rank)
    assert all(other == first for other in others) and 1 < len(first) < len(sizes)


@pytest.mark.parametrize("rule", ["mg-wfbp", "rgmerge-style"])
def test_a_rule_merges_by_what_the_first_steps_took_and_training_is_the_same(rule: str) -> None:
    options = {"steps": 7, "loss": loss_of, "scheme": "baseline"}
    start = seeded(Wide)
    alone = train_world(2, start, **options)
    together = train_world(2, start, merge=rule, **options)
    (first, one), (second, other) = together
    assert same(first, second) and same(first, alone[0][0])
    assert one.costs is not None and one.costs == other.costs, "the same on all ranks"
    assert one.messages == other.messages
    assert sorted(one.costs.names) == sorted(LARGE)
    planned = one.costs.messages(rule)
    assert [names for names in one.messages if names in planned] == planned
    again = Costs(**json.loads(json.dumps(vars(one.costs))))
    assert again.messages(rule) == planned
    given = train_world(2, start, merge=planned, **options)
    assert given[0][1].messages == one.messages and same(given[0][0], first)


@pytest.mark.parametrize(
    "options",
    [
        {"gradients": "kept"},
        {"hierarchy": [[0, 1], [2, 3]]},
        {"warm_up_steps": 1},
        {"compressor": "fp16", "scheme": "none", "hierarchy": [[0, 1], [2, 3]]},
    ],
)
def test_first_steps_are_timed_in_every_form(options: dict[str, object]) -> None:
    options = {"scheme": "baseline", "steps": 7, "loss": loss_of} | options
    start = seeded(Wide)
    alone = train_world(4, start, **options)
    together = train_world(4, start, merge="optimal", **options)
    for (first, _), (second, optimizer) in zip(alone, together, strict=True):
        assert same(first, second) and optimizer.costs is not None
        assert all(nbytes > 0 for nbytes in optimizer.costs.nbytes) and optimizer.costs.seconds_per_byte >= 0


def test_messages_follow_from_costs_alone() -> None:
    """By hand: a link that is slow to start merges what is ready close together, one that is not merges nothing."""
    costs = {"names": ["c", "b", "a"], "ready_seconds": [1.0, 1.1, 9.0], "compress_seconds": [0.01] * 3}
    costs |= {"nbytes": [10, 10, 10], "elements": [100, 100, 100]}
    slow, fast = (Costs(latency, 0.01, **costs) for latency in (0.5, 0.0))  # type: ignore[arg-type]
    for rule in TIMED:
        assert slow.messages(rule)[-1] == ["a"] and fast.messages(rule)[-1] == ["a"]
    assert slow.messages("mg-wfbp") == slow.messages("optimal") == slow.messages("omgs") == [["c", "b"], ["a"]]
    assert fast.messages("optimal") == fast.messages("omgs") == [["c"], ["b"], ["a"]]
    with pytest.raises(ConfigError, match="rule: 'one' is not known; allowed: mg-wfbp, omgs"):
        slow.messages("one")


def test_omgs_waits_for_the_backward_pass_alone() -> None:
    """Compressing the second tensor takes two of the three seconds between them, for which the first need not wait."""
    costs = {"names": ["b", "a"], "ready_seconds": [5.0, 8.0], "nbytes": [1, 1], "elements": [1000, 2000]}
    made = (Costs(1.5, 0.0, compress_seconds=[one, 2 * one], **costs) for one in (1.0, 0.0))  # type: ignore[arg-type]
    long, none = made
    assert long.messages("omgs") == [["b", "a"]] and none.messages("omgs") == [["b"], ["a"]]


def test_what_is_not_known_before_training_is_not_planned() -> None:
    with pytest.raises(ConfigError, match="merge: 'mg-wfbp' is not known before training"):
        plan(Wide, merge="mg-wfbp", compressor="topk")
    alone, together = (plan(Wide, merge=merge, scheme="baseline", density=0.1) for merge in (None, "one"))
    assert {name: alone[name] for name in ("total", "residuals")} == {
        name: together[name] for name in ("total", "residuals")
    }
    assert together["peak_states"] > alone["peak_states"], "payloads wait for each other, and come together"


def test_tensors_of_two_kinds_cannot_share_a_message_and_are_kept_apart() -> None:
    model = seeded(Wide)
    model.blocks[1].to(torch.bfloat16)  # type: ignore[operator]
    with distributed(model, merge=[["head.weight", "blocks.1.up.weight"]]) as optimizer:
        named = [names for names in optimizer.messages if {"head.weight", "blocks.1.up.weight"} & {*names}]
    assert named == [["head.weight"], ["blocks.1.up.weight"]]
    kinds = {name: parameter.dtype for name, parameter in model.named_parameters()}
    with distributed(model, merge="one") as optimizer:
        messages = [names for names in optimizer.messages if set(names) & set(LARGE)]
    assert len(messages) == 3 and all(len({kinds[name] for name in names}) == 1 for names in messages)
