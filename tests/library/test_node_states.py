"""Two levels of ranks: what is saved, loaded by the same or other ranks, and planned."""

import pytest
import torch
from torch import Tensor

from resireduce.comm.base import Communicator
from resireduce.errors import ConfigError
from resireduce.plan import plan
from resireduce.planning.memory import measure_states
from tests.threads import LocalWorld
from tests.worlds import Net, loaded, saved, seeded, train, train_world

PAIRS = [[0, 1], [2, 3]]
TURNS = [[0, 2], [1, 3]]
THREES = [[0, 1, 2], [3, 4, 5]]


def mean(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Over the nodes, of what their ranks hold together; without a hierarchy a rank is a node."""
    names = [name for name in states[0] if name.startswith(("full.", "weighted.", "momentum."))]
    if "node" not in states[0]:
        return {name: torch.stack([state[name] for state in states]).mean(0) for name in names}
    at: dict[int, list[dict[str, Tensor]]] = {}
    for state in sorted(states, key=lambda state: int(state["place"])):
        at.setdefault(int(state["place"]), []).append(state)
    matrices = [name for name in names if states[0][name].dim() > 1]  # of small vectors velocities are cut otherwise
    return {
        name: torch.cat([torch.stack([state[name] for state in of_place]).mean(0) for of_place in at.values()])
        for name in matrices
    }


@pytest.mark.parametrize("scheme", ["baseline", "w"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((4, PAIRS), (2, [[0, 1]])),
        ((4, PAIRS), (4, TURNS)),
        ((4, PAIRS), (2, "flat")),
        ((3, "flat"), (4, PAIRS)),
        ((6, THREES), (4, PAIRS)),
        ((4, PAIRS), (6, THREES)),
    ],
)
@pytest.mark.filterwarnings("ignore:hierarchy")
def test_what_the_model_would_still_be_moved_by_is_conserved(
    before: tuple[int, object], after: tuple[int, object], scheme: str
) -> None:
    """Nodes for ranks, ranks for nodes, and slices of another number of ranks."""
    states = saved(before[0], hierarchy=before[1], scheme=scheme)
    optimizers = loaded(after[0], states, hierarchy=after[1], scheme=scheme)
    expected, found = mean(states), mean([optimizer.residual_state_dict() for optimizer in optimizers])
    shared = expected.keys() & found.keys()
    assert shared and all(expected[name].any() for name in shared)
    for name in shared:
        if scheme == "baseline":  # a group's average of slices, each with weights of its own, is another
            largest = max(float(state[name].abs().max()) for state in states)
            tolerance = 16 * torch.finfo(expected[name].dtype).eps * largest
            torch.testing.assert_close(found[name], expected[name], rtol=0, atol=tolerance)
    assert all(optimizer.steps == 3 for optimizer in optimizers)


def test_the_state_of_another_place_or_hierarchy_is_refused() -> None:
    paired, flat = saved(4, hierarchy=PAIRS), saved(4)
    start = seeded(Net)

    def told(state: dict[str, Tensor], hierarchy: object) -> str:
        def rank(communicator: Communicator) -> str:
            _, optimizer = train(communicator, start, steps=0, hierarchy=hierarchy)
            if communicator.rank:
                return ""
            with pytest.raises(ConfigError) as raised:
                optimizer.load_residual_state_dict(state)
            return str(raised.value)

        return LocalWorld(4).run(rank)[0]

    assert "rank 1 of 4 (number 1 of 2 in node 0), this is rank 0 of 4 (number 0 of 2" in told(paired[1], PAIRS)
    assert "that of rank 0 of 4, this is rank 0 of 4 (number 0 of 2 in node 0)" in told(flat[0], PAIRS)
    assert "(number 0 of 2 in node 0), this is rank 0 of 4;" in told(paired[0], "flat")
    assert "this is rank 0" in told(paired[2], TURNS)
    with pytest.raises(ConfigError, match="are not all of one job at one step"):
        loaded(2, paired[:3], hierarchy="flat")
    with pytest.raises(ConfigError, match="are not all of one job at one step"):
        loaded(2, [*paired[:2], *flat[2:]], hierarchy="flat")


# --- plan ---


@pytest.mark.parametrize("gradients", ["kept", "streamed"])
@pytest.mark.parametrize(
    "options",
    [
        {"scheme": "baseline"},
        {"scheme": "w+2d"},
        {"scheme": "baseline", "residual_dtype": "int4"},
        {"compressor": "sidco-exp"},
    ],
)
def test_plan_is_what_a_run_holds(options: dict[str, object], gradients: str) -> None:
    planned = plan(Net, world_size=4, ranks_per_node=2, hierarchy="node", gradients=gradients, density=0.05, **options)
    for _, optimizer in train_world(4, seeded(Net), hierarchy=PAIRS, gradients=gradients, steps=2, **options):
        states = measure_states(optimizer)
        assert {name: planned[name] for name in states.as_dict()} == states.as_dict()


def test_plan_must_be_told_how_many_ranks_share_a_node() -> None:
    for options, message in (
        (
            {"hierarchy": "node"},
            "ranks_per_node: None is not allowed with hierarchy='node' and 8 ranks; give a divisor",
        ),
        ({"hierarchy": "node", "ranks_per_node": 3}, "ranks_per_node: 3 is not allowed"),
        ({"ranks_per_node": 4}, "ranks_per_node: 4 means nothing to a flat hierarchy"),
        ({"hierarchy": "rack"}, "hierarchy: 'rack' is not known"),
    ):
        with pytest.raises(ConfigError, match=message):
            plan(Net, **options)  # type: ignore[arg-type]
