"""Ok-Topk: the largest elements of the sum over all ranks, by exchanges among all of them."""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from resireduce.compressors.base import Agreeing, Collective, Selecting, State, count, number
from resireduce.compressors.thresholds import few_reaching, not_above, planned
from resireduce.compressors.topk import largest_without_zeros
from resireduce.core.messages import AllGather, AllToAll, Payload, Ragged, Rounds
from resireduce.kernels.ops import index_dtype
from resireduce.pieces import share


def pairs(values: Tensor, indices: Tensor, numel: int) -> Tensor:
    """Return 1-D integers: the bits of each of `values` (float32 or float64), then its index, which is below `numel`;
    int32, or int64 if values are float64 or `numel` exceeds int32."""
    narrow = values.dtype == torch.float32 and numel <= torch.iinfo(torch.int32).max
    bits = values.view(torch.int64 if values.dtype == torch.float64 else torch.int32)
    dtype = torch.int32 if narrow else torch.int64
    return torch.stack((bits.to(dtype), indices.to(dtype)), 1).view(-1)


def unpaired(paired: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the values, in `dtype` (float32 or float64), and the indices, int64, of `paired`, made by `pairs`."""
    bits, indices = paired.view(-1, 2).unbind(1)
    wide = bits.to(torch.int64 if dtype == torch.float64 else torch.int32).contiguous()
    return wide.view(dtype), indices.long().contiguous()


def summed(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return the sums of `parts`, formed in their order, and their flat indices: int64, ascending, each once."""
    if parts[0][1].is_meta:  # which indices are equal is unknown: as if none were
        return torch.cat([values for values, _ in parts]), torch.cat([places for _, places in parts])
    indices = torch.cat([places for _, places in parts]).unique()
    sums = torch.zeros(len(indices), dtype=parts[0][0].dtype, device=indices.device)
    for values, places in parts:
        sums.index_add_(0, torch.searchsorted(indices, places), values)
    return sums, indices


def is_due(step: int, found: float, every: int) -> bool:
    """Whether a multiple of `every` steps has come by `step`, counted from 0, since something was found in step number
    `found`, counted from 1; or whether it was never found: 0."""
    return not found or (found - 1) // every != step // every


class Threshold(NamedTuple):
    """A magnitude that about k elements reach, remembered as three numbers in float64."""

    value: float = 0.0
    """The magnitude; 0: none is known."""
    k: float = 0.0
    """The number of elements that were wanted when it was found."""
    found: float = 0.0
    """The number of the step, counted from 1, in which it was found exactly."""

    @classmethod
    def reached_by(cls, values: Tensor, k: int, step: int) -> "Threshold":
        """Return the least magnitude of `values`, chosen exactly in `step`; unknown without values, or storage."""
        least = float(values.abs().amin()) if len(values) and not values.is_meta else 0.0
        return cls(least, k, step + 1)

    def is_due(self, k: int, step: int, every: int) -> bool:
        """Whether it must be found again in `step`, counted from 0: after `every` steps, and for another `k`."""
        return not self.value or self.k != k or is_due(step, self.found, every)

    def adapted(self, count: int, most: float, factor: float) -> "Threshold":
        """Return it divided by `factor` if less than 2/3 of k have reached it, multiplied if more than `most`."""
        if 3 * count < 2 * self.k:
            return self._replace(value=self.value / factor)
        return self._replace(value=self.value * factor) if count > most else self


@dataclass(frozen=True)
class OkTopK(Agreeing, Selecting):
    """Sends what each rank selects to the ranks that sum it, each a region, and of the sums those that are selected.

    Section 3, with k = max(1, floor(density x n)):

    - Each rank selects the magnitudes that reach its own threshold. In every `local_every`-th step that is the k-th
      largest. In other steps the last threshold is used again: it is raised by 3 %, up to five times, while more than
      4 k / 3 pass. If too many still pass, it is the k-th largest again. For the next step it is divided by
      `local_factor` if fewer than 2 k / 3 have passed, and multiplied by it if more than 5 k / 4 have.
    - Regions begin where they would divide each rank's selection evenly, on average over the ranks. This is found in
      every `regions_every`-th step.
    - All ranks get back those sums that reach a common threshold. In every `global_every`-th step that is the k-th
      largest of all sums. Otherwise it is the last one, divided by `global_factor` if fewer than 2 k / 3 have reached
      it, and multiplied if more than 4 k / 3 have. If none has, or more than 2 k have, it is found anew in the next
      step.
    - Only what a rank has selected, and is among these sums, leaves its residual.

    Steps are counted by the optimizer, so that all ranks agree on them. The first compressed step finds everything;
    thresholds are found anew for another k, and in each step with k = n.

    No rank sends more than 4 k / 3 elements to others; how many sums come back depends on all. A plan assumes a step in
    which everything is found: k elements, and k sums of each region.

    Source: Ok-Topk: Li and Hoefler, "Near-optimal sparse allreduce for distributed deep learning", PPoPP 2022.
    """

    collective: ClassVar[Collective] = "rounds"
    equal_sizes: ClassVar[bool] = False
    state_of_ranks: ClassVar[bool] = True

    local_every: int = count(32, 1)
    """Steps between exact thresholds of a rank: 32 for VGG in the release, 128 for BERT."""
    global_every: int = count(32, 1)
    """Steps between exact common thresholds."""
    regions_every: int = count(64, 1)
    """Steps between new divisions into regions."""
    local_factor: float = number(1.012, 1)
    """Factor by which a rank's threshold changes from step to step: 1.012 for VGG in the release, 1.025 for BERT."""
    global_factor: float = number(1.008, 1)
    """Factor by which the common threshold changes."""
    ranks: int = 1
    """How many regions there are; `for_world` sets it."""

    def for_world(self, world_size: int) -> "OkTopK":
        return replace(self, ranks=world_size)

    def state(self, shape: torch.Size, like: Tensor) -> State:
        """Return what is remembered of a tensor of `shape`: three tensors of numbers, on the device of `like`.

        mine, common: a threshold, the k that it belongs to, and the number of the step, counted from 1, in which it was
        found; 0: none is known. starts: where each rank's region begins, and last the step in which this was found.
        """
        mine, common = (torch.zeros(3, dtype=torch.float64, device=like.device) for _ in range(2))
        starts = [shape.numel() * rank // self.ranks for rank in range(self.ranks)]
        return {"mine": mine, "common": common, "starts": torch.tensor([*starts, 0], device=like.device)}

    def agree(self, grad: Tensor, name: str, step: int, state: State) -> Rounds:
        """Exchange what each rank selects of its `grad`; return the part of this rank's that entered the average.

        `state`: this rank's own threshold is changed here; what all ranks share is changed only by `learn_`.
        """
        flat, k = grad.view(-1), share(self.density, grad.numel())
        wide = torch.promote_types(grad.dtype, torch.float32)
        state = state or self.state(grad.shape, grad)
        mine = self._selected(flat, k, step, state["mine"])
        starts, told = state["starts"], 0
        if self.ranks > 1 and (mine.is_meta or is_due(step, int(starts[-1]), self.regions_every)):
            wanted = starts.new_zeros(self.ranks)
            if len(mine):  # where regions but the first would begin to divide it evenly, and 1; all ranks' are summed
                wanted[:-1] = mine[torch.arange(1, self.ranks, device=mine.device) * len(mine) // self.ranks]
                wanted[-1] = 1
            total = yield wanted
            count = total[-1:]
            found = torch.cat((starts[:1], total[:-1] // count.clamp(min=1), starts.new_tensor([step + 1])))
            starts, told = torch.where(count > 0, found, starts), wanted.nbytes
            del wanted, total, count, found  # all tensors wait in their rounds at once
        if mine.is_meta:  # equally many for each region
            cuts = [len(mine) * rank // self.ranks for rank in range(self.ranks)]
        else:
            cuts = torch.searchsorted(mine, starts[:-1].contiguous()).tolist()
        sizes = [2 * (stop - start) for start, stop in pairwise([*cuts, len(mine)])]
        asked = AllToAll(pairs(flat[mine].to(wide), mine, flat.numel()), sizes)
        values, places = summed([unpaired(one, wide) for one in (yield asked)])
        known = Threshold() if flat.is_meta else Threshold(*state["common"].tolist())
        exact = k == flat.numel() or known.is_due(k, step, self.global_every)
        if exact:
            chosen = largest_without_zeros(values, k)
        else:
            chosen = (values.abs() >= not_above(known.value, wide)).nonzero()[:, 0]
        offered = AllGather(pairs(values[chosen], places[chosen], flat.numel()))
        parts = [unpaired(one, wide) for one in (yield offered)]
        values, places = (torch.cat(columns) for columns in zip(*parts, strict=True))
        if exact:
            chosen = largest_without_zeros(values, k)
            values, places = values[chosen], places[chosen]
            known = Threshold.reached_by(values, k, step) if len(values) else known
        elif 0 < len(values) <= 2 * k:
            known = known.adapted(len(values), 4 * k / 3, self.global_factor)
        else:
            known = Threshold()
        used = mine if mine.is_meta else mine[torch.isin(mine, places, assume_unique=True)]
        own = Ragged.pack(flat[used].to(wide), used.to(index_dtype(grad)), like=grad)
        return replace(
            own,
            known=Ragged.pack(values, places.to(index_dtype(grad)), like=grad).buffer,
            rounds_bytes=told + asked.tensor.nbytes + offered.tensor.nbytes - own.nbytes,
            learnt={"common": torch.tensor(known, dtype=torch.float64, device=flat.device), "starts": starts},
        )

    def sent_indices(self, payload: Payload) -> Tensor:
        return payload.parts()[1].long()

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        values, indices = payload.parts()  # scaled in float32 at least: a sum may exceed the range of float16
        dense.view(-1).index_add_(0, indices, (values * scale).to(dense.dtype))
        return dense

    def _selected(self, flat: Tensor, k: int, step: int, memory: Tensor) -> Tensor:
        """Return the indices of what this rank selects; remember the threshold, if there was anything to select."""
        if flat.is_meta:
            return planned(flat, k)
        known, found = Threshold(*memory.tolist()), None
        if k < len(flat) and not known.is_due(k, step, self.local_every):
            for _ in range(6):  # too many reach it: it is raised five times at most, by 3 % each
                if (found := few_reaching(flat, not_above(known.value, flat.dtype), 4 * k // 3)) is not None:
                    known = known.adapted(len(found), 5 * k / 4, self.local_factor)
                    break
                known = known._replace(value=known.value * 1.03)
        if found is None:
            found = largest_without_zeros(flat, k)
            known = Threshold.reached_by(flat[found], k, step)
        memory.copy_(torch.tensor(known, dtype=torch.float64, device="cpu"))
        return found
