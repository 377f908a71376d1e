"""The README of a bundle."""

TEXT = """# Run `{run}` of the ResiReduce suite

{finished} records of finished cells and {failed} of failed ones, with the tables and figures made from them.
Made on {date} by commit `{commit}`{dirty}.

| What | Where |
|---|---|
| Page with all tables and figures | `results/runs/{run}/report.html` |
| Raw records, one a cell; `*.failed.json` of cells that could not be run | `results/runs/{run}/cells/` |
| The matrix that was run | `results/runs/{run}/config.json` |
| Tables and figures | `results/runs/{run}/tables/`, `results/runs/{run}/figures/` |
| What was printed | `results/runs/{run}/logs/` |
| Numbers and claims of the paper | `results/paper/` |
| Versions | `constraints.txt`, `containers/*.lock`, `containers/images.lock.json` |
| The code: commit, and what of it was not committed | `source/` |
| SHA-256 of every file | `manifest.json` |
| Metadata (RO-Crate 1.1) | `ro-crate-metadata.json` |

## Verify it

In a checkout of the project, at the commit above if the tables are to be equal:

    python -m benchmarks verify BUNDLE.zip

checks every file against `manifest.json` and every record against its schema, makes every table again from the raw
records, and compares them line by line. Exit status: 0 verified, 1 something differs, 2 wrong use. Figures and the
page are held to the manifest only: they depend on the version of what draws them. The manifest is not signed: whoever
changes a record, its tables and the manifest alike is not found out. Publish the zip's own SHA-256 where it cannot be
changed.

## Run it again

Copy `results/runs/{run}/config.json` into a checkout and

    make run RUN={run}-again CONFIG=config.json

## What it discloses

Records and logs name the machine's hosts, processors and GPUs (with UUIDs), and its software; logs, the texts of
errors and `start.json` can hold paths of the machine, with names of users in them. `source/changes.diff` has all
changes that were not committed. Nothing is redacted: look through `logs/` and `source/` before you publish a bundle, or
before a double-blind review.
"""


def readme(run: str, date: str, commit: str | None, dirty: bool | None, counts: dict[str, int]) -> str:
    """Return the text."""
    state = {True: ", with changes that were not committed (`source/changes.diff`)", False: "", None: ""}[dirty]
    return TEXT.format(run=run, date=date, commit=commit or "not known", dirty=state, **counts)
