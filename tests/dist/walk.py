"""One of the ranks that test_walk starts: every scheme with every compressor and gradient lifetime.

Compressors that only find their threshold otherwise have a covering part of the schemes.
"""

import hashlib
import itertools
import json
import sys
from pathlib import Path

import torch
from torch import nn

from resireduce.comm.base import Communicator
from resireduce.errors import ConfigError
from resireduce.scheme import COMPRESSORS, GRADIENTS, SCHEMES
from tests.worlds import seeded, train

FITTED = ("gaussian", "redsync", "redsync-trim", "sidco-exp", "sidco-gp", "sidco-gamma")
"""Compressors that differ from others in nothing but how a threshold is found."""
COVERING = ("baseline", "w+2d")
"""The schemes that these are walked with: one residual for each tensor, and all kinds that share or drop some."""


def schemes_of(compressor: str) -> tuple[str, ...]:
    """The schemes whose rows the walk has for a compressor: all, but for those of FITTED."""
    return COVERING if compressor in FITTED else tuple(SCHEMES)


ROWS = [
    f"{scheme} {compressor} {gradients}"
    for compressor, gradients in itertools.product(COMPRESSORS, GRADIENTS)
    for scheme in schemes_of(compressor)
]


def start() -> nn.Module:
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
        model, _ = train(communicator, seeded(start), optimizer="sgd", steps=2, **options)
    except ConfigError as error:
        return {"refused": str(error)}
    return {"trained": digest(model)}


def walk(folder: Path, communicator: Communicator) -> None:
    """Leave this rank's outcomes of all rows in `folder`."""
    outcomes = {row: outcome(communicator, row) for row in ROWS}
    (folder / f"rank{communicator.rank}.json").write_text(json.dumps(outcomes))


def main(folder: str) -> None:
    """Walk over Horovod alone."""
    import horovod.torch as hvd

    from resireduce.comm.horovod import HorovodCommunicator

    torch.set_num_threads(1)
    hvd.init()
    walk(Path(folder), HorovodCommunicator())
    hvd.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
