"""SQuAD, WikiText and vocabularies: prepared as promised."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from benchmarks.__main__ import main
from benchmarks.core.prepared import open_prepared
from benchmarks.data.published_weights import BERT_VOCABULARY, GPT2_VOCABULARY
from benchmarks.data.squad import SQUAD, read_squad
from benchmarks.data.wikitext import WIKITEXT_2, WIKITEXT_103
from tests.prepared import SPECIAL
from tests.published import CONTEXT, byte_names, gpt2_vocabulary, prepared, squad, unpublished, write

SMALL_GPT2, SMALL_BERT = unpublished(GPT2_VOCABULARY), unpublished(BERT_VOCABULARY)
PIECES = "\n".join([*SPECIAL, "the", "##ü", "東", ""])


def test_squad_and_vocabularies_are_kept_as_published(tmp_path):
    squad_files = {"train-v1.1.json": squad(3), "dev-v1.1.json": squad(2).encode().decode("unicode_escape")}
    for name, dataset, files in (
        ("squad", unpublished(SQUAD), squad_files),
        ("bert-vocabulary", SMALL_BERT, {"vocab.txt": PIECES}),
        ("gpt2-vocabulary", SMALL_GPT2, gpt2_vocabulary()),
    ):
        result = prepared(name, dataset, write(tmp_path / "from", files), tmp_path)
        assert {file: (result.folder / file).read_bytes() for file in files} == {
            file: text.encode() for file, text in files.items()
        }
    (question, *_) = read_squad((tmp_path / "squad/train-v1.1.json").read_bytes())
    assert (question.context, question.answers) == (CONTEXT, ("東京",))


LINES = [
    " \n",
    " = Zürich = \n",
    "\n",
    " the 東京 the\u2028the ☕ \n",
    " \u3000\n",
    " <|endoftext|> \n",
    " no end of line",
]
ROWS = {"train": 2503, "validation": 7, "test": 1000}
SMALL_WIKITEXT = unpublished(WIKITEXT_2)


def rows_of(split: str) -> list[str]:
    """Rows as the hub has them: its script took a line with its end, and nothing of a line of white space."""
    lines = [*(LINES[:-1] * 500)[: ROWS[split] - 1], LINES[-1]]
    return [line if line.strip() else "" for line in lines]


def wikitext_files(parts: int = 1) -> dict[str, bytes]:
    """The hub's parquet files, the training split in so many parts."""
    files = {}
    for split in ROWS:
        rows, count = rows_of(split), parts if split == "train" else 1
        for part in range(count):
            written = io.BytesIO()
            share = rows[part * len(rows) // count : (part + 1) * len(rows) // count]
            pyarrow.parquet.write_table(pa.table({"text": share}), written)
            files[f"{split}-{part:05}-of-{count:05}.parquet"] = written.getvalue()
    return files


def spelled(tokens) -> str:
    """Turn tokens back into text, by the definition of GPT-2's bytes."""
    entries = list(json.loads(gpt2_vocabulary()["vocab.json"]))
    bytes_of = {name: byte for byte, name in byte_names().items()}
    end, parts = entries.index("<|endoftext|>"), []
    for token in tokens.tolist():
        parts.append(b"<|endoftext|>" if token == end else bytes(bytes_of[character] for character in entries[token]))
    return b"".join(parts).decode()


def test_tokens_of_every_split_in_the_reference_s_batches(tmp_path):
    root = tmp_path / "root"
    prepared("gpt2-vocabulary", SMALL_GPT2, write(tmp_path / "vocabulary", gpt2_vocabulary()), root)
    result = prepared("wikitext-2", SMALL_WIKITEXT, write(tmp_path / "from", wikitext_files()), root)
    assert result.manifest["vocabulary_hash"] == open_prepared("gpt2-vocabulary", root).hash
    for split, count in ROWS.items():
        tokens, starts = (np.load(result.folder / f"{split}_{what}.npy") for what in ("tokens", "row_batches"))
        assert (tokens.dtype, starts.dtype, starts[0], starts[-1]) == (np.uint16, np.int64, 0, len(tokens))
        assert len(starts) == -(-count // 1000) + 1
        rows = rows_of(split)
        for place in range(len(starts) - 1):
            batch = tokens[starts[place] : starts[place + 1]]
            assert spelled(batch) == "".join(rows[1000 * place : 1000 * (place + 1)])
        assert (result.manifest[f"{split}_rows"], result.manifest[f"{split}_tokens"]) == (count, len(tokens))
    entries = json.loads(gpt2_vocabulary()["vocab.json"])
    train = np.load(result.folder / "train_tokens.npy").tolist()
    assert {entries["Ġthe"], entries["the"], entries["<|endoftext|>"], entries["ü".encode().decode("latin1")]} <= {
        *train
    }
    two = prepared("wikitext-103", unpublished(WIKITEXT_103), write(tmp_path / "two", wikitext_files(parts=2)), root)
    assert two.hash == result.hash


def test_the_vocabulary_is_prepared_first_and_asked_for_before_anything_is_fetched(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("benchmarks.data.published_weights.GPT2_VOCABULARY", SMALL_GPT2)
    monkeypatch.setattr("benchmarks.data.wikitext.WIKITEXT_2", SMALL_WIKITEXT)
    write(tmp_path / "downloads" / "gpt2-vocabulary", gpt2_vocabulary())
    assert main(["data", "prepare", "wikitext-2", "--root", str(tmp_path), "--download"]) == 2
    assert "'gpt2-vocabulary' is not prepared" in capsys.readouterr().err
    assert not (tmp_path / "downloads" / "wikitext-2").exists()
    write(tmp_path / "downloads" / "wikitext-2", wikitext_files())
    assert main(["data", "prepare", "wikitext-2", "gpt2-vocabulary", "--root", str(tmp_path)]) == 0
    assert main(["data", "check", "wikitext-2", "gpt2-vocabulary", "--root", str(tmp_path)]) == 0
