"""A small GPT on two nodes of two ranks: FSDP's own hybrid, compressed between nodes, and compressed rank by rank.

    python -m benchmarks data pretrain --model gpt2-bytes --output weights.pt
    torchrun --standalone --nproc-per-node 4 -m benchmarks.training.sharded --weights weights.pt --output results.json

Nodes are pretended: ranks 0 and 1, and ranks 2 and 3. Bytes between nodes are those of the messages that a node must
send to the other in a step: each gathered payload of its ranks, and once what is summed.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

import resireduce
from benchmarks.core.files import save_json
from benchmarks.core.provenance import provenance
from benchmarks.training.models.gpt2 import gpt2_bytes
from benchmarks.training.tasks.task import Setting
from benchmarks.training.tasks.texts import BytePairs
from resireduce.comm.base import Communicator
from resireduce.core.feedback import ErrorFeedback

STEPS, SEED = 300, 0
BATCH_PER_RANK, LEARNING_RATE = 4, 1e-4
NODES, RANKS_OF_NODE = 2, 2


class Way(NamedTuple):
    """A way to average gradients; without `settings` of a compression it is FSDP's own hybrid."""

    title: str
    sharded: bool
    settings: dict[str, Any] | None


WAYS = {
    "hybrid": Way("FSDP's own hybrid", True, None),
    "flat": Way("`distribute`, density 0.01", False, {"density": 0.01}),
    "fsdp": Way("`compress_fsdp`, density 0.01", True, {"density": 0.01}),
    "fsdp-same-bytes": Way("`compress_fsdp`, density 0.02", True, {"density": 0.02}),
    "fsdp-groups": Way('`compress_fsdp`, density 0.01, `scheme="w+2d"`', True, {"density": 0.01, "scheme": "w+2d"}),
}


def count_sent(communicator: Communicator) -> dict[str, int]:
    """Count what a communicator sends from now on, by the names of its collectives."""
    sent = {"all_reduce": 0, "all_gather": 0}

    def counted(name: str, collective: Callable[..., Any]) -> Callable[..., Any]:
        def send(tensor: Tensor, *others: Any) -> Any:
            sent[name] += tensor.nbytes
            return collective(tensor, *others)

        return send

    for name in sent:
        setattr(communicator, name, counted(name, getattr(communicator, name)))
    return sent


def train(
    way: Way, task: BytePairs, mesh: DeviceMesh, seed: int, steps: int, weights: dict[str, Tensor] | None
) -> dict[str, float]:
    """Train and evaluate; return perplexity, bytes between nodes per step, and bytes of residuals per rank."""
    torch.manual_seed(seed)
    model = gpt2_bytes()
    if weights is not None:
        model.load_state_dict(weights)
    parameters_bytes = sum(parameter.nbytes for parameter in model.parameters())
    optimizer, feedback = _make(way, model, mesh)
    sent = None if feedback is None else count_sent(feedback.communicator)
    batches = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    for _ in range(steps):
        optimizer.zero_grad()
        task.loss(model, task.batch(torch.randint(len(task), (BATCH_PER_RANK,), generator=batches))).backward()
        optimizer.step()
    sums = task.evaluate(model, dist.get_rank(), dist.get_world_size())
    dist.all_reduce(sums)
    between: float = parameters_bytes
    if sent is not None:
        of_node = torch.tensor([sent["all_gather"], sent["all_reduce"]], dtype=torch.float64)
        dist.all_reduce(of_node, group=mesh["shard"].get_group())
        if not way.sharded:  # the ranks of a node sum up before they send
            of_node[1] /= RANKS_OF_NODE
        between = float(of_node.sum()) / steps
    held = 0 if feedback is None else feedback.residual.nbytes()
    return task.metrics_from(sums) | {"node_bytes_per_step": between, "residuals_bytes": held}


def _make(way: Way, model: nn.Module, mesh: DeviceMesh) -> tuple[torch.optim.Optimizer, ErrorFeedback | None]:
    if not way.sharded:
        plain = torch.optim.AdamW(model.parameters(), LEARNING_RATE)
        distributed = resireduce.distribute(model, plain, **{"scheme": "baseline", **(way.settings or {})})
        return distributed, distributed.feedback
    over = mesh if way.settings is None else mesh["shard"]
    for block in model.transformer.h:  # type: ignore[union-attr]
        fully_shard(block, mesh=over)
    fully_shard(model, mesh=over)
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE)
    if way.settings is None:
        return optimizer, None
    hook = resireduce.compress_fsdp(model, mesh["replicate"], **{"scheme": "baseline", **way.settings})
    return optimizer, hook.feedback


def measure(
    steps: int, seed: int, weights: dict[str, Tensor] | None = None, names: Sequence[str] = tuple(WAYS)
) -> list[dict[str, Any]]:
    """Return a row for each way, of WAYS by name, trained from `weights`; all ranks return the same metrics."""
    mesh = init_device_mesh("cpu", (NODES, RANKS_OF_NODE), mesh_dim_names=("replicate", "shard"))
    task = BytePairs(Setting())
    return [
        {"name": name, "title": WAYS[name].title, "seed": seed, **train(WAYS[name], task, mesh, seed, steps, weights)}
        for name in names
    ]


def main() -> None:
    """Run one of four ranks; rank 0 writes the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, required=True, help="made by python -m benchmarks data pretrain")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=STEPS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    measured = provenance()
    rows = measure(args.steps, SEED, torch.load(args.weights, weights_only=True))
    if dist.get_rank() == 0:
        save_json({"steps": args.steps, "rows": rows, "measured": measured}, args.output)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
