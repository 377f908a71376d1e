"""The options that choose a runtime and an image; every possible error is found before anything starts."""

import argparse
import os
import shlex
import sys
from contextlib import suppress
from pathlib import Path

from benchmarks.core.devices import has_nvidia, wanted_device
from benchmarks.core.files import file_hash, save_json, try_json
from benchmarks.core.paths import IMAGES
from benchmarks.core.programs import output_of
from benchmarks.core.run_config import RUNTIMES, get_runtime
from benchmarks.launching.containers.entry import LOCK, ImageEntry, image_content, read_images
from benchmarks.launching.containers.runtime import Runtime, command
from resireduce.errors import ConfigError

ANSWER_SECONDS = 60.0


def find_runtime(name: str, image: str) -> Runtime:
    """Return the runtime of that name with the image to run, which is a name in the lock or an image's own JSON.

    Raises ConfigError, one line with the cure: for an image that is unknown, built from other code or not in the
    engine, or an engine that does not answer.
    """
    entry, beside = _find_entry(image)
    build = f"python -m benchmarks image build {entry.name}{_own_file(image)}"
    here = image_content(entry.name)
    if entry.content != here:
        raise ConfigError(
            f"image: {entry.name} holds other code, or was built from other files ({entry.content}), than there are in "
            f"this checkout ({here}); build it again: {build}"
        )
    program, sif = tuple(command(name)), beside.absolute() if name == "apptainer" else None
    if sif is not None and not sif.is_file():
        export = f"python -m benchmarks image export {entry.name}{_own_file(image)} --sif {shlex.quote(str(beside))}"
        raise ConfigError(f"image: {beside} is not there, which apptainer needs; make it: {export}")
    if sif is None:
        try:
            output_of([*program, "image", "inspect", "--format", "{{.Id}}", entry.digest], ANSWER_SECONDS)
        except ConfigError as error:
            raise ConfigError(f"image: {name} does not give {entry.name} ({error}); build it: {build}") from None
    return Runtime(
        name=name,
        image=entry,
        program=program,
        sif=sif,
        sif_hash=None if sif is None else sif_hash(sif),
        gpus=has_nvidia() and bool(entry.versions.get("cuda")) and wanted_device() != "cpu",
        user=f"{os.getuid()}:{os.getgid()}",
        groups=tuple(sorted(set(os.getgroups()) - {os.getgid()})),
    )


def _find_entry(given: str) -> tuple[ImageEntry, Path]:
    """Return an image, found by its file or its name, and the path that its SIF would have."""
    if given.endswith(".json"):
        return ImageEntry.load(Path(given)), Path(given).with_suffix(".sif")
    images = read_images()
    if given not in images:
        known = ", ".join(sorted(images)) or "none yet"
        raise ConfigError(
            f"image: {given!r} is not in {LOCK}; there are: {known}; build it: python -m benchmarks image build {given}"
        )
    return images[given], IMAGES / f"{given}-{images[given].content}.sif"


def _own_file(given: str) -> str:
    return f" --entry {shlex.quote(given)}" if given.endswith(".json") else ""


def sif_hash(sif: Path) -> str:
    """Return the SHA-256 of a SIF. As SIFs have gigabytes, it is cached beside the file while that is unchanged."""
    cached, now = sif.with_suffix(".sif.sha256.json"), sif.stat()
    state = {"size_bytes": now.st_size, "modified_ns": now.st_mtime_ns}
    found = try_json(cached)
    if isinstance(found, dict) and "sha256" in found and state.items() <= found.items():
        return str(found["sha256"])
    print(f"Hashing {sif.name} ({now.st_size / 2**30:.1f} GiB), once ...", file=sys.stderr, flush=True)
    digest = file_hash(sif)
    with suppress(OSError):  # another user's folder: hashed each time
        save_json({**state, "sha256": digest}, cached)
    return digest


def add_runtime_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--runtime", default="none", help=f"what runs an image: {', '.join(RUNTIMES)} (default: none)")
    text = "what the runtime runs: a name in containers/images.lock.json, or an image's own JSON"
    parser.add_argument("--image", metavar="NAME|FILE", help=text)


def asked_runtime(args: argparse.Namespace) -> Runtime | None:
    """Return the runtime that the options ask for; None: this machine's own python. Raises ConfigError, one line."""
    name = get_runtime(vars(args))
    if name == "none":
        return None
    if not args.image:
        raise ConfigError(
            f"image: missing with --runtime {name}; give a name in containers/images.lock.json, or an image's JSON"
        )
    return find_runtime(name, args.image)
