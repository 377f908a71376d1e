"""What README and the appendix say of fewer bits against sharing, from settle.json, whose seeds were fixed before."""

from benchmarks.claims.holm import adjusted
from benchmarks.pages.measured import Measured
from benchmarks.pages.precision import BITS, SHARED
from benchmarks.pages.words import LEVEL, listed, of_all, p_text
from benchmarks.report.labels import with_half
from benchmarks.report.student import Interval, interval, p_beyond, paired

FILE = "settle"
Gain = tuple[Interval, float, str]
"""By how much int4 is better than shared residuals, its p-value by Holm's correction, and what that says."""


def _gains(measured: Measured) -> dict[str, Gain]:
    """By how much int4 is better, model by model."""
    rows = {(row["model"], row["scheme"], row["residual_dtype"]): row for row in measured.load(FILE)["rows"]}
    found = {}
    for model in dict.fromkeys(model for model, *_ in rows):
        bits, shared = (rows[model, *setting] for setting in (BITS, SHARED))
        sign = 1 if bits["higher_is_better"] else -1
        one = interval([sign * each for each in paired(bits["metrics"], shared["metrics"])])
        assert one is not None
        found[model] = (one, 1.0 if (p := p_beyond(one, 0.0)) is None else p)
    corrected = adjusted([p for _, p in found.values()])
    return {model: (one, p, _said(one, p)) for (model, (one, _)), p in zip(found.items(), corrected, strict=True)}


def _said(gain: Interval, p: float) -> str:
    return "not shown" if p >= LEVEL else "less" if gain.mean > 0 else "more"


def settled_words(measured: Measured) -> str | None:
    """How the question that config/settle.yaml asks is answered; None while it was not run."""
    if not measured.has(FILE):
        return None
    gains = _gains(measured)
    texts = [
        f"{model}: {'-' if one.mean < 0 else ''}{with_half(abs(one.mean), one.half_width, 1)} "
        f"({one.n} seeds, p {p_text(p) if p < 0.001 else f'= {p_text(p)}'})"
        for model, (one, p, _) in gains.items()
    ]
    head = "int4 is better than `w+2d` in float32, ± half of the paired 95 % interval, p by Holm's correction: "
    return f"{head}{'; '.join(texts)}. {_verdict(gains)}"


def _verdict(gains: dict[str, Gain]) -> str:
    """What the four tests together say."""
    said = {
        verdict: [model for model, (_, _, one) in gains.items() if one == verdict] for *_, verdict in gains.values()
    }
    if len(said) == 1:
        (verdict,) = said
        texts = {"less": "Fewer bits cost less", "more": "Fewer bits cost more", "not shown": "No difference is shown"}
        return f"{texts[verdict]}, on {of_all(len(gains), len(gains))} by Holm's correction."
    words = {"less": "cost less on", "more": "cost more on", "not shown": "are not shown to differ on"}
    return (
        f"By Holm's correction fewer bits {listed([f'{words[one]} {listed(those)}' for one, those in said.items()])}."
    )


def settled_claim(measured: Measured) -> str | None:
    """The verdict alone; None while it was not run."""
    return _verdict(_gains(measured)) if measured.has(FILE) else None
