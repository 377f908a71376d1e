import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.launching.containers.entry import ImageEntry, add_image, read_images
from resireduce.errors import ConfigError

ENTRY = ImageEntry(
    name="cpu",
    digest=f"sha256:{'a' * 64}",
    content="0123456789ab",
    base="python:3.11-slim-bookworm",
    base_digest=f"sha256:{'b' * 64}",
    versions={"torch": "2.13.0+cpu", "cuda": None},
    size_bytes=123,
    engine="docker 20.10",
    built_at="2026-01-01T00:00:00+00:00",
)


def test_an_entry_comes_back_from_its_file(tmp_path: Path) -> None:
    ENTRY.save(tmp_path / "entry.json")
    assert ImageEntry.load(tmp_path / "entry.json") == ENTRY
    assert ENTRY.tag == "resireduce/cpu:0123456789ab"


def test_the_lock_holds_one_entry_for_each_image_in_order(tmp_path: Path) -> None:
    lock = tmp_path / "images.lock.json"
    assert read_images(lock) == {}
    other = replace(ENTRY, name="cuda12", digest=f"sha256:{'c' * 64}")
    for entry in (other, ENTRY, replace(ENTRY, size_bytes=456)):
        add_image(entry, lock)
    assert read_images(lock) == {"cpu": replace(ENTRY, size_bytes=456), "cuda12": other}
    assert list(json.loads(lock.read_text())["images"]) == ["cpu", "cuda12"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("digest", "sha256:short"),
        ("size_bytes", -1),
        ("versions", []),
    ],
)
def test_an_entry_that_cannot_be_right_is_refused_by_field(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        ImageEntry.from_dict(asdict(ENTRY) | {field: value})


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (ImageEntry.load, "{"),
        (ImageEntry.load, '{"name": "cpu"}'),
        (ImageEntry.load, json.dumps(asdict(ENTRY) | {"extra": 1})),
        (read_images, "[]"),
        (read_images, '{"schema_version": 2, "images": {}}'),
        (read_images, '{"schema_version": 1, "images": {"cpu": {}}}'),
        (read_images, json.dumps({"schema_version": 1, "images": {"cuda12": asdict(ENTRY)}})),
    ],
)
def test_a_broken_file_is_one_line_with_its_path_and_the_cure(tmp_path: Path, read: Any, text: str) -> None:
    path = tmp_path / "images.json"
    path.write_text(text)
    with pytest.raises(
        ConfigError, match=r"images\.json: .*delete the file and build it again: .*image build"
    ) as caught:
        read(path)
    assert "\n" not in str(caught.value)
