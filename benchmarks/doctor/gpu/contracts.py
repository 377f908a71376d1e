"""Run a file of the library's tests on a device: `python -m benchmarks.doctor.gpu.contracts FILE OUTPUT [--tiny]`.

Each test's outcome is written to the JSON file at once, so that a test that hangs or ends the process is named.
"""

import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.core.files import save_json

REASON_CHARACTERS = 3000
SHOWN = 5
"""How many tests that failed the last line names."""
DUMP_SECONDS = 60
"""Seconds after which a test counts as hanging, and its stack is printed."""


class Report:
    """A pytest plugin that keeps the outcome of each test, with its time and reason."""

    def __init__(self, output: Path):
        self._output, self._started = output, time.monotonic()
        self.tests: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note that a test begins. If nothing follows, it was the last one."""
        self._note(nodeid, {"outcome": "not ended", "seconds": None, "reason": None})

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note how the set-up of a test, the test itself or its tear-down ended."""
        name, failed = report.nodeid, report.outcome == "failed"
        if report.when == "call" or report.outcome != "passed":
            said = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr or "")
            reason = said[-REASON_CHARACTERS:] if failed else said[:200] or None
            self._note(name, {"outcome": report.outcome, "seconds": report.duration, "reason": reason})

    def _note(self, name: str, values: dict[str, Any]) -> None:
        self.tests[name.partition("::")[2]] = values
        save_json({"tests": self.tests, "seconds": time.monotonic() - self._started}, self._output)


class FirstAndLast:
    """A pytest plugin that leaves out all cases of a test but its first and its last one: `--tiny`."""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keep in `items`, pytest's list of collected cases, two of each test at most."""
        cases: dict[Any, list[Any]] = {}
        for item in items:
            cases.setdefault(item.function, []).append(item)
        items[:] = [item for of_one in cases.values() for item in dict.fromkeys((of_one[0], of_one[-1]))]


def main() -> int:
    """Return 0 if no test failed; otherwise the last printed line names those that did."""
    import pytest

    file, report = sys.argv[1], Report(Path(sys.argv[2]))
    options = ["-m", "gpu", "-q", "-p", "no:cacheprovider", "-o", f"faulthandler_timeout={DUMP_SECONDS}", file]
    code = pytest.main(options, plugins=[report, *([FirstAndLast()] if "--tiny" in sys.argv[3:] else [])])
    failed = [name for name, one in report.tests.items() if one["outcome"] not in ("passed", "skipped")]
    if failed:
        more = f" and {len(failed) - SHOWN} more" if len(failed) > SHOWN else ""
        print(f"{len(failed)} of {len(report.tests)} tests failed: {', '.join(failed[:SHOWN])}{more}")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
