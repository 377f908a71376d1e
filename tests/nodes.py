"""What two levels of ranks must come to, from the definition, and a script that has its gradients given."""

import math

import numpy as np
import torch
from torch import Tensor, nn

import resireduce
from resireduce.comm.base import Communicator
from resireduce.core.optimizer import DistributedOptimizer


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
