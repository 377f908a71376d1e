"""Train with compressed gradients and less memory.

    optimizer = resireduce.distribute(model, optimizer, scheme="w+2d", compressor="topk", density=0.01)

`import resireduce` does not import torch: modules that need it are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from resireduce.api import distribute
    from resireduce.core.optimizer import DistributedOptimizer
    from resireduce.grad_scaler import GradScaler
    from resireduce.grouping import Grouping, find_groups
    from resireduce.planning.memory import itemise_states, measure_states
    from resireduce.resume import redistribute
    from resireduce.wrappers.ddp import CompressionHook, compress_ddp
    from resireduce.wrappers.fsdp import ShardedCompressionHook, compress_fsdp

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

__all__ = [
    "CompressionHook",
    "DistributedOptimizer",
    "GradScaler",
    "Grouping",
    "ShardedCompressionHook",
    "compress_ddp",
    "compress_fsdp",
    "distribute",
    "find_groups",
    "itemise_states",
    "measure_states",
    "redistribute",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'resireduce' has no attribute {name!r}")
