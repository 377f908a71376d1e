"""Metadata of a bundle as an RO-Crate 1.1 (https://w3id.org/ro/crate/1.1), so that archives can read it."""

import json
from collections.abc import Mapping
from typing import Any

from benchmarks.analysis.bundle.pack import NAME as MANIFEST
from benchmarks.core.paths import RUNS

NAME = "ro-crate-metadata.json"
LICENSE = "https://www.apache.org/licenses/LICENSE-2.0"
KINDS = {".json": "application/json", ".html": "text/html", ".md": "text/markdown", ".txt": "text/plain"}
KINDS |= {".yaml": "application/yaml", ".csv": "text/csv", ".diff": "text/x-diff"}
FOLDERS = {
    "cells": "Raw records, one JSON file a cell; NAME.failed.json of cells that could not be run",
    "tables": "Tables, made from the records alone",
    "figures": "Figures of these tables",
    "logs": "What was printed while cells ran",
}


def crate(run: str, date: str, commit: str | None, sizes: Mapping[str, int]) -> str:
    """Return the text of the metadata file: the root, folders of the run, and the files outside of them.

    sizes: bytes of each file of the bundle, by path.
    """
    folders = {f"{RUNS}/{run}/{name}/": text for name, text in FOLDERS.items()}
    folders = {path: text for path, text in folders.items() if any(one.startswith(path) for one in sizes)}
    single = [path for path in sorted(sizes) if not path.startswith(tuple(folders))]
    parts = [*folders, *single, MANIFEST]
    about = {
        "name": f"ResiReduce suite, run {run}",
        "description": "Records, tables and figures of a benchmark of the memory of compressed-gradient training, with "
        f"what they rest on; made by commit {commit or 'not known'}.",
    }
    more = {"datePublished": date, "license": {"@id": LICENSE}, "hasPart": [{"@id": path} for path in parts]}
    conforms = {"@id": "https://w3id.org/ro/crate/1.1"}
    graph = [
        _entity(NAME, "CreativeWork", conformsTo=conforms, about={"@id": "./"}),
        _entity("./", "Dataset", **about, **more),
        _entity(LICENSE, "CreativeWork", name="Apache License 2.0"),
        *(_entity(path, "Dataset", name=text) for path, text in folders.items()),
        *(_file(path, sizes.get(path)) for path in [*single, MANIFEST]),
    ]
    values = {"@context": "https://w3id.org/ro/crate/1.1/context", "@graph": graph}
    return json.dumps(values, indent=1) + "\n"


def _file(path: str, size: int | None) -> dict[str, Any]:
    kind = next((kind for suffix, kind in KINDS.items() if path.endswith(suffix)), None)
    known = {"encodingFormat": kind, "contentSize": None if size is None else str(size)}
    own = {key: value for key, value in known.items() if value is not None}
    return _entity(path, "File", name=path.rsplit("/", 1)[-1], **own)


def _entity(identifier: str, kind: str, **more: Any) -> dict[str, Any]:
    return {"@id": identifier, "@type": kind, **more}
