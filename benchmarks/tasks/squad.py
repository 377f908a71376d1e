"""The SQuAD v1.1 format (Rajpurkar et al., EMNLP 2016): reading it, and its official scores, exact match and F1."""

import json
import re
import string
from collections import Counter
from dataclasses import dataclass
from typing import Any

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

    Raises:
        ValueError: one line that names the missing or wrong field, for anything that is not such a document.
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
    identities = Counter(question.id for question in questions)
    repeated = [identity for identity, count in identities.items() if count > 1]
    if repeated:
        raise ValueError(f"question id {repeated[0]!r} is there {identities[repeated[0]]} times: ids must be unique")
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
