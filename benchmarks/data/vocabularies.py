"""Vocabularies that BERT and GPT-2 were pretrained with. Imports no torch.

Prepared: `vocab.txt`, one word piece per line; `vocab.json` and `merges.txt`, byte pairs.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.core.files import once, save_bytes
from benchmarks.data.dataset import Dataset, Report, forms_of

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclass(frozen=True, kw_only=True)
class WordPieces(Dataset):
    """BERT's: word pieces, one a line, numbered from 0 (Devlin et al., 2019)."""

    entries: int

    def prepare(self, files: Mapping[str, Path], target: Path, root: Path, report: Report) -> dict[str, Any]:
        """Check the word pieces and copy them."""
        (path,) = files.values()
        content = path.read_bytes()
        # splitlines would treat some entries as line separators.
        pieces = _text(content, path).removesuffix("\n").replace("\r\n", "\n").split("\n")
        if len(pieces) != self.entries:
            raise ValueError(f"{path.name}: {len(pieces):,} lines, allowed are {self.entries:,}")
        missing = [piece for piece in SPECIAL if piece not in pieces]
        if missing or len(set(pieces)) != len(pieces) or "" in pieces:
            raise ValueError(f"{path.name}: a line is empty or there twice, or {missing or SPECIAL} is missing")
        save_bytes(content, target / "vocab.txt")
        return {"entries": len(pieces)}


@dataclass(frozen=True, kw_only=True)
class BytePairs(Dataset):
    """GPT-2's: byte pairs and the order in which they are merged (Radford et al., 2019)."""

    entries: int

    def prepare(self, files: Mapping[str, Path], target: Path, root: Path, report: Report) -> dict[str, Any]:
        """Check that numbers have no gaps and that merges produce entries, and copy both files."""
        vocabulary, merges = files.values()
        entries, pairs = vocabulary.read_bytes(), merges.read_bytes()
        numbers = self._numbers(_text(entries, vocabulary), vocabulary)
        for place, line in enumerate(_text(pairs, merges).removesuffix("\n").split("\n"), start=1):
            if place == 1 and line.startswith("#version"):
                continue
            if line.count(" ") != 1 or line.replace(" ", "") not in numbers:
                raise ValueError(f"{merges.name}, line {place}: {line!r} makes no entry of {vocabulary.name}")
        save_bytes(entries, target / "vocab.json")
        save_bytes(pairs, target / "merges.txt")
        return {"entries": len(numbers)}

    def _numbers(self, text: str, path: Path) -> dict[str, int]:
        try:
            numbers = json.loads(text, object_pairs_hook=once)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path.name} is not JSON: {error}") from None
        if not isinstance(numbers, dict) or len(numbers) != self.entries:
            raise ValueError(f"{path.name}: it is no mapping of {self.entries:,} entries")
        if not all(type(number) is int for number in numbers.values()):
            raise ValueError(f"{path.name}: an entry has no whole number")
        if sorted(numbers.values()) != list(range(self.entries)):
            raise ValueError(f"{path.name}: its numbers are not 0 to {self.entries - 1:,}, each once")
        return numbers


def _text(content: bytes, path: Path) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path.name} is no text in UTF-8: byte {error.start:,}") from None


GPT2_FILES = """
vocab.json 1_042_301 sha256:196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783
merges.txt 456_318 sha256:1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5
"""
OPENAI_FILES = GPT2_FILES.replace("vocab.json", "encoder.json").replace("merges.txt", "vocab.bpe")
"""The vocabulary files of GPT-2 under the names that OpenAI published them with: sizes and checksums of GPT2_FILES."""

BERT = WordPieces(
    title="BERT's vocabulary: 30,522 word pieces of English in lower case",
    terms="Apache-2.0",
    address="https://huggingface.co/google-bert/bert-base-uncased/resolve/86b5e0934494bd15c9632b12f734a8a67f723594/",
    forms=forms_of("vocab.txt 231_508 sha256:07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"),
    entries=30_522,
)
GPT2 = BytePairs(
    title="GPT-2's vocabulary: 50,257 byte pairs",
    terms="MIT, modified",
    address="https://huggingface.co/openai-community/gpt2/resolve/607a30d783dfa663caf39e06633721c8d4cfcd7e/",
    forms=forms_of(GPT2_FILES + OPENAI_FILES),
    entries=50_257,
)
