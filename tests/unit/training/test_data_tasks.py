"""What the data command prepares is what tasks and models read."""

import io

import pytest
import torch
from PIL import Image

from benchmarks.core.prepared import open_prepared
from benchmarks.core.registry import TASKS
from benchmarks.data.imagenet import IMAGENET
from benchmarks.training.build import load_prepared
from benchmarks.training.tasks.task import Setting
from resireduce.scheme import load
from tests.published import gpt2_vocabulary, prepared, squad, unpublished, write
from tests.unit.data.test_data_cifar import SMALL10, archive10
from tests.unit.data.test_data_command import SMALL as SMALL_SQUAD
from tests.unit.data.test_data_text import PIECES, SMALL_BERT, SMALL_GPT2, SMALL_WIKITEXT, wikitext_files
from tests.unit.data.test_data_weights import SMALL_BERT as SMALL_WEIGHTS
from tests.unit.data.test_data_weights import bert_published, bert_small, saved

CLASSES = ("n01", "n02")


def jpeg(shade: int) -> bytes:
    written = io.BytesIO()
    Image.new("RGB", (40, 30), (shade, 0, 255 - shade)).save(written, "JPEG")
    return written.getvalue()


def prepare_cifar(folder):
    prepared("cifar10", SMALL10, archive10(folder), folder / "root")


def prepare_imagenet(folder):
    files = {f"{part}/{name}/{part}.JPEG": jpeg(50) for part in ("train", "val") for name in CLASSES}
    prepared("imagenet", unpublished(IMAGENET, classes=2), write(folder / "images", files), folder / "root")


def prepare_squad(folder):
    prepared("bert-vocabulary", SMALL_BERT, write(folder / "vocabulary", {"vocab.txt": PIECES}), folder / "root")
    files = {"train-v1.1.json": squad(3), "dev-v1.1.json": squad(2)}
    prepared("squad", SMALL_SQUAD, write(folder / "squad", files), folder / "root")


def prepare_wikitext(folder):
    prepared("gpt2-vocabulary", SMALL_GPT2, write(folder / "vocabulary", gpt2_vocabulary()), folder / "root")
    prepared("wikitext-2", SMALL_WIKITEXT, write(folder / "text", wikitext_files()), folder / "root")


READ = {
    "cifar": (prepare_cifar, "cifar10", None, 15),
    "imagenet": (prepare_imagenet, "imagenet", None, 2),
    "squad": (prepare_squad, "squad", 64, 3),
    "wikitext": (prepare_wikitext, "wikitext-2", 16, None),
}


@pytest.mark.parametrize("name", READ)
def test_a_task_reads_what_was_prepared(tmp_path, name):
    prepare, data, length, samples = READ[name]
    prepare(tmp_path)
    setting = Setting(data=data, root=tmp_path / "root", length=length)
    task = load(TASKS[name])(setting)
    assert len(task) == samples or (samples is None and len(task) > 10)
    assert all(len(tensor) == 2 for tensor in task.batch(torch.tensor([0, 1]), 0).values())


def test_a_model_starts_from_prepared_weights(tmp_path):
    published = bert_published()
    prepared("bert-base-weights", SMALL_WEIGHTS, saved(tmp_path / "from", published), tmp_path)
    assert open_prepared("bert-base-weights", tmp_path).manifest["missing"] == ["qa_outputs.weight", "qa_outputs.bias"]
    model = bert_small()
    before = model.qa_outputs.weight.clone()
    load_prepared(model, "bert-base-weights", tmp_path)
    name = "bert.encoder.layer.1.output.dense.weight"
    assert torch.equal(model.state_dict()[name], published[name])
    assert torch.equal(model.qa_outputs.weight, before)
