"""`make audit`: bills of materials and known vulnerabilities of the images' packages.

The exit status is 0 only if every package was audited and nothing was found; 1 if something was found or could not be
audited; 3 if no service could be asked; 2 for unusable input.
"""

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.core.files import save_json
from benchmarks.core.paths import ROOT
from benchmarks.core.requirements import Pin, read_lock
from benchmarks.images.audit.debian_packages import debian_listing, debian_sbom, installed
from benchmarks.images.audit.listing import BAD, CLEAN, NOT_RUN
from benchmarks.images.audit.python_packages import SERVICES, python_listing, python_sbom
from benchmarks.images.locks import find_lock
from resireduce.errors import ConfigError, choose

AUDITED = {
    "cpu": ("cpu", "horovod"),
    "cuda12": ("cuda12", "horovod"),
    "build-tools": ("build-tools",),
    "toolkit": ("toolkit",),
    "audit-tools": ("audit-tools",),
}
"""Lock files by what is made from them: the images, and the tools that build and audit them."""
OUTPUT = ROOT / "results" / "audit"


def audit(
    name: str,
    output: Path = OUTPUT,
    services: Sequence[str] = SERVICES,
    address: str | None = None,
    dpkg_status: Path | None = None,
    suite: str = "bookworm",
    database: Path | None = None,
) -> int:
    """Write bills of materials and the listing into `output`/`name`, print the listing, and return the exit status.

    Raises ConfigError, one line, for an unknown name, a broken lock file or status file, or missing tools.
    """
    folder = output / name
    pins = image_pins(name)
    if dpkg_status:
        installed(dpkg_status)
    python_sbom(pins, folder / "python.cdx.json")
    print(f"{name}: {len(pins)} Python packages, listed in {folder / 'python.cdx.json'}", flush=True)
    listings = [python_listing(pins, services, address)]
    if dpkg_status:
        sbom = folder / "debian.cdx.json"
        count = debian_sbom(dpkg_status, sbom)
        print(f"{name}: {count} Debian packages, listed in {sbom}", flush=True)
        listings.append(debian_listing(sbom, count, suite, database))
    values = [asdict(listing) | {"status": listing.status} for listing in listings]
    date = datetime.now(UTC).isoformat(timespec="seconds")
    save_json({"name": name, "date": date, "listings": values}, folder / "vulnerabilities.json")
    for line in (line for listing in listings for line in listing.lines()):
        print(f"{name}: {line}", flush=True)
    if not dpkg_status and name in ("cpu", "cuda12"):
        print(f"{name}: Debian packages: not run: name the image's list of them with --dpkg-status FILE", flush=True)
    return worst(listing.status for listing in listings)


def image_pins(name: str) -> tuple[Pin, ...]:
    """Return the Python packages of an image, or of the tools that build it. Raises ConfigError."""
    locks = AUDITED[choose("audit", name, AUDITED)]
    return tuple(pin for lock in locks for pin in read_lock(find_lock(lock)))


def worst(statuses: Iterable[int]) -> int:
    """Combine several exit statuses: a finding outweighs an audit that was not run."""
    return min(statuses, key=(BAD, NOT_RUN, CLEAN).index)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(AUDITED)} (default: all)")
    parser.add_argument("--output", type=Path, default=OUTPUT, metavar="DIR", help="default: results/audit")
    text = f"of {', '.join(SERVICES)}; may be given twice (default: the first that answers)"
    parser.add_argument("--service", action="append", choices=SERVICES, help=text)
    parser.add_argument("--osv-url", metavar="URL", help="another service that answers as OSV does")
    text = "/var/lib/dpkg/status of the image, copied out of it"
    parser.add_argument("--dpkg-status", type=Path, metavar="FILE", help=text)
    parser.add_argument("--suite", default="bookworm", help="release of Debian in the image (default: bookworm)")
    text = "JSON of Debian's security tracker (default: it is fetched)"
    parser.add_argument("--debian-database", type=Path, metavar="FILE", help=text)


def main(args: argparse.Namespace) -> int:
    """Audit the named ones, or all. Raises ConfigError, one line, before anything is asked."""
    names = args.names or list(AUDITED)
    if args.dpkg_status and len(names) != 1:
        raise ConfigError("dpkg-status: a list of Debian packages is of one image; name it, such as cpu")
    for name in names:
        image_pins(name)
    services = args.service or (["osv"] if args.osv_url else SERVICES)
    options = (args.output, services, args.osv_url, args.dpkg_status, args.suite, args.debian_database)
    return worst([audit(name, *options) for name in names])
