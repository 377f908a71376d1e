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
- **State**: what each rank keeps between two steps, beside the residual, which is the scheme's.
- **Values**: `own`, what is sent are the gradient's own; `rounded`, they are others, and the difference is kept too.
- **On average**: `unbiased`, what is sent is the gradient in the mean over all draws; `biased`, it is not.
- **Feedback**: whether the source keeps what it does not send, to add it to the next gradient. Here the scheme decides
  that: `scheme="none"` keeps nothing.

"""
TAIL = """
How long it takes beside the plain forms of other codes, on one core of a machine that did other work too: top-k is
faster than all. Signs are packed eight a byte, where the released form of `signsgd` sends a byte an element, so that
`signsgd` took 4 times as long for 1,000,000 elements, and `ef-signsgd` up to 5; `terngrad` took 1.7 times as long, and
`fp16` as long as torch's hook. All but `fp16` were faster than those forms for 25,000,000, which are processed in
pieces here. On the GPUs of your cluster it may be otherwise: `python -m benchmarks measure micro` measures it.

## Beside one another

How much of a gradient x is taken up by what is sent, Q(x): 1 less the contraction |x - Q(x)|² / |x|², by the bytes of a
step, on a small model. `python -m benchmarks pages` draws it from `results/reference/rivals.json`:

![How much of a gradient is taken up by what is sent](contraction-against-bytes.svg)

And what that costs in accuracy. Both as a table, which of them do not do what their source says, and how to measure
them: [rivals.md](rivals.md).

![Metric lost by what is sent](lost-against-bytes.svg)
"""
COLUMNS = (
    "Compressor",
    "What is sent",
    "Bytes",
    "Sizes",
    "Travels by",
    "State",
    "Values",
    "On average",
    "Feedback",
    "Source",
)
NOT_FED_BACK = ("none", "fp16", "qsgd", "qsgd-max", "signsgd", "signum", "terngrad", "natural", "block8", "block4")
"""Those whose paper or released code keeps nothing of what is not sent; here the scheme decides that."""


def row(name: str) -> tuple[str, ...]:
    """Return the cells of a compressor, in the order of COLUMNS."""
    compressor = build_compressor(name, DENSITY)
    grad = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(0))
    sizes = "all one" if compressor.equal_sizes else "differ"
    return (
        f"`{name}`",
        sent(compressor),
        f"{compressor.compress(grad, 'w', 0).nbytes:,}",
        sizes,
        compressor.collective.replace("_", "-"),
        remembered(compressor, grad),
        "own" if compressor.exact else "rounded",
        "unbiased" if compressor.unbiased else "biased",
        "no" if name in NOT_FED_BACK else "yes",
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
