"""What docs/rivals.md says of compressors beside one another, from rivals.json."""

from benchmarks.analysis.readme.measured import Measured
from benchmarks.analysis.rivals.rivals_command import rivals_table

RIVALS = "rivals"


def rivals(measured: Measured) -> str:
    """Return a table for each model."""
    rows = measured.load(RIVALS)["rows"]
    models = dict.fromkeys(row["model"] for row in rows)
    tables = {model: rivals_table([row for row in rows if row["model"] == model]) for model in models}
    return "\n\n".join(f"{model}, {_metric(model, rows)}:\n\n{table}" for model, table in tables.items())


def _metric(model: str, rows: list[dict[str, str]]) -> str:
    return next(row["metric_name"] for row in rows if row["model"] == model)
