"""Which compressor each tensor is sent by, in this step and later."""

from resireduce.comm.base import Communicator
from resireduce.compressor_state import CompressorStates
from resireduce.compressors.base import Compressor
from resireduce.compressors.none import NoCompression
from resireduce.errors import ConfigError


class CompressorChoice:
    """One compressor for all tensors but those that are `dense`: these, and all during warm-up, are not compressed.

    Args:
        compressor: for all tensors that are not `dense`.
        communicator: the ranks among which averages are formed.
        dense: names of the tensors that are sent without compression.
        warm_up_steps: number of first steps in which all tensors are sent so.

    Raises ConfigError for a compressor whose exchange the communicator does not have.
    """

    def __init__(
        self, compressor: Compressor, communicator: Communicator, dense: frozenset[str], warm_up_steps: int = 0
    ):
        self.warm_up_steps = warm_up_steps
        """Number of first steps in which all tensors are sent dense, and residuals stay zero."""
        if compressor.collective == "rounds" and not communicator.exchanges:
            raise ConfigError(
                f"compressor: {type(compressor).__name__} is not allowed over {type(communicator).__name__}, which has "
                "no method all_to_all(); give backend='torch' or 'horovod', or another compressor"
            )
        self.compressor, self.communicator = compressor.for_world(communicator.world_size), communicator
        self._dense, self._dense_compressor = dense, NoCompression()
        self.states = CompressorStates(self.compressor)
        self.begin_step(0)

    def begin_step(self, step: int) -> None:
        """Choose compressors for step number `step`, counted from 0, which begins; undo one that was not finished."""
        self.states.drop()
        self._warms_up = step < self.warm_up_steps

    def compressor_of(self, name: str) -> Compressor:
        """Return the compressor of tensor `name` in this step: NoCompression if it is sent dense."""
        return self._dense_compressor if self._warms_up or name in self._dense else self.compressor

    def leaves_residual(self, name: str) -> bool:
        """Whether anything of tensor `name` can be left unsent in this step."""
        return not self.compressor_of(name).lossless

    def packs(self, name: str) -> bool:
        """Whether the payload of tensor `name` may share a collective with others in this step, as it is compressed."""
        return self.merges(name) and not self._warms_up

    def merges(self, name: str) -> bool:
        """Whether tensor `name` is compressed, once warm-up is over; otherwise it is sent dense, in its bucket."""
        return name not in self._dense

    def later_compressor_of(self, name: str) -> Compressor:
        """Return the compressor of tensor `name` once warm-up is over: NoCompression if it is sent dense."""
        return self.compressor if self.merges(name) else self._dense_compressor

    def gathers(self, name: str) -> bool:
        """Whether this step receives all ranks' payloads of tensor `name`, instead of their sum."""
        return self.compressor_of(name).collective == "all_gather"

    def learns(self, name: str) -> bool:
        """Whether the compressor's state of tensor `name` changes by what all ranks send in this step."""
        if not self.states.has(name):
            return False
        compressor = self.compressor_of(name)
        return not compressor.lossless and compressor.collective != "all_gather"
