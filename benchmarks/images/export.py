"""Exports an image to a file for other machines: an OCI archive, or a SIF for apptainer."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import docker
from docker.errors import ImageNotFound

from benchmarks.images.engine import HOST
from benchmarks.launching.containers.entry import ImageEntry
from benchmarks.launching.containers.programs import command
from resireduce.errors import ConfigError

FAST = "-comp gzip -Xcompression-level 1"
"""Readable by every installation of apptainer; made in a third of the default's time, and an eighth larger."""


def check_stored(client: docker.DockerClient, entry: ImageEntry) -> None:
    """Raise ConfigError if the engine does not have exactly this image: its tag may belong to a later build."""
    try:
        found = client.images.get(entry.tag).id
    except ImageNotFound:
        found = None
    if found != entry.digest:
        there = "is not in the engine's store" if found is None else f"is another build in the engine's store, {found}"
        raise ConfigError(
            f"image: {entry.tag} of {entry.digest[:19]}... {there}; python -m benchmarks image build {entry.name}, "
            "with the same --entry if there was one"
        )


def export_oci(client: docker.DockerClient, entry: ImageEntry, output: Path) -> None:
    """Write an image of the engine that DOCKER_HOST names as an OCI archive. Raises ConfigError."""
    line = [*command("skopeo"), "--insecure-policy", "copy", "--quiet", "--src-daemon-host", os.environ[HOST]]
    with tempfile.TemporaryDirectory(prefix=".export-", dir=output.parent.absolute()) as folder:
        new = Path(folder) / "image.tar"
        # Called in the folder, since a colon in a path would end it.
        _call([*line, f"docker-daemon:{entry.tag}", f"oci-archive:{new.name}:{entry.tag}"], folder, output)
        os.replace(new, output)


def export_sif(client: docker.DockerClient, entry: ImageEntry, output: Path) -> None:
    """Write an image of the engine that DOCKER_HOST names as a SIF. Raises ConfigError."""
    with tempfile.TemporaryDirectory(prefix=".export-", dir=output.parent.absolute()) as folder:
        archive, new = Path(folder) / "image.tar", Path(folder) / "image.sif"
        _call([*command("docker"), "save", "--output", str(archive), entry.tag], folder, output)
        build = [*command("apptainer", wrapped=False), "build", "--mksquashfs-args", FAST]
        _call([*build, new.name, f"docker-archive:{archive.name}"], folder, output)
        os.replace(new, output)  # last, so that an existing file is complete


def _call(line: Sequence[str], folder: str, output: Path) -> None:
    # The system's folder for temporary files is often too small for an image.
    places = dict.fromkeys(("TMPDIR", "APPTAINER_TMPDIR", "APPTAINER_CACHEDIR"), folder)
    done = subprocess.run(
        line,
        cwd=folder,
        env=os.environ | places,
        stdout=sys.stderr,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise ConfigError(f"{output} could not be written: {said}")
