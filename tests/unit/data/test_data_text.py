"""SQuAD, WikiText and vocabularies: prepared as promised from every published form, and bad files refused."""

import io
import json
import re
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from benchmarks.__main__ import main
from benchmarks.core.prepared import open_prepared
from benchmarks.data.squad import SQUAD, read_squad
from benchmarks.data.vocabularies import BERT, GPT2, SPECIAL
from benchmarks.data.wikitext import WIKITEXT_2, WIKITEXT_103
from resireduce.errors import ConfigError
from tests.published import CONTEXT, MERGES, byte_names, gpt2_vocabulary, prepared, squad, unpublished, write

# SQuAD

SMALL = unpublished(SQUAD, train_count=3, dev_count=2)


def squad_files(**change) -> dict[str, bytes | str]:
    return {"train-v1.1.json": squad(3), "dev-v1.1.json": squad(2)} | change


def test_squad_is_kept_as_published(tmp_path):
    files = squad_files(**{"dev-v1.1.json": squad(2).encode().decode("unicode_escape")})
    result = prepared("squad", SMALL, write(tmp_path / "from", files), tmp_path)
    for name, text in files.items():
        assert (result.folder / name).read_bytes() == text.encode()
    (question, *_) = read_squad((result.folder / "train-v1.1.json").read_bytes())
    assert (question.context, question.answers) == (CONTEXT, ("東京",))


# Vocabularies

SMALL_GPT2 = unpublished(GPT2, entries=257 + len(MERGES))
SMALL_BERT = unpublished(BERT, entries=8)
PIECES = "\n".join([*SPECIAL, "the", "##ü", "東", ""])


def test_vocabularies_are_kept_as_published(tmp_path):
    result = prepared("bert-vocabulary", SMALL_BERT, write(tmp_path / "a", {"vocab.txt": PIECES}), tmp_path)
    assert (result.folder / "vocab.txt").read_bytes() == PIECES.encode()
    result = prepared("gpt2-vocabulary", SMALL_GPT2, write(tmp_path / "b", gpt2_vocabulary()), tmp_path)
    assert {name: (result.folder / name).read_text() for name in gpt2_vocabulary()} == gpt2_vocabulary()


def numbered(change: dict) -> str:
    return json.dumps(json.loads(gpt2_vocabulary()["vocab.json"]) | change)


PUBLISHED = {
    "squad": (SMALL, squad_files()),
    "bert-vocabulary": (SMALL_BERT, {"vocab.txt": PIECES}),
    "gpt2-vocabulary": (SMALL_GPT2, gpt2_vocabulary()),
}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("squad", {"dev-v1.1.json": squad(2)[:200]}, "dev-v1.1.json: the questions are not JSON"),
        ("squad", {"dev-v1.1.json": squad(1)}, "dev-v1.1.json: 1 questions, published are 2"),
        ("squad", {"dev-v1.1.json": squad(2, answer_start=3)}, "is 3, but the context does not have '東京' there"),
        ("squad", {"dev-v1.1.json": squad(2).replace("q1", "q0")}, "question id 'q0' is there twice"),
        ("bert-vocabulary", {"vocab.txt": PIECES + "more\n"}, "vocab.txt: 9 lines, allowed are 8"),
        ("bert-vocabulary", {"vocab.txt": PIECES.replace("the", "東")}, "a line is empty or there twice"),
        ("bert-vocabulary", {"vocab.txt": PIECES.replace("[MASK]", "MASK")}, "['[MASK]'] is missing"),
        ("gpt2-vocabulary", {"vocab.json": numbered({"x y": 262})}, "vocab.json: it is no mapping of 262 entries"),
        ("gpt2-vocabulary", {"vocab.json": '{"a": 0, "a": 1}'}, "vocab.json is not JSON: key 'a' is there twice"),
        ("gpt2-vocabulary", {"vocab.json": numbered({"th": 0})}, "its numbers are not 0 to 261, each once"),
        ("gpt2-vocabulary", {"merges.txt": "#version: 0.2\nt h\nx y\n"}, "line 3: 'x y' makes no entry of vocab.json"),
    ],
)
def test_bad_files_are_named_in_one_line(tmp_path, name, change, message):
    dataset, files = PUBLISHED[name]
    with pytest.raises(ConfigError, match=f"^data: {name}: .*{re.escape(message)}") as caught:
        prepared(name, dataset, write(tmp_path / "from", files | change), tmp_path)
    assert "\n" not in str(caught.value)


# WikiText

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
RAW = {"train": "train", "validation": "valid", "test": "test"}
TEXTS = {split: "".join((LINES[:-1] * 500)[: count - 1]) + LINES[-1] for split, count in ROWS.items()}
SMALL_WIKITEXT = unpublished(WIKITEXT_2, rows=ROWS)


def hub_rows(text: str) -> list[str]:
    """Rows as the hub has them: its script took a line with its end, and nothing of a line of white space."""
    return [line if line.strip() else "" for line in io.StringIO(text)]


def parquet(rows: list, column: str = "text", kind: pa.DataType | None = None) -> bytes:
    written = io.BytesIO()
    pyarrow.parquet.write_table(pa.table({column: pa.array(rows, kind)}), written)
    return written.getvalue()


def raw_files(**change) -> dict[str, bytes]:
    return {f"wiki.{RAW[split]}.raw": text.encode() for split, text in TEXTS.items()} | change


def parquet_files(parts: int = 1, **change) -> dict[str, bytes]:
    files = {}
    for split, text in TEXTS.items():
        rows, count = hub_rows(text), parts if split == "train" else 1
        for part in range(count):
            share = rows[part * len(rows) // count : (part + 1) * len(rows) // count]
            files[f"{split}-{part:05}-of-{count:05}.parquet"] = parquet(share)
    return files | change


def zipped(files: dict[str, bytes], folder: str = "wikitext-2-raw/") -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(folder + name, content)
    return written.getvalue()


FORMS = {
    "raw": raw_files(),
    "folder": {f"wikitext-2-raw/{name}": content for name, content in raw_files().items()},
    "zip": {"wikitext-2-raw-v1.zip": zipped(raw_files())},
    "parquet": parquet_files(),
    "hub": {f"wikitext-2-raw-v1/{name}": content for name, content in parquet_files().items()},
    "split otherwise": parquet_files(parts=3),
}


@pytest.fixture
def root(tmp_path):
    prepared("gpt2-vocabulary", SMALL_GPT2, write(tmp_path / "vocabulary", gpt2_vocabulary()), tmp_path / "root")
    return tmp_path / "root"


def spelled(tokens) -> str:
    """Turn tokens back into text, by the definition of GPT-2's bytes."""
    entries = list(json.loads(gpt2_vocabulary()["vocab.json"]))
    bytes_of = {name: byte for byte, name in byte_names().items()}
    end, parts = entries.index("<|endoftext|>"), []
    for token in tokens.tolist():
        parts.append(b"<|endoftext|>" if token == end else bytes(bytes_of[character] for character in entries[token]))
    return b"".join(parts).decode()


def test_tokens_of_every_split_in_the_reference_s_batches(tmp_path, root):
    result = prepared("wikitext-2", SMALL_WIKITEXT, write(tmp_path / "from", FORMS["raw"]), root)
    assert result.manifest["vocabulary_hash"] == open_prepared("gpt2-vocabulary", root).hash
    for split, count in ROWS.items():
        tokens, starts = (np.load(result.folder / f"{split}_{what}.npy") for what in ("tokens", "row_batches"))
        assert (tokens.dtype, starts.dtype, starts[0], starts[-1]) == (np.uint16, np.int64, 0, len(tokens))
        assert len(starts) == -(-count // 1000) + 1
        rows = hub_rows(TEXTS[split])
        assert len(rows) == count
        for place in range(len(starts) - 1):
            batch = tokens[starts[place] : starts[place + 1]]
            assert spelled(batch) == "".join(rows[1000 * place : 1000 * (place + 1)])
        assert result.manifest[f"{split}_tokens"] == len(tokens)
    entries = json.loads(gpt2_vocabulary()["vocab.json"])
    train = np.load(result.folder / "train_tokens.npy").tolist()
    assert {entries["Ġthe"], entries["the"], entries["<|endoftext|>"], entries["ü".encode().decode("latin1")]} <= {
        *train
    }


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_tokens(tmp_path, root, form):
    first = prepared("wikitext-2", SMALL_WIKITEXT, write(tmp_path / "raw", FORMS["raw"]), root).hash
    assert prepared("wikitext-2", SMALL_WIKITEXT, write(tmp_path / "from", FORMS[form]), root).hash == first


def test_the_vocabulary_is_prepared_first_and_asked_for_before_anything_is_fetched(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("benchmarks.data.vocabularies.GPT2", SMALL_GPT2)
    monkeypatch.setattr("benchmarks.data.wikitext.WIKITEXT_2", SMALL_WIKITEXT)
    write(tmp_path / "downloads" / "gpt2-vocabulary", gpt2_vocabulary())
    mirror = write(tmp_path / "mirror", FORMS["parquet"]).as_uri()
    assert main(["data", "prepare", "wikitext-2", "--root", str(tmp_path), "--mirror", mirror]) == 2
    assert "'gpt2-vocabulary' is not prepared" in capsys.readouterr().err
    assert not (tmp_path / "downloads" / "wikitext-2").exists()
    write(tmp_path / "downloads" / "wikitext-2", FORMS["raw"])
    assert main(["data", "prepare", "wikitext-2", "gpt2-vocabulary", "--root", str(tmp_path)]) == 0
    assert main(["data", "check", "wikitext-2", "gpt2-vocabulary", "--root", str(tmp_path)]) == 0


def test_wikitext_103_is_read_in_two_parts(tmp_path, root):
    small = unpublished(WIKITEXT_103, rows=ROWS)
    two = prepared("wikitext-103", small, write(tmp_path / "two", parquet_files(parts=2)), root)
    members = zipped(raw_files(), "wikitext-103-raw/")
    assert (
        prepared("wikitext-103", small, write(tmp_path / "zip", {"wikitext-103-raw-v1.zip": members}), root).hash
        == two.hash
    )


BAD = [
    (raw_files(**{"wiki.valid.raw": b"\xff\n" * 7}), "wiki.valid.raw is no text in UTF-8"),
    (raw_files(**{"wiki.valid.raw": b""}), "validation: 0 rows, 0 tokens; published are 7 rows"),
    (
        parquet_files(**{"test-00000-of-00001.parquet": parquet(["a"], "line")}),
        "has no column 'text'; its columns: line",
    ),
    (parquet_files(**{"test-00000-of-00001.parquet": parquet(["a", None])}), "None in column 'text' is no text"),
    ({"wikitext-2-raw-v1.zip": FORMS["zip"]["wikitext-2-raw-v1.zip"][:400]}, "wikitext-2-raw-v1.zip is damaged"),
]


@pytest.mark.parametrize(("files", "message"), BAD, ids=range(len(BAD)))
def test_bad_text_is_named_in_one_line(tmp_path, root, files, message):
    with pytest.raises(ConfigError, match=f"^data: wikitext-2: .*{re.escape(message)}") as caught:
        prepared("wikitext-2", SMALL_WIKITEXT, write(tmp_path / "from", files), root)
    assert "\n" not in str(caught.value)
    assert not (root / "wikitext-2").exists()


def test_a_part_that_is_missing_is_no_form(tmp_path, root):
    files = parquet_files(parts=3)
    del files["train-00001-of-00003.parquet"]
    with pytest.raises(ConfigError, match=r"has not all files of 'wikitext-2'; it takes one of: train-00000-of-00001"):
        prepared("wikitext-2", SMALL_WIKITEXT, write(tmp_path / "from", files), root)
