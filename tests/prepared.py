"""Prepared data sets as `data prepare` leaves them, made by tests."""

import hashlib
import json
from pathlib import Path

import numpy as np

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def save_prepared(name: str, root: Path, files: dict[str, bytes], **noted: object) -> Path:
    """Write a data set's files with their manifest; return its folder."""
    folder = root / name
    folder.mkdir(parents=True)
    for file, content in files.items():
        (folder / file).write_bytes(content)
    digest = hashlib.sha256(b"".join(files.values())).hexdigest()
    manifest = {"name": name, "hash": digest, "files": {file: len(content) for file, content in files.items()}, **noted}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def npy(array: np.ndarray) -> bytes:
    """The bytes of an array in NumPy's format."""
    from io import BytesIO

    file = BytesIO()
    np.save(file, array)
    return file.getvalue()


def save_cifar(root: Path, name: str = "cifar100", train: int = 40, test: int = 37, **change: np.ndarray) -> None:
    """Random images in the prepared format; `change` replaces arrays by name."""
    generator = np.random.default_rng(0)
    classes = 100 if name == "cifar100" else 10
    arrays = {}
    for part, count in (("train", train), ("test", test)):
        arrays[f"{part}_images"] = generator.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
        arrays[f"{part}_labels"] = generator.integers(0, classes, count)
    arrays |= change
    save_prepared(name, root, {f"{key}.npy": npy(array) for key, array in arrays.items()})


def save_wikitext(root: Path, splits: dict[str, tuple[np.ndarray, list[int]]], name: str = "wikitext-103") -> None:
    """Tokens and row batches of each split."""
    files = {}
    for split, (tokens, edges) in splits.items():
        files[f"{split}_tokens.npy"] = npy(tokens.astype(np.uint16))
        files[f"{split}_row_batches.npy"] = npy(np.array(edges, dtype=np.int64))
    save_prepared(name, root, files)


def save_squad(root: Path, train: dict, dev: dict, words: list[str]) -> None:
    """Documents and a vocabulary of the special tokens and `words`."""
    documents = {"train-v1.1.json": json.dumps(train).encode(), "dev-v1.1.json": json.dumps(dev).encode()}
    save_prepared("squad", root, documents)
    save_prepared("bert-vocabulary", root, {"vocab.txt": "\n".join([*SPECIAL, *words, ""]).encode()})
