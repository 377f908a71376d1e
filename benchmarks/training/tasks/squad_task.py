"""Answer the questions of SQuAD v1.1 (Rajpurkar et al., EMNLP 2016) by a span of the context; metric: F1, official.

A training sample is one window of one question's context. As in the BERT authors' script (Devlin et al., 2019), one
that is too long is cut into overlapping windows, and in each window only tokens that do not have more context in
another one can be answers. Held-out questions count once each: their windows' logits are combined into one answer.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.core.prepared import open_prepared
from benchmarks.core.progress import to_stderr
from benchmarks.data.squad import Question, read_squad
from benchmarks.training.models.bert import WORDS
from benchmarks.training.tasks.questions import Asked, Feature, Logits, SpanAnswering, Text, Tokens
from benchmarks.training.tasks.task import SYNTHETIC_HELD_OUT, SYNTHETIC_SAMPLES, Setting, draws, sha256, synthetic_hash

if TYPE_CHECKING:
    from tokenizers import Tokenizer

STRIDE = 128
"""Tokens from the start of one window to that of the next."""
LONGEST_QUESTION = 64
"""Tokens of a question that are read; fewer if less than half of the input would be left for the context."""
SPACES = " \t\r\n\u202f"
"""Characters that separate words in the script."""


def room(question: Tokens, length: int) -> tuple[Tokens, int]:
    """Cut a question to the tokens that are read; return it with the number of tokens left for its context."""
    question = question[: min(LONGEST_QUESTION, (length - 3) // 2)]
    return question, length - len(question) - 3


def windows(tokens: int, size: int, stride: int = STRIDE) -> list[range]:
    """Cut a context of `tokens` tokens into windows of at most `size`; neighbours begin `stride` or `size` apart."""
    starts = range(0, max(1, tokens - size + min(stride, size)), min(stride, size))
    return [range(start, min(start + size, tokens)) for start in starts]


def most_context(parts: Sequence[range], tokens: int) -> NDArray[np.int64]:
    """Return for each token the window in which it has most context, (tokens,).

    Context is the smaller number of tokens to its left and right, plus 0.01 x the window's size; the first of equals.
    """
    starts, stops = np.array([(part.start, part.stop) for part in parts]).T[:, :, None]
    least = np.minimum(np.arange(tokens) - starts, stops - 1 - np.arange(tokens))
    return np.where(least >= 0, least + 0.01 * (stops - starts), -1.0).argmax(axis=0)


def make_features(question: Tokens, context: Text, answer: tuple[int, int] | None, length: int) -> list[Feature]:
    """Return one feature for each window of the context; `answer` is its first and last token, None if not needed."""
    question, size = room(question, length)
    parts, before = windows(len(context.ids), size), len(question) + 2
    best = most_context(parts, len(context.ids))
    features = []
    for number, part in enumerate(parts):
        place, window = (0, 0), slice(part.start, part.stop)
        if answer is not None and part.start <= answer[0] and answer[1] < part.stop:
            place = before - part.start + answer[0], before - part.start + answer[1]
        features.append(Feature(question, context.ids[window], part.start, before, place, best[window] == number))
    return features


def make_tokenizer(vocabulary: str) -> "Tokenizer":
    """Return BERT's lower-case WordPiece over the vocabulary in this file, one word a line."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.WordPiece.from_file(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def tokenize(tokenizer: "Tokenizer", texts: Sequence[str]) -> list[Text]:
    """Turn texts into tokens, without special ones."""
    encodings = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    return [
        Text(np.array(one.ids, dtype=np.int32), np.array(one.offsets, dtype=np.int32).reshape(-1, 2))
        for one in encodings
    ]


def find_answer(question: Question, context: Text, answer: Tokens) -> tuple[int, int]:
    """Return the first answer's first and last token in the context.

    They are those of the words that it touches, or the first run of tokens among them that is `answer`, the answer's
    own tokens: "1895" of "(1895-1943)", all of "Japanese" for an answer "Japan".
    """
    text = question.context
    begin, end = question.starts[0], question.starts[0] + len(question.answers[0])
    while begin > 0 and text[begin - 1] not in SPACES:
        begin -= 1
    while end < len(text) and text[end] not in SPACES:
        end += 1
    (touched,) = np.nonzero((context.spans[:, 0] < end) & (context.spans[:, 1] > begin))
    first, last = (int(touched[0]), int(touched[-1])) if len(touched) else (0, 0)
    for start in range(first, last - len(answer) + 2):
        if len(answer) and np.array_equal(context.ids[start : start + len(answer)], answer):
            return start, start + len(answer) - 1
    return first, last


MANY = 10_000
"""Number of questions from which tokenising takes some seconds, so that rank 0 says so."""


class Documents(Asked):
    """The prepared documents: tokens are kept once for each context, windows are assembled on demand."""

    def __init__(self, setting: Setting, length: int) -> None:
        squad = open_prepared("squad", setting.root)
        vocabulary = open_prepared("bert-vocabulary", setting.root)
        self.data_hash, self.length = sha256([squad.hash.encode(), vocabulary.hash.encode()]), length
        tokenizer = make_tokenizer(str(vocabulary.folder / "vocab.txt"))
        special: list[Any] = [tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]")]
        self.cls, self.sep = special
        self._train, self._test = (
            read_squad((squad.folder / f"{part}-v1.1.json").read_bytes()) for part in ("train", "dev")
        )
        every = (*self._train, *self._test)
        if len(every) > MANY and os.environ.get("RANK", "0") == "0":
            to_stderr(f"squad: finding the tokens of {len(every):,} questions ...")
        contexts = list(dict.fromkeys(question.context for question in every))
        self._contexts = dict(zip(contexts, tokenize(tokenizer, contexts), strict=True))
        self._asked = [text.ids for text in tokenize(tokenizer, [question.question for question in every])]
        answers = tokenize(tokenizer, [question.answers[0] for question in self._train])
        self._answers, places = [], []  # places: question and window of each training window
        for number, (question, answer) in enumerate(zip(self._train, answers, strict=True)):
            context = self._contexts[question.context]
            self._answers.append(find_answer(question, context, answer.ids))
            size = room(self._asked[number], length)[1]
            places += [(number, one) for one in range(len(windows(len(context.ids), size)))]
        self._places = np.array(places, dtype=np.int32)
        self.samples, self.held_out = len(places), len(self._test)

    def feature(self, index: int) -> Feature:
        number, window = self._places[index].tolist()
        context = self._contexts[self._train[number].context]
        return make_features(self._asked[number], context, self._answers[number], self.length)[window]

    def question(self, index: int) -> tuple[Question, Text, list[Feature]]:
        question, asked = self._test[index], self._asked[len(self._train) + index]
        context = self._contexts[question.context]
        return question, context, make_features(asked, context, None, self.length)


class SyntheticQuestions(Asked):
    """Random tokens for words, which are spelled as their numbers, and a random span of them for an answer."""

    cls, sep = 0, 1
    samples, held_out = SYNTHETIC_SAMPLES, SYNTHETIC_HELD_OUT

    def __init__(self, setting: Setting, length: int) -> None:
        self._seed, self.length = setting.seed, length
        self.data_hash = synthetic_hash(setting, f"questions {WORDS} {length}")

    def feature(self, index: int) -> Feature:
        """Return a question whose context fits into one window, which it fills."""
        return self._make(index)[2][0]

    def question(self, index: int) -> tuple[Question, Text, list[Feature]]:
        """Return one that is none of the training questions."""
        return self._make(SYNTHETIC_SAMPLES + index)

    def _make(self, number: int) -> tuple[Question, Text, list[Feature]]:
        generator = draws(self._seed, number)
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


LENGTH = 384


class Squad(SpanAnswering):
    """Questions of the published documents, or random ones; a batch has the tensors of `collate`."""

    evaluated_together = 8
    """Questions whose windows make one batch."""

    def __init__(self, setting: Setting) -> None:
        self.units_per_sample = setting.length or LENGTH
        super().__init__((SyntheticQuestions if setting.synthetic else Documents)(setting, self.units_per_sample))

    def best_span(self, features: list[Feature], starts: Logits, ends: Logits) -> tuple[int, int] | None:
        return best_span(features, starts, ends)


BEST = 20
"""Starts and ends of each window that are looked at, those of the largest logits."""
LONGEST_ANSWER = 30
"""Tokens of an answer, at most."""


def best_span(features: Sequence[Feature], starts: Logits, ends: Logits) -> tuple[int, int] | None:
    """Return the context's first and last token of the span with the largest sum of both logits, None if there is none.

    A span begins where its window has most context, ends in the window and not before it begins, and has 30 tokens at
    most. `features` are all windows of one question; `starts` and `ends` are logits (windows, length).
    """
    found, highest = None, -np.inf
    for feature, start_logits, end_logits in zip(features, starts, ends, strict=True):
        # The largest logits, the largest first; of equals the first.
        first, last = (np.argsort(-logits, kind="stable")[:BEST] for logits in (start_logits, end_logits))
        first, last = first[:, None], last[None, :]
        begin, tokens = first - feature.before, len(feature.context)
        eligible = np.append(feature.eligible, False)[np.where((begin >= 0) & (begin < tokens), begin, tokens)]
        inside = (last >= feature.before) & (last < feature.before + tokens)
        allowed = eligible & inside & (last >= first) & (last - first < LONGEST_ANSWER)
        sums = start_logits[first].astype(np.float64) + end_logits[last]
        scores = np.where(allowed, sums, -np.inf)
        row, column = np.unravel_index(np.argmax(scores), scores.shape)
        if scores[row, column] > highest:
            highest, shift = scores[row, column], feature.first - feature.before
            found = int(first[row, 0]) + shift, int(last[0, column]) + shift
    return found
