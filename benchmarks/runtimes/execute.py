"""`python -m benchmarks image exec ... -- COMMAND`: one command of the image's python, run as a rank is."""

import argparse
import subprocess
from pathlib import Path

from benchmarks.runtimes.options import add_runtime_arguments, asked_runtime
from benchmarks.runtimes.ranks import run_python
from resireduce.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_runtime_arguments(parser)
    text = "folder that the command may write to, under the same path; may be given again"
    parser.add_argument("--bind", metavar="DIR", type=Path, action="append", default=[], help=text)
    text = "what to run, after --: python and its arguments, with absolute paths"
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help=text)


def main(args: argparse.Namespace) -> int:
    """Return the command's exit status. Raises ConfigError, one line, for what cannot be run."""
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if command[:1] != ["python"] or not command[1:]:
        raise ConfigError(
            f"command: {' '.join(command)!r} is not allowed; give one of python's: -- python -m MODULE ..."
        )
    runtime = asked_runtime(args)
    if runtime is None:
        raise ConfigError("runtime: 'none' has no image to run a command in; give --runtime and --image")
    for folder in args.bind:
        if not folder.is_dir():
            raise ConfigError(f"bind: {folder} is not a folder; make it, or give another one")
    try:
        run_python(command[1:], runtime, args.bind)
    except subprocess.CalledProcessError as error:
        if error.stderr:
            raise ConfigError(f"runtime: {runtime.name} did not start it: {error.stderr}") from None
        return int(error.returncode)
    return 0
