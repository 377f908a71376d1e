"""`doctor --slurm`: examine the cluster, try its partitions, and propose or write the site file."""

import argparse
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from benchmarks.core.checks import seconds
from benchmarks.core.files import save_text, writable
from benchmarks.core.paths import ROOT
from benchmarks.doctor.finding import FAILED, Finding, failed, not_run, ok, warning
from benchmarks.doctor.slurm import slurm_settings as settings
from benchmarks.doctor.slurm.fill import fill, shown, template
from benchmarks.doctor.slurm.inventory import Unanswered, look
from benchmarks.doctor.slurm.proposal import Proposal, Tried, propose, tries_of
from benchmarks.doctor.slurm.slurm_programs import asking
from benchmarks.doctor.slurm.trials import plans, try_out
from benchmarks.launching.slurm.site import SITE_FILE, Site, site_file
from resireduce.errors import ConfigError, choose

SECONDS = 600.0
FOLDER = ROOT / "results/cache/doctor"
"""Folder for files of jobs: on the project's disk, as for runs."""
CONTROLLER = "on a login node of the cluster scontrol ping says whether the controller is up"


@dataclass
class Examination:
    """Everything that was found out."""

    findings: list[Finding] = field(default_factory=list)
    """The findings that `examine` has yielded, added by its caller."""
    tried: list[Tried] = field(default_factory=list)
    proposal: Proposal | None = None
    written: str | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    group = parser.add_argument_group("on a login node of a Slurm cluster")
    group.add_argument("--slurm", action="store_true", help="try the cluster instead, with a job for each partition")
    text = "just this partition, and the site file's values from it; may be given several times"
    group.add_argument("--partition", metavar="NAME", action="append", default=[], help=text)
    group.add_argument("--write", metavar="FILE", type=Path, help=f"write the site file, {SITE_FILE} for example")
    text = f"how long to wait for all jobs, which are then cancelled (default: {SECONDS:g})"
    group.add_argument("--seconds", metavar="SECONDS", help=text)


def refuse_options(args: argparse.Namespace) -> None:
    """Raise ConfigError, with one line, for options of one doctor given to the other."""
    only_slurm = {"partition": args.partition, "write": args.write, "seconds": args.seconds}
    only_machine = {"only": args.only, "gpu": args.gpu}
    for name, value in (only_machine if args.slurm else only_slurm).items():
        if value:
            cure = "leave it out" if args.slurm else "add --slurm, or leave it out"
            raise ConfigError(f"{name}: --{name} is not allowed with{'' if args.slurm else 'out'} --slurm; {cure}")


def examine(args: argparse.Namespace, state: Examination) -> Iterator[list[Finding]]:
    """Yield findings as they come, and store the results in `state`. Raises ConfigError before any work."""
    ask, limit = asking(seconds("timeout", args.timeout)), seconds("seconds", args.seconds or SECONDS)
    target = args.write or SITE_FILE
    text, current = template(target), Site.load(target if target.exists() else site_file(ROOT))
    if args.write:
        writable("write", args.write)
    try:
        inventory = look(ask)
    except Unanswered as error:
        yield [failed("slurm", str(error), CONTROLLER)]
        return
    for name in args.partition:
        choose("partition", name, [partition.name for partition in inventory.partitions])
    yield [*settings.check(inventory), settings.check_accounting(inventory, ask)]
    with _folder(state) as folder:
        trials, untried = plans(inventory.partitions, args.partition, current)
        yield untried
        yield from try_out(trials, args.partition, folder, current.account, ask, limit, state.tried)
    yield _site_file(args, state, text, current)


def _site_file(args: argparse.Namespace, state: Examination, text: str, current: Site) -> list[Finding]:
    """Propose the site file, and write it if requested."""
    target = args.write or SITE_FILE
    if not state.tried:
        return [not_run("site", f"nothing to write into {target}: no partition was found to work")]
    proposal = state.proposal = propose(state.tried, args.partition, current, tries_of())
    filled = fill(text, proposal.partitions, proposal.site)
    found = [ok("site", f"values of partition {proposal.main}{''.join(f'; {note}' for note in proposal.notes)}")]
    others = [str(name) for name in yaml.safe_load(filled)["partitions"] if name not in proposal.partitions]
    if others and not args.partition:
        said = f"{target} lists partitions that were not found to work: {', '.join(others)}"
        found.append(warning("site", said, "take them out of the file, or see what is said of them above"))
    if not args.write:
        line = f"python -m benchmarks doctor --slurm --write {SITE_FILE}"
        return [*found, not_run("site", f"nothing was written; to write it: {line}")]
    save_text(filled, args.write)
    state.written = str(args.write)
    own = args.write.resolve() == (ROOT / SITE_FILE).resolve()
    options = "" if own else f" --config site={args.write}"
    return [*found, ok("site", f"{args.write} is written; next: snakemake -n --profile slurm{options}")]


@contextmanager
def _folder(state: Examination) -> Iterator[Path]:
    """Yield a folder for this examination; it is kept for its logs if something failed."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), dir=FOLDER))
    yield folder
    if not any(finding.status == FAILED for finding in state.findings):
        shutil.rmtree(folder, ignore_errors=True)


def values(state: Examination) -> dict[str, Any]:
    """Return what --json adds to the findings."""
    proposal = state.proposal
    return {
        "partitions": dict(proposal.partitions) if proposal else {},
        "site": dict(proposal.site) if proposal else {},
        "written": state.written,
    }


def proposed(state: Examination) -> str | None:
    """Return the text that would be written; None if it was written, or nothing was found."""
    if state.proposal is None or state.written:
        return None
    return shown(state.proposal.partitions, state.proposal.site)
