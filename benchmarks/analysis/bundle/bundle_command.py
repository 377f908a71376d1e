"""`python -m benchmarks bundle`: put a run and everything it rests on into one zip."""

import argparse
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.analysis.bundle import crate
from benchmarks.analysis.bundle.contents import check_links, check_records, contents, counts
from benchmarks.analysis.bundle.pack import Manifest, pack, size_of
from benchmarks.analysis.bundle.stage import differences, files_of, fresh_report
from benchmarks.analysis.load_run import load_run
from benchmarks.analysis.page.page import rendered
from benchmarks.core.files import file_hash, writable
from benchmarks.core.provenance import provenance
from benchmarks.core.run_config import get_run_name

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
    check_links(args.run)
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
        about = {"run": name, "date": date, "commit": commit, "dirty": here["dirty"], **counts(args.run)}
        files["README.md"] = rendered("bundle.md.j2", **about).encode()
        sizes = {path: size_of(content) for path, content in files.items()}
        files[crate.NAME] = crate.crate(name, date, commit, sizes).encode()
        manifest = pack(files, Manifest(name, date, commit, here["dirty"], {}), output)
    packed = f"{len(manifest.files)} files of {sum(sizes.values()):,} bytes"
    print(f"{len(run.results)} cells, {len(run.holes)} missing, {packed}")
    if here["dirty"]:
        print("Note: the code has changes that are not committed; source/changes.diff has them")
    print(f"Bundle: {output}, SHA-256 {file_hash(output)}")
    return 0
