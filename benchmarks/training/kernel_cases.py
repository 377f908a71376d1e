"""Compares each of the library's Triton kernels with plain torch: whether bits agree, and how long both take."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from benchmarks.training.measure_rank import in_turn, now
from resireduce.compressors.topk import TopK
from resireduce.core.messages import Payload
from resireduce.kernels.gpu import bucket, one_pass, self_check
from resireduce.kernels.gpu.one_pass import BLOCK
from resireduce.kernels.ops import by_keys
from resireduce.pieces import generator
from resireduce.residuals.stored import Blocks

SIZES, TINY = (1 << 16, 1 << 20, 25 << 20, 100 << 20), (1500,)
DTYPES = {"cuda": ("float32", "float16", "bfloat16"), "cpu": ("float32",)}
DENSITY, ROUNDS = 0.01, 10
TENSORS, LEAST = 20, 1000
"""Tensors of a bucket, unless they had fewer elements than LEAST."""
Way = Callable[[Tensor], tuple[Tensor, ...]]
"""Processes a gradient, whose memory it may overwrite, and returns all results."""


def ways(source: Tensor) -> dict[str, tuple[Way, Way]]:
    """Return for each kernel two ways to process a gradient like 1-D `source`: plain torch's, and the kernel's."""
    numel, k = source.numel(), max(1, int(DENSITY * source.numel()))
    indices = by_keys(source, k)
    return {
        f"select, density {DENSITY:g}": (lambda x: (by_keys(x, k),), lambda x: (*bucket.select([x], [k]),)),
        f"top-k of a bucket, density {DENSITY:g}": (_of_bucket_plainly, _of_bucket),
        **(_added(indices) if source.dtype == torch.float32 else {}),
        **{f"{kind}: {name}": pair for kind in ("int8", "int4") for name, pair in _codes(kind, numel, source)},
    }


def _parts(x: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return gradients and residuals of several tensors: `x` backwards, and in its own memory."""
    gradients = x.flip(0).tensor_split(min(TENSORS, 1 + x.numel() // LEAST))
    return gradients, x.tensor_split(len(gradients))


def _of_bucket(x: Tensor) -> tuple[Tensor, ...]:
    """Add gradients to residuals, and take out the largest of each of several tensors, by the kernels."""
    gradients, residuals = _parts(x)
    ks = [max(1, int(DENSITY * one.numel())) for one in gradients]
    message, payloads = Payload.unfilled([((x.dtype, k), (torch.int32, k)) for k in ks], residuals)
    parts = [one.buffer for one in payloads]
    bucket.compress_topk_([*zip(residuals, gradients, strict=True)], ks, parts, gradients)
    return message, x


def _of_bucket_plainly(x: Tensor) -> tuple[Tensor, ...]:
    """Do so by plain torch."""
    gradients, residuals = _parts(x)
    message, *_ = TopK(DENSITY).take_from_sums_([*zip(residuals, gradients, strict=True)], gradients)
    return message, x


def _added(indices: Tensor) -> dict[str, tuple[Way, Way]]:
    """Return the ways to add what has come to an average."""
    compressor, count = TopK(DENSITY), indices.numel()

    def plain(x: Tensor) -> tuple[Tensor, ...]:
        return (compressor.add_(x, compressor.packed(x, indices), 1 / 3),)

    def kernel(x: Tensor) -> tuple[Tensor, ...]:
        bucket.add_topk_([x], [[(compressor.packed(x, indices).buffer[: 8 * count], count)]], 1 / 3, False)
        return (x,)

    return {"pack, and add": (plain, kernel)}


def _codes(kind: str, numel: int, source: Tensor) -> Iterator[tuple[str, tuple[Way, Way]]]:
    """Yield encoding and decoding; the stored values are those of a `Blocks`, which plain torch encodes here."""
    plain, own, bits = (*(Blocks((numel,), kind, source.device) for _ in range(2)), int(kind[3:]))
    drawn = torch.rand(numel, device=source.device, generator=generator(source.device, "drawn"))
    plain.set_(source, generator(source.device, "stored"))

    def encoded(x: Tensor) -> tuple[Tensor, ...]:
        one_pass.encode(x, drawn, own.codes, own.scales, bits)
        return own.codes.clone(), own.scales.clone()

    def encoded_plainly(x: Tensor) -> tuple[Tensor, ...]:
        scales, codes = _plain_codes(x, drawn, bits)
        return _stored(codes, bits), scales

    yield "encode", (encoded_plainly, encoded)
    decoded = one_pass.decode_add_
    yield "decode", (lambda x: (plain.add_to_(x),), lambda x: (decoded(x, plain.codes, plain.scales, bits) or x,))


def _plain_codes(flat: Tensor, drawn: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Return the scale of each block of 1-D `flat`, and the code of each element, both float32, by plain torch.

    A code is the element over its scale plus what is `drawn` for it, rounded down; of 8 or 4 `bits`.
    """
    largest = torch.tensor(2.0 ** (bits - 1) - 1, device=flat.device)
    values = pad(flat.float(), (0, -flat.numel() % BLOCK)).view(-1, BLOCK)
    scales = values.abs().amax(1) / largest
    steps = scales.clamp(min=torch.finfo(torch.float32).tiny)
    codes = (values / steps[:, None]).view(-1)[: flat.numel()].add(drawn).floor()
    return scales, codes.clamp(-largest, largest)


def _stored(codes: Tensor, bits: int) -> Tensor:
    """Return whole numbers as they lie in memory."""
    if bits == 8:
        return codes.to(torch.int8)
    pairs = pad(codes.add(8).to(torch.uint8), (0, codes.numel() % 2)).view(-1, 2)
    return pairs[:, 0] | (pairs[:, 1] << 4)


def timed(source: Tensor, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each kernel, on gradients like 1-D `source`: the least seconds of `rounds`, in turn with torch.

    If a kernel fails, the row has the reason instead of results.
    """
    at = {"dtype": str(source.dtype).removeprefix("torch."), "elements": source.numel()}
    for name, (plain, kernel) in ways(source).items():
        row: dict[str, Any] = {"kernel": name, **at, "same": None, "reason": None}
        try:
            pairs = zip(plain(source.clone()), kernel(source.clone()), strict=True)
            row["same"] = all(self_check.same_bits(one, other) for one, other in pairs)
            found = in_turn([partial(_seconds, way, source) for way in (plain, kernel, torch.clone)], range(rounds))
        except Exception as error:  # whatever the compiler or the device raises
            yield row | {"reason": f"{type(error).__name__}: {error}"[:500]}
        else:
            names = ("plain_seconds", "kernel_seconds", "copy_seconds")
            yield row | dict(zip(names, map(min, found), strict=True))


def _seconds(way: Callable[[Tensor], object], source: Tensor, number: int) -> float:
    gradient = source.clone()
    started = now(source)
    way(gradient)
    return now(source) - started


def rows(device: torch.device, tiny: bool) -> Iterator[dict[str, Any]]:
    """Yield the rows of all sizes and dtypes on `device`; `tiny`: of one small size, in one round."""
    for dtype in DTYPES[device.type]:
        for numel in TINY if tiny else SIZES:
            yield from timed(self_check.sample(device, getattr(torch, dtype), numel), 1 if tiny else ROUNDS)
