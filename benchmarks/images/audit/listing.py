"""The outcome of an audit: vulnerabilities found, packages that could not be audited, or why it was not run."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from packaging.utils import canonicalize_name

CLEAN, BAD, NOT_RUN = 0, 1, 3


@dataclass(frozen=True)
class Vulnerability:
    """A published weakness of one version of a package."""

    package: str
    version: str
    identifier: str
    aliases: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()
    """Versions without it; empty if there are none yet."""

    def __str__(self) -> str:
        names = f"{self.identifier} ({', '.join(self.aliases)})" if self.aliases else self.identifier
        cure = f"fixed in {', '.join(self.fixed)}" if self.fixed else "no fixed version"
        return f"{self.package} {self.version}: {names}: {cure}"


@dataclass(frozen=True)
class Listing:
    """The outcome of an audit of one kind of packages."""

    kind: str
    """Such as "Python"."""
    packages: int
    source: str = ""
    """The service or database that was asked."""
    found: tuple[Vulnerability, ...] = ()
    unaudited: Mapping[str, str] = field(default_factory=dict)
    """Reason by "name version"."""
    not_run: str = ""
    """Why no service could be asked; empty if one was."""

    @property
    def status(self) -> int:
        """Exit status: 0 only if every package was audited and nothing was found."""
        if self.not_run:
            return NOT_RUN
        return BAD if self.found or self.unaudited else CLEAN

    def lines(self) -> list[str]:
        """Return the listing as readable lines, its outcome first."""
        if self.not_run:
            return [f"{self.kind} packages: not run: {self.not_run}"]
        audited = self.packages - len(self.unaudited)
        what = f"{len(self.found) or 'no'} known {'vulnerability' if len(self.found) == 1 else 'vulnerabilities'}"
        head = f"{self.kind} packages: {what} in {audited} audited, asked of {self.source}"
        lines = [head, *(f"  {item}" for item in self.found)]
        if self.unaudited:
            lines.append(f"{self.kind} packages: {len(self.unaudited)} of {self.packages} could NOT be audited")
            lines += [f"  {package}: {reason}" for package, reason in self.unaudited.items()]
        return lines


def read_pip_audit(text: str, asked: Mapping[str, str], source: str) -> Listing:
    """Return the listing in pip-audit's JSON for packages `asked` (version by name).

    A package that is skipped, left out or reported in another version counts as unaudited: pip-audit itself says "no
    known vulnerabilities found" even if it skipped them all. Raises ValueError if `text` is not such JSON.
    """
    try:
        answers: dict[str, Any] = {canonicalize_name(item["name"]): item for item in json.loads(text)["dependencies"]}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is not pip-audit's JSON: {error!r}") from None
    found, unaudited = [], {}
    for name, version in asked.items():
        answer = answers.get(name, {"skip_reason": "left out of the answer"})
        reason = answer.get("skip_reason")
        if not reason and answer.get("version") != version:
            reason = f"answered for {answer.get('version')}"
        if reason:
            unaudited[f"{name} {version}"] = str(reason)
            continue
        found += [_vulnerability(name, version, item) for item in answer["vulns"]]
    return Listing("Python", len(asked), source, tuple(found), unaudited)


def _vulnerability(name: str, version: str, item: dict[str, Any]) -> Vulnerability:
    aliases, fixed = (tuple(map(str, item.get(key) or ())) for key in ("aliases", "fix_versions"))
    return Vulnerability(name, version, str(item["id"]), aliases, fixed)


def read_debsbom(text: str, packages: int, source: str) -> Listing:
    """Return the listing in the lines of `debsbom sec-scan --format json`. Raises ValueError for other text."""
    found = []
    for line in filter(str.strip, text.splitlines()):
        try:
            item = json.loads(line)
            name, _, version = item["package"].rpartition("@")
            known = item["vulnerability"]
            fixed = (str(known["fixed-in"]),) if known.get("fixed-in") else ()
            found.append(Vulnerability(name, version, str(known["id"]), (), fixed))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it is not debsbom's JSON: {error!r}") from None
    return Listing("Debian", packages, source, tuple(found))
