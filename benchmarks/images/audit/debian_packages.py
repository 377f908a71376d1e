"""Debian packages of an image, from its /var/lib/dpkg/status: bill of materials and known vulnerabilities."""

import tempfile
from pathlib import Path

from benchmarks.core.files import load_json, save_text
from benchmarks.images.audit.audit_tools import last_words, run_tool
from benchmarks.images.audit.listing import Listing, read_debsbom
from resireduce.errors import ConfigError

INSTALLED = "Status: install ok installed"
CONTROL = "openssl"
"""A source package with known vulnerabilities in every release of Debian."""


def installed(status: Path) -> int:
    """Return how many packages a dpkg status file lists as installed. Raises ConfigError if there are none."""
    cure = "copy /var/lib/dpkg/status out of the image"
    try:
        count = status.read_text(encoding="utf-8").splitlines().count(INSTALLED)
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(f"dpkg-status: {status} cannot be read: {problem}; {cure}") from None
    if not count:
        raise ConfigError(f"dpkg-status: {status} lists no installed package; {cure}")
    return count


def debian_sbom(status: Path, output: Path) -> int:
    """Write a CycloneDX bill of materials of the packages in a dpkg status file, and return how many there are.

    Raises ConfigError for a file that lists no packages, or if the bill of materials lacks some.
    """
    count = installed(status)
    with tempfile.TemporaryDirectory() as folder:
        save_text(status.read_text(encoding="utf-8"), Path(folder) / "root/var/lib/dpkg/status")
        made = Path(folder) / "debian.cdx.json"
        options = ("--root", f"{folder}/root", "--sbom-type", "cdx", "--distro-arch", "amd64", "--out", str(made))
        done = run_tool("debsbom", "generate", *options)
        if done.returncode:
            raise ConfigError(f"audit: no bill of materials could be made of {status}: {last_words(done)}")
        listed = sum("arch=source" not in item.get("purl", "") for item in load_json(made)["components"])
        if listed != count:
            raise ConfigError(f"audit: the bill of materials has {listed} packages, {status} has {count} installed")
        save_text(made.read_text(encoding="utf-8"), output)
    return count


def debian_listing(sbom: Path, packages: int, suite: str, database: Path | None) -> Listing:
    """Look up the packages in `sbom`, of a release (`suite`, such as bookworm), in Debian's security tracker.

    `database` is a copy of the tracker's JSON; None fetches it first.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = database or Path(folder) / "tracker.json"
        options = ("--db", str(path), "--distro", suite, "--format", "json", str(sbom))
        done = run_tool("debsbom", "sec-scan", *([] if database else ["--update-db"]), *options)
        problem = last_words(done) if done.returncode else _no_answer(path, suite)
    if not problem:
        try:
            return read_debsbom(done.stdout, packages, f"Debian's security tracker, {suite}")
        except ValueError as error:
            problem = str(error)
    return Listing("Debian", packages, not_run=f"no database of Debian's vulnerabilities can be had ({problem})")


def _no_answer(path: Path, suite: str) -> str:
    """Return why a database has no answers; empty if it has."""
    try:
        known = load_json(path)[CONTROL].values()
        releases = {release for item in known for release in item["releases"]}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return f"{path} is not that of the security tracker"
    return "" if suite in releases else f"{path} knows nothing of {suite}"
