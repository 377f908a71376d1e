"""The questions of SQuAD v1.1 in tokens: those of the prepared documents, or random ones of the same shape."""

import os
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from benchmarks.core.prepared import Prepared, open_prepared
from benchmarks.core.progress import to_stderr
from benchmarks.data.squad import Question, read_squad
from benchmarks.training.models.bert import WORDS
from benchmarks.training.tasks.source import SYNTHETIC_HELD_OUT, SYNTHETIC_SAMPLES, damaged, draws, synthetic_hash
from benchmarks.training.tasks.squad_features import (
    Feature,
    Text,
    Tokens,
    find_answer,
    make_features,
    make_tokenizer,
    room,
    tokenize,
    windows,
)
from benchmarks.training.tasks.task import Setting, sha256
from resireduce.errors import ConfigError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MANY = 10_000
"""Number of questions from which tokenising takes some seconds, so that rank 0 says so."""


class Documents:
    """The prepared documents: tokens are kept once for each context, windows are assembled on demand.

    Training questions are accessed by window, held-out ones by question.
    """

    def __init__(self, setting: Setting, length: int) -> None:
        squad = open_prepared("squad", setting.root)
        vocabulary = open_prepared("bert-vocabulary", setting.root)
        self._hashes, self.length = (squad.hash, vocabulary.hash), length
        try:
            tokenizer = make_tokenizer(str(vocabulary.folder / "vocab.txt"))
        except Exception as error:  # the tokenizer raises nothing more special
            raise damaged(vocabulary, "vocab.txt", error) from None
        self.cls, self.sep, _ = (_special(tokenizer, token) for token in ("[CLS]", "[SEP]", "[UNK]"))
        train, self.test = (_read(squad, f"{part}-v1.1.json") for part in ("train", "dev"))
        self.held_out = len(self.test)
        if len(train) + len(self.test) > MANY and os.environ.get("RANK", "0") == "0":
            to_stderr(f"squad: finding the tokens of {len(train) + len(self.test):,} questions ...")
        asked, self._contexts = _tokens(tokenizer, [*train, *self.test])
        self._asked, self._test_asked = asked[: len(train)], asked[len(train) :]
        answers = tokenize(tokenizer, [question.answers[0] for question in train])
        self._train_contexts = [question.context for question in train]
        self._answers = [
            find_answer(question, self._contexts[question.context], answer.ids)
            for question, answer in zip(train, answers, strict=True)
        ]
        self._places = self._index()

    def _index(self) -> NDArray[np.int32]:
        """Number the training windows: question and window of each, (windows, 2)."""
        places = []
        for number, (asked, context) in enumerate(zip(self._asked, self._train_contexts, strict=True)):
            _, size = room(asked, self.length)
            places += [(number, window) for window in range(len(windows(len(self._contexts[context].ids), size)))]
        return np.array(places, dtype=np.int32)

    def data_hash(self) -> str:
        """Return a SHA-256 over the hashes of the documents and the vocabulary."""
        return sha256([one.encode() for one in self._hashes])

    def __len__(self) -> int:
        """Return the number of training windows."""
        return len(self._places)

    def feature(self, index: int) -> Feature:
        """Return a training window."""
        number, window = self._places[index].tolist()
        context = self._contexts[self._train_contexts[number]]
        return make_features(self._asked[number], context, self._answers[number], self.length)[window]

    def question(self, index: int) -> tuple[Question, Text, list[Feature]]:
        """Return a held-out question, its context and all its windows."""
        question = self.test[index]
        context = self._contexts[question.context]
        return question, context, make_features(self._test_asked[index], context, None, self.length)


def _read(squad: Prepared, file: str) -> list[Question]:
    """Read one of the documents. Raises ConfigError, one line, if it is damaged."""
    try:
        questions = read_squad((squad.folder / file).read_bytes())
        if not questions:
            raise ValueError("it has no questions")
    except ValueError as error:
        raise damaged(squad, file, error) from None
    return questions


def _special(tokenizer: "Tokenizer", token: str) -> int:
    """Return a special token's number. Raises ConfigError, one line, if the vocabulary does not have it."""
    number: int | None = tokenizer.token_to_id(token)
    if number is None:
        raise ConfigError(f"data: 'bert-vocabulary' has no {token}; prepare it from the vocabulary of uncased BERT")
    return number


def _tokens(tokenizer: "Tokenizer", questions: list[Question]) -> tuple[list[Tokens], dict[str, Text]]:
    """Tokenise questions, and every context once."""
    contexts = list(dict.fromkeys(question.context for question in questions))
    asked = [text.ids for text in tokenize(tokenizer, [question.question for question in questions])]
    return asked, dict(zip(contexts, tokenize(tokenizer, contexts), strict=True))


class SyntheticQuestions:
    """Random tokens for words, which are spelled as their numbers, and a random span of them for an answer."""

    cls, sep = 0, 1
    held_out = SYNTHETIC_HELD_OUT

    def __init__(self, setting: Setting, length: int) -> None:
        self._setting, self.length = setting, length

    def data_hash(self) -> str:
        """Return the SHA-256 of what the questions depend on."""
        return synthetic_hash(self._setting, f"questions {WORDS} {self.length}")

    def __len__(self) -> int:
        """Return the number of training windows."""
        return SYNTHETIC_SAMPLES

    def feature(self, index: int) -> Feature:
        """Return a question whose context fits into one window, which it fills."""
        return self._make(index)[2][0]

    def question(self, index: int) -> tuple[Question, Text, list[Feature]]:
        """Return one that is none of the training questions."""
        return self._make(SYNTHETIC_SAMPLES + index)

    def _make(self, number: int) -> tuple[Question, Text, list[Feature]]:
        generator = draws(self._setting.seed, number)
        asked, size = room(np.arange(self.length // 8, dtype=np.int32), self.length)
        ids = generator.integers(WORDS, size=len(asked) + size).astype(np.int32)
        asked, words = ids[: len(asked)], [str(one) for one in ids[len(asked) :]]
        ends = np.cumsum([len(word) + 1 for word in words]) - 1
        spans = np.stack([ends - [len(word) for word in words], ends], axis=1).astype(np.int32)
        context = Text(ids[len(asked) :], spans)
        first = int(generator.integers(size))
        last = int(generator.integers(first, size))
        text = " ".join(words)
        answer, start = text[spans[first, 0] : spans[last, 1]], int(spans[first, 0])
        question = Question(id=str(number), question="", context=text, answers=(answer,), starts=(start,))
        return question, context, make_features(asked, context, (first, last), self.length)
