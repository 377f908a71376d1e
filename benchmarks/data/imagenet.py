"""ImageNet, ILSVRC 2012 (Russakovsky et al., IJCV 2015), in folders as torchvision expects it. Imports no torch.

Prepared: `images.json` has the folder, the classes in order, and the path and class of each image; the images stay
where they are. `sizes.json` has their sizes in the same order, so that the hash covers those too.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.core.files import load_json, save_text
from benchmarks.core.progress import Progress
from benchmarks.data.dataset import Dataset, Report

PARTS = ("train", "val")
SUFFIXES = (".jpeg", ".jpg")
JPEG = b"\xff\xd8\xff"
SAMPLE = 1000
"""Approximate number of images of each part that are opened to check that they are JPEGs."""

Images = list[tuple[str, int]]
"""Path from the folder, with slashes, and class."""


@dataclass(frozen=True, kw_only=True)
class ImageNet(Dataset):
    """Folders `train/CLASS/*.JPEG` and `val/CLASS/*.JPEG`."""

    classes: int = 1000

    def missing(self, source: Path) -> list[str]:
        """Return those of the two folders that `source` lacks."""
        return [part for part in PARTS if not (source / part).is_dir()]

    def prepare(self, source: Path, target: Path, root: Path, report: Report) -> dict[str, Any]:
        """Write the lists."""
        folder = source.resolve()
        classes = self._classes(folder)
        images: dict[str, Images] = {}
        sizes: dict[str, list[int]] = {}
        for part in PARTS:
            progress = Progress(report, f"{part}, images")
            images[part], sizes[part] = [], []
            for path, label, size in _images(folder, part, classes):
                images[part].append((path, label))
                sizes[part].append(size)
                progress.done(len(sizes[part]))
            _check_sample(folder, images[part])
        save_text(_compact({"folder": str(folder), "classes": classes, **images}), target / "images.json")
        save_text(_compact(sizes), target / "sizes.json")
        return {"classes": len(classes), "train_count": len(images["train"]), "val_count": len(images["val"])}

    def _classes(self, folder: Path) -> list[str]:
        train, val = (sorted(path.name for path in (folder / part).iterdir() if path.is_dir()) for part in PARTS)
        odd = sorted(set(train) ^ set(val))
        if odd:
            raise ValueError(f"class {odd[0]!r} is in one of {', '.join(PARTS)} only; give both the same folders")
        if len(train) != self.classes:
            raise ValueError(f"{len(train)} folders of classes in train, published are {self.classes}")
        return train

    def damage(self, folder: Path, report: Report) -> str | None:
        """Say which image is missing or has another size than when it was prepared."""
        listed, sizes = load_json(folder / "images.json"), load_json(folder / "sizes.json")
        for part in PARTS:
            progress = Progress(report, f"checking {part}, images", len(sizes[part]))
            for place, ((path, _), size) in enumerate(zip(listed[part], sizes[part], strict=True)):
                image = os.path.join(listed["folder"], path)
                if not os.path.isfile(image) or os.path.getsize(image) != size:
                    return f"{image} is missing or does not have its {size} bytes"
                progress.done(place)
        return None

    def instructions(self, folder: Path) -> list[str]:
        """Say what the folders look like."""
        return [
            f"{self.title}; terms: {self.terms}",
            "  name the folder that has train/CLASS/*.JPEG and val/CLASS/*.JPEG with --from, or link it:",
            f"    {folder}",
        ]


def _images(folder: Path, part: str, classes: list[str]) -> Iterator[tuple[str, int, int]]:
    """Yield path, class and bytes of a part's images, by class and name."""
    for label, name in enumerate(classes):
        count = 0
        with os.scandir(folder / part / name) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.name.lower().endswith(SUFFIXES) and entry.is_file():
                    count += 1
                    yield f"{part}/{name}/{entry.name}", label, entry.stat().st_size
        if not count:
            raise ValueError(f"{part}/{name} has no file ending in .JPEG")


def _check_sample(folder: Path, images: Images) -> None:
    """Raise ValueError for the first of about SAMPLE images, evenly spread, that does not begin as a JPEG does."""
    for path, _ in images[:: max(1, len(images) // SAMPLE)]:
        with (folder / path).open("rb") as file:
            if file.read(len(JPEG)) != JPEG:
                raise ValueError(f"{path} is no JPEG image")


def _compact(values: Any) -> str:
    return json.dumps(values, separators=(",", ":")) + "\n"


IMAGENET = ImageNet(
    title="ImageNet (ILSVRC 2012): 1.28 million images in 1,000 classes",
    terms="non-commercial research, after registration at image-net.org",
)
