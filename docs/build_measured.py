"""`python docs/build_measured.py`: the block of docs/simulate.md about steps of a testbed, from its record."""

import sys
from pathlib import Path

from benchmarks.analysis.write import to_markdown
from benchmarks.simulation.beside_measured import measured_table, read_measured, sentence, shares
from benchmarks.simulation.model_layers import layers_of

PAGE = Path(__file__).parent / "simulate.md"
RECORD = Path(__file__).parents[1] / "results/reference/beside-measured.json"
BEGIN, END = "<!-- simulated: measured -->\n", "<!-- simulated: end -->"


def block() -> str:
    """Return what stands in the block: rows of two merging rules, and how many of all steps are near."""
    found = read_measured(RECORD)
    table = measured_table(found, layers_of(found["model"]))
    lines = [line for line in to_markdown(table, []).splitlines() if line.startswith("|")]
    rows = "".join(f"{line}\n" for line in lines if line.split("|")[4].strip(" -") in ("Merged", "", "none", "one"))
    where = (
        f"Measured on {found['measured']['cpu']}, {found['measured']['cores']} cores, {found['measured']['date'][:10]}."
    )
    return f"{rows}\n{sentence(shares(table.records))} {where}\n"


def page(text: str) -> str:
    """Return the `text` of the page with its block made anew."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + block() + END + rest.partition(END)[2]


if __name__ == "__main__":
    new = page(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(new, encoding="utf-8")
    print(f"{PAGE} is written", file=sys.stderr)
