"""SQuAD v1.1 (Rajpurkar et al., EMNLP 2016), as published. Imports no torch.

Prepared: `train-v1.1.json`, `dev-v1.1.json`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.data.dataset import Dataset, Report, SourceFile
from benchmarks.files import save_bytes
from benchmarks.tasks.squad import read_squad

TRAIN, DEV = "train-v1.1.json", "dev-v1.1.json"


@dataclass(frozen=True, kw_only=True)
class Squad(Dataset):
    """Questions whose answers are spans of their contexts."""

    train_count: int = 87_599
    dev_count: int = 10_570

    def prepare(self, files: Mapping[str, Path], target: Path, root: Path, report: Report) -> dict[str, Any]:
        """Check every question and copy both files."""
        for name, count in ((TRAIN, self.train_count), (DEV, self.dev_count)):
            content = files[name].read_bytes()
            try:
                questions = read_squad(content.decode("utf-8"))
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
            if len(questions) != count:
                raise ValueError(f"{name}: {len(questions):,} questions, published are {count:,}")
            save_bytes(content, target / name)
        return {"train_count": self.train_count, "dev_count": self.dev_count}


SQUAD = Squad(
    title="SQuAD v1.1: 98,169 questions on articles of Wikipedia",
    terms="CC BY-SA 4.0",
    address="https://rajpurkar.github.io/SQuAD-explorer/dataset/",
    forms=(
        (
            SourceFile(TRAIN, 30_288_272, "sha256:3527663986b8295af4f7fcdff1ba1ff3f72d07d61a20f487cb238a6ef92fd955"),
            SourceFile(DEV, 4_854_279, "sha256:95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9"),
        ),
    ),
)
