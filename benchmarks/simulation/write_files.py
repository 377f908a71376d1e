"""The files of a simulation: all results, and two pictures."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.analysis.charts import pictures
from benchmarks.analysis.write import to_csv, to_markdown
from benchmarks.core.files import finite, save_json, save_text, writable
from benchmarks.simulation.rows import Settings
from benchmarks.simulation.sweep import Result
from benchmarks.simulation.views import efficiencies, name_of, pieces, table


def write_files(
    folder: Path,
    answers: Mapping[str, object],
    ordered: Sequence[Result],
    results: Sequence[Result],
    settings: Settings,
    scaled: Sequence[Result],
) -> None:
    """Write simulated.json, .csv and .md, step.svg and scaling.svg into `folder`. Raises ConfigError if this fails.

    answers: the answers to its questions. ordered: all results shown; the first is drawn as a step. results: those that
    its speed is compared with. scaled: results of one cluster on different numbers of ranks.
    """
    writable("output", folder / "simulated.json")
    model, fastest = settings.layers.model, ordered[0].case
    save_json(finite({**answers, "results": [one.as_dict() for one in ordered]}), folder / "simulated.json")
    whole = table(ordered, results)
    save_text(to_csv(whole), folder / "simulated.csv")
    save_text(to_markdown(whole, []), folder / "simulated.md")
    title = f"Simulated: {model}, {fastest.cluster.name}, {fastest.ranks} ranks\n{name_of(fastest)}"
    save_text(pictures.step(pieces(fastest, settings), title), folder / "step.svg")
    title = f"Simulated: {model}, {scaled[0].case.cluster.name}"
    save_text(pictures.scaling(efficiencies(scaled, settings), title), folder / "scaling.svg")
