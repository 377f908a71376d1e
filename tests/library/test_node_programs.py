"""Programs drawn at random over two levels of ranks: what they use of a model, passes that add up, overflow, limits."""

import copy
import random

import pytest
import torch
from torch import Tensor, nn

import resireduce
from resireduce.comm.base import Communicator
from tests.threads import LocalWorld
from tests.worlds import same, seeded

NODES = ([[0, 1], [2, 3]], [[0, 2], [1, 3]], [[0, 1, 2], [3, 4, 5]], [[0, 1], [2, 3], [4, 5]])
COMPRESSORS = ("topk", "dgc", "threshold", "qsgd", "randomk", "fp16", "sidco-exp", "onebit", "none")
STEPS, PARTS = 4, 6
"""Any part of the model may be left out of a pass."""


class Parts(nn.Module):
    """A group of four, a matrix of few rows, a vector and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(104, 104) for _ in range(4))
        self.few = nn.Parameter(torch.randn(5, 4000) * 0.01)
        self.vector, self.number = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, used: list[int]) -> Tensor:
        for part in used:
            if part < 4:
                x = self.layers[part](x)
            else:
                x = x + self.few[0, :104] if part == 4 else x * (1 + self.vector.sum()) + self.number
        return x.square().mean()


@pytest.mark.parametrize("seed", range(14))
def test_a_program_leaves_ranks_alike_and_streamed_as_kept(seed: int) -> None:
    """Bit for bit, residuals too; but what a skipped step leaves in residuals differs, as it is meant to."""
    draw = random.Random(seed)
    nodes, compressor = draw.choice(NODES), draw.choice(COMPRESSORS)
    size = sum(map(len, nodes))
    scheme = "none" if compressor == "none" else draw.choice(["baseline", "w", "2d", "w+2d", "partial"])
    options = {"compressor": compressor, "scheme": scheme, "density": 0.05, "hierarchy": nodes}
    options |= draw.choice([{}, {"max_grad_norm": 0.1}, {"residual_dtype": "int8"}, {"warm_up_steps": 2}])
    scales = draw.random() < 0.3
    bad = {step: draw.randrange(size) for step in range(STEPS) if scales and draw.random() < 0.5}
    passes = [draw.choice([1, 1, 2]) for _ in range(STEPS)]
    used = [
        [[sorted(draw.sample(range(PARTS), draw.randint(1, PARTS))) for _ in range(count)] for _ in range(size)]
        for count in passes
    ]

    def rank(communicator: Communicator, gradients: str) -> tuple[nn.Module, dict[str, Tensor]]:
        model, scaler = copy.deepcopy(start), resireduce.GradScaler("cpu", init_scale=4.0, enabled=scales)
        wrapped = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=0.01)
        optimizer = resireduce.distribute(
            model, wrapped, backend=communicator, gradients=gradients, grad_scaler=scaler, **options
        )
        generator = torch.Generator().manual_seed(communicator.rank)
        for step, parts in enumerate(used):
            optimizer.zero_grad()
            *others, last = [(torch.randn(3, 104, generator=generator), one) for one in parts[communicator.rank]]
            with optimizer.no_sync():
                for x, one in others:
                    scaler.scale(model(x, one)).backward()
            worth = torch.inf if bad.get(step) == communicator.rank else 1.0
            scaler.scale(model(*last) * worth).backward()
            scaler.step(optimizer)
            scaler.update()
        return model, optimizer.residual_state_dict()

    start = seeded(Parts)
    kept, streamed = (LocalWorld(size).run(lambda one, g=g: rank(one, g)) for g in ("kept", "streamed"))
    for ended in (kept, streamed):
        assert all(same(model, ended[0][0]) for model, _ in ended)
    if not bad:
        assert same(kept[0][0], streamed[0][0])
        for (_, one), (_, other) in zip(kept, streamed, strict=True):
            assert all(torch.equal(one[name], other[name]) for name in one)
