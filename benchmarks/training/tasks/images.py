"""Which of many things does an image show? Loss and metric of every such task; metric: Top-1 accuracy in percent."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.training.tasks.source import FromSource, Source, Synthetic
from benchmarks.training.tasks.task import Batch, Setting, chunks, evaluating, shard, to_device


class ImageClassification(FromSource):
    """Classify images of `source`. Under "batch-means" accuracy is what the released code prints: see `evaluate`.

    Batches have images (batch, channels, height, width), float32, normalised, and labels (batch,), int64.
    """

    metric = "top1"
    higher_is_better = True
    unit = "images"
    units_per_sample = 1
    evaluated_together = 32
    """Held-out images in a batch, as in the released scripts."""

    def __init__(self, source: Source, released: frozenset[str]) -> None:
        super().__init__(source)
        self.batch_means = "batch-means" in released

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy in nats."""
        return cross_entropy(model(batch["images"]), batch["labels"])

    def evaluate(self, model: nn.Module, rank: int, world_size: int) -> Tensor:
        """Return [right, all] over this rank's held-out images.

        Under "batch-means" rank 0 returns [sum of its batches' accuracies, batches], and the others nothing but zeros.
        """
        sums = torch.zeros(2, dtype=torch.float64)
        if self.batch_means and rank:
            return sums
        with evaluating(model):
            for indices in chunks(shard(self.source.held_out, rank, world_size), self.evaluated_together):
                batch = to_device(self.source.held_out_batch(indices), model)
                right = (model(batch["images"]).argmax(1) == batch["labels"]).sum().item()
                count = len(indices)
                sums += torch.tensor([right / count, 1] if self.batch_means else [right, count], dtype=torch.float64)
        return sums

    def metrics_from(self, sums: Tensor) -> dict[str, float]:
        """Return the share of right answers in percent."""
        return {self.metric: float(100 * sums[0] / sums[1])}


class SyntheticImages(Synthetic):
    """Random square images of `size` pixels a side and random labels below `classes`."""

    def __init__(self, setting: Setting, classes: int, size: int) -> None:
        super().__init__(setting, f"images {classes} {size}")
        self.classes, self.size = classes, size

    def _make(self, generators: list[np.random.Generator]) -> Batch:
        shape = (3, self.size, self.size)
        labels = torch.tensor([int(one.integers(self.classes)) for one in generators])
        images = np.stack([one.standard_normal(shape, dtype=np.float32) for one in generators])
        return {"images": torch.from_numpy(images), "labels": labels}
