"""Python packages of lock files: bill of materials and known vulnerabilities."""

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from packaging.version import Version

from benchmarks.core.files import load_json, save_text
from benchmarks.core.paths import ROOT
from benchmarks.core.requirements import Pin
from benchmarks.images.audit.audit_tools import last_words, run_tool
from benchmarks.images.audit.listing import Listing, read_pip_audit
from resireduce.errors import ConfigError

SERVICES = ("pypi", "osv")
CONTROL = {"jinja2": "3.1.2"}
"""A version with vulnerabilities published in 2024: a service that knows none of them has no usable database."""


def python_sbom(pins: Sequence[Pin], output: Path) -> None:
    """Write a CycloneDX bill of materials of the packages, with their hashes. Raises ConfigError if one is missing."""
    lines = (f"{pin.name}=={pin.version} {' '.join(f'--hash=sha256:{value}' for value in pin.hashes)}" for pin in pins)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "sbom.json"
        root = ("--pyproject", str(ROOT / "pyproject.toml"))
        options = ("--output-reproducible", "--output-format", "JSON", "--output-file", str(made))
        done = run_tool("cyclonedx-py", "requirements", "-", *root, *options, text="\n".join(lines))
        if done.returncode:
            raise ConfigError(f"audit: no bill of materials could be made: {last_words(done)}")
        listed = {(item["name"], item["version"]) for item in load_json(made)["components"]}
        missing = [pin.name for pin in pins if (pin.name, pin.version) not in listed]
        if missing:
            raise ConfigError(
                f"audit: the bill of materials lacks {', '.join(missing)}; another cyclonedx-bom is needed"
            )
        save_text(made.read_text(encoding="utf-8"), output)


def python_listing(pins: Iterable[Pin], services: Sequence[str] = SERVICES, address: str | None = None) -> Listing:
    """Ask the first service that can be reached about every package; `address` is that of another OSV service.

    A version's local part (+cpu) is left out, as vulnerabilities are published without it.
    """
    asked = {pin.name: Version(pin.version).public for pin in pins}
    reasons = []
    for service in services:
        problem = _no_answer(service, address)
        if not problem:
            listing = _ask(service, address, asked)
            if not (problem := listing.not_run):
                return listing
        reasons.append(f"{service}: {problem}")
    problem = f"the vulnerability service cannot be reached ({'; '.join(reasons)})"
    return Listing("Python", len(asked), not_run=problem)


def _no_answer(service: str, address: str | None) -> str:
    """Return why a service has no answers; empty if it has."""
    answer = _ask(service, address, CONTROL)
    if answer.not_run:
        return answer.not_run
    if answer.unaudited:
        return "it has nothing on {}: {}".format(*next(iter(answer.unaudited.items())))
    name, version = next(iter(CONTROL.items()))
    return "" if answer.found else f"it knows no vulnerability of {name} {version}, which has published ones"


def _ask(service: str, address: str | None, asked: dict[str, str]) -> Listing:
    """Ask one service. The installer checks hashes: those of a local build (+cpu) are unknown to any service."""
    with tempfile.TemporaryDirectory() as folder:
        requirements = Path(folder) / "requirements.txt"
        requirements.write_text("".join(f"{name}=={version}\n" for name, version in asked.items()), encoding="utf-8")
        options = [
            "--no-deps",
            "--disable-pip",
            "--progress-spinner=off",
            "--format=json",
            "--desc=off",
            "--aliases=on",
        ]
        options += [f"--osv-url={address}"] if address and service == "osv" else []
        done = run_tool("pip-audit", *options, f"--vulnerability-service={service}", "--requirement", str(requirements))
    try:
        return read_pip_audit(done.stdout, asked, service)
    except ValueError:
        return Listing("Python", len(asked), not_run=last_words(done))
