"""The ways to train that are compared, and what each gives up. Imports no torch: builders are given by name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Way:
    """One way to train on several ranks."""

    title: str
    builder: str
    """A function of `benchmarks.training.beside.builders`."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the builder, beside the model."""
    costs: str = ""
    """What is lost, or what the way requires, in a few words."""


OURS = "distributed"
STREAMED = "accuracy; `.grad` cannot be read"
WAYS: dict[str, Way] = {
    "ddp": Way("DistributedDataParallel", "ddp", {}, "nothing: the reference"),
    "ddp-view": Way(
        "the same, `gradient_as_bucket_view=True`", "ddp", {"bucket_view": True}, "`.grad` cannot be detached in place"
    ),
    "power-sgd": Way(
        "DDP with torch's PowerSGD hook, rank 1",
        "ddp",
        {"hook": "power_sgd"},
        "accuracy, by its rank; a residual is added",
    ),
    "eight-bit": Way(
        "DDP (view) with bitsandbytes' `AdamW8bit`",
        "ddp",
        {"bucket_view": True, "eight_bit": True},
        "precision of Adam's two moments; messages stay as they are",
    ),
    "in-backward": Way(
        "optimizer in the backward pass, gradients averaged one by one",
        "in_backward",
        {},
        "no clipping by the norm, no accumulation, no GradScaler; messages stay as they are",
    ),
    "fsdp2": Way(
        "FSDP2, `fully_shard` of each layer",
        "fsdp2",
        {},
        "more to send, since parameters travel too; they are DTensors, and so are checkpoints",
    ),
    "none-streamed": Way(
        "ours, no compression, streamed",
        OURS,
        {"compressor": "none", "scheme": "none", "update": "in_backward"},
        "as the optimizer in the backward pass",
    ),
    "baseline-kept": Way(
        "ours, `baseline`, kept", OURS, {"scheme": "baseline", "gradients": "kept"}, "accuracy; a residual is added"
    ),
    "baseline": Way("ours, `baseline`, streamed", OURS, {"scheme": "baseline"}, STREAMED),
    "w+2d": Way(
        "ours, `w+2d`, streamed", OURS, {"scheme": "w+2d"}, "accuracy, more than `baseline`; `.grad` cannot be read"
    ),
    "int4": Way("ours, `baseline` in int4, streamed", OURS, {"scheme": "baseline", "residual_dtype": "int4"}, STREAMED),
    "int4-eight-bit": Way(
        "the same with `AdamW8bit`",
        OURS,
        {"scheme": "baseline", "residual_dtype": "int4", "eight_bit": True},
        "both of what they cost",
    ),
    "compress-ddp": Way(
        "`compress_ddp`, `baseline`",
        "ddp",
        {"hook": "resireduce"},
        "accuracy; a residual is added. For models that a trainer has wrapped",
    ),
    "compress-ddp-view": Way(
        "the same, `gradient_as_bucket_view=True`", "ddp", {"bucket_view": True, "hook": "resireduce"}, "as above"
    ),
}
"""All are trained with AdamW; our density is 0.01."""

FORMS: dict[str, Way] = {
    "grace": Way("GRACE's form, full residual", "grace"),
    "released": Way("the paper's released form, `w+2d`", "released"),
    "form-baseline": Way("ours, `baseline`, streamed", OURS, {"scheme": "baseline", "sgd": True}),
    "form-w+2d": Way("ours, `w+2d`, streamed", OURS, {"scheme": "w+2d", "sgd": True}),
    "form-int4": Way(
        "ours, `baseline` in int4, streamed", OURS, {"scheme": "baseline", "residual_dtype": "int4", "sgd": True}
    ),
}
"""Error feedback with top-k in other implementations and in this one, with SGD without momentum: no other states."""
RESIDENT = ("baseline-kept", "w+2d")
"""Ways whose resident memory is measured with glibc's default malloc, and with malloc as ranks set it."""
FULLEST_MODEL = "gpt2-medium"
FULLEST = ("ddp", "ddp-view", "baseline-kept", "baseline")
"""Ways of which the fullest moment of a step is also measured with one rank and this model."""


def way(name: str) -> Way:
    """Return a way, or a form, by its name."""
    return {**WAYS, **FORMS}[name]
