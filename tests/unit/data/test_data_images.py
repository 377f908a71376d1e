"""ImageNet in folders: what is listed, and what is refused."""

import json
import shutil

import pytest

from benchmarks.data.dataset import damage
from benchmarks.data.imagenet import IMAGENET
from resireduce.errors import ConfigError
from tests.published import prepared, quiet, unpublished, write

SMALL = unpublished(IMAGENET, classes=3)
JPEG = b"\xff\xd8\xff\xe0"
CLASSES = ("n01440764", "n01443537", "n0é京")


def images(**change) -> dict[str, bytes]:
    files = {f"train/{name}/{name}_{place}.JPEG": JPEG + bytes(place) for name in CLASSES for place in (10, 2)}
    files |= {f"val/{name}/ILSVRC2012_val_{place}.JPEG": JPEG for place, name in enumerate(CLASSES)}
    return {name: content for name, content in (files | change).items() if content is not None}


def test_images_are_listed_by_class_and_name_and_stay(tmp_path):
    source = write(tmp_path / "Bilder ü", images(**{"train/n01440764/readme.txt": b"", "train/list.txt": b""}))
    result = prepared("imagenet", SMALL, source, tmp_path / "root")
    listed = json.loads((result.folder / "images.json").read_text())
    assert (listed["folder"], listed["classes"]) == (str(source), sorted(CLASSES))
    assert listed["train"] == [[f"train/{n}/{n}_{place}.JPEG", CLASSES.index(n)] for n in CLASSES for place in (10, 2)]
    assert listed["val"] == [[f"val/{n}/ILSVRC2012_val_{place}.JPEG", place] for place, n in enumerate(CLASSES)]
    assert (result.manifest["train_count"], result.manifest["val_count"], result.manifest["classes"]) == (6, 3, 3)
    assert sorted(result.manifest["files"]) == ["images.json", "sizes.json"]


def test_images_that_changed_are_damage_and_the_hash_covers_paths_and_sizes(tmp_path):
    source = write(tmp_path / "a", images())
    hashes = {prepared("imagenet", SMALL, source, tmp_path / "root").hash}
    assert damage("imagenet", SMALL, tmp_path / "root", quiet) is None
    for name in ("val/n0é京/other.JPEG", "val/n0é京/ILSVRC2012_val_2.JPEG"):
        (source / name).write_bytes(JPEG + b"?")
        hashes.add(prepared("imagenet", SMALL, source, tmp_path / "root").hash)
    assert len(hashes) == 3
    (source / name).write_bytes(JPEG)
    said = damage("imagenet", SMALL, tmp_path / "root", quiet)
    assert said is not None and "ILSVRC2012_val_2.JPEG is missing or does not have its 5" in said
    shutil.rmtree(source)
    assert "is missing" in str(damage("imagenet", SMALL, tmp_path / "root", quiet))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train/n9/a.JPEG": JPEG}, "class 'n9' is in one of train, val only"),
        ({"train/n9/a.JPEG": JPEG, "val/n9/a.JPEG": JPEG}, "4 folders of classes in train, published are 3"),
        ({"val/n0é京/ILSVRC2012_val_2.JPEG": b""}, "val/n0é京/ILSVRC2012_val_2.JPEG is no JPEG image"),
    ],
)
def test_bad_folders_are_named_in_one_line(tmp_path, change, message):
    with pytest.raises(ConfigError, match=message) as caught:
        prepared("imagenet", SMALL, write(tmp_path / "a", images(**change)), tmp_path / "root")
    assert "\n" not in str(caught.value)
