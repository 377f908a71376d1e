"""What holds at each setting's best rate: losses paired by seed beside margins, and shares of bytes beside limits."""

from typing import Any

import pytest

from benchmarks.analysis.tuned import CONTROL, OURS, judged, verdicts


def row(system: str, metrics: list[float], *, model: str = "gpt2-bytes", share: float | None = None) -> dict[str, Any]:
    name, higher = ("perplexity", False) if model == "gpt2-bytes" else ("accuracy", True)
    mean = sum(metrics) / len(metrics)
    return {
        **{"system": system, "title": system, "model": model, "learning_rate": 0.01, "held_share": share},
        **{"metric_name": name, "higher_is_better": higher, "metric_mean": mean},
        "metrics": dict(enumerate(metrics)),
    }


def of(rows: list[dict[str, Any]], tested: str, against: str, model: str = "gpt2-bytes") -> dict[str, Any]:
    sides = {"system": tested, "against": against, "model": model}
    return next(one for one in judged(rows) if sides.items() <= one.items())


@pytest.mark.parametrize(("worse", "status"), [(-1.0, "reproduced"), (20.0, "not reproduced")])
def test_a_loss_is_paired_by_seed_and_held_against_the_margin(worse: float, status: str) -> None:
    plain = [40.0, 42.0, 44.0, 46.0, 48.0]
    mine = [one + worse + noise for one, noise in zip(plain, (-0.1, 0.1, 0.0, 0.1, -0.1), strict=True)]
    found = of([row("int4-plain", mine), row("baseline", plain)], "int4-plain", "baseline")
    assert found["loss"] == pytest.approx(worse) and found["seeds"] == 5
    assert found["half_width"] == pytest.approx(2.776 * 0.1 / 5**0.5, rel=1e-3)  # Student's t of four degrees
    assert found["status"] == status and 0 < found["margin"] < 5


def test_of_accuracies_more_is_better_and_few_seeds_decide_nothing() -> None:
    model = "vgg-digits"
    rows = [row("int4-plain", [98.0, 97.0], model=model), row("dense", [99.0, 99.5], model=model)]
    assert of(rows, "int4-plain", "dense", model)["loss"] == pytest.approx(1.75)
    assert of(rows, "int4-plain", "dense", model)["status"] == "inconclusive"
    assert of(rows, "int4-plain", "baseline", model)["status"] == "not run"


@pytest.mark.parametrize(("share", "status"), [(0.25, "reproduced"), (0.2501, "not reproduced"), (None, "not run")])
def test_bytes_held_are_a_share_of_the_baselines(share: float | None, status: str) -> None:
    found = [one for one in judged([row("int4-adafactor", [40.0], share=share)]) if "limit" in one]
    assert [(one["limit"], one["status"]) for one in found] == [(0.25, status)]


def test_a_claim_holds_if_it_holds_on_all_four_models_with_the_setting_that_was_named_for_each() -> None:
    def measured(worse: float = 0.0, of: str = "gpt2-bytes", seeds: int = 5) -> list[dict[str, Any]]:
        noise = [-0.1, 0.1, 0.0, 0.1, -0.1][:seeds]
        return [
            row(system, [50 - (worse if model == of and system == OURS[of] else 0) + one for one in noise], model=model)
            for model in OURS
            for system in ("baseline", *CONTROL, *CONTROL.values())
        ]

    found = verdicts(judged(measured()))
    assert [found[claim] for claim in "abcd"] == ["reproduced", "not run", "reproduced", "not run"]
    assert verdicts(judged(measured(worse=20, of="vgg-digits")))["a"] == "not reproduced"
    assert verdicts(judged(measured(seeds=4)))["a"] == "inconclusive"
    assert verdicts(judged(measured(), {("vgg-digits", "int4-plain")}))["a"] == "not reproduced"
    assert verdicts(judged(measured(), {("vgg-digits", "int4-adafactor")}))["a"] == "reproduced"
    assert verdicts(judged([one for one in measured() if one["model"] != "bert-questions"]))["a"] == "not run"
