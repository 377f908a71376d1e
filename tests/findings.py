"""What tests say of the doctor's findings."""

from collections.abc import Sequence

from benchmarks.doctor.machine_checks import Finding


def only(findings: Sequence[Finding], status: str) -> str:
    """The one finding, all of it, which must have this status."""
    (finding,) = findings
    assert finding.status == status, finding
    return f"{finding.detail} -> {finding.cure}"
