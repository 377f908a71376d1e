"""`python -m resireduce plan | groups`: what a model will need and save, before anything is allocated."""

import argparse
import atexit
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from itertools import takewhile
from pathlib import Path
from typing import Any

from resireduce.errors import ConfigError, UsageError, check, in_one_line
from resireduce.planning import Item
from resireduce.scheme import COMPRESSORS, GRADIENTS, HIERARCHIES, RESIDUAL_DTYPES, SCHEMES, UPDATES, load_given
from resireduce.settings import Settings

DEFAULTS = Settings()
SEVERAL: dict[str, Any] = {"action": "append", "default": [], "metavar": "NAME=VALUE"}
SHOWN = "(default: %(default)s)"
SILENT_SECONDS = 5
"""How long a plan says nothing of its progress."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    root = argparse.ArgumentParser(prog="python -m resireduce", description=__doc__)
    commands = root.add_subparsers(dest="command", required=True)
    groups = commands.add_parser("groups", help="reusable groups, specific layers, and what schemes save by them")
    plan = commands.add_parser("plan", help="bytes of every model state")
    for command in groups, plan:
        add = command.add_argument
        add("--model", required=True, help="a known name, module:callable that makes it, or a Hugging Face config.json")
        add("--arg", **SEVERAL, help="argument of the model, in JSON, e.g. layers=12; may be given repeatedly")
        add("--groups", metavar="FILE", help='JSON file of patterns, {"groups": [...], "specific": [...]}')
        add("--dense", action="append", help="pattern of parameters to send dense; may be given repeatedly")
        add("--json", action="store_true", help="print JSON, in bytes")
    # Training: the optimizer, compression, residuals and ranks.
    text = f"sgd (with momentum), adamw, second-moment-adamw, adafactor, rmsprop, or module:callable {SHOWN}"
    add("--optimizer", default="sgd", help=text)
    add("--optimizer-arg", dest="optimizer_args", **SEVERAL, help="its argument, e.g. lr=0.01; may be given repeatedly")
    add("--gradients", default=DEFAULTS.gradients, help=f"{' or '.join(GRADIENTS)} {SHOWN}")
    add("--update", default=DEFAULTS.update, help=f"{' or '.join(UPDATES)} {SHOWN}")
    add("--backward-passes-per-step", metavar="N", default=1, type=int, help=f"passes added up for a step {SHOWN}")
    add("--scheme", default=DEFAULTS.scheme, help=f"{', '.join(SCHEMES)} {SHOWN}")
    add("--option", dest="options", **SEVERAL, help="one of the scheme's, e.g. phi=0.25; may be given repeatedly")
    add("--residual-dtype", help=f"{', '.join(RESIDUAL_DTYPES)} (default: the gradient's)")
    add("--residual-device", help="cpu: in the host's memory (default: the gradient's device)")
    add("--compressor", default=DEFAULTS.compressor, help=f"{', '.join(COMPRESSORS)} {SHOWN}")
    add("--density", default=DEFAULTS.density, type=float, help=f"share of elements sent {SHOWN}")
    text = "which compressed tensors travel together: none, one, hybrid or a number of bytes (default: 25 MiB at most)"
    add("--merge", metavar="WAY", type=lambda way: int(way) if way.isdecimal() else way, help=text)
    add("--world-size", default=8, type=int, help=f"number of ranks {SHOWN}")
    add("--hierarchy", default=DEFAULTS.hierarchy, help=f"{' or '.join(HIERARCHIES)} {SHOWN}")
    add("--ranks-per-node", metavar="N", type=int, help="with --hierarchy node: how many ranks share a node")
    # The fullest moment of a step, with activations.
    add("--batch", metavar="N", type=int, help="samples of a step: plan its fullest moment, with activations, too")
    text = "module:callable of the model and N that returns the loss (default: that of a known model)"
    add("--input", dest="inputs", metavar="CALLABLE", help=text)
    add("--checkpoint", action="store_true", help="compute the repeated blocks anew in the backward pass")
    add("--loss-chunk", metavar="ROWS", type=int, help="rows of logits made at a time, and anew in the backward pass")
    add("--memory", metavar="BYTES", help="the GPU's: say what fits, and the largest batch, e.g. 24GB or 80GiB")
    add("--items", dest="itemised", action="store_true", help="list every tensor, in bytes")
    return root


# --- What text means ---


def arguments_in(field: str, texts: list[str]) -> dict[str, object]:
    """Return what `texts` "name=value" give, in JSON, as Python writes it, or text. Raises ConfigError of `field`."""
    found: dict[str, object] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        check(field, text, name.isidentifier() and bool(equals), "NAME=VALUE, such as layers=12")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = {"True": True, "False": False, "None": None}.get(value, value)
    return found


def patterns_in(path: str | None) -> str | dict[str, object]:
    """Return the groups that the file at `path` describes; "auto" without one."""
    try:
        return "auto" if path is None else json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"groups: {path!r} cannot be read as JSON: {error}") from error


# --- Lines in which a plan is shown ---


MIB = 2**20
PLACES = {"forward": "forward pass", "backward": "backward pass", "update": "update of parameters"}
WAYS = {
    "fullest_bytes": "plain",
    "checkpointed_fullest_bytes": "checkpointed",
    "checkpointed_chunked_fullest_bytes": "and loss in chunks",
}
"""The columns of the choices, and how each is headed."""


def fullest_lines(result: Mapping[str, Any], asked: str) -> list[str]:
    """Return lines about the fullest moment in `result` and the choices beside what was `asked`; none without it."""
    if "choices" not in result:
        return []
    memory, choices, place = result.get("memory_bytes"), result["choices"], PLACES[result["fullest_at"]]
    lines = ["", f"The fullest moment of a step on a GPU, with activations, lies in the {place}"]
    lines += [
        f"  {key.removeprefix('fullest_').removesuffix('_bytes').replace('_', ' '):<25} {value / MIB:12,.2f} MiB"
        for key, value in result.items()
        if key.startswith("fullest_") and key not in ("fullest_at", "fullest_bytes")
    ]
    lines.append(f"  {'together':<25} {result['fullest_bytes'] / MIB:12,.2f} MiB")
    if memory is not None:
        fits = "fits into" if result["fits"] else "does not fit into"
        lines.append(f"It {fits} {memory / MIB:,.2f} MiB; the largest batch that does is {result['largest_batch']}")
    ways = [way for way in WAYS if way in choices[0]]
    marked = "" if memory is None else " (* fits)"
    widest = max(len(row["choice"]) for row in choices)
    lines += ["", f"{f'MiB then{marked}':<{widest}}" + "".join(f"{WAYS[way]:>20}" for way in ways)]
    for row in choices:
        cells = [f"{row[way] / MIB:,.0f}{'' if memory is None else ' *'[row[way] <= memory]}" for way in ways]
        lines.append(f"{row['choice']:<{widest}}" + "".join(f"{cell:>20}" for cell in cells).rstrip())
    return [*lines, f"as asked: {asked}"]


def item_line(item: Item) -> str:
    """Return a line about one tensor, an `item`: whose, which, how many bytes, and with whom it is shared."""
    shape = " x ".join(map(str, item.shape)) or "one number"
    shared = f", shared by {len(item.members)}" if item.members else ""
    part = f" ({item.part})" if item.part else ""
    return f"{item.state:<17} {item.nbytes:12,} bytes  {item.name}{part}, {shape}, {item.dtype}{shared}"


# --- The two commands ---


def _builder(args: argparse.Namespace) -> Callable[[], Any]:
    from resireduce.planning.models import find_builder, is_config_file

    if is_config_file(args.model):  # a few models would load parts of others that are trained already
        os.environ["HF_HUB_OFFLINE"] = "1"
    return find_builder(args.model, arguments_in("arg", args.arg))


def _plan(args: argparse.Namespace) -> str:
    from resireduce.plan import plan

    begun = time.monotonic()

    def progress(what: str) -> None:
        if (seconds := time.monotonic() - begun) > SILENT_SECONDS:
            print(f"{seconds:.0f} s: {what}", file=sys.stderr, flush=True)

    options = {key: value for key, value in vars(args).items() if key not in ("command", "model", "arg", "json")} | {
        "groups": patterns_in(args.groups),
        "options": arguments_in("options", args.options),
        "optimizer_args": arguments_in("optimizer_args", args.optimizer_args),
        "inputs": args.inputs and load_given("input", args.inputs),
    }
    result = plan(_builder(args), **options, progress=progress)
    if args.json:
        of_item = {"nbytes": "bytes"}
        return json.dumps(result, indent=2, default=lambda item: {of_item.get(k, k): v for k, v in vars(item).items()})
    figures = [
        f"{key:<17} {value / MIB:12,.2f} MiB" if isinstance(value, int) else f"{key:<17} {value:12.1%}"
        for key, value in takewhile(lambda pair: pair[0] not in ("items", "fullest_bytes"), result.items())
    ]
    asked = f"{args.optimizer}, {args.compressor}, scheme {args.scheme}, gradients {args.gradients}, "
    asked += f"{args.world_size} ranks" + (f", residuals in {args.residual_dtype}" if args.residual_dtype else "")
    return "\n".join([*figures, *map(item_line, result.get("items", ())), *fullest_lines(result, asked)])


def _groups(args: argparse.Namespace) -> str:
    from resireduce.grouping import compressible
    from resireduce.pipeline import find_grouping
    from resireduce.planning.memory import residual_bytes
    from resireduce.planning.models import build_on_meta

    model = build_on_meta(_builder(args))
    parameters = compressible(model, args.dense)
    grouping = find_grouping(model, patterns_in(args.groups), parameters)
    sizes = {name: parameter.nbytes for name, parameter in parameters.items()}
    others = [name for name in sizes if name not in (*grouping.grouped, *grouping.specific)]
    held = residual_bytes(parameters, grouping)
    saved = {scheme: held["baseline"] - nbytes for scheme, nbytes in held.items() if scheme != "baseline"}
    if args.json:
        kinds = {"groups": grouping.groups, "specific": grouping.specific, "others": others}
        return json.dumps({**kinds, "bytes": sizes, "residual_bytes": held, "saved_bytes": saved}, indent=2)
    whole = held["baseline"]
    lines = [
        f"{len(grouping.groups)} groups of {len(grouping.grouped)} tensors",
        *(f"  {sizes[one[0]] / MIB:10,.2f} MiB x {len(one)}  {one[0]} ... {one[-1]}" for one in grouping.groups),
        f"{len(grouping.specific)} specific",
        *(f"  {sizes[name] / MIB:10,.2f} MiB      {name}" for name in grouping.specific),
        f"{len(others)} others, {sum(sizes[name] for name in others) / MIB:,.2f} MiB, keep a full residual",
        f"Full residuals take {whole / MIB:,.2f} MiB. Of that is saved by",
        *(f"  {n / MIB:10,.2f} MiB {n / max(1, whole):6.1%}  {one}" for one, n in saved.items() if one != "none"),
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` gives; return 0, or 2 after one line about what was wrong with it."""
    if argv is None:
        sys.path.insert(0, os.getcwd())  # for --model: the installed command lacks it, python -m has it
        gc.disable()  # a quarter of the time would go into searching what imports have made for garbage
        atexit.register(gc.freeze)
    try:
        args = parser().parse_args(argv)
        with redirect_stdout(sys.stderr):  # what a model's constructor prints is no part of the answer
            said = {"plan": _plan, "groups": _groups}[args.command](args)
        print(said, flush=True)
    except (ConfigError, UsageError) as error:
        print(f"error: {in_one_line(error)}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
