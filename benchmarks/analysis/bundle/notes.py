"""What a reader of a verified bundle should know: other code, other inputs than this checkout's, files of no use."""

from collections.abc import Iterator
from pathlib import Path

from benchmarks.analysis.bundle import crate
from benchmarks.analysis.bundle.contents import PROJECT, counts
from benchmarks.analysis.bundle.pack import Manifest
from benchmarks.analysis.bundle.stage import INPUTS, OUTPUTS
from benchmarks.analysis.page.page import rendered
from benchmarks.core.paths import ROOT, RUNS
from benchmarks.core.provenance import provenance

README = "README.md"
OF_CODE = ("results/paper/*", "containers/*.lock", "containers/*.in", "containers/images.lock.json", "constraints.txt")
"""Files of the project whose changes `dirty` tells (`benchmarks.core.provenance.CODE`)."""
SOURCE = ("source/commit.txt", "source/status.txt", "source/changes.diff")


def notes(manifest: Manifest, folder: Path) -> list[str]:
    """Return reasons why tables may differ that are no fault of the bundle, and what its tables do not vouch for.

    folder: where the bundle was unpacked.
    """
    return [*_of_code(manifest, folder), *_of_inputs(folder), *_of_texts(manifest, folder), *_of_others(manifest)]


def wrong_inputs(manifest: Manifest, folder: Path) -> list[str]:
    """Return the inputs of a bundle that are not this checkout's, though both are of one commit without changes."""
    here = provenance()
    if manifest.commit is None or (manifest.commit, manifest.dirty, here["dirty"]) != (here["commit"], False, False):
        return []
    why = f"not that of commit {manifest.commit}, of which bundle and checkout are, without changes"
    paths = sorted(path for pattern in OF_CODE for place in (ROOT, folder) for path in place.glob(pattern))
    names = dict.fromkeys(path.relative_to(folder if path.is_relative_to(folder) else ROOT) for path in paths)
    return [f"{name.as_posix()}: {why}" for name in names if _bytes(folder / name) != _bytes(ROOT / name)]


def _of_code(manifest: Manifest, folder: Path) -> Iterator[str]:
    here = provenance()
    if manifest.commit != here["commit"]:
        yield (
            f"the bundle was made by commit {manifest.commit}, this checkout is {here['commit']}; if tables differ, "
            f"verify with that commit"
        )
    elif manifest.dirty or here["dirty"]:
        yield "the bundle or this checkout has changes that were not committed"
    said = _text(folder / SOURCE[0]).strip()
    if said != manifest.commit and (manifest.commit is not None or not said.startswith("not known")):
        yield f"{SOURCE[0]} says {said[:80]!r}, the manifest commit {manifest.commit}"


def _of_inputs(folder: Path) -> Iterator[str]:
    """Yield the files of the project that are not this checkout's: what is verified here rests on the latter."""
    for pattern in PROJECT:
        for path in sorted(folder.glob(pattern)):
            name = path.relative_to(folder)
            if _bytes(ROOT / name) != _bytes(path):
                why = "which tables are made with here" if name.parts[:2] == ("results", "paper") else "as it is here"
                yield f"{name.as_posix()} is not this checkout's, {why}"


def _of_texts(manifest: Manifest, folder: Path) -> Iterator[str]:
    """Yield the texts about the bundle that this code would write otherwise."""
    head = {"run": manifest.run, "date": manifest.date, "commit": manifest.commit, "dirty": manifest.dirty}
    about = rendered("bundle.md.j2", **head, **counts(folder / RUNS / manifest.run))
    sizes = {path: size for path, (_, size) in manifest.files.items() if path != crate.NAME}
    made = {README: about, crate.NAME: crate.crate(manifest.run, manifest.date, manifest.commit, sizes)}
    for name, text in made.items():
        if _text(folder / name) != text:
            yield f"{name} is not as this code writes it; nothing in it is verified"


def _of_others(manifest: Manifest) -> Iterator[str]:
    """Yield the files that no bundle needs."""
    run = Path(RUNS) / manifest.run
    of_run = [run / name for name in (*INPUTS, *OUTPUTS)]
    for name in sorted(manifest.files):
        path = Path(name)
        of_project = any(path.match(pattern) and len(path.parts) == len(Path(pattern).parts) for pattern in PROJECT)
        if not (of_project or any(map(path.is_relative_to, of_run)) or name in (README, crate.NAME, *SOURCE)):
            yield f"{name} is no part of a bundle; nothing in it is verified"


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="backslashreplace") if path.is_file() else ""
