"""SQuAD v1.1 (Rajpurkar et al., EMNLP 2016): as published, its format, and its official scores. Imports no torch.

Prepared: `train-v1.1.json`, `dev-v1.1.json`.
"""

import json
import re
import shutil
import string
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.data.dataset import Dataset, Report, files_of

TRAIN, DEV = "train-v1.1.json", "dev-v1.1.json"


@dataclass(frozen=True, kw_only=True)
class Squad(Dataset):
    """Questions whose answers are spans of their contexts."""

    def prepare(self, source: Path, target: Path, root: Path, report: Report) -> dict[str, Any]:
        """Copy both files."""
        counts = {}
        for part, name in (("train", TRAIN), ("dev", DEV)):
            shutil.copyfile(source / name, target / name)
            counts[f"{part}_count"] = len(read_squad((target / name).read_bytes()))
        return counts


FILES = f"""
{TRAIN} 30_288_272 sha256:3527663986b8295af4f7fcdff1ba1ff3f72d07d61a20f487cb238a6ef92fd955
{DEV} 4_854_279 sha256:95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9
"""
SQUAD = Squad(
    title="SQuAD v1.1: 98,169 questions on articles of Wikipedia",
    terms="CC BY-SA 4.0",
    address="https://rajpurkar.github.io/SQuAD-explorer/dataset/",
    files=files_of(FILES),
)


ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question, its context, and the answers with the character at which each begins in the context."""

    id: str
    question: str
    context: str
    answers: tuple[str, ...]
    starts: tuple[int, ...]


def read_squad(text: str | bytes) -> list[Question]:
    """Read questions from a SQuAD v1.1 JSON document. Raises ValueError, one line, for anything else."""
    questions = []
    try:
        for article in json.loads(text)["data"]:
            for paragraph in article["paragraphs"]:
                questions += [_question(entry, paragraph["context"]) for entry in paragraph["qas"]]
    except (KeyError, TypeError) as error:
        raise ValueError(f"it is not as SQuAD v1.1: {error!r}") from None
    return questions


def _question(entry: Any, context: str) -> Question:
    """Return one question. Raises ValueError if it has no answer, or its context lacks one where it should be."""
    texts = tuple(answer["text"] for answer in entry["answers"])
    starts = tuple(answer["answer_start"] for answer in entry["answers"])
    if not texts:
        raise ValueError(f"question {entry['id']!r} has no answers: SQuAD v1.1 has one at least")
    for text, start in zip(texts, starts, strict=True):
        if not text or start < 0 or not context.startswith(text, start):
            raise ValueError(f"question {entry['id']!r}: the context does not have {text!r} at {start}")
    return Question(id=entry["id"], question=entry["question"], context=context, answers=texts, starts=starts)


def normalise(text: str) -> str:
    """Lower case, without punctuation, articles and surplus white space: the official rule for comparing answers."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def exact_match(prediction: str, answer: str) -> float:
    """Return 1 if both are equal after normalisation, else 0."""
    return float(normalise(prediction) == normalise(answer))


def f1(prediction: str, answer: str) -> float:
    """Return the harmonic mean of precision and recall over the normalised words, from 0 to 1."""
    predicted, wanted = normalise(prediction).split(), normalise(answer).split()
    common = sum((Counter(predicted) & Counter(wanted)).values())
    return 2 * common / (len(predicted) + len(wanted)) if common else 0.0
