"""WikiText-2 and WikiText-103, raw (Merity et al., ICLR 2017), as tokens of GPT-2. Imports no torch.

Prepared, for train, validation and test: `<split>_tokens.npy`, uint16 (n,), the tokens of all rows one after the other,
and `<split>_row_batches.npy`, int64: the positions in them where every 1000th row begins, and the end.

A row is that of the hub's parquet files: a line including its end, or nothing for a line of white space. The reference
joins 1000 rows at a time, cuts them into blocks, and drops the remainder of each 1000.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.core.prepared import open_prepared
from benchmarks.core.progress import Progress
from benchmarks.data.dataset import Dataset, Report, files_of

BATCH_ROWS = 1000
END = "<|endoftext|>"
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, kw_only=True)
class WikiText(Dataset):
    """Articles of Wikipedia, from the hub's parquet files."""

    def prepare(self, source: Path, target: Path, root: Path, report: Report) -> dict[str, Any]:
        """Write the tokens of every split."""
        vocabulary = open_prepared(self.needs[0], root)
        tokenizer = _tokenizer(vocabulary.folder)
        notes: dict[str, Any] = {"vocabulary_hash": vocabulary.hash}
        for split in SPLITS:
            parts = [source / file.name for file in self.files if file.name.startswith(f"{split}-")]
            tokens, starts, count = _tokens(_rows(parts), tokenizer, Progress(report, f"{split}, rows"))
            np.save(target / f"{split}_tokens.npy", tokens)
            np.save(target / f"{split}_row_batches.npy", starts)
            notes |= {f"{split}_rows": count, f"{split}_tokens": len(tokens)}
        return notes


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


def _rows(paths: Iterable[Path]) -> Iterator[str]:
    """Yield the rows of parquet files with a column `text`."""
    from pyarrow.parquet import ParquetFile

    for path in paths:
        with ParquetFile(path) as file:
            for batch in file.iter_batches(columns=["text"]):
                yield from batch.column(0).to_pylist()


HUB = "https://huggingface.co/datasets/Salesforce/wikitext/resolve/b08601e04326c79dfdd32d625aee71d232d685c3/"
TERMS = "CC BY-SA 3.0 and GFDL"
FILES_2 = """
train-00000-of-00001.parquet 6_357_543 sha256:e83889baabc497075506f91975be5fac0d45c5290b6b20582c8cd1e853d0c9f7
validation-00000-of-00001.parquet 657_209 sha256:204929b7ff9d6184953f867dedb860e40aa69c078fc1e54b3baaa8fb28511c4c
test-00000-of-00001.parquet 732_610 sha256:5f1bea067869d04849c0f975a2b29c4ff47d867f484f5010ea5e861eab246d91
"""
FILES_103 = """
train-00000-of-00002.parquet 156_987_808 sha256:74da360f23826045b3e6ac6375411fdb15f003030aa74f2596ed08b857cb9212
train-00001-of-00002.parquet 157_088_770 sha256:ba090ac30dbf5461e8dcbdd1a1b8e6f3cf9c2c756d64f0c1220450acd514f720
validation-00000-of-00001.parquet 657_209 sha256:204929b7ff9d6184953f867dedb860e40aa69c078fc1e54b3baaa8fb28511c4c
test-00000-of-00001.parquet 732_610 sha256:5f1bea067869d04849c0f975a2b29c4ff47d867f484f5010ea5e861eab246d91
"""

WIKITEXT_2 = WikiText(
    title="WikiText-2, raw: 2.1 million words of Wikipedia",
    terms=TERMS,
    address=f"{HUB}wikitext-2-raw-v1/",
    files=files_of(FILES_2),
    needs=("gpt2-vocabulary",),
)

WIKITEXT_103 = WikiText(
    title="WikiText-103, raw: 103 million words of Wikipedia",
    terms=TERMS,
    address=f"{HUB}wikitext-103-raw-v1/",
    files=files_of(FILES_103),
    needs=("gpt2-vocabulary",),
)
