"""What the hook of FSDP2 saves and loads: residuals of the slices that this rank owns, named by shard."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from resireduce.comm.base import Communicator
from resireduce.error_feedback import ErrorFeedback
from resireduce.errors import ConfigError
from resireduce.wrappers.hook_state import HookState

SHARD = ("shard_rank", "shard_world_size")
"""Additional keys of a residual state: the number of this rank's shard, and how many there are."""


class ShardState(HookState):
    """The state of a hook whose residuals are those of one shard of the model.

    Args:
        feedback: compresses slices over the replicas, and holds their residuals.
        shards: the ranks over which each replica is sharded.
    """

    def __init__(self, feedback: ErrorFeedback, shards: Communicator):
        super().__init__(feedback)
        self._shards = shards

    @abstractmethod
    def _end_step(self) -> None:
        """End the step of the last backward pass, if that has failed before it could."""

    def residual_state_dict(self) -> dict[str, Tensor]:
        """Return this rank's residuals. They differ between ranks: save one file per rank, or give this object to
        torch.distributed.checkpoint.

        Raises UsageError within a backward pass, which has updated only some of them.
        """
        self._refuse_within_pass("residual_state_dict()")
        self._end_step()
        place = (self._shards.rank, self._shards.world_size)
        named = {key: torch.tensor(value, device="cpu") for key, value in zip(SHARD, place, strict=True)}
        return super().residual_state_dict() | named

    def load_residual_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load the `state` that this rank saved in a job of the same mesh: its residuals, and the step number.

        Raises ConfigError if they belong to another model, scheme, residual_dtype, shard or replica, and UsageError
        within a backward pass.
        """
        self._refuse_within_pass("load_residual_state_dict()")
        (own,) = self.of_this_shard([state])
        super().load_residual_state_dict(own)

    def of_this_shard(self, states: Sequence[Mapping[str, Tensor]]) -> list[dict[str, Tensor]]:
        """Return those of `states`, one saved by each rank, that belong to this rank's shard, without its number.

        ConfigError if there is none, or if they were saved by a job with another number of shards.
        """
        rank, world_size = self._shards.rank, self._shards.world_size
        places = [tuple(int(state.get(key, -1)) for key in SHARD) for state in states if isinstance(state, Mapping)]
        other = next((place for place in places if place[1] != world_size), None)
        if len(places) < len(states) or other == (-1, -1):
            raise ConfigError("residual state: it is none of a sharded model; give what residual_state_dict() made")
        if other is not None:
            raise ConfigError(
                f"residual state: it is of {other[1]} shards, and this model has {world_size}; slices of residuals are "
                "not cut anew: go on with as many shards (the number of replicas may change: resireduce.redistribute)"
            )
        found = [
            {key: state[key] for key in state if key not in SHARD}
            for state, place in zip(states, places, strict=True)
            if place[0] == rank
        ]
        if not found:
            raise ConfigError(f"residual state: none is that of shard {rank}, which this rank holds; load its own")
        return found

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Return `residual_state_dict` for torch.distributed.checkpoint, under a key that only this rank has.

        Of tensors that several ranks save under one name, it keeps a single one, and the others would be lost.
        """
        return {f"replica {self.feedback.communicator.rank}, shard {self._shards.rank}": self.residual_state_dict()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load a `state` that `state_dict` made; ConfigError if it has nothing of this rank."""
        (key,) = self.state_dict()
        if key not in state:
            raise ConfigError(f"residual state: it has nothing of {key}; go on with as many ranks, or use redistribute")
        self.load_residual_state_dict(state[key])
