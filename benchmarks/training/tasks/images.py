"""Which of many things does an image show? Loss and metric of every such task; metric: Top-1 accuracy in percent."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.training.tasks.source import FromSource, Source, Synthetic
from benchmarks.training.tasks.task import Batch, Setting


class ImageClassification(FromSource):
    """Classify images of `source`. With "batch-means" in `released`, accuracy is computed as in the released code.

    Batches have images (batch, channels, height, width), float32, normalised, and labels (batch,), int64.
    """

    metric = "top1"
    higher_is_better = True
    unit = "images"
    units_per_sample = 1
    evaluated_together = 32
    """As in the released scripts."""

    def __init__(self, source: Source, released: frozenset[str]) -> None:
        super().__init__(source, "batch-means" in released)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy in nats."""
        return cross_entropy(model(batch["images"]), batch["labels"])

    def _sums(self, model: nn.Module, batch: Batch) -> tuple[float, int]:
        """Return the number of right answers, and of all."""
        right = (model(batch["images"]).argmax(1) == batch["labels"]).sum().item()
        count = len(batch["labels"])
        return (right / count, 1) if self.batch_means else (right, count)

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
