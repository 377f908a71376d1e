"""Train with compressed gradients and less memory.

    optimizer = resireduce.distribute(model, optimizer, scheme="w+2d", compressor="topk", density=0.01)

`import resireduce` does not import torch: modules that need it are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from resireduce.api import distribute as distribute
    from resireduce.core.optimizer import DistributedOptimizer as DistributedOptimizer
    from resireduce.grad_scaler import GradScaler as GradScaler
    from resireduce.grouping import Grouping as Grouping
    from resireduce.grouping import find_groups as find_groups
    from resireduce.planning.memory import itemise_states as itemise_states
    from resireduce.planning.memory import measure_states as measure_states
    from resireduce.resume import redistribute as redistribute
    from resireduce.wrappers.ddp import CompressionHook as CompressionHook
    from resireduce.wrappers.ddp import compress_ddp as compress_ddp
    from resireduce.wrappers.fsdp import ShardedCompressionHook as ShardedCompressionHook
    from resireduce.wrappers.fsdp import compress_fsdp as compress_fsdp

_EXPORTS = {
    "CompressionHook": "resireduce.wrappers.ddp",
    "DistributedOptimizer": "resireduce.core.optimizer",
    "GradScaler": "resireduce.grad_scaler",
    "Grouping": "resireduce.grouping",
    "ShardedCompressionHook": "resireduce.wrappers.fsdp",
    "compress_ddp": "resireduce.wrappers.ddp",
    "compress_fsdp": "resireduce.wrappers.fsdp",
    "distribute": "resireduce.api",
    "find_groups": "resireduce.grouping",
    "itemise_states": "resireduce.planning.memory",
    "measure_states": "resireduce.planning.memory",
    "redistribute": "resireduce.resume",
}

__all__ = list(_EXPORTS)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'resireduce' has no attribute {name!r}")
