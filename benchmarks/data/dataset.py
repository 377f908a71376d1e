"""The description of a data set: the files it is published as, and how they are prepared. Imports no torch."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.core.progress import Report
from resireduce.errors import ConfigError


@dataclass(frozen=True)
class SourceFile:
    """One published file."""

    name: str
    size: int | None = None
    """Bytes; None if no publisher states them."""
    checksum: str | None = None
    """"md5:" or "sha256:" and hexadecimal digits, or the first of them; None if no publisher states it."""

    def described(self) -> str:
        """Return the name with size and checksum, for messages."""
        known = [f"{self.size:,} bytes" if self.size is not None else "", (self.checksum or "").replace(":", " ", 1)]
        return self.name + (f" ({', '.join(filter(None, known))})" if any(known) else "")


def forms_of(table: str) -> tuple[tuple[SourceFile, ...], ...]:
    """Return the forms in a table, separated by empty lines; each line has a file's name, bytes and checksum.

    A hyphen stands for a value that no publisher states.
    """
    return tuple(tuple(map(_file, form.strip().splitlines())) for form in table.split("\n\n"))


def _file(line: str) -> SourceFile:
    name, size, checksum = line.split()
    return SourceFile(name, None if size == "-" else int(size), None if checksum == "-" else checksum)


@dataclass(frozen=True, kw_only=True)
class Dataset(ABC):
    """A data set, vocabulary or set of weights that cells can read once it is prepared."""

    title: str
    terms: str
    """Licence, or who allows its use."""
    address: str | None = None
    """Beginning of the publisher's addresses, with the last slash; None: it cannot be fetched without registration."""
    forms: tuple[tuple[SourceFile, ...], ...] = ()
    """Each form is enough by itself. The first is fetched from `address`."""
    folders: tuple[str, ...] = ()
    """Folders below the source that its files may lie in, as archives have them."""
    needs: tuple[str, ...] = ()
    """Names of data sets that must be prepared in the same root first."""

    @abstractmethod
    def prepare(self, files: Mapping[str, Path], target: Path, root: Path, report: Report) -> dict[str, Any]:
        """Write the prepared files.

        Args:
            files: published name -> where it is, as `find` returned them.
            target: an empty folder; all that is left in it is covered by the manifest.
            root: folder of prepared data sets, for those in `needs`.
            report: called with lines of progress.

        Returns:
            Notes for the manifest, such as counts.

        Raises:
            ValueError: one line that names the file and what is wrong with it.
        """

    def published(self) -> dict[str, SourceFile]:
        """Return all published files, of any form, by name."""
        return {file.name: file for form in self.forms for file in form}

    def find(self, source: Path) -> dict[str, Path] | None:
        """Find the files of one form in a folder, or beside a file: name -> path. None if no form is complete."""
        for form in self.forms:
            for folder in (source, *(source / below for below in self.folders)):
                found = {file.name: folder / file.name for file in form}
                if all(path.is_file() for path in found.values()):
                    return found
        return None

    def damage(self, folder: Path, report: Report) -> str | None:
        """Say in one line what is wrong with the files that the prepared ones refer to; None if nothing is."""
        return None

    def takes(self) -> str:
        """Name the files of every form, for messages."""
        return " | ".join(", ".join(file.name for file in form) for form in self.forms)

    def instructions(self, folder: Path) -> list[str]:
        """Say which files to put where, a line for each form."""
        lines = [f"{self.title}; terms: {self.terms}"]
        for place, form in enumerate(self.forms):
            where = f" (from {self.address})" if place == 0 and self.address else ""
            lines.append(f"  {'or' if place else 'put'} into {folder}{where}:")
            lines += [f"    {file.described()}" for file in form]
        return lines


def find_files(name: str, dataset: Dataset, source: Path) -> dict[str, Path]:
    """Find a data set's files in a folder, or beside a given file. Raises ConfigError, one line, if any is missing."""
    if source.is_file() and dataset.forms:
        if source.name not in dataset.published():
            raise ConfigError(f"data: {name!r} is not read from {source.name!r}; allowed: {dataset.takes()}")
        forms = tuple(form for form in dataset.forms if source.name in [file.name for file in form])
        source = source.parent
        found = replace(dataset, forms=forms).find(source)
    elif source.is_dir():
        found = dataset.find(source)
    else:
        raise ConfigError(f"data: {source} is not there; give the folder or the file that {name!r} is read from")
    if not found:
        raise ConfigError(f"data: {source} has not all files of {name!r}; it takes one of: {dataset.takes()}")
    return found


def first_line(error: Exception) -> str:
    """Return the first line of another library's error message, or the error's type."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
