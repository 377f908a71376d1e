"""Fig. 9 (experiment 1): memory of the model states, on the local cluster (a) and on the large one (b)."""

from benchmarks.cell import Cell
from benchmarks.report.load import Run
from benchmarks.report.paper.make import make_table
from benchmarks.report.paper.quantity import SAVING
from benchmarks.report.paper.spec import BASELINE, NO_COMPRESSION, Line, Spec, Wanted, against
from benchmarks.report.table import Table

TO_BASELINE = against(BASELINE)


def _line(label: str, wanted: Wanted, published: str = "") -> Line:
    return Line(label, {"residual_dtype": None, "options": {}, **wanted}, SAVING, TO_BASELINE, published)


def _lines(place: str) -> tuple[Line, ...]:
    topk = {"compressor": "topk", "density": 0.01}
    kept, streamed = ({**topk, "gradients": gradients} for gradients in ("kept", "streamed"))
    return (
        _line("ResiReduce-w", {"scheme": "w", **kept}),
        _line("ResiReduce-2d", {"scheme": "2d", **kept}),
        _line("ResiReduce-(w+2d)", {"scheme": "w+2d", **kept}, f"exp1-{place}-saving-{{model}}"),
        _line("Baseline, streamed (ours)", {"scheme": "baseline", **streamed}),
        _line("w, streamed (ours)", {"scheme": "w", **streamed}),
        _line("2d, streamed (ours)", {"scheme": "2d", **streamed}),
        _line("w+2d, streamed (ours)", {"scheme": "w+2d", **streamed}),
        _line("Non-Compression", NO_COMPRESSION),
        _line("Non-Compression, streamed (the floor)", {**NO_COMPRESSION, "gradients": "streamed"}),
    )


def _more(setting: Cell) -> bool:
    """What the baseline can be compared with; itself it is the measure."""
    if setting.compressor != "topk":
        return setting.compressor == "none"
    return setting.scheme != "none" and TO_BASELINE(setting) != setting


def _spec(name: str, title: str, place: str, stated: tuple[str, ...]) -> Spec:
    return Spec(
        name=name,
        title=title,
        reading=(
            "Bytes of the model states of one rank at a step boundary, saved against Baseline (top-k, full residuals, "
            "kept gradients), in per cent of its; the paper's normalised memory is 100 % less this. Higher is better."
        ),
        parts=(f"exp1-{place}",),
        lines=_lines(place),
        more=_more,
        stated=stated,
        panel="benchmarks.report.paper.panels:bars_panel",
    )


SPEC_A = _spec("fig9a", "Fig. 9a: memory saved, 8 GPUs", "local", ("exp1-local-saving-max",))
SPEC_B = _spec("fig9b", "Fig. 9b: memory saved, 64 GPUs", "cloud", ("exp1-cloud-saving-max", "abstract-saving-max"))


def fig9a(run: Run) -> Table:
    """Return Fig. 9a for a run."""
    return make_table(run, SPEC_A)


def fig9b(run: Run) -> Table:
    """Return Fig. 9b for a run."""
    return make_table(run, SPEC_B)
