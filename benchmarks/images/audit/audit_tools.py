"""The audit's tools, which are installed apart from the suite: `make audit-tools`."""

import subprocess

from benchmarks.core.paths import ROOT
from resireduce.errors import ConfigError

FOLDER = ROOT / ".venv-audit" / "bin"
LIMIT_SECONDS = 900


def tool(name: str) -> str:
    """Return the path of a tool. Raises ConfigError if it is not installed."""
    path = FOLDER / name
    if not path.exists():
        raise ConfigError(f"audit: {name} is not installed in {FOLDER}; run 'make audit-tools'")
    return str(path)


def run_tool(name: str, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a tool with `text` as its input, and return what it wrote, whatever its exit status.

    A tool that takes longer than LIMIT_SECONDS is ended; its exit status is then 124.
    """
    command = [tool(name), *arguments]
    try:
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"it took longer than {LIMIT_SECONDS} s")


def last_words(done: subprocess.CompletedProcess[str]) -> str:
    """Return why a tool failed: the last line of its error stream, or the first of a chain of causes."""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    if not lines:
        return f"exit status {done.returncode}, without a word"
    return lines[-1].rpartition("Caused by ")[2].rstrip(")")[:200]
