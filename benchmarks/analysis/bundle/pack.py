"""`python -m benchmarks bundle`: put a run and everything it rests on into one zip."""

import argparse
import hashlib
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import takewhile, zip_longest
from pathlib import Path
from typing import Any, Self
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from benchmarks.analysis.load_run import load_run
from benchmarks.analysis.page.page import rendered
from benchmarks.analysis.report_command import write_report
from benchmarks.core.files import file_hash, replacing, writable
from benchmarks.core.paths import ROOT, RUNS
from benchmarks.core.progress import counted
from benchmarks.core.provenance import STATUS, git, provenance
from benchmarks.core.record import CellResult, RecordError
from benchmarks.core.run_config import RUN_NAME, get_run_name
from resireduce.errors import ConfigError, short

# --- Remake a run's report in a temporary folder under the run's own name, and compare it with another report ---


INPUTS = ("cells", "logs", "config.json", "start.json")
"""What a report is made from (of logs, whether they exist and how they end), and what restarts the run."""
OUTPUTS = ("tables", "figures", "report.html", "claims.json")
"""What a report consists of."""


@contextmanager
def fresh_report(folder: Path, name: str) -> Iterator[Path]:
    """Make the report of the records in `folder` as if they lay in results/runs/`name`; yields its folder.

    That folder is temporary and links to the inputs; `folder` stays unchanged. Commands in tables name the run's
    folder, so they are the same on every machine.
    """
    source = folder.resolve()
    with tempfile.TemporaryDirectory(prefix="resireduce-report-") as temporary:
        run = Path(temporary) / RUNS / name
        run.mkdir(parents=True)
        for one in INPUTS:
            if (source / one).exists():
                (run / one).symlink_to(source / one)
        with chdir(temporary):
            write_report(load_run(RUNS / name))
        yield run


def files_of(folder: Path, names: tuple[str, ...]) -> dict[str, Path]:
    """Return the files in these parts of a folder, sorted, by their path in the folder."""
    found = {}
    for name in names:
        part = folder / name
        for path in sorted(part.rglob("*")) if part.is_dir() else [part]:
            if path.is_file() and not path.name.startswith("."):
                found[path.relative_to(folder).as_posix()] = path
    return dict(sorted(found.items()))


PICTURES = (".png", ".svg", ".pdf")
"""Pictures depend on the versions of the drawing libraries, also inside the page; all else is text from the records."""
PICTURE = re.compile("<svg.*?</svg>")
WIDTH = 160


def differences(old: Mapping[str, Path], new: Mapping[str, Path]) -> dict[str, str]:
    """Return, by path and sorted, the first difference of each file that both reports have, except pictures."""
    common = sorted(path for path in old.keys() & new.keys() if not path.endswith(PICTURES))
    return {path: text for path in common if (text := first_difference(path, old[path], new[path]))}


def first_difference(path: str, old: Path, new: Path) -> str | None:
    """Return the first line in which two files differ; None if they are equal, apart from the pictures of a page."""
    if old.read_bytes() == new.read_bytes():
        return None
    is_page = path.endswith(".html")
    with old.open(errors="backslashreplace", newline="") as one, new.open(errors="backslashreplace", newline="") as two:
        for number, (was, now) in enumerate(zip_longest(one, two), start=1):
            alike = is_page and was and now and PICTURE.sub("<svg>", was) == PICTURE.sub("<svg>", now)
            if was != now and not alike:
                return f"{path}, line {number}:\n    bundle:  {_short(was, now)}\n    records: {_short(now, was)}"
    return None if is_page else f"{path}: its bytes are no text"


def _short(line: str | None, other: str | None) -> str:
    """Return a line, cut to start shortly before the difference."""
    if line is None:
        return "(the file ends before)"
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(line, other or "", strict=False)))
    start = alike - 60 if len(line) > WIDTH else 0
    return ("..." if start > 0 else "") + repr(line[max(0, start) :][:WIDTH])[1:-1]


# --- The contents of a bundle: files of the run and of the project, and texts that are made for it ---


PROJECT = (
    "LICENSE",
    "CITATION.cff",
    "constraints.txt",
    "pyproject.toml",
    "benchmarks/pyproject.toml",
    "containers/*.lock",
    "containers/*.in",
    "containers/images.lock.json",
    "results/paper/*",
    "results/reference/*.json",
)
"""Files of the project in every bundle: licence, citation, versions, published numbers, claims, measurements."""
Content = Path | bytes


def contents(folder: Path, report: Path, name: str) -> dict[str, Content]:
    """Return the contents of a bundle by their path in it, except README, crate and manifest."""
    found: dict[str, Content] = {f"{RUNS}/{name}/{path}": file for path, file in files_of(folder, INPUTS).items()}
    found |= {f"{RUNS}/{name}/{path}": file for path, file in files_of(report, OUTPUTS).items()}
    for pattern in PROJECT:
        found |= {path.relative_to(ROOT).as_posix(): path for path in sorted(ROOT.glob(pattern)) if path.is_file()}
    return found | {f"source/{path}": text.encode() for path, text in source_texts().items()}


def source_texts() -> dict[str, str]:
    """Return the state of the code: its commit and uncommitted changes; without git, a text that says so."""
    commit = git("rev-parse", "HEAD")
    if commit is None:
        return {"commit.txt": "not known: not a git checkout\n"}
    texts = {"commit.txt": commit, "status.txt": git(*STATUS) or ""}
    return texts | {"changes.diff": git("diff-index", "--patch", "--binary", "--no-ext-diff", "HEAD") or ""}


def check_records(folder: Path) -> None:
    """Raise ConfigError, with one line, for a broken record: a bundle with it could not be verified."""
    for path in sorted((folder / "cells").glob("*.json")):
        if (problem := record_problem(path)) is not None:
            raise ConfigError(f"run: {problem}; delete the record, or run its cell again, and then bundle")


def record_problem(path: Path) -> str | None:
    """Return in one line what is wrong with the record in a file; None if nothing is."""
    try:
        record = CellResult.load(path)
    except RecordError as error:
        return str(error)
    expected = path.name.removesuffix(".json").removesuffix(".failed")
    return None if record.cell.name == expected else f"{path}: the record is of another cell, {record.cell.name}"


# --- Write a bundle and its manifest. Files are sorted by name and share one time stamp ---


NAME = "manifest.json"
FORMAT = 1


class BundleError(ValueError):
    """A bundle whose contents are not what it says they are."""


@dataclass(frozen=True)
class Manifest:
    """The description that a bundle gives of itself."""

    run: str
    """Name of the run's folder in results/runs."""
    date: str
    """The day on which it was made, such as 2026-01-31."""
    commit: str | None
    dirty: bool | None
    files: dict[str, tuple[str, int]]
    """SHA-256 and bytes of each file except the manifest, by its path in the bundle."""

    def to_json(self) -> str:
        """Return the text of the manifest file."""
        files = {path: {"sha256": digest, "bytes": size} for path, (digest, size) in sorted(self.files.items())}
        head = {"format": FORMAT, "run": self.run, "date": self.date, "commit": self.commit, "dirty": self.dirty}
        return json.dumps({**head, "files": files}, indent=1) + "\n"

    @classmethod
    def from_values(cls, values: Any) -> Self:
        """Read the values of a manifest file. Raises BundleError, with one line."""
        if not isinstance(values, dict) or values.get("format") is True or values.get("format") != FORMAT:
            found = values.get("format") if isinstance(values, dict) else None
            raise BundleError(f"{NAME}: format {found!r} cannot be read; this code reads {FORMAT}")
        if not isinstance(values.get("run"), str) or not RUN_NAME.fullmatch(values["run"]):
            raise BundleError(f"{NAME}: run: {short(values.get('run'))} is no name of a run")
        for name, kinds in {"date": str, "commit": str | None, "dirty": bool | None}.items():
            if not isinstance(values.get(name), kinds):
                raise BundleError(f"{NAME}: {name}: {short(values.get(name))} is not allowed")
        try:
            files = {str(path): (str(one["sha256"]), int(one["bytes"])) for path, one in values["files"].items()}
            return cls(values["run"], values["date"], values["commit"], values["dirty"], files)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise BundleError(f"{NAME}: {type(error).__name__}: {error}; it is incomplete") from None


EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip can store."""


def pack(files: Mapping[str, Content], head: Manifest, output: Path) -> Manifest:
    """Write the zip atomically, file by file, and return its manifest, which is the last file in it.

    head: the manifest without files.
    """
    with replacing(output) as file, ZipFile(file, "w", ZIP_DEFLATED) as bundle:
        in_order = counted("packed files", sorted(files), len(files))
        manifest = replace(head, files={path: _add(bundle, path, files[path]) for path in in_order})
        _add(bundle, NAME, manifest.to_json().encode())
    return manifest


def _add(bundle: ZipFile, path: str, content: Content) -> tuple[str, int]:
    """Return SHA-256 and bytes of the added content."""
    info, data = ZipInfo(path, EPOCH), content.read_bytes() if isinstance(content, Path) else content
    info.compress_type, info.external_attr = ZIP_DEFLATED, 0o100644 << 16
    bundle.writestr(info, data)
    return hashlib.sha256(data).hexdigest(), len(data)


# --- Metadata of a bundle as an RO-Crate 1.1 (https://w3id.org/ro/crate/1.1), so that archives can read it ---


CRATE_NAME = "ro-crate-metadata.json"
LICENSE = "https://www.apache.org/licenses/LICENSE-2.0"
CRATE_KINDS = {".json": "application/json", ".html": "text/html", ".md": "text/markdown", ".txt": "text/plain"}
CRATE_KINDS |= {".yaml": "application/yaml", ".csv": "text/csv", ".diff": "text/x-diff"}


def crate_text(run: str, date: str, commit: str | None, sizes: Mapping[str, int]) -> str:
    """Return the text of the metadata file: the root, and all files of the bundle, of these sizes."""
    paths = [*sorted(sizes), NAME]
    about = {
        "name": f"ResiReduce suite, run {run}",
        "description": "Records, tables and figures of a benchmark of the memory of compressed-gradient training, with "
        f"what they rest on; made by commit {commit or 'not known'}.",
    }
    more = {"datePublished": date, "license": {"@id": LICENSE}, "hasPart": [{"@id": path} for path in paths]}
    conforms = {"@id": "https://w3id.org/ro/crate/1.1"}
    graph = [
        _entity(CRATE_NAME, "CreativeWork", conformsTo=conforms, about={"@id": "./"}),
        _entity("./", "Dataset", **about, **more),
        _entity(LICENSE, "CreativeWork", name="Apache License 2.0"),
    ]
    for path in paths:
        known = {"encodingFormat": CRATE_KINDS.get(Path(path).suffix), "contentSize": sizes.get(path)}
        own = {key: str(value) for key, value in known.items() if value is not None}
        graph.append(_entity(path, "File", name=Path(path).name, **own))
    values = {"@context": "https://w3id.org/ro/crate/1.1/context", "@graph": graph}
    return json.dumps(values, indent=1) + "\n"


def _entity(identifier: str, kind: str, **more: Any) -> dict[str, Any]:
    return {"@id": identifier, "@type": kind, **more}


# --- Put a run and everything it rests on into one zip ---


BUNDLES = Path("results/bundles")
TABLES = ("tables",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--run", required=True, type=Path, help="the run's folder, e.g. results/runs/smoke")
    text = "the zip to write (default: results/bundles/RUN-DATE-COMMIT.zip)"
    parser.add_argument("--output", metavar="FILE", type=Path, help=text)


def main(args: argparse.Namespace) -> int:
    """Write the zip. What the run lacks is listed; it is no error, since partial runs have bundles too."""
    run = load_run(args.run)
    check_records(args.run)
    name, here = get_run_name({"run": args.run.resolve().name}), provenance()
    date, commit = datetime.now(UTC).date().isoformat(), here["commit"]
    output = args.output or BUNDLES / f"{name}-{date}-{(commit or 'no-commit')[:12]}.zip"
    writable("output", output)
    with fresh_report(args.run, name) as report:
        stale = differences(files_of(args.run, TABLES), files_of(report, TABLES))
        if stale:
            print(f"Note: {len(stale)} tables of {args.run} are not as its records make them; the bundle has new ones")
        files = contents(args.run, report, name)
        failed = len([*args.run.glob("cells/*.failed.json")])
        about = {"run": name, "date": date, "commit": commit, "dirty": here["dirty"], "failed": failed}
        about |= {"finished": len([*args.run.glob("cells/*.json")]) - failed}
        files["README.md"] = rendered("bundle.md.j2", **about).encode()
        sizes = {path: one.stat().st_size if isinstance(one, Path) else len(one) for path, one in files.items()}
        files[CRATE_NAME] = crate_text(name, date, commit, sizes).encode()
        manifest = pack(files, Manifest(name, date, commit, here["dirty"], {}), output)
    packed = f"{len(manifest.files)} files of {sum(sizes.values()):,} bytes"
    print(f"{len(run.results)} cells, {len(run.holes)} missing, {packed}")
    if here["dirty"]:
        print("Note: the code has changes that are not committed; source/changes.diff has them")
    print(f"Bundle: {output}, SHA-256 {file_hash(output)}")
    return 0
