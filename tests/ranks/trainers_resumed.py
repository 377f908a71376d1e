"""Checks of docs/trainers.md: training that stops and goes on, and training a second time."""

import re

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.processes import all_equal
from tests.ranks.trainers import GUIDE, by_hand, change, play, shared_folder, snippet
from tests.worlds import same


def hugging_face(gradients: str) -> tuple[str, str]:
    """Six steps of one epoch, with a checkpoint after the third; and the last three with new objects."""
    start, resume = snippet("Hugging Face Trainer", gradients), snippet("Hugging Face Trainer", "resumed")
    start = change(start, {'"out", ': '"out", save_strategy="steps", save_steps=3, save_total_limit=None, '})
    whole = change(start, {"trainer.train()": change(resume, {"resume_from_checkpoint=True": ""})})
    again = change(start, {"trainer.train()": change(resume, {"=True": '="out/checkpoint-3"'})})
    return whole, again


def accelerate(gradients: str) -> tuple[str, str]:
    """Two epochs of three steps, with a checkpoint between."""
    start, _, loop = snippet("Accelerate", gradients).partition("for batch in batches:")
    loop, resume = "\nfor batch in batches:" + loop, snippet("Accelerate", "resumed")
    save = change(resume, {'accelerator.load_state("checkpoint")': ""})
    return start + save + loop + 'accelerator.save_state("checkpoint")\n' + loop, start + resume + loop


def lightning(gradients: str) -> tuple[str, str]:
    """Two epochs of three steps, with a checkpoint after each, as Lightning does it."""
    start, resume = snippet("Lightning", gradients), snippet("Lightning", "resumed")
    fit, last = "trainer.fit(Module(model), batches)", 'ckpt_path="epoch=0-step=3.ckpt"'
    keep = "lightning.pytorch.callbacks.ModelCheckpoint('.', save_top_k=-1)"
    start = change(start, {"accumulate_grad_batches=2": "accumulate_grad_batches=2, max_epochs=2"})
    start = change(start, {"max_epochs=2": "max_epochs=2, enable_checkpointing=True"})
    if gradients == "kept":
        start = change(start, {"callbacks=[": f"callbacks=[{keep}, "})
    else:
        start = change(start, {"max_epochs=2": f"max_epochs=2, callbacks=[{keep}]"})
    whole = change(start, {fit: change(resume, {", " + last: ""})})
    return whole, change(start, {fit: resume})


RESUMED = {hugging_face: 96, accelerate: 48, lightning: 48}
"""And how many samples make six steps of it, on two ranks that take 4 at once, twice for a step."""


def check_resumed() -> None:
    """Three steps, new objects and three steps are six steps, bit for bit."""
    for (codes, samples), gradients in zip(RESUMED.items(), ("streamed", "kept", "streamed"), strict=True):
        with shared_folder():
            _check_resumed(codes.__name__, gradients, *codes(gradients), samples)


def _check_resumed(trainer: str, gradients: str, code: str, resumed: str, samples: int) -> None:
    start, whole, seen = play(code, samples)
    assert len(seen) == 12 and all_equal(whole) and not same(whole, start), (trainer, gradients)
    _, again, last = play(resumed, samples)
    assert len(last) == 6 and again is not whole and same(again, whole), (trainer, gradients)
    forgotten, count = re.subn(r"\S*compressed\.load_residual_state_dict", "len", resumed)
    assert count == 1 and not same(play(forgotten, samples)[1], whole), (trainer, gradients)


def check_second_training() -> None:
    """Hugging Face's goes on with the optimizer's state and the residuals; Lightning's has new ones each time."""
    for gradients in ("streamed", "kept"):
        code = change(snippet("Hugging Face Trainer", gradients), {"trainer.train()": "trainer.train()\n" * 2})
        start, model, seen = play(code, 32)
        expected, _ = by_hand(start, seen, "Hugging Face Trainer", gradients)
        assert len(seen) == 8 and same(model, expected), gradients

        code = change(snippet("Lightning", gradients), {"trainer.fit(Module(model), ": "trainer.fit(module, "})
        making, _, training = code.partition("trainer = lightning.Trainer")
        training = "trainer = lightning.Trainer" + training
        copied = "__import__('copy').deepcopy(module)\n"  # as callbacks do that average weights, at each fit()
        start, model, seen = play(f"{making}module = Module(model)\n{copied}{training}{copied}{training}", 32)
        assert same(model, _twice_by_hand(start, seen, "Lightning", gradients)), gradients


def check_second_trainer() -> None:
    """Of a model that an earlier one has closed; and a plain one after that, which wraps it."""
    code = snippet("Hugging Face Trainer", "streamed")
    making = "trainer = StreamedTrainer(model, arguments, train_dataset=dataset)\n"
    close, mark = "trainer.compressed.close()", "del model._is_accelerate_prepared"
    assert all(f"`{said}`" in GUIDE.read_text(encoding="utf-8").replace("\n", " ") for said in (close, mark))
    start, model, seen = play(f"{code}\n{close}\n{making}trainer.train()", 32)
    assert same(model, _twice_by_hand(start, seen, "Hugging Face Trainer", "streamed"))
    plain = change(making, {"StreamedTrainer": "Trainer"}) + "trainer.train()"
    play(f"{code}\n{close}\n{mark}\n{plain}", names=(names := {}))
    assert isinstance(names["trainer"].model_wrapped, DistributedDataParallel)


def _twice_by_hand(model: nn.Module, seen: list, trainer: str, gradients: str) -> nn.Module:
    """With a new optimizer for the second half."""
    assert len(seen) == 8
    between, _ = by_hand(model, seen[:4], trainer, gradients)
    return by_hand(between, seen[4:], trainer, gradients)[0]
