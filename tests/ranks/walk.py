"""One of the ranks that test_walk starts: every scheme with every compressor and gradient lifetime.

A residual does not know which compressor left what is in it, so that not all pairs can tell anything new: compressors
that are not in CROSSED go with the scheme that has one residual of each kind, and not with the others. With the
environment's WALK=all they do: 680 rows, in three minutes.

Over Horovod, which knows nothing of residuals, top-k goes with every scheme, and all others with that one; each pair in
one of the two lifetimes, in turn, as over torch.distributed both are found to be the same. WALK=all has all rows.
"""

import hashlib
import itertools
import json
import os
import sys
from pathlib import Path

import torch
from torch import nn

from resireduce.comm.base import Communicator
from resireduce.errors import ConfigError
from resireduce.scheme import COMPRESSORS, GRADIENTS, SCHEMES
from tests.covering import CROSSED
from tests.worlds import seeded, train

ONE = "w+2d"
"""The scheme of all others: with a group, a specific layer and a full residual."""
ALL = os.environ.get("WALK") == "all"
ROWS = [
    " ".join(row)
    for row in itertools.product(SCHEMES, COMPRESSORS, GRADIENTS)
    if ALL or row[1] in CROSSED or row[0] == ONE
]
SOME = [row for row in ROWS if {ONE, "topk"} & {*row.split(" ")}]
OVER_HOROVOD = ROWS if ALL else [row for number, row in enumerate(SOME) if number // 2 % 2 == number % 2]


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
    """Leave this rank's outcomes of these rows in `folder`."""
    outcomes = {row: outcome(communicator, row) for row in rows}
    (folder / f"rank{communicator.rank}.json").write_text(json.dumps(outcomes))


def main(folder: str) -> None:
    """Walk over Horovod alone."""
    import horovod.torch as hvd

    from resireduce.comm.horovod import HorovodCommunicator

    torch.set_num_threads(1)
    hvd.init()
    walk(Path(folder), OVER_HOROVOD, HorovodCommunicator())
    hvd.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
