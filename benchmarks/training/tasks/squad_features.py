"""Turns SQuAD questions into BERT's input: WordPiece tokens, windows of long contexts, and the way back to characters.

As in the BERT authors' script for SQuAD (Devlin et al., 2019), a context that is too long is cut into overlapping
windows, and in each window only tokens that do not have more context in another one can be answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.data.squad import Question
from benchmarks.training.tasks.task import Batch

if TYPE_CHECKING:
    from tokenizers import Tokenizer

STRIDE = 128
"""Tokens from the start of one window to that of the next."""
LONGEST_QUESTION = 64
"""Tokens of a question that are read; fewer if less than half of the input would be left for the context."""
SPACES = " \t\r\n\u202f"
"""Characters that separate words in the script."""

Tokens = NDArray[np.int32]


@dataclass(frozen=True)
class Text:
    """A text's tokens: `ids` (n,), and the characters [begin, end) that each stands for, `spans` (n, 2)."""

    ids: Tokens
    spans: NDArray[np.int32]


@dataclass(frozen=True)
class Feature:
    """One question with one window of its context.

    `first` is the window's first token in the context; `answer` the answer's first and last token in the input, both 0
    ([CLS]) if the window does not have all of it; `eligible` (tokens of the window,) those that can be answers here.
    """

    question: Tokens
    context: Tokens
    first: int
    answer: tuple[int, int]
    eligible: NDArray[np.bool_]

    @property
    def before(self) -> int:
        """Tokens of the input before the window: [CLS], the question, [SEP]."""
        return len(self.question) + 2


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
    place = np.arange(tokens)
    scores = [
        np.where(
            (place >= part.start) & (place < part.stop),
            np.minimum(place - part.start, part.stop - 1 - place) + 0.01 * len(part),
            -1.0,
        )
        for part in parts
    ]
    return np.argmax(scores, axis=0)


def make_features(question: Tokens, context: Text, answer: tuple[int, int] | None, length: int) -> list[Feature]:
    """Return one feature for each window of the context; `answer` is its first and last token, None if not needed."""
    question, size = room(question, length)
    parts = windows(len(context.ids), size)
    best = most_context(parts, len(context.ids))
    features = []
    for number, part in enumerate(parts):
        first, last = (0, 0) if answer is None else (answer[0] - part.start, answer[1] - part.start)
        whole = answer is not None and first >= 0 and answer[1] < part.stop
        before = len(question) + 2
        place = (before + first, before + last) if whole else (0, 0)
        ids = context.ids[part.start : part.stop]
        features.append(Feature(question, ids, part.start, place, best[part.start : part.stop] == number))
    return features


def collate(features: Sequence[Feature], length: int, cls: int, sep: int) -> Batch:
    """Make [CLS] question [SEP] window [SEP] and padding: ids, types and mask (n, length); starts and ends (n,)."""
    ids, types, mask = (np.zeros((len(features), length), dtype=np.int64) for _ in range(3))
    for row, feature in enumerate(features):
        before, end = feature.before, feature.before + len(feature.context)
        ids[row, : end + 1] = np.concatenate([[cls], feature.question, [sep], feature.context, [sep]])
        types[row, before : end + 1] = 1
        mask[row, : end + 1] = 1
    starts, ends = torch.tensor([feature.answer for feature in features]).unbind(1)
    named: dict[str, Tensor] = {"input_ids": torch.from_numpy(ids), "token_type_ids": torch.from_numpy(types)}
    return named | {"attention_mask": torch.from_numpy(mask), "starts": starts, "ends": ends}


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
