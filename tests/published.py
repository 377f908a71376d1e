"""Makes small files in the exact formats that data sets are published in, and prepares from them."""

import io
import json
import pickle
import struct
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.core.prepared import Prepared
from benchmarks.data.dataset import Dataset, SourceFile, prepare


def quiet(line: str) -> None:
    """Take a line of progress."""


def unpublished(dataset: Dataset, **change: Any) -> Any:
    """Return the data set without sizes and checksums, which a test's files do not have."""
    return replace(dataset, **{"files": tuple(SourceFile(file.name) for file in dataset.files), **change})


def prepared(name: str, dataset: Dataset, source: Path, root: Path) -> Prepared:
    """Prepare from a source."""
    return prepare(name, dataset, source, root, quiet)


def write(folder: Path, files: Mapping[str, bytes | str]) -> Path:
    """Write files by name; return the folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def tar_gz(members: Mapping[str, bytes]) -> bytes:
    """Make an archive of ordinary files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


class Python2Pickler(pickle._Pickler):
    """Writes as Python 2's cPickle did with protocol 2: every string is a string of bytes."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_bytes(self, value: bytes) -> None:
        short = len(value) < 256
        self.write((b"U" + bytes([len(value)]) if short else b"T" + struct.pack("<i", len(value))) + value)
        self.memoize(value)

    def save_str(self, value: str) -> None:
        self.save_bytes(value.encode())

    dispatch[bytes] = save_bytes
    dispatch[str] = save_str


def python2_pickle(value: Any) -> bytes:
    """Pickle as CIFAR's authors did, with NumPy's names of that time."""
    written = io.BytesIO()
    Python2Pickler(written, protocol=2).dump(value)
    return written.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


CONTEXT = "In Zürich 東京 ☕ was served by Ωmega in 1900."


def squad(count: int, answer: str = "東京", **change: Any) -> str:
    """Make a SQuAD v1.1 document with so many questions, as published: texts beyond ASCII are escaped."""
    answers = [{"answer_start": CONTEXT.index("東京"), "text": answer, **change}]
    questions = [{"id": f"q{place}", "question": "Où ?", "answers": answers} for place in range(count)]
    return json.dumps(
        {"version": "1.1", "data": [{"title": "T", "paragraphs": [{"context": CONTEXT, "qas": questions}]}]}
    )


def byte_names() -> dict[int, str]:
    """Return GPT-2's characters for bytes: printable Latin-1 for itself, the others from 256 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + place) for place, byte in enumerate(others)}


MERGES = ("t h", "th e", "Ġ the", "Ġ =", "Ã ¼")


def gpt2_vocabulary() -> dict[str, str]:
    """Make a vocabulary of 256 bytes, MERGES and the end of a text, as GPT-2's is published."""
    entries = [*byte_names().values(), *(pair.replace(" ", "") for pair in MERGES), "<|endoftext|>"]
    numbers = {entry: number for number, entry in enumerate(entries)}
    return {"vocab.json": json.dumps(numbers), "merges.txt": "\n".join(["#version: 0.2", *MERGES, ""])}
