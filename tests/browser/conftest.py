"""A browser for the tests, and pages for it. Without a browser they are skipped, and say so."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.analysis.charts.draw import draw_all
from benchmarks.analysis.claims.claim import LedgerRow
from benchmarks.analysis.labels import MINUS
from benchmarks.analysis.load_run import load_run
from benchmarks.analysis.page.page import render_page
from benchmarks.analysis.report_command import write_report
from benchmarks.analysis.table import Table
from benchmarks.analysis.tables.table_list import TABLES
from benchmarks.core.config_reader import read_config
from benchmarks.core.matrix import expand
from benchmarks.core.run_config import get_cells, get_config
from resireduce.errors import ConfigError
from tests import claim_records
from tests.browser.chromium import Chromium, fetch_chromium, find_chromium
from tests.records import make_result

MODELS = ["vgg-digits", "gpt2-bytes", "resnet-digits"]
CONFIG = {
    "run": "x",
    "defaults": {"density": 0.01},
    "matrix": [
        {"model": MODELS, "compressor": "none", "scheme": "none", "gradients": ["kept", "streamed"]},
        {"model": MODELS, "scheme": ["baseline", "none", "w", "w+2d"], "seed": [0, 1]},
        {"model": MODELS, "scheme": ["baseline", "w+2d"], "gradients": "streamed"},
    ],
}
STATUSES = ("reproduced", "not reproduced", "inconclusive", "not run", "reproduced", "not run", "not run")
LEDGER = [
    LedgerRow(
        id=f"C{number}",
        statement=f"Claim number {number}",
        source="section 5",
        status=status,
        scope="small models",
        reason="a < b & c",
        command=f"make run RUN=claim{number}",
        value=None if status == "not run" else 10.5 - number,
        interval=None if status == "not run" else (-1.0, 12.0),
        published=100.0 / number,
        unit="%",
        tolerance="within 1 point",
        seeds=2,
        cells=("a.b", "c.d"),
    )
    for number, status in enumerate(STATUSES, start=1)
]
ODD_ROWS = {"a": "9.84", "b": "oom", "c": f"{MINUS}3.2 ± 1", "d": "", "e": "2.5 GiB", "f": "900 MiB", "g": "1,200"}


def odd_table() -> Table:
    """Numbers as people write them, and what is none."""
    body = [[name, text] for name, text in ODD_ROWS.items()]
    return Table("odd", "Odd values", "Read it.", [{"name": name} for name in ODD_ROWS], ["Name", "Value"], body)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    found = find_chromium()
    if found is None and os.environ.get("FETCH_BROWSER"):
        try:
            found = fetch_chromium()
        except ConfigError as error:
            pytest.skip(f"{error}: the page is NOT tested in a browser")
    if found is None:
        pytest.skip("no chromium is installed: the page is NOT tested in a browser (make test-browser fetches one)")
    browser = Chromium(*found, tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def make_page(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that writes the page of a run of which every `leave_out`-th cell is missing."""

    def make(leave_out: int | None = 9, judged: list[LedgerRow] = LEDGER, more: tuple[Table, ...] = ()) -> Path:
        folder = tmp_path_factory.mktemp("run")
        (folder / "config.json").write_text(json.dumps(CONFIG))
        for number, cell in enumerate(expand({key: CONFIG[key] for key in ("defaults", "matrix")})):
            if leave_out is None or (number + 1) % leave_out:
                make_result(cell).save(folder / "cells" / f"{cell.name}.json")
        run = load_run(folder)
        page = folder / "report.html"
        tables = [*(table(run) for table in TABLES.values()), *more]
        page.write_text(render_page(run, tables, draw_all(tables), judged))
        return page

    return make


@pytest.fixture(scope="session")
def smoke_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole report of the smoke matrix, all of it finished."""
    folder = tmp_path_factory.mktemp("smoke")
    config = read_config(Path("benchmarks/config/smoke.yaml"))
    (folder / "config.json").write_text(json.dumps(get_config(config)))
    for cell in get_cells(config).values():
        claim_records.make(cell).save(folder / "cells" / f"{cell.name}.json")
    return write_report(load_run(folder))


@pytest.fixture(scope="session")
def page(make_page: Callable[..., Path]) -> Path:
    """A run with a few holes, and judged of every status."""
    return make_page(more=(odd_table(),))
