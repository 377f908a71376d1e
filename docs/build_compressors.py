"""`python docs/build_compressors.py`: docs/compressors.md, made from the registry, docstrings, and by compressing."""

import inspect
import re
import sys
from pathlib import Path

import torch

from resireduce.compressors.base import Compressor
from resireduce.scheme import COMPRESSORS, build_compressor

PAGE = Path(__file__).parent / "compressors.md"
ELEMENTS, DENSITY = (1000, 1000), 0.01
HEAD = """# Compressors

Written by `python docs/build_compressors.py`: what is sent and by whom it was proposed are the first sentences of each
compressor's class and its source, the rest is asked of the compressor itself. How to use them, and which to begin
with: [library.md](library.md#compressors). Where they differ from papers and released codes:
[deviations.md](deviations.md).

- **Bytes**: one rank's message for 1,000,000 float32 elements, drawn from a normal distribution, at density 0.01,
  counted after compressing them. As they are, they have 4,000,000. `threshold` has its default, 0.01, which nearly all
  exceed.
- **Sizes**: whether messages have one size on all ranks; `differ`: they are as long as the values make them.
- **State**: what each rank keeps between two steps, beside the residual, which is the scheme's; of one rank. What is
  `owned` is divided by the number of ranks.
- **Values**: `own`, what is sent are the gradient's own; `rounded`, they are others, and the difference is kept too.
- **On average**: `unbiased`, what is sent is the gradient in the mean over all draws; `biased`, it is not.

"""
TAIL = """
Signs are packed eight a byte, and tensors of 25,000,000 elements are processed in pieces; on one core top-k is faster
than all plain forms of other codes, and `signsgd` takes 4 times as long for 1,000,000 elements as a form that sends a
byte each. `python -m benchmarks measure micro` measures it on your machine. What each loses and sends in training:
[results](results.md#compressors-beside-one-another).

## Which miss their density

`topk` and `randomk` send exactly density x n elements, and `dgc` no more than that. Methods that fit a threshold send
what exceeds it, a different number on each rank and in each step: look at the bytes that were sent, not at the setting.
Elements sent / (density x n) of one tensor of 1,000,000 elements without a residual, mean of 10 draws, of a normal, a
Laplace and Student's t distribution with three degrees of freedom, whose tail is as heavy as that of gradients may be;
`python -m benchmarks measure counts` prints them in ten seconds, with intervals, and also for 1 and 2 stages:

| Compressor | 0.01, normal | Laplace | t3 | 0.001, normal | Laplace | t3 |
|---|---:|---:|---:|---:|---:|---:|
| `dgc-simple`, 10 rounds | 1.04 | 1.01 | 0.94 | 0.76 | 1.04 | 0.99 |
| `gaussian`, 3 rounds | 1.00 | 1.66 | 0.77 | 1.01 | 0.94 | 1.04 |
| `redsync` | 1.28 | 1.04 | 0.05 | 0.76 | 1.10 | 0.47 |
| `redsync-trim` | 1.45 | 2.44 | 35.06 | 7.01 | 4.82 | 350.59 |
| `sidco-exp`, 3 stages | 1.13 | 1.00 | 0.66 | 0.70 | 1.00 | 1.17 |
| `sidco-gp`, 3 stages | 0.92 | 1.00 | 0.97 | 0.90 | 1.00 | 0.92 |
| `sidco-gamma`, 3 stages | 1.45 | 0.99 | 0.92 | 1.42 | 0.99 | 0.88 |

- `gaussian` changes its threshold by factors of 0.5 or 1.5, which may jump over the goal: with four rounds in place of
  three it sends 0.21 of it for Laplace inputs at 0.01. If the mean is far from zero, it sends all or next to nothing.
- `redsync` probes three times between the mean and the largest magnitude, which a single element sets. `redsync-trim`
  sends all that exceeds the mean where fewer than k pass the last step but one; a single outlier is enough for that.
- `sidco-*` begin each tensor with one stage, which is right for Laplace inputs alone, and adapt after every five calls.
- `dgc-simple` estimates from 1 % of the elements, at density 0.001 of a million from ten values.
- `adtopk-threshold` and `ok-topk` use a threshold of earlier steps, and miss where gradients have changed since.
- Equal magnitudes are sent all or none by all these methods. If nothing passes, the largest magnitude is sent. Tensors
  of fewer than 1 / density elements have a goal of one.

## Messages of bounded size

A gathered message travels to every other rank. In two phases each rank owns a part of the tensor, receives that part
from all ranks, and sends its mean to all, both in few bits. Bytes that a rank sends over gloo for each element of a
float32 gradient of 2,000,000, without the first step, counted by the kernel (`tests/ranks/test_bytes_sent.py` has the
command):

| Ranks | `block8-two-phase` | `block4-two-phase` | `fp16` | `block8` |
|---:|---:|---:|---:|---:|
| 2 | 1.02 | 0.52 | 2.00 | 1.02 |
| 4 | 1.54 | 0.78 | 3.01 | 3.05 |
| 8 | 1.79 | 0.91 | 3.52 | 7.12 |
| 16 | 1.93 | 0.99 | 3.78 | 15.27 |

The mean is rounded once more than with `block8`; its owner adds what that loses to the mean of the next step. Tensors
of a bucket share both exchanges. The second ends in `step()`, and gradients that are not in a residual's memory wait
for it, as with `powersgd` and `ok-topk`: at the fullest moment streaming then saves little (`plan` has
`peak_normalised`). On four small models [no loss is
seen](results.md#accuracy-in-two-phases); over 100 Mbit/s a step takes two thirds to three
quarters (4 bits) or 0.7 to 0.9 (8 bits) of half precision's time, and [over 1 Gbit/s longer than
that](results.md#beside-half-precision).
"""
UNBIASED = ("none", "qsgd", "qsgd-max", "natural")
"""Compressors for which the mean of what is sent, over all random choices, is the gradient."""
COLUMNS = (
    "Compressor",
    "What is sent",
    "Bytes",
    "Sizes",
    "Travels by",
    "State",
    "Values",
    "On average",
    "Source",
)


def row(name: str) -> tuple[str, ...]:
    """Return the cells of a compressor, in the order of COLUMNS."""
    compressor = build_compressor(name, DENSITY)
    grad = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(0))
    options = " and ".join(f"`{field}={value!r}`" for field, value in COMPRESSORS[name].options.items())
    sizes = "all one" if compressor.equal_sizes else "differ"
    payload = compressor.compress(grad, "w", 0)
    values = compressor.decompress(payload)
    return (
        f"`{name}`",
        sent(compressor) + (f", with {options}" if options else ""),
        f"{payload.nbytes:,}",
        sizes,
        compressor.collective.replace("_", "-"),
        remembered(compressor, grad),
        "own" if ((values == grad) | (values == 0)).all() else "rounded",
        "unbiased" if name in UNBIASED else "biased",
        source(compressor),
    )


def remembered(compressor: Compressor, grad: torch.Tensor) -> str:
    """Return what is kept of a tensor like `grad` from one step to the next, beside its residual."""
    own = [f"{key}, {tensor.nbytes} bytes" for key, tensor in compressor.state(grad.shape, grad).items()]
    return ", ".join(["velocity"] * bool(compressor.momentum) + own) or "none"


def sent(compressor: Compressor) -> str:
    """Return the first sentence of its class, without the verb."""
    sentence = re.split(r"(?<=\.)\s", inspect.getdoc(type(compressor)) or "")[0]
    text = " ".join(sentence.split()).removeprefix("Sends ").removesuffix(".").replace("|", r"\|")
    return text if text[:2].isupper() else text[0].lower() + text[1:]


def source(compressor: Compressor) -> str:
    """Return what its class, or a class above it, says of its source behind the first colon; or its module."""
    texts = [inspect.cleandoc(vars(kind).get("__doc__") or "") for kind in type(compressor).__mro__]
    own = next((text for text in texts if "Source: " in text), inspect.getmodule(type(compressor)).__doc__ or "")
    paragraph = " ".join(own.partition("Source: ")[2 if "Source: " in own else 0].split("\n\n")[0].split())
    return paragraph.partition(": ")[2].removesuffix(".")


def page() -> str:
    """Return the whole page."""
    lines = [COLUMNS, ("---", "---", "---:", *["---"] * (len(COLUMNS) - 3)), *map(row, COMPRESSORS)]
    return HEAD + "".join(f"| {' | '.join(line)} |\n" for line in lines) + TAIL


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")
