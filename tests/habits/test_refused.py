"""All that is refused of what `distribute` and compressors, residuals and optimizers are given, with the words."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import resireduce
from resireduce.compressors.adtopk import ADTopKThreshold
from resireduce.compressors.chunked import Chunked, L1Chunks
from resireduce.compressors.dgc import DGC, DGCSimple
from resireduce.compressors.powersgd import PowerSGD
from resireduce.compressors.quantized import QSGD, Block4, Block8, Fp8, TernGrad
from resireduce.compressors.signs import Signum
from resireduce.compressors.thresholds import GaussianK, SIDCo, Threshold
from resireduce.compressors.topk import RandomK, TopK
from resireduce.contrib.oktopk import OkTopK
from resireduce.errors import ConfigError
from resireduce.grouping import Grouping, partial_selection
from resireduce.optim import DGCSGD, SecondMomentAdamW
from resireduce.residuals.base import DecayedResidual, PartialResidual
from resireduce.residuals.group import MemberResidual, WeightedResidual
from resireduce.residuals.matrix import RowsColumnsResidual, RowsResidual
from tests.worlds import Net, distributed, seeded

Row = tuple[dict[str, Any], str]
KEPT: dict[str, Any] = {"gradients": "kept"}
EARLY: dict[str, Any] = {"compressor": "none", "scheme": "none", "update": "in_backward"}
SETTINGS: list[Row] = [
    ({"compressor": "TopK"}, r"compressor: 'TopK' is not known \(did you mean 'topk'\?\)"),
    ({"compressor": TopK}, r"compressor: <class '.*TopK'> is not known"),
    ({"scheme": "w2d"}, r"scheme: 'w2d' .*did you mean 'w\+2d'.*allowed: 2d, a, baseline"),
    *(({"density": bad}, f"density: {bad!r} is not allowed.*0 < density <= 1") for bad in (0, 1.5, math.nan, "abc")),
    ({"gradients": "stream"}, "gradients: 'stream' .*did you mean 'streamed'"),
    ({"backend": "mpi"}, "backend: 'mpi'"),
    ({"backend": "torch"}, "backend: 'torch' needs torch.distributed.init_process_group"),
    ({"group": 3}, "group: a process group is not allowed with backend='local'"),
    ({"groups": "all"}, "groups: 'all'"),
    ({"groups": ["0.*"]}, r"groups: \['0\.\*'\] is not allowed; give 'auto', a Grouping, or \{\"groups\": "),
    ({"groups": Grouping(groups=(("first.weight", "no.such"),))}, "groups: 'no.such'"),
    ({"groups": Grouping(groups=(("first.weight", "blocks.0.up.weight"),))}, "one shape"),
    ({"groups": {"group": []}}, "key 'group' is not known; give {"),
    ({"groups": {"groups": "*"}}, r"'\*' is not allowed; give lists of patterns, such as {"),
    ({"groups": {"groups": [3]}}, "3 is not allowed; give lists of patterns"),
    ({"groups": {"groups": ["first.wieght"]}}, "tensor of the model matches 'first.wieght'"),
    ({"groups": {"groups": [["blocks.*.up.weight"]], "specific": ["blocks.0.up.weight"]}}, "is named twice"),
    ({"groups": {"groups": ["first.weight"]}}, "fewer than two members"),
    ({"dense": "head.*"}, r"dense: 'head\.\*' is not allowed; give a list of patterns"),
    ({"dense": ["head.*", "frist.*"]}, r"dense: 'frist\.\*' matches no parameter; the model has first\.weight"),
    ({"residual_dtype": "int7"}, "residual_dtype: 'int7'"),
    ({"residual_dtype": "float64"}, r"residual_dtype: torch\.float64 is not allowed for gradients of torch\.float32"),
    ({"residual_device": "disk"}, "residual_device: 'disk' is not known; allowed: cpu"),
    ({"backward_passes_per_step": 0}, "backward_passes_per_step: 0"),
    ({"warm_up_steps": -1}, "warm_up_steps: -1 is not allowed; give a number of steps"),
    ({"options": {"phi": 0.5}}, "options of scheme 'baseline': 'phi' .*allowed: none"),
    ({"scheme": "member", "options": {"smallest": "banana"}}, "smallest: 'banana' is not allowed"),
    (
        {"scheme": "partial", "options": {"ratio": {"fc.*": 0.5}}},
        r"ratio: {'fc\.\*': 0\.5} is not allowed; give a share",
    ),
    *(
        ({"max_grad_norm": norm}, "max_grad_norm: .* is not allowed; give a number greater than 0, or None")
        for norm in (0, -1.0, math.nan, True, "1")
    ),
    ({"max_local_grad_norm": 1.0}, r"max_local_grad_norm: 1\.0 .* gradients='streamed'.*or .*kept"),
    ({"grad_scaler": torch.amp.GradScaler("cpu")}, r"grad_scaler: <torch\.amp.* is not allowed; give a resireduce"),
    (
        {"grad_scaler": resireduce.GradScaler("cpu"), "compressor": "dgc-momentum"},
        r"grad_scaler: .*DGCMomentum and gradients='streamed'.*gradients='kept'",
    ),
    ({**EARLY, "compressor": "topk"}, "update: 'in_backward' is not allowed with compressor='topk', only with 'none'"),
    ({**EARLY, "update": "early"}, "update: 'early' is not known.*in_backward, in_step"),
    # messages
    ({"merge": "all"}, "merge: 'all' is not known; allowed: "),
    *(({"merge": bad}, f"merge: {bad} is not allowed; give") for bad in (0, True, 2.5)),
    ({"merge": [[]]}, "merge: .* a list of names of parameters for each message"),
    ({"merge": [["first.weigt"]]}, "merge: 'first.weigt' is not known .did you mean 'first.weight'"),
    ({"merge": [["first.weight"], ["first.weight"]]}, "merge: 'first.weight' is in several messages"),
    ({"merge": "one", "compressor": "powersgd"}, "merge: 'one' is not allowed with PowerSGD.*rounds"),
]


@pytest.mark.parametrize(("options", "words"), SETTINGS)
def test_a_setting_that_cannot_be_used_is_refused_before_anything_changes(options: dict[str, Any], words: str) -> None:
    model = seeded(Net)
    with pytest.raises(ConfigError, match=words):
        distributed(model, **options)
    assert not model._forward_pre_hooks and not any(p._post_accumulate_grad_hooks for p in model.parameters())


def of(kind: str, *arguments: Any, **settings: Any) -> torch.optim.Optimizer:
    return getattr(torch.optim, kind)(arguments[0].parameters() if arguments else MODEL.parameters(), **settings)


MODEL, OTHER = seeded(Net), seeded(Net)
PARAMETERS = [nn.Parameter(torch.ones(3))]
OPTIMIZERS: list[tuple[Callable[[], Any], dict[str, Any], str]] = [
    (lambda: of("SGD", OTHER, lr=0.1), {}, r"not the model's; .* make the optimizer after whatever replaces"),
    (
        lambda: of("SGD", lr=0.1, momentum=0.9),
        {"compressor": "dgc-momentum"},
        r"DGCMomentum corrects momentum .* give SGD with momentum=0, .*DGCSGD, or .*'dgc'",
    ),
    (lambda: of("AdamW"), {"compressor": "signum"}, "Signum corrects momentum and is not allowed"),
    (lambda: MODEL, {}, "optimizer: Net is not allowed; give an object"),
    (lambda: torch.optim.SGD, {}, "optimizer: SGD is not allowed; give an object"),
]


@pytest.mark.parametrize(("make", "options", "words"), OPTIMIZERS)
def test_an_optimizer_that_does_not_fit_is_refused(
    make: Callable[[], Any], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        resireduce.distribute(MODEL, make(), "none", backend="local", **options)


MADE: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    *((kind, {"density": 0}, "density: 0 is not allowed") for kind in (TopK, ADTopKThreshold)),
    *((kind, {"density": 2.0}, r"density: 2\.0 is not allowed") for kind in (RandomK, OkTopK, L1Chunks)),
    (QSGD, {"bucket": 0}, "bucket: 0 is not allowed; give a number of elements"),
    (QSGD, {"norm": 1.0}, r"norm: 1\.0 is not allowed; give 2 or infinity"),
    (Threshold, {"threshold": "a"}, "threshold: 'a' is not allowed"),
    (DGC, {"density": 0.01, "momentum_factor": 1.0}, r"momentum_factor: 1\.0 is not allowed; give a number, 0 <= "),
    (DGCSimple, {"density": 0.01, "rounds": 1.5}, r"rounds: 1\.5 is not allowed"),
    (GaussianK, {"density": 0.01, "rounds": -1}, "rounds: -1 is not allowed"),
    (SIDCo, {"density": 0.01, "fit": "weibull"}, "fit: 'weibull' is not known"),
    (SIDCo, {"density": 0.01, "stages": 0}, "stages: 0 is not allowed; give a number, 1 or more, or None"),
    (TernGrad, {"clip": 0}, "clip: 0 is not allowed; give a number of deviations"),
    (Block8, {"block": 12}, "block: 12 is not allowed; give a number of elements, a multiple of 8"),
    *((kind, {"block": 0}, "block: 0 is not allowed") for kind in (Block4, Fp8)),
    (Fp8, {"form": "e3m4"}, "form: 'e3m4' is not allowed; give e4m3 or e5m2"),
    (ADTopKThreshold, {"density": 0.1, "warm_up": -1}, "warm_up: -1 is not allowed; give a number of steps, 0 or more"),
    (ADTopKThreshold, {"density": 0.1, "every": 0}, "every: 0 is not allowed; give a number of steps, 1 or more"),
    (ADTopKThreshold, {"density": 0.1, "steps": 0}, "steps: 0 is not allowed"),
    (ADTopKThreshold, {"density": 0.1, "stable": -1}, "stable: -1 is not allowed; give a number, 0 or more"),
    *((Chunked, {"density": 0.1, "chunk": bad}, "chunk: .* a number of elements, 2 or more") for bad in (1, 2.5, True)),
    (OkTopK, {"density": 0.1, "local_every": 0}, "local_every: 0 is not allowed; give a number, 1 or more"),
    (OkTopK, {"density": 0.1, "global_every": 2.5}, r"global_every: 2\.5 is not allowed"),
    (OkTopK, {"density": 0.1, "local_factor": 0.9}, r"local_factor: 0\.9 is not allowed"),
    (OkTopK, {"density": 0.1, "global_factor": math.inf}, "global_factor: inf is not allowed"),
    (PowerSGD, {"rank": 0}, "rank: 0 is not allowed; give a number of columns, 1 or more"),
    (PowerSGD, {"min_compression_rate": 0}, "min_compression_rate: 0 is not allowed; give a number greater than 0"),
    (L1Chunks, {"density": 0.1, "size": 0}, "size: 0 is not allowed; give a number of elements, 1 or more"),
    *((Signum, {"momentum_factor": bad}, "momentum_factor: .* a number, 0 <= it < 1") for bad in (1, -0.1, "a", True)),
    (DGCSGD, {"params": PARAMETERS, "lr": -0.1}, r"lr: -0\.1 is not allowed; give a number, 0 or more"),
    (DGCSGD, {"params": [{"params": PARAMETERS, "lr": -0.1}], "lr": 0.1}, r"lr: -0\.1 is not allowed"),
    (DGCSGD, {"params": PARAMETERS, "lr": 0.1, "decay_momentum": 1.0}, r"decay_momentum: 1\.0 is not .* 0 or more"),
    (SecondMomentAdamW, {"params": PARAMETERS, "beta": 1.0}, r"beta: 1\.0 is not allowed; give a number, 0 or more"),
    (SecondMomentAdamW, {"params": PARAMETERS, "eps": -1e-8}, "eps: -1e-08 is not allowed; give a number, 0 or more"),
    (DGCSGD, {"params": PARAMETERS, "lr": 0.1, "weight_decay": "a"}, "weight_decay: 'a' is not allowed; give a number"),
    *((partial_selection, {"model": MODEL, "density": bad}, "density: .* give a share") for bad in (0, 1.5, "a")),
    (partial_selection, {"model": MODEL, "density": 0.1, "dense": ["x"]}, "dense: 'x' matches no parameter"),
    (Grouping, {"groups": (("a", "b"),), "specific": ("b",)}, "'b' is named twice"),
    (Grouping, {"groups": (("a",),)}, "fewer than two"),
    (PartialResidual, {"ratio": 0}, "ratio: 0 is not allowed"),
    (RowsResidual, {"row_ratio": 1.5}, r"row_ratio: 1\.5 is not allowed"),
    (RowsColumnsResidual, {"column_ratio": math.nan}, "column_ratio: nan is not allowed"),
    (RowsColumnsResidual, {"choice": "random"}, "choice: 'random' is not known; allowed: largest, softmax"),
    (MemberResidual, {"norm": 3}, "norm: 3 is not allowed; give 1 or 2"),
    (WeightedResidual, {"phi": -1}, "phi: -1 is not allowed"),
    (WeightedResidual, {"norms": "residuals"}, "norms: 'residuals' is not known .did you mean 'residual'"),
    *(
        (DecayedResidual, {"decay": bad}, "decay: .* a share, 0 < decay <= 1")
        for bad in (0, 1.5, -1, "a", True, math.nan)
    ),
]


@pytest.mark.parametrize(("make", "settings", "words"), MADE)
def test_what_cannot_be_made_is_refused(make: Callable[..., Any], settings: dict[str, Any], words: str) -> None:
    grouping = {"grouping": Grouping()} if make.__name__.endswith("Residual") else {}
    with pytest.raises(ConfigError, match=words):
        make(**grouping, **settings)
