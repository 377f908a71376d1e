"""SQuAD v1.1 (Rajpurkar et al., EMNLP 2016): as published, its format, and its official scores. Imports no torch.

Prepared: `train-v1.1.json`, `dev-v1.1.json`.
"""

import json
import re
import string
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.core.checks import first_twice
from benchmarks.core.files import save_bytes
from benchmarks.data.dataset import Dataset, Report, forms_of

TRAIN, DEV = "train-v1.1.json", "dev-v1.1.json"


@dataclass(frozen=True, kw_only=True)
class Squad(Dataset):
    """Questions whose answers are spans of their contexts."""

    train_count: int = 87_599
    dev_count: int = 10_570

    def prepare(self, files: Mapping[str, Path], target: Path, root: Path, report: Report) -> dict[str, Any]:
        """Check every question and copy both files."""
        for name, count in ((TRAIN, self.train_count), (DEV, self.dev_count)):
            content = files[name].read_bytes()
            try:
                questions = read_squad(content.decode("utf-8"))
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
            if len(questions) != count:
                raise ValueError(f"{name}: {len(questions):,} questions, published are {count:,}")
            save_bytes(content, target / name)
        return {"train_count": self.train_count, "dev_count": self.dev_count}


FILES = f"""
{TRAIN} 30_288_272 sha256:3527663986b8295af4f7fcdff1ba1ff3f72d07d61a20f487cb238a6ef92fd955
{DEV} 4_854_279 sha256:95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9
"""
SQUAD = Squad(
    title="SQuAD v1.1: 98,169 questions on articles of Wikipedia",
    terms="CC BY-SA 4.0",
    address="https://rajpurkar.github.io/SQuAD-explorer/dataset/",
    forms=forms_of(FILES),
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


def _field(entry: Any, name: str, kind: type, where: str) -> Any:
    if not isinstance(entry, dict) or name not in entry:
        raise ValueError(f"{where} has no {name!r}: the SQuAD v1.1 format needs it")
    value = entry[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{where}: {name!r} is {value!r}, allowed is a JSON value of type {kind.__name__}")
    return value


def _question(entry: Any, context: str, where: str) -> Question:
    identity = _field(entry, "id", str, where)
    where = f"question {identity!r}"
    texts, starts = [], []
    for answer in _field(entry, "answers", list, where):
        text, start = _field(answer, "text", str, where), _field(answer, "answer_start", int, where)
        if not text or start < 0 or context[start : start + len(text)] != text:
            raise ValueError(f"{where}: 'answer_start' is {start}, but the context does not have {text!r} there")
        texts.append(text)
        starts.append(start)
    if not texts:
        raise ValueError(f"{where} has an empty list of 'answers': SQuAD v1.1 has one at least")
    question = _field(entry, "question", str, where)
    return Question(id=identity, question=question, context=context, answers=tuple(texts), starts=tuple(starts))


def read_squad(text: str | bytes) -> list[Question]:
    """Read questions from a SQuAD v1.1 JSON document.

    Raises ValueError, one line that names the missing or wrong field, for anything that is not such a document.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ValueError(f"the questions are not JSON: {error}") from None
    questions = []
    for place, article in enumerate(_field(document, "data", list, "the document")):
        for number, paragraph in enumerate(_field(article, "paragraphs", list, f"article {place}")):
            where = f"article {place}, paragraph {number}"
            context = _field(paragraph, "context", str, where)
            questions += [_question(entry, context, where) for entry in _field(paragraph, "qas", list, where)]
    if twice := first_twice(question.id for question in questions):
        raise ValueError(f"question id {twice!r} is there twice: ids must be unique")
    return questions


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
