"""`python -m benchmarks image`: builds images, exports them to files, and runs commands with an engine."""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from benchmarks.core.checks import allow
from benchmarks.core.files import writable
from benchmarks.core.programs import output_of
from benchmarks.images.build_image import build_image, find_base
from benchmarks.images.engine import engine
from benchmarks.launching.containers.choose import add_runtime_arguments, asked_runtime
from benchmarks.launching.containers.entry import IMAGES, LOCK, ImageEntry, add_image, read_images
from benchmarks.launching.containers.runtime import command
from benchmarks.launching.launch import run_python
from resireduce.errors import ConfigError, choose


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    commands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    build = commands.add_parser("build", help="build an image; its entry goes into containers/images.lock.json")
    build.add_argument("name", metavar="NAME", help=f"one of: {', '.join(IMAGES)}")
    build.add_argument("--again", action="store_true", help="even if it is there, with today's base and packages")
    build.add_argument("--entry", metavar="FILE", type=Path, help="write its entry to a file of its own, too")
    build.add_argument("--lock", metavar="FILE", type=Path, default=LOCK, help="list of images (default: %(default)s)")
    commands.add_parser("base", help="get the base of all images, and run a container of it: can images be built here?")
    export = commands.add_parser("export", help="write a built image to a file, for apptainer")
    export.add_argument("name", metavar="NAME", help=f"one of: {', '.join(IMAGES)}")
    export.add_argument("--entry", metavar="FILE", type=Path, help="of which build (default: that of the lock)")
    export.add_argument("--sif", metavar="FILE", type=Path, required=True, help="the file")
    inside = commands.add_parser("exec", help="run python in an image, as a rank is run")
    add_runtime_arguments(inside)
    text = "folder that the command may write to, under the same path; may be given again"
    inside.add_argument("--bind", metavar="DIR", type=Path, action="append", default=[], help=text)
    text = "what to run, after --: python and its arguments, with absolute paths"
    inside.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help=text)
    using = commands.add_parser("engine", help="run a command with a Docker Engine, started and stopped if none runs")
    using.add_argument("line", nargs="+", metavar="COMMAND", help="after --")


def main(args: argparse.Namespace) -> int:
    """Run one action and return the exit status. A signal that ends it leaves no more behind than Ctrl-C."""
    earlier = {number: signal.signal(number, _end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        return int(ACTIONS[args.action](args))
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _end(number: int, _: object) -> NoReturn:
    """Exit through all blocks, so that they clean up."""
    sys.exit(128 + number)


def _build(args: argparse.Namespace) -> int:
    choose("image", args.name, IMAGES)
    for field in ("entry", "lock"):
        if getattr(args, field):
            writable(field, getattr(args, field))
    locked = read_images(args.lock).get(args.name)
    with engine() as client:
        entry = build_image(client, args.name, locked, args.again)
    add_image(entry, args.lock)
    if args.entry:
        entry.save(args.entry)
    parts = ", ".join(f"{name} {value}" for name, value in entry.versions.items() if value)
    print(f"{entry.name}: {entry.digest}, {entry.size_bytes / 1e9:.2f} GB, {parts}")
    return 0


def _base(_: argparse.Namespace) -> int:
    with engine() as client:
        base = find_base(client)
        update = ["apt-get", "-qq", "update", "-o", "APT::Update::Error-Mode=any"]  # as every build does
        for line, network in ((["python3", "--version"], "none"), (update, "host")):
            client.containers.run(base.reference, line, network_mode=network, remove=True)
    print(f"{base.name}: {base.digest}")
    return 0


FAST = "-comp gzip -Xcompression-level 1"
"""Readable by every installation of apptainer; made in a third of the default's time, and an eighth larger."""


def _export(args: argparse.Namespace) -> int:
    images = {} if args.entry else read_images()
    if args.name not in images and args.name in IMAGES and not args.entry:
        raise ConfigError(f"image: {args.name!r} is not built; build it: python -m benchmarks image build {args.name}")
    entry = ImageEntry.load(args.entry) if args.entry else images[choose("image", args.name, images)]
    writable("sif", args.sif)
    with engine(), tempfile.TemporaryDirectory(prefix=".export-", dir=args.sif.parent.absolute()) as folder:
        archive, new = Path(folder) / "image.tar", Path(folder) / "image.sif"
        # By its digest: the tag may belong to a later build.
        save = [*command("docker"), "save", "--output", str(archive), entry.digest]
        build = [*command("apptainer", wrapped=False), "build", "--mksquashfs-args", FAST]
        # The system's folder for temporary files is often too small for an image.
        places = dict.fromkeys(("TMPDIR", "APPTAINER_TMPDIR", "APPTAINER_CACHEDIR"), folder)
        for line in (save, [*build, new.name, f"docker-archive:{archive.name}"]):
            name = f"{args.sif} could not be written"
            output_of(line, name=name, cwd=folder, env=os.environ | places, stdout=sys.stderr)
        os.replace(new, args.sif)  # last, so that an existing file is complete
    print(f"{args.sif}: {args.sif.stat().st_size / 1e6:,.1f} MB")
    return 0


def _exec(args: argparse.Namespace) -> int:
    line = args.command[1:] if args.command[:1] == ["--"] else args.command
    allowed = "one of python's: -- python -m MODULE ..."
    allow("command", " ".join(line), line[:1] == ["python"] and line[1:], allowed)
    runtime = asked_runtime(args)
    if runtime is None:
        raise ConfigError("runtime: 'none' has no image to run a command in; give --runtime and --image")
    try:
        run_python(line[1:], runtime, args.bind)
    except subprocess.CalledProcessError as error:
        if error.stderr:
            raise ConfigError(f"runtime: {runtime.name} did not start it: {error.stderr}") from None
        return int(error.returncode)
    return 0


def _engine(args: argparse.Namespace) -> int:
    program, *rest = args.line
    with engine():
        return subprocess.run([*command(program), *rest], check=False).returncode


ACTIONS = {"build": _build, "base": _base, "export": _export, "exec": _exec, "engine": _engine}
