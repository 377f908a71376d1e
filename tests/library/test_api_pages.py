"""The pages that `make docs` makes, and what docstrings say."""

import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import resireduce

ROOT = Path(__file__).parents[2]
MODULES = [
    module.name
    for module in pkgutil.walk_packages(resireduce.__path__, "resireduce.")
    if not module.name.rpartition(".")[2].startswith("_")
]


BUILD = """
import pygments, runpy
pygments.highlight = lambda *_: ""  # half of the time
runpy.run_path("docs/build_api.py", run_name="__main__")
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("api")
    command = [sys.executable, "-c", BUILD, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), "it must build without a warning"
    assert done.stdout == f"API: {folder}/index.html\n"
    return folder


def test_every_module_and_what_the_package_exports_has_its_place(pages: Path) -> None:
    for module in MODULES:
        assert (pages / f"{module.replace('.', '/')}.html").exists(), module
    first = (pages / "resireduce.html").read_text(encoding="utf-8")
    for name in resireduce.__all__:
        said = (getattr(resireduce, name).__doc__ or "").split("\n")[0].replace("`", "")[:30]
        section = first.partition(f'<section id="{name}">')[2]
        assert said in re.sub("<[^>]+>", "", section), name


def test_the_page_of_compressors_is_what_they_say_and_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    module = importlib.import_module("build_compressors")
    said = "python docs/build_compressors.py writes it anew"
    assert module.page() == module.PAGE.read_text(encoding="utf-8"), said
