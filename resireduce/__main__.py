"""`python -m resireduce plan | groups`: what a model will need and save, before anything is allocated."""

import argparse
import atexit
import gc
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

from resireduce.errors import ConfigError, UsageError, check_given, in_one_line
from resireduce.planning.texts import (
    FULLEST,
    arguments_in,
    as_count,
    as_number,
    as_pair,
    figure_lines,
    fullest_lines,
    group_lines,
    item_line,
    patterns_in,
)
from resireduce.scheme import COMPRESSORS, GRADIENTS, HIERARCHIES, RESIDUAL_DTYPES, SCHEMES, UPDATES
from resireduce.settings import Settings

if TYPE_CHECKING:
    from torch import nn

DEFAULTS = Settings()
SILENT_SECONDS = 5
"""How long a plan says nothing of its progress."""
NOT_OF_PLAN = ("command", "model", "arg", "optimizer_arg", "patterns", "option", "json", "inputs")
"""What of the command line `plan` is not given by the same name."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    root = argparse.ArgumentParser(prog="python -m resireduce", description=__doc__)
    commands = root.add_subparsers(dest="command", required=True)
    model = argparse.ArgumentParser(add_help=False)
    _add_model(model)
    text = "reusable groups, specific layers, and what schemes save by them"
    commands.add_parser("groups", parents=[model], help=text)
    plan = commands.add_parser("plan", parents=[model], help="bytes of every model state")
    _add_training(plan)
    _add_residuals(plan)
    _add_ranks(plan)
    _add_batch(plan)
    plan.add_argument("--items", dest="itemised", action="store_true", help="list every tensor, in bytes")
    return root


def _add_model(model: argparse.ArgumentParser) -> None:
    text = "a known name, module:callable that returns the model, or config.json of a Hugging Face model"
    model.add_argument("--model", required=True, help=text)
    text = "argument of the model, in JSON, e.g. layers=12; may be given repeatedly"
    model.add_argument("--arg", action="append", default=[], metavar="NAME=VALUE", help=text)
    model.add_argument("--groups", dest="patterns", help='JSON file of patterns, {"groups": [...], "specific": [...]}')
    model.add_argument("--dense", action="append", help="pattern of parameters to send dense; may be given repeatedly")
    model.add_argument("--json", action="store_true", help="print JSON, in bytes")


def _add_training(plan: argparse.ArgumentParser) -> None:
    """Declare the options of `plan` about the optimizer and its gradients."""
    text = (
        "sgd (with momentum), adamw, second-moment-adamw, adafactor, rmsprop, or module:callable (default: %(default)s)"
    )
    plan.add_argument("--optimizer", default="sgd", help=text)
    text = "keyword argument of the optimizer, e.g. lr=0.01; may be given repeatedly"
    plan.add_argument("--optimizer-arg", action="append", default=[], metavar="NAME=VALUE", help=text)
    text = f"{' or '.join(GRADIENTS)} (default: %(default)s)"
    plan.add_argument("--gradients", default=DEFAULTS.gradients, help=text)
    plan.add_argument("--update", default=DEFAULTS.update, help=f"{' or '.join(UPDATES)} (default: %(default)s)")
    text = "backward passes accumulated per step (default: %(default)s)"
    plan.add_argument("--backward-passes-per-step", metavar="N", default=1, type=as_count, help=text)
    plan.add_argument("--compiled", action="store_true", help="the whole model is one compiled graph")


def _add_residuals(plan: argparse.ArgumentParser) -> None:
    """Declare the options of `plan` about compression and residuals."""
    plan.add_argument("--scheme", default=DEFAULTS.scheme, help=f"{', '.join(SCHEMES)} (default: %(default)s)")
    text = "option of the scheme, e.g. row_ratio=0.25; may be given repeatedly"
    plan.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help=text)
    plan.add_argument("--residual-dtype", help=f"{', '.join(RESIDUAL_DTYPES)} (default: the gradient's)")
    plan.add_argument("--residual-device", help="cpu: in the host's memory (default: the gradient's device)")
    text = f"{', '.join(COMPRESSORS)} (default: %(default)s)"
    plan.add_argument("--compressor", default=DEFAULTS.compressor, help=text)
    text = "share of elements sent (default: %(default)s)"
    plan.add_argument("--density", default=DEFAULTS.density, type=as_number, help=text)
    text = "compressed tensors that travel together: one, hybrid or a number of bytes (default: none)"
    plan.add_argument("--merge", metavar="WAY", type=as_count, help=text)


def _add_ranks(plan: argparse.ArgumentParser) -> None:
    plan.add_argument("--world-size", default=8, type=as_count, help="number of ranks (default: %(default)s)")
    text = f"{' or '.join(HIERARCHIES)} (default: %(default)s)"
    plan.add_argument("--hierarchy", default=DEFAULTS.hierarchy, help=text)
    plan.add_argument(
        "--ranks-per-node", metavar="N", type=as_count, help="with --hierarchy node: how many ranks share a node"
    )
    text = "over how many ranks FSDP2 shards each replica, for compress_fsdp (default: not sharded)"
    plan.add_argument("--shards", metavar="N", type=as_count, help=text)


def _add_batch(plan: argparse.ArgumentParser) -> None:
    """Declare the options of `plan` about the fullest moment of a step, with activations."""
    text = "samples of a step: also plan its fullest moment on a GPU, with activations"
    plan.add_argument("--batch", metavar="N", type=as_count, help=text)
    text = "module:callable of the model and N that returns the loss (default: that of a known model)"
    plan.add_argument("--input", dest="inputs", metavar="CALLABLE", help=text)
    text = "compute the repeated blocks anew in the backward pass"
    plan.add_argument("--checkpoint", action="store_true", help=text)
    text = "make so many rows of logits at a time, and anew in the backward pass"
    plan.add_argument("--loss-chunk", metavar="ROWS", type=as_count, help=text)
    text = "the GPU's: say what fits, and the largest batch, e.g. 24GB or 80GiB"
    plan.add_argument("--memory", metavar="BYTES", type=as_count, help=text)


def _progress() -> Callable[[str], None]:
    """Return what says on stderr what is done next, once a plan has taken long enough to wonder."""
    begun = time.monotonic()

    def tell(what: str) -> None:
        if (seconds := time.monotonic() - begun) > SILENT_SECONDS:
            print(f"{seconds:.0f} s: {what}", file=sys.stderr, flush=True)

    return tell


def _builder(args: argparse.Namespace) -> Callable[[], "nn.Module"]:
    """Return what builds the model that the command line names, with the arguments that it gives."""
    from resireduce.planning.models import find_builder, is_config_file

    if is_config_file(args.model):  # a few models would load parts of others that are trained already
        os.environ["HF_HUB_OFFLINE"] = "1"
    return find_builder(args.model, arguments_in("arg", args.arg))


def _plan(args: argparse.Namespace) -> str:
    from resireduce.plan import plan

    options = {key: value for key, value in vars(args).items() if key not in NOT_OF_PLAN}
    groups, of_scheme = patterns_in(args.patterns), dict(map(as_pair, args.option))
    of_optimizer = arguments_in("optimizer_args", args.optimizer_arg)
    given = {"groups": groups, "options": of_scheme, "optimizer_args": of_optimizer, **options}
    if args.inputs is not None:
        from resireduce.planning import fullest, models

        given["inputs"] = models.find_named("inputs", args.inputs, args.inputs, fullest.CURE)
    result = plan(_builder(args), **given, progress=_progress())
    items = result.pop("items", ())
    if args.json:
        listed = {"items": [item.as_dict() for item in items]} if args.itemised else {}
        return json.dumps(result | listed, indent=2)
    choices = result.pop("choices", ())
    found = {key: result.pop(key) for key in [*result] if key in FULLEST or key.startswith("fullest_")}
    return "\n".join([*figure_lines(result), *map(item_line, items), *fullest_lines(found, choices)])


def _groups(args: argparse.Namespace) -> str:
    import torch

    from resireduce.grouping import compressible
    from resireduce.pipeline import find_grouping
    from resireduce.planning.memory import residual_bytes, saved_bytes

    with torch.device("meta"):
        model = _builder(args)()
    parameters = compressible(model, args.dense)
    grouping = find_grouping(model, patterns_in(args.patterns), parameters)
    sizes = {name: parameter.nbytes for name, parameter in parameters.items()}
    others = [name for name in sizes if name not in (*grouping.grouped, *grouping.specific)]
    held = residual_bytes(parameters, grouping)
    saved = saved_bytes(held)
    if args.json:
        kinds = {"groups": grouping.groups, "specific": grouping.specific, "others": others}
        return json.dumps({**kinds, "bytes": sizes, "residual_bytes": held, "saved_bytes": saved}, indent=2)
    return "\n".join(group_lines(grouping, others, sizes, held["baseline"], saved))


def _tell(message: Warning | str, *_: object) -> None:
    """Print a warning in one line, without the line of code that it comes from, which is not the user's."""
    print(f"warning: {in_one_line(message)}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` gives; return 0, or 2 after one line about what was wrong with it."""
    if argv is None:
        sys.path.insert(0, os.getcwd())  # for --model: the installed command lacks it, python -m has it
        gc.disable()  # a quarter of the time would go into searching what imports have made for garbage
        atexit.register(gc.freeze)
    given = sys.argv[1:] if argv is None else argv
    try:
        check_given(given)
        args = parser().parse_args(given)
        with warnings.catch_warnings():
            warnings.simplefilter("default")  # what the environment makes of them, as errors, is not meant for these
            warnings.showwarning = _tell  # type: ignore[assignment]
            with redirect_stdout(sys.stderr):  # what a model's constructor prints is no part of the answer
                said = {"plan": _plan, "groups": _groups}[args.command](args)
        print(said, flush=True)
    except (ConfigError, UsageError) as error:
        print(f"error: {in_one_line(error)}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # as of `| head`, which has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
