"""Two levels: the ranks of a node sum their gradients, and each compresses a slice of the mean; saved, and planned."""

import copy
import math
import threading
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import resireduce
from resireduce.comm import nodes
from resireduce.comm.base import Communicator
from resireduce.comm.local import LocalCommunicator
from resireduce.core.optimizer import DistributedOptimizer
from resireduce.errors import ConfigError, NonFiniteGradient
from resireduce.plan import plan
from resireduce.planning.memory import measure_states
from resireduce.scheme import COMPRESSORS, SCHEMES
from tests.threads import LocalWorld, ThreadCommunicator
from tests.worlds import Net, distributed, loaded, loss_of, residuals, same, saved, seeded, train, train_world

PAIRS = [[0, 1], [2, 3]]
SHAPES = [[[0, 1], [2, 3]], [[0, 1], [2, 3], [4, 5], [6, 7]], [[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 2], [1, 3]]]
"""2 x 2, 4 x 2 and 2 x 4 ranks, and ranks that are dealt out to nodes in turn."""


# --- what is trained, against the definition in NumPy ---


def by_hand(
    gradients: np.ndarray, nodes: list[list[int]], density: float
) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    """Sum of all averages, what each node has left, and what all nodes have sent, in float64.

    gradients: [steps, ranks, rows, columns]. Each node has the mean of its ranks, cut by rows among them; of each
    slice, with its residual, the k largest magnitudes are sent, k = max(1, floor(density n)).
    """
    steps, _, rows, columns = gradients.shape
    left = [np.zeros((rows, columns)) for _ in nodes]
    total, sent = np.zeros((rows, columns)), np.zeros((rows, columns))
    for step in range(steps):
        for number, node in enumerate(nodes):
            compensated = left[number] + gradients[step, node].mean(0)
            for part in np.array_split(np.arange(rows), len(node)):
                flat = compensated[part].reshape(-1)
                k = max(1, math.floor(density * flat.size + 1e-9))
                chosen = np.argsort(np.abs(flat), kind="stable")[-k:]
                message = np.zeros_like(flat)
                message[chosen] = flat[chosen]
                total[part] += message.reshape(-1, columns) / len(nodes)
                sent[part] += message.reshape(-1, columns)
                left[number][part] = (flat - message).reshape(-1, columns)
    return total, left, sent


def given_gradients(
    communicator: Communicator, gradients: np.ndarray, **options: object
) -> tuple[Tensor, DistributedOptimizer]:
    """How far one matrix has moved, by SGD at rate 1, when each rank has put these gradients into `.grad`."""
    model = nn.Linear(gradients.shape[3], gradients.shape[2], bias=False, dtype=torch.float64)
    nn.init.zeros_(model.weight)
    optimizer = resireduce.distribute(
        model,
        torch.optim.SGD(model.parameters(), 1.0),
        "baseline",
        backend=communicator,
        gradients="kept",
        **options,  # type: ignore[arg-type]
    )
    for step in range(len(gradients)):
        model.weight.grad = torch.from_numpy(gradients[step, communicator.rank].copy())
        optimizer.step()
    return -model.weight.detach(), optimizer


@pytest.mark.parametrize("nodes", SHAPES)
@pytest.mark.parametrize("density", [0.01, 1.0])
def test_training_is_the_definition(nodes: list[list[int]], density: float) -> None:
    """Rows that ranks divide unevenly, and what is sent + what is kept = all that the nodes' ranks have brought."""
    size = sum(map(len, nodes))
    gradients = np.random.default_rng(0).normal(size=(5, size, 107, 100))
    trained = LocalWorld(size).run(
        lambda communicator: given_gradients(communicator, gradients, density=density, hierarchy=nodes)
    )
    moved, left, sent = by_hand(gradients, nodes, density)
    for node in range(len(nodes)):
        held = [residuals(trained[rank][1])["full.weight"] for rank in sorted(nodes[node])]
        np.testing.assert_allclose(torch.cat(held).numpy(), left[node], rtol=1e-12, atol=1e-12)
    for found, _ in trained:
        np.testing.assert_allclose(found.numpy(), moved, rtol=1e-12, atol=1e-12)
    brought = sum(gradients[:, node].mean(1).sum(0) for node in nodes)
    np.testing.assert_allclose(sent + sum(left), brought, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("compressor", ["none", "topk", "dgc-momentum", "signsgd", "qsgd"])
@pytest.mark.filterwarnings("ignore:hierarchy")
def test_with_one_rank_a_node_it_is_flat_bit_for_bit(compressor: str) -> None:
    options = {"compressor": compressor, "scheme": "none" if compressor == "none" else "w+2d", "steps": 4}
    flat, node = (train_world(2, seeded(Net), hierarchy=h, **options) for h in ("flat", [[0], [1]]))
    assert same(flat[0][0], node[0][0])


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_every_compressor_on_slices_keeps_ranks_alike(compressor: str) -> None:
    (first, _), *others = train_world(4, seeded(Net), hierarchy=PAIRS, compressor=compressor, steps=2)
    assert all(same(model, first) for model, _ in others) and not same(first, seeded(Net))


@pytest.mark.parametrize(
    ("scheme", "residual_dtype"), [*((scheme, None) for scheme in SCHEMES), ("w+2d", "bfloat16"), ("w+2d", "int4")]
)
def test_every_scheme_on_slices_keeps_ranks_alike_and_streamed_as_kept(scheme: str, residual_dtype: str | None) -> None:
    options = {"hierarchy": PAIRS, "scheme": scheme, "residual_dtype": residual_dtype, "steps": 2}
    kept = train_world(4, seeded(Net), gradients="kept", **options)
    streamed = train_world(4, seeded(Net), gradients="streamed", **options)
    assert all(same(model, kept[0][0]) for model, _ in (*kept[1:], *streamed))
    for (_, one), (_, other) in zip(kept, streamed, strict=True):
        first, second = one.residual_state_dict(), other.residual_state_dict()
        assert all(torch.equal(first[name], second[name]) for name in first)


# --- gradients that are missing, or cannot be used ---


@pytest.mark.parametrize(("gradients", "bad"), [("kept", 0), ("kept", 3), ("streamed", 1), ("streamed", 2)])
def test_nan_on_one_rank_is_told_to_all(gradients: str, bad: int) -> None:
    start = seeded(Net)

    def rank(communicator: Communicator) -> str:
        model = copy.deepcopy(start)
        optimizer = distributed(model, backend=communicator, gradients=gradients, hierarchy=PAIRS)
        held = residuals(optimizer).values()  # the tensors themselves
        if communicator.rank == bad:
            model.blocks[1].up.weight.register_hook(lambda grad: grad * torch.nan)
        loss_of(model, torch.Generator().manual_seed(communicator.rank)).backward()
        with pytest.raises(NonFiniteGradient) as raised:
            optimizer.step()
        assert all(tensor.isfinite().all() for tensor in held)
        return str(raised.value)

    told = LocalWorld(4).run(rank)
    assert ["'blocks.1.up.weight'" in word for word in told] == [number == bad for number in range(4)]


def test_a_sum_that_overflows_is_a_gradient_that_cannot_be_used() -> None:
    """Each rank's gradient is finite in float16, and two of a node's are not: all ranks hear so."""

    def rank(communicator: Communicator) -> None:
        model = nn.Linear(120, 120, bias=False, dtype=torch.float16)
        optimizer = distributed(model, backend=communicator, gradients="kept", hierarchy=PAIRS)
        held = residuals(optimizer).values()  # the tensors themselves
        model.weight.grad = torch.ones_like(model.weight)
        model.weight.grad[0] = 60_000.0 if communicator.rank < 2 else 1.0
        with pytest.raises(NonFiniteGradient):
            optimizer.step()
        assert all(tensor.isfinite().all() for tensor in held)

    LocalWorld(4).run(rank)


# --- which ranks share a node ---


class Machine(threading.local):
    """What a rank, which is a thread, knows of its machine, in the place of `os` and `socket`."""

    host, environ = "", dict[str, str]()

    def gethostname(self) -> str:
        return self.host


def nodes_of(machines: list[str]) -> object:
    """The nodes that ranks on these machines find, all the same ones; each is told as `host` or `host node-number`."""
    known = Machine()

    def rank(communicator: LocalCommunicator) -> object:
        known.host, *task = machines[communicator.rank].split()
        number = {"SLURM_PROCID": str(communicator.rank), "SLURM_STEP_NUM_TASKS": str(communicator.world_size)}
        known.environ = number | {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NODEID": task[0]} if task else {}
        return nodes.find_nodes(communicator, "node")

    with patch.multiple(nodes, os=known, socket=known):
        first, *others = LocalWorld(len(machines)).run(rank)
    assert all(other == first for other in others)
    return first


def test_ranks_share_a_node_by_its_number_in_the_step_or_by_its_name() -> None:
    assert nodes_of(["a", "a", "b", "b"]) == ((0, 1), (2, 3))
    assert nodes_of(["b", "a", "b", "a"]) == ((0, 2), (1, 3)), "dealt out in turn"
    assert nodes_of(["w 0", "x 0", "y 1", "z 1"]) == ((0, 1), (2, 3)), "containers have names of their own"
    assert nodes_of(["a 0", "a 0", "a 1", "a 1"]) == ((0, 1), (2, 3)), "two nodes on one machine"
    assert nodes_of(["a 0", "a", "b 0", "b"]) == ((0, 1), (2, 3)), "not all of them are tasks of the step"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("nodes", "hierarchy: 'nodes' is not known .*did you mean 'node'.*allowed: flat, node"),
        ([[0, 1], [2]], "hierarchy: .* with 4 ranks; give the ranks of each node, every rank once"),
        ([[0, 1], [2, 2]], "every rank once"),
        ([[0, 1, 2], [3]], "equally many ranks, and these have 1 to 3 .*ranks 0, 1, 2; ranks 3"),
    ],
)
def test_what_is_no_hierarchy_is_refused_on_all_ranks(given: object, message: str) -> None:
    def rank(communicator: Communicator) -> None:
        with pytest.raises(ConfigError, match=message):
            train(communicator, seeded(Net), hierarchy=given)

    LocalWorld(4).run(rank)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"compressor": "none", "scheme": "none", "update": "in_backward"},
            r"update: .* with hierarchy=.* only with 'flat'",
        ),
        (
            {"groups": {"groups": [], "specific": ["head.weight"]}, "scheme": "2d"},
            r"rows of 'head\.weight' .*fewer rows",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:hierarchy")
def test_what_does_not_go_together_is_refused(options: dict[str, object], message: str) -> None:
    model = seeded(lambda: Net(width=1200, blocks=0))
    with pytest.raises(ConfigError, match=message):
        LocalWorld(12).run(lambda communicator: train(communicator, model, hierarchy=[[*range(12)]], **options))


@pytest.mark.parametrize(("nodes", "message"), [([[0], [1]], "2 nodes of 1"), ([[0, 1]], "1 nodes of 2")])
def test_nodes_that_change_nothing_or_send_nothing_are_told(nodes: list[list[int]], message: str) -> None:
    with pytest.warns(UserWarning, match=message):
        train_world(2, seeded(Net), hierarchy=nodes, steps=1)


class Undivided(ThreadCommunicator):
    """A communicator of one's own, which says nothing of parts."""

    split = Communicator.split


def test_a_communicator_that_cannot_be_divided_is_named() -> None:
    def rank(communicator: ThreadCommunicator) -> None:
        own = Undivided(communicator.rank, communicator._world)
        with pytest.raises(ConfigError, match=r"hierarchy: only 'flat' is allowed over Undivided, .*give backend="):
            train(own, start, hierarchy=PAIRS)

    start = seeded(Net)
    LocalWorld(4).run(rank)


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
            "ranks_per_node: None is not allowed; give a divisor of 8, the number of ranks",
        ),
        ({"hierarchy": "node", "ranks_per_node": 3}, "ranks_per_node: 3 is not allowed"),
        ({"ranks_per_node": 4}, "ranks_per_node: 4 is not allowed; give hierarchy='node' with it"),
        ({"hierarchy": "rack"}, "hierarchy: 'rack' is not known"),
    ):
        with pytest.raises(ConfigError, match=message):
            plan(Net, **options)  # type: ignore[arg-type]
