"""Check home: that HOME (needed by horovodrun and caches of other programs) and the temporary folder are writable."""

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.doctor.check_disk import why_not_writable
from benchmarks.doctor.finding import Finding, failed, ok
from benchmarks.doctor.known_faults import WRITABLE_HOME

NAME = "home"
WRITABLE_TEMPORARY = "docker or podman run --tmpfs /tmp, apptainer exec --writable-tmpfs, or export TMPDIR=FOLDER"


def check(
    environment: Mapping[str, str] = os.environ, temporary: Callable[[], str] = tempfile.gettempdir
) -> list[Finding]:
    """Return one finding for HOME, one for the temporary folder."""
    return [_home(environment.get("HOME")), _temporary(temporary)]


def _home(home: str | None) -> Finding:
    if not home:
        return failed(NAME, "HOME is not set", WRITABLE_HOME)
    refused = "it is no folder" if not Path(home).is_dir() else why_not_writable(Path(home))
    if refused:
        return failed(NAME, f"HOME, {home}, cannot be written: {refused}", WRITABLE_HOME)
    return ok(NAME, f"HOME, {home}, can be written")


def _temporary(temporary: Callable[[], str]) -> Finding:
    try:
        folder = temporary()
    except FileNotFoundError as error:  # tempfile has tried all of them
        return failed(NAME, str(error), WRITABLE_TEMPORARY)
    refused = why_not_writable(Path(folder))
    if refused:
        return failed(NAME, f"temporary folder {folder} cannot be written: {refused}", WRITABLE_TEMPORARY)
    return ok(NAME, f"temporary folder {folder} can be written")
