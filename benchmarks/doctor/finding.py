"""The finding of a check: one line, and one line on how to fix it."""

from dataclasses import dataclass

OK, WARNING, FAILED, NOT_RUN = "ok", "warning", "failed", "not run"
STATUSES = (OK, WARNING, FAILED, NOT_RUN)


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report.

    A warning and a failure have a cure; `not run` has its reason as detail, and never counts as ok.
    """

    check: str
    status: str
    detail: str
    cure: str | None = None

    def __post_init__(self) -> None:
        assert self.status in STATUSES, self.status
        assert self.detail, f"{self.check}: without a detail"
        assert self.cure or self.status in (OK, NOT_RUN), f"{self.check}: {self.status} without a cure"
        assert "\n" not in self.detail + (self.cure or ""), f"{self.check}: more than one line"


def ok(check: str, detail: str) -> Finding:
    """Return the finding that all is as it should be."""
    return Finding(check, OK, detail)


def warning(check: str, detail: str, cure: str) -> Finding:
    """Return the finding that cells run, but slower, with figures missing, or not all of them."""
    return Finding(check, WARNING, detail, cure)


def failed(check: str, detail: str, cure: str) -> Finding:
    """Return the finding that cells would fail, or train on a device that nobody intended."""
    return Finding(check, FAILED, detail, cure)


def not_run(check: str, reason: str) -> Finding:
    """Return the finding that nothing was checked, and why."""
    return Finding(check, NOT_RUN, reason)


def absent(check: str, reason: str, cure: str, needed: bool) -> Finding:
    """Return the finding that there is no GPU to check: `not run`, or a failure if one is needed."""
    return failed(check, reason, cure) if needed else not_run(check, reason)


def one_line(text: object, longest: int = 200) -> str:
    """Return the text of another program as one line, cut at the end if it is long."""
    line = " ".join(str(text).split())
    return line if len(line) <= longest else f"{line[:longest]}..."


def gibibytes(nbytes: float) -> str:
    """Return bytes in GiB for the screen, or in MiB if there are few."""
    return f"{nbytes / 2**30:.1f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.0f} MiB"
