"""WikiText-2 and WikiText-103, raw (Merity et al., ICLR 2017), as tokens of GPT-2. Imports no torch.

Prepared, for train, validation and test: `<split>_tokens.npy`, uint16 (n,), the tokens of all rows one after the other,
and `<split>_row_batches.npy`, int64: the positions in them where every 1000th row begins, and the end.

A row is a line including its end, or empty for a line of white space: so were the hub's parquet files made of the raw
ones. The reference joins 1000 rows at a time, cuts them into blocks, and drops the remainder of each 1000.
"""

import io
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.core.prepared import open_prepared
from benchmarks.core.progress import Progress
from benchmarks.data.dataset import Dataset, Report, first_line, forms_of

BATCH_ROWS = 1000
END = "<|endoftext|>"
SPLITS = {"train": "train", "validation": "valid", "test": "test"}
"""Name of a split -> its name in the raw files."""


@dataclass(frozen=True, kw_only=True)
class WikiText(Dataset):
    """Articles of Wikipedia, from the zip archive, from its unpacked files, or from the hub's parquet files."""

    rows: Mapping[str, int]
    """Rows of each split."""

    def find(self, source: Path) -> dict[str, Path] | None:
        """Find a published form, or parquet files that are divided differently from the published ones."""
        return super().find(source) or next(
            filter(None, (parquet_files(folder) for folder in (source, *(source / below for below in self.folders)))),
            None,
        )

    def prepare(self, files: Mapping[str, Path], target: Path, root: Path, report: Report) -> dict[str, Any]:
        """Write the tokens of every split."""
        vocabulary = open_prepared(self.needs[0], root)
        tokenizer = _tokenizer(vocabulary.folder)
        notes: dict[str, Any] = {"vocabulary_hash": vocabulary.hash}
        with ExitStack() as stack:
            for split, rows in self._splits(files, stack):
                published = self.rows[split]
                tokens, starts, count = _tokens(rows, tokenizer, Progress(report, f"{split}, rows", published))
                if count != published or not len(tokens):
                    raise ValueError(
                        f"{split}: {count:,} rows, {len(tokens):,} tokens; published are {published:,} rows"
                    )
                np.save(target / f"{split}_tokens.npy", tokens)
                np.save(target / f"{split}_row_batches.npy", starts)
                notes |= {f"{split}_rows": count, f"{split}_tokens": len(tokens)}
        return notes

    def _splits(self, files: Mapping[str, Path], stack: ExitStack) -> Iterator[tuple[str, Iterable[str]]]:
        """Yield every split and its rows, whatever form the files have."""
        first = next(iter(files.values()))
        if first.suffix == ".parquet":
            for split in SPLITS:
                yield split, parquet_rows([path for name, path in files.items() if name.startswith(f"{split}-")])
            return
        archive = stack.enter_context(_zip(first)) if first.suffix == ".zip" else None
        for split, raw in SPLITS.items():
            name = f"wiki.{raw}.raw"
            stream = archive.open(f"{self.folders[0]}/{name}") if archive else files[name].open("rb")
            yield split, text_rows(stack.enter_context(stream), name)


@contextmanager
def _zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive to read its members, without unpacking it. Raises ValueError, one line, for a damaged one."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{path.name} is damaged: {error}") from None
    except (KeyError, NotImplementedError, RuntimeError) as error:  # no such member, an unknown compression, a password
        raise ValueError(f"{path.name} cannot be read: {error.args[0]}") from None


def _tokenizer(folder: Path) -> Any:
    """Return GPT-2's tokenizer, made from the prepared vocabulary."""
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    tokenizer = Tokenizer(BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens([END])
    return tokenizer


def _tokens(
    rows: Iterable[str], tokenizer: Any, progress: Progress
) -> tuple[NDArray[np.uint16], NDArray[np.int64], int]:
    """Tokenise rows; return all tokens, the starts of every BATCH_ROWS rows and the end, and the number of rows."""
    parts, starts, count = [np.empty(0, dtype=np.uint16)], [0], 0
    rows = iter(rows)
    while batch := list(islice(rows, BATCH_ROWS)):
        encoded = tokenizer.encode_batch_fast(batch, add_special_tokens=False)
        parts.append(np.array([token for row in encoded for token in row.ids], dtype=np.uint16))
        starts.append(starts[-1] + len(parts[-1]))
        count += len(batch)
        progress.done(count)
    return np.concatenate(parts), np.array(starts, dtype=np.int64), count


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


HUB = "https://huggingface.co/datasets/Salesforce/wikitext/resolve/b08601e04326c79dfdd32d625aee71d232d685c3/"
TERMS = "CC BY-SA 3.0 and GFDL"
FILES_2 = """
train-00000-of-00001.parquet 6_357_543 sha256:e83889baabc497075506f91975be5fac0d45c5290b6b20582c8cd1e853d0c9f7
validation-00000-of-00001.parquet 657_209 sha256:204929b7ff9d6184953f867dedb860e40aa69c078fc1e54b3baaa8fb28511c4c
test-00000-of-00001.parquet 732_610 sha256:5f1bea067869d04849c0f975a2b29c4ff47d867f484f5010ea5e861eab246d91

wikitext-2-raw-v1.zip 4_721_645 sha256:ef7edb566e3e2b2d31b29c1fdb0c89a4cc683597484c3dc2517919c615435a11

wiki.train.raw 10_940_747 sha256:6707892fa3788b5ab9ed78ab5ff37d9fe825f6011a2ad4fcd6a6d467f0e7da57
wiki.valid.raw 1_146_846 sha256:4cd0f6876d07a413aa911261ff6d363c72d757d47f0fdd6015702014c89cb9c7
wiki.test.raw 1_290_590 sha256:173c87a53759e0201f33e0ccf978e510c2042d7f2cb78229d9a50d79b9e7dd08
"""
# Validation and test are those of WikiText-2; no checksum of the extracted training text is published.
FILES_103 = """
train-00000-of-00002.parquet 156_987_808 sha256:74da360f23826045b3e6ac6375411fdb15f003030aa74f2596ed08b857cb9212
train-00001-of-00002.parquet 157_088_770 sha256:ba090ac30dbf5461e8dcbdd1a1b8e6f3cf9c2c756d64f0c1220450acd514f720
validation-00000-of-00001.parquet 657_209 sha256:204929b7ff9d6184953f867dedb860e40aa69c078fc1e54b3baaa8fb28511c4c
test-00000-of-00001.parquet 732_610 sha256:5f1bea067869d04849c0f975a2b29c4ff47d867f484f5010ea5e861eab246d91

wikitext-103-raw-v1.zip 191_984_949 sha256:91c00ae287f0d699e18605c84afc9e45c192bc6b7797ff8837e5474655a33794

wiki.train.raw - -
wiki.valid.raw - -
wiki.test.raw - -
"""

WIKITEXT_2 = WikiText(
    title="WikiText-2, raw: 2.1 million words of Wikipedia",
    terms=TERMS,
    address=f"{HUB}wikitext-2-raw-v1/",
    forms=forms_of(FILES_2),
    folders=("wikitext-2-raw", "wikitext-2-raw-v1"),
    needs=("gpt2-vocabulary",),
    rows={"train": 36_718, "validation": 3_760, "test": 4_358},
)

WIKITEXT_103 = WikiText(
    title="WikiText-103, raw: 103 million words of Wikipedia",
    terms=TERMS,
    address=f"{HUB}wikitext-103-raw-v1/",
    forms=forms_of(FILES_103),
    folders=("wikitext-103-raw", "wikitext-103-raw-v1"),
    needs=("gpt2-vocabulary",),
    rows={"train": 1_801_350, "validation": 3_760, "test": 4_358},
)
