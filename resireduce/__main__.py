"""`python -m resireduce plan | groups`: what a model will need and save, before anything is allocated."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from resireduce.errors import ConfigError
from resireduce.item import Item
from resireduce.scheme import COMPRESSORS, GRADIENTS, RESIDUAL_DTYPES, SCHEMES

MIB = 2**20


def _density(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text  # refused, with the others, by name


def _count(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text


def parser() -> argparse.ArgumentParser:
    """The command line."""
    root = argparse.ArgumentParser(prog="python -m resireduce", description=__doc__)
    commands = root.add_subparsers(dest="command", required=True)
    model = argparse.ArgumentParser(add_help=False)
    model.add_argument("--model", required=True, help="a known name, or module:callable that returns the model")
    model.add_argument("--groups", dest="patterns", help='JSON file of patterns, {"groups": [...], "specific": [...]}')
    model.add_argument("--dense", action="append", help="pattern of parameters to send dense; may be given repeatedly")
    model.add_argument("--json", action="store_true", help="print JSON, in bytes")
    commands.add_parser(
        "groups", parents=[model], help="reusable groups, specific layers, and what schemes save by them"
    )
    plan = commands.add_parser("plan", parents=[model], help="bytes of every model state")
    plan.add_argument("--optimizer", default="sgd", help="sgd (with momentum) or adamw (default: %(default)s)")
    plan.add_argument("--scheme", default="w+2d", help=f"{', '.join(SCHEMES)} (default: %(default)s)")
    plan.add_argument("--gradients", default="streamed", help=f"{' or '.join(GRADIENTS)} (default: %(default)s)")
    plan.add_argument("--residual-dtype", help=f"{', '.join(RESIDUAL_DTYPES)} (default: the gradient's)")
    plan.add_argument("--residual-device", help="cpu: in the host's memory (default: the gradient's device)")
    plan.add_argument("--compressor", default="topk", help=f"{', '.join(COMPRESSORS)} (default: %(default)s)")
    plan.add_argument("--density", default=0.01, type=_density, help="share of elements sent (default: %(default)s)")
    plan.add_argument("--world-size", default=8, type=_count, help="number of ranks (default: %(default)s)")
    plan.add_argument(
        "--backward-passes-per-step", metavar="N", default=1, type=_count, help="added up (default: %(default)s)"
    )
    plan.add_argument("--items", dest="itemised", action="store_true", help="list every tensor, in bytes")
    plan.add_argument("--compiled", action="store_true", help="the whole model is one compiled graph")
    plan.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="of the scheme, e.g. row_ratio=0.25"
    )
    return root


def _patterns(path: str | None) -> str | dict[str, object]:
    """What the file at `path` says of groups; without one they are found."""
    if path is None:
        return "auto"
    try:
        patterns = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"groups: {path!r} cannot be read as JSON: {error}") from error
    if not isinstance(patterns, dict):
        raise ConfigError(f"groups: {path!r} holds no JSON object with the keys groups and specific")
    return patterns


def _option(text: str) -> tuple[str, object]:
    """ "name=value" with a value in JSON, or as it is."""
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _plan(args: argparse.Namespace) -> str:
    from resireduce.plan import plan
    from resireduce.zoo import find_builder

    options = {
        key: value for key, value in vars(args).items() if key not in ("command", "model", "patterns", "option", "json")
    }
    groups, of_scheme = _patterns(args.patterns), dict(map(_option, args.option))
    result = plan(find_builder(args.model), groups=groups, options=of_scheme, **options)
    items = result.pop("items", [])
    if args.json:
        listed = {"items": [item.as_dict() for item in items]} if args.itemised else {}
        return json.dumps(result | listed, indent=2)
    lines = [
        f"{key:<17} {value / MIB:12,.2f} MiB" if isinstance(value, int) else f"{key:<17} {value:12.1%}"
        for key, value in result.items()
    ]
    return "\n".join([*lines, *map(_line, items)])


def _line(item: Item) -> str:
    """One tensor: whose, which, how many bytes, and with whom it is shared."""
    shape = " x ".join(map(str, item.shape)) or "one number"
    shared = f", shared by {len(item.members)}" if item.members else ""
    part = f" ({item.part})" if item.part else ""
    return f"{item.state:<17} {item.nbytes:12,} bytes  {item.name}{part}, {shape}, {item.dtype}{shared}"


def _groups(args: argparse.Namespace) -> str:
    import torch

    from resireduce.api import find_grouping
    from resireduce.grouping import compressible
    from resireduce.savings import residual_bytes, saved_bytes
    from resireduce.zoo import find_builder

    with torch.device("meta"):
        model = find_builder(args.model)()
    parameters = compressible(model, args.dense)
    grouping = find_grouping(model, _patterns(args.patterns), parameters)
    sizes = {name: parameter.nbytes for name, parameter in parameters.items()}
    others = [name for name in sizes if name not in (*grouping.grouped, *grouping.specific)]
    held = residual_bytes(parameters, grouping)
    saved = saved_bytes(held)
    if args.json:
        kinds = {"groups": grouping.groups, "specific": grouping.specific, "others": others}
        return json.dumps({**kinds, "bytes": sizes, "residual_bytes": held, "saved_bytes": saved}, indent=2)
    lines = [f"{len(grouping.groups)} groups of {len(grouping.grouped)} tensors"]
    lines += [f"  {sizes[g[0]] / MIB:10,.2f} MiB x {len(g)}  {g[0]} ... {g[-1]}" for g in grouping.groups]
    lines += [f"{len(grouping.specific)} specific"]
    lines += [f"  {sizes[name] / MIB:10,.2f} MiB      {name}" for name in grouping.specific]
    lines += [f"{len(others)} others, {sum(sizes[name] for name in others) / MIB:,.2f} MiB, keep a full residual"]
    return "\n".join([*lines, *_savings(held["baseline"], saved)])


def _savings(whole: int, saved: dict[str, int]) -> list[str]:
    """Lines of what schemes save of `whole` bytes; those that save the same share one."""
    alike: dict[int, list[str]] = {}
    for scheme, nbytes in saved.items():
        if scheme != "none":
            alike.setdefault(nbytes, []).append(scheme)
    lines = [f"Full residuals take {whole / MIB:,.2f} MiB. Of that is saved by"]
    return lines + [f"  {n / MIB:10,.2f} MiB {n / max(1, whole):6.1%}  {'/'.join(names)}" for n, names in alike.items()]


def main(argv: Sequence[str] | None = None) -> int:
    """0, or 2 after one line about what was wrong with the arguments."""
    args = parser().parse_args(argv)
    try:
        print({"plan": _plan, "groups": _groups}[args.command](args))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
