"""Rows of WikiText, from text and from parquet files. Imports no torch.

A row is a line including its end, or empty for a line of white space. The script that made the hub's parquet files
did so, reading the raw files with Python's line ends (revision before its conversion, `_generate_examples`).
"""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from benchmarks.data.dataset import first_line

SPLITS = {"train": "train", "validation": "valid", "test": "test"}
"""Name of a split -> its name in the raw files."""


def text_rows(stream: IO[bytes], name: str) -> Iterator[str]:
    """Yield the rows of a raw file. Raises ValueError, one line with its `name`, for text that is not UTF-8."""
    try:
        for line in io.TextIOWrapper(stream, encoding="utf-8"):
            yield line if line.strip() else ""
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is no text in UTF-8: {error.reason}") from None


def parquet_rows(paths: list[Path]) -> Iterator[str]:
    """Yield the rows of parquet files with a column `text`. Raises ValueError, one line, for any others."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    for path in paths:
        try:
            with ParquetFile(path) as file:
                names = file.schema_arrow.names
                if "text" not in names:
                    raise ValueError(f"{path.name} has no column 'text'; its columns: {', '.join(names) or 'none'}")
                for batch in file.iter_batches(columns=["text"]):
                    for row in batch.column(0).to_pylist():
                        if not isinstance(row, str):
                            raise ValueError(f"{path.name}: {row!r} in column 'text' is no text")
                        yield row
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{path.name} is no parquet file that can be read: {first_line(error)}") from None


def parquet_files(folder: Path) -> dict[str, Path] | None:
    """Find the parts of every split, named SPLIT-00000-of-00002.parquet; None unless all are present."""
    found: dict[str, Path] = {}
    for split in SPLITS:
        parts = sorted(folder.glob(f"{split}-?????-of-?????.parquet"))
        if [path.name for path in parts] != [
            f"{split}-{number:05}-of-{len(parts):05}.parquet" for number in range(len(parts))
        ] or not parts:
            return None
        found |= {path.name: path for path in parts}
    return found
