"""What README and docs/ say was measured follows from results/reference, words as well as figures."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.__main__ import main
from benchmarks.analysis.labels import ABSENT
from benchmarks.analysis.readme.blocks import BLOCKS
from benchmarks.analysis.readme.measured import Measured, listed, of_all, on_models, p_text, span
from benchmarks.analysis.readme.one_gpu_block import one_gpu, one_gpu_short
from benchmarks.analysis.readme.one_gpu_words import one_gpu_found
from benchmarks.analysis.readme.readme_command import PAGES, REFERENCE, WIDTH, find_blocks, laid_out, read_pages
from benchmarks.analysis.statistics import Interval, interval
from benchmarks.doctor.gpu.steps import memory_cells
from resireduce.errors import ConfigError
from tests import gpu_records
from tests.gpu_records import memory_file
from tests.records import make_result, save_run

ROOT = Path(__file__).parents[3]
SMOKE = ROOT / "benchmarks/config/smoke.yaml"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the pages and of the measurements."""
    for path in [*(path for pattern in PAGES for path in ROOT.glob(pattern)), *(ROOT / REFERENCE).rglob("*.json")]:
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    return tmp_path


def edit(project: Path, name: str, change: Callable[[Any], None]) -> None:
    path = project / REFERENCE / f"{name}.json"
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def made(project: Path, name: str) -> str:
    text = BLOCKS[name](Measured(project / REFERENCE))
    assert text is not None
    return text


def test_the_pages_say_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["readme", "--check", "--root", str(ROOT)])
    assert status == 0, capsys.readouterr().out


def test_every_block_stands_on_a_page() -> None:
    assert {block.name for page in read_pages(ROOT) for block, _ in page.blocks} == set(BLOCKS)


# --- a changed measurement changes the pages ---


def of(values: Any, **wanted: Any) -> Any:
    return next(row for row in values["rows"] if all(row[name] == value for name, value in wanted.items()))


def dense_in_nine_seconds_and_sparse_in_two(values: Any) -> None:
    of(values, compressor="none", hierarchy="flat").update(median=9.0)
    of(values, compressor="topk", density=0.01, hierarchy="flat", merge="none").update(median=2.0)


GPT2 = {"model": "gpt2-bytes", "scheme": "w+2d", "gradients": "kept"}
VGG = {"model": "vgg-digits", "scheme": "w+2d", "gradients": "kept"}
BERT = {"model": "bert-questions", "scheme": "baseline", "residual_dtype": "int4"}
CHANGES: list[tuple[str, Callable[[Any], None], str, str]] = [
    ("smoke", lambda v: of(v, **VGG).update(normalised=0.5), "shared", "normalised 88.8 / 50.0 / 83.7 / 83.7 %"),
    (
        "smoke",
        lambda v: of(v, **VGG).update(metrics={"0": 0.5}),
        "streamed",
        "not equal to *baseline, kept* on vgg-digits",
    ),
    ("smoke", lambda v: v["measured"].update({"Commit": ["abcdef0123"]}), "origin-smoke", "commit `abcdef0`"),
    (
        "two-levels",
        lambda v: of(v, model="vgg-digits", hierarchy="node", density=0.02).update(normalised=0.5),
        "two-levels",
        "| 50.0, 114",
    ),
    ("links", dense_in_nine_seconds_and_sparse_in_two, "slow-link-claim", "a step 4.5 times"),
    ("sharded", lambda v: of(v, name="fsdp").update(node_bytes_per_step=99 * 1024), "sharded", "| 99 | 2,580 |"),
    ("mini", lambda v: of(v, **VGG).update(difference_half_width=9.0), "five-seeds", "no difference seen"),
    (
        "mini",
        lambda v: of(v, **GPT2).update(difference_half_width=9.0),
        "five-seeds-words",
        "no difference seen on vgg-digits and gpt2-bytes",
    ),
    ("mini", lambda v: of(v, **GPT2).update(difference_half_width=9.0), "price", "two of the four exclude zero"),
    ("mini", lambda v: of(v, **VGG)["metrics"].update({"0": 60.0}), "powers", f"| 4 | {ABSENT} | 4 | 8 |"),
    (
        "tell",
        lambda v: v["models"]["vgg-digits"]["loss"].update(mean=1.0),
        "residuals-matter",
        "three of the four models",
    ),
    ("mini", lambda v: of(v, **GPT2).update(difference_mean=-5.0), "price", " less, F1"),
    (
        "precision",
        lambda v: of(v, **BERT).update(normalised=0.9),
        "precision-words",
        "in float32 on three of the four models.",
    ),
    ("pace", lambda v: v["rows"][0].update(ratio=0.5), "streaming-time", "0.50"),
    ("slow-links", lambda v: v["cells"][0].update(median_step_seconds=1.752), "slow-links", "| 5.0 |"),
    ("rivals", lambda v: of(v, compressor="qsgd").update(contraction=0.456), "rivals", "| 0.456 |"),
    ("beside", lambda v: v["rows"][0].update(sent_bytes=1 << 30), "beside-ways", "| 1,024 |"),
]


@pytest.mark.parametrize(("file", "change", "block", "text"), CHANGES, ids=[f"{c[0]}-{c[2]}" for c in CHANGES])
def test_a_changed_measurement_changes_figures_and_words(
    project: Path, file: str, change: Callable[[Any], None], block: str, text: str
) -> None:
    before = made(project, block)
    edit(project, file, change)
    after = made(project, block)
    assert after != before and text in after


def test_the_command_writes_what_changed_and_check_says_where(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["readme", "--root", str(project)]
    edit(project, "smoke", lambda values: of(values, **VGG).update(normalised=0.5, metric_mean=90.0))
    before = (project / "docs/results.md").read_text()
    assert main([*command, "--check"]) == 1 and (project / "docs/results.md").read_text() == before
    said = capsys.readouterr().out
    line = before.partition("<!-- measured: shared -->")[0].count("\n") + 1
    assert said.startswith(f"docs/results.md:{line}: shared\n")
    assert "measured: normalised 88.8 / 50.0 / 83.7 / 83.7 %" in said
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[1:] for line in lines] == [
        ["shared", "changed"],
        ["first-table", "changed"],
    ]
    assert main([*command, "--check"]) == 0 and main(command) == 0
    assert "blocks, all as in" in capsys.readouterr().out


def test_a_run_of_the_smoke_matrix_is_the_source_of_the_first_table(project: Path) -> None:
    """As `make run` leaves it: what `intervals` writes of it is all that the blocks need."""
    config = {key: value for key, value in yaml.safe_load(SMOKE.read_text()).items() if key != "run"}
    cores = {"cores": 4}
    run = save_run(
        project / "run",
        config,
        lambda cell: replace(result := make_result(cell), provenance=result.provenance | cores),
    )
    assert main(["intervals", "--run", str(run), "--output", str(project / REFERENCE / "smoke.json")]) == 0
    assert main(["readme", "--root", str(project)]) == 0
    text = "".join((project / page).read_text() for page in ("README.md", "docs/results.md"))
    assert "one seed on 4 cores (Example at 2.00 GHz), commit `0123456`" in text
    # Of four copies of the model one is streamed away; the optimizer of the last two models holds one more.
    assert "normalised 75.0 / 75.0 / 80.0 / 80.0 % (resnet / vgg / gpt2 / bert)" in text
    assert "| none (no residual), kept | 75.0 % (75.5 %), 0.92 |" in text


def test_streaming_s_time_is_told_by_scheme_and_model(project: Path) -> None:
    rows = [
        {"model": "gpt2-bytes", "scheme": "baseline", "ratio": 0.95, "half_width": 0.02, "pairs": 5},
        {"model": "vgg-digits", "scheme": "baseline", "ratio": 1.01, "half_width": 0.03, "pairs": 5},
    ]
    (project / REFERENCE / "pace.json").write_text(json.dumps({"rows": rows}))
    assert made(project, "streaming-time") == (
        "*baseline, streamed* 0.95 ± 0.02 / 1.01 ± 0.03 of *baseline, kept*'s steps per second (gpt2 / vgg): "
        "slower on gpt2-bytes, no difference seen on vgg-digits"
    )


def settle(project: Path, **gains: Any) -> None:
    """Write a run of config/settle.yaml in which int4 is better by so much, seed by seed."""
    rows = []
    for model, differences in gains.items():
        for scheme, dtype, share in (("baseline", "int4", 1), ("w+2d", None, 0)):
            metrics = {str(100 + seed): 90 + seed + share * one for seed, one in enumerate(differences)}
            row = {"model": model, "scheme": scheme, "residual_dtype": dtype, "higher_is_better": True}
            rows.append(row | {"metrics": metrics})
    (project / REFERENCE / "settle.json").write_text(json.dumps({"rows": rows}))


def test_sharing_against_fewer_bits_is_told_by_holm_s_correction(project: Path) -> None:
    settle(project, one=[1.0, 1.1, 0.9, 1.0], two=[2.0, 2.2, 1.8, 2.1])
    assert made(project, "settled-claim") == "Fewer bits cost less, on all two by Holm's correction."
    assert "one: 1.0 ± 0.1 (4 seeds, p < 0.001); two: 2.0 ± 0.3 (4 seeds" in made(project, "settled")
    # By itself the second is below 0.05, of two tests it is not.
    settle(project, one=[1.0, -1.0, 0.5, -0.4], two=[-1.0, -2.9, -1.0, -2.9])
    assert made(project, "settled-claim") == "No difference is shown, on all two by Holm's correction."
    settle(project, one=[1.0, -1.0, 0.5, -0.4], two=[-1.0, -1.1, -1.0, -1.2])
    said = "By Holm's correction fewer bits are not shown to differ on one and cost more on two."
    assert made(project, "settled-claim") == said


# --- comments that cannot be used ---


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a <!-- measured: shard -->x<!-- end -->",
            "README.md:1: measured: 'shard' is not known (did you mean 'shared'?)",
        ),
        ("a\n\nb <!-- measured: shared -->x", "README.md:3: measured: shared is not closed"),
        ("a <!-- end -->", "README.md:1: <!-- end --> ends nothing"),
        (
            "a <!-- measured: both -->\n<!-- measured: shared -->x<!-- end -->",
            "stands within measured: both, of line 1",
        ),
        (
            "a\n<!-- measured: shared -->x<!-- end -->",
            "README.md:2: <!-- measured: shared --> begins a line that goes on",
        ),
    ],
)
def test_a_comment_that_cannot_be_used_is_one_clear_error(
    project: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "README.md").write_text(text)
    assert main(["readme", "--root", str(project)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert (project / "README.md").read_text() == text


def test_measurements_that_cannot_be_read_are_one_clear_error(project: Path, tmp_path: Path) -> None:
    edit(project, "slow-links", lambda values: values.pop("cells"))
    with pytest.raises(ConfigError, match=r"slow-links: results/reference lacks 'cells'"):
        read_pages(project)
    (project / REFERENCE / "slow-links.json").write_text("{")
    with pytest.raises(ConfigError, match=r"slow-links.json cannot be read"):
        read_pages(project)
    (project / REFERENCE / "links.json").unlink()
    with pytest.raises(ConfigError, match=r"links.json cannot be read"):
        BLOCKS["links"](Measured(project / REFERENCE))
    with pytest.raises(ConfigError, match=r"has no README.md and no docs"):
        read_pages(tmp_path / "nowhere")


@pytest.mark.parametrize("wrong", ["9", [], None, {}], ids=str)
def test_a_value_that_is_no_number_is_one_clear_error(project: Path, wrong: Any) -> None:
    edit(project, "beside", lambda values: values["rows"][0].update(sent_bytes=wrong))
    with pytest.raises(ConfigError, match=r"beside-ways: results/reference has values of no use .* restore it from"):
        read_pages(project)


def test_a_page_that_is_no_text_is_one_clear_error(project: Path) -> None:
    (project / "docs/results.md").write_bytes(b"caf\xe9")
    with pytest.raises(ConfigError, match=r"docs/results.md: no text in UTF-8 .* save it as UTF-8"):
        read_pages(project)


MEANS = (("metrics", "metric_mean", "metric_half_width", "seeds"), ("ratios", "ratio", "half_width", "pairs"))


def test_committed_means_are_those_of_the_values_beside_them() -> None:
    """A mean that nobody measured would stand on a page."""
    rows = [row for path in (ROOT / REFERENCE).glob("*.json") for row in json.loads(path.read_text()).get("rows", [])]
    found = [(row, names) for row in rows for names in MEANS if names[0] in row and names[1] in row]
    assert len(found) > 400
    for row, (name, mean, half, count) in found:
        values = row[name].values() if isinstance(row[name], dict) else row[name]
        one = interval([*values])
        assert one is not None and row[count] == one.n
        assert [row[mean], row[half]] == pytest.approx([one.mean, one.half_width]), row


# --- layout and words ---


def test_a_block_keeps_its_place() -> None:
    assert laid_out("old", "new " * 60) == "new " * 60, "within a line it stays there"
    wrapped = laid_out("\n\nold\n\n", " ".join(["word"] * 60))
    assert wrapped.startswith("\n\nword") and wrapped.endswith("word\n\n")
    assert max(map(len, wrapped.splitlines())) <= WIDTH
    table = "| a |\n|---|\n| " + "word " * 40 + "|"
    assert laid_out("\nold\n", table) == f"\n{table}\n" and laid_out("\n\n", table) == f"\n{table}\n"
    (block,) = find_blocks("a <!--measured: b -->c<!-- end --> d", "page")
    assert (block.name, block.line) == ("b", 1)


def test_words_follow_from_verdicts() -> None:
    assert on_models({"a": "worse", "b": "worse"}) == "worse on all two"
    assert on_models({"a": "worse", "b": "equal", "c": "worse"}) == "worse on a and c, equal on b"
    assert [of_all(count, 4) for count in (4, 1, 0)] == ["all four", "one of the four", "none of the four"]
    assert (listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])) == ("a", "a and b", "a, b and c")
    assert [p_text(p) for p in (0.0001, 0.0049, 0.163)] == ["< 0.001", "0.005", "0.16"]
    assert (span([0.2, 0.1], 1), span([0.11, 0.1], 1)) == ("0.1 to 0.2", "0.1")
    assert Interval(1.0, None, 1).verdict == "n = 1"


# --- one GPU ---


def test_one_gpu_is_not_run_until_there_are_records_of_one(tmp_path: Path) -> None:
    said = "Not run: no records of a GPU are committed."
    assert one_gpu(Measured(tmp_path)) == said
    of_cpu = memory_file()
    of_cpu["provenance"] |= {"device": "cpu", "uuid": None}
    gpu_records.save(tmp_path, of_cpu, device="cpu-tiny")
    assert one_gpu(Measured(tmp_path)) == said
    assert one_gpu_short(Measured(tmp_path)) == "not run: no records of a GPU are committed"


def test_one_gpu_s_table_stands_beside_the_published_one_and_says_where_it_is_from(tmp_path: Path) -> None:
    values = memory_file()
    broken = next(one for one in values["cases"] if one["name"].startswith("bert-base.topk.w+2d.kept."))
    broken["ranks"][0]["memory"]["total_bytes"] += 1
    gone = next(one for one in values["cases"] if one["name"].startswith("gpt2-large.topk.baseline.kept."))
    gone.update(status="oom", reason="full")
    text = one_gpu(Measured(gpu_records.save(tmp_path, values)))
    table = [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if line.startswith("|")]
    rows = {cells[1]: cells[2:-1] for cells in table}
    assert rows["vgg19"][:5] == ["85.2 % / 84.3 %", "84.3 %", "84.6 %", "75.0 %", "59.3 %"]
    assert rows["bert-base"][:4] == ["86.8 %", ABSENT, ABSENT, "80.0 %"], "what contradicts itself is not shown"
    assert "gpt2-large" not in rows, "there is nothing to compare it with"
    where = "one NVIDIA H200, driver 580.1, torch 2.11.0, commit c0ffee0, 2026-01-02. Not counted, as they contradict"
    assert where in " ".join(text.split()) and "themselves: 1 cell." in " ".join(text.split())
    assert one_gpu_short(Measured(tmp_path)).startswith("NVIDIA H200, driver 580.1")


def group_file(group: str, *results: Any) -> dict[str, Any]:
    """A file of a group whose steps ended well with these results."""
    cases = [
        {
            "name": f"{group}.{n}",
            "status": "ok",
            "device": gpu_records.UUID,
            "date": gpu_records.SOURCE["date"],
            "result": one,
        }
        for n, one in enumerate(results)
    ]
    return {"group": group, "provenance": dict(gpu_records.SOURCE), "cases": cases}


def test_what_else_a_gpu_has_shown_is_told_by_group(tmp_path: Path) -> None:
    assert one_gpu_found(Measured(tmp_path)) == "Not run: no records of a GPU are committed."
    values = memory_file(list(memory_cells(["vgg19"])))
    for case in values["cases"]:
        memory = case["ranks"][0]["memory"]
        case["planned"] = {"total": memory["total_bytes"], "peak_states": memory["peak_states_bytes"]}
    values["cases"][0]["planned"]["total"] += 1
    values["cases"][1]["ranks"][0]["memory"]["total_bytes"] += 1
    passed, failed = ({"outcome": one} for one in ("passed", "failed"))
    other = {"scheme": "baseline", "gradients": "kept"}
    other["compressor"] = "topk"
    row = {"model": "vgg19", "scheme": "baseline", "gradients": "streamed", "compressor": "topk", "against": other}
    dense = {**row, "scheme": "none", "gradients": "kept", "compressor": "none", "ratio": 1.5, "half_width": 0.1}
    compared = {"kernel": "finite", "dtype": "float16", "same": True}
    timed = {"case": "topk, baseline", "elements": 100 << 20, "density": 0.01, "least_seconds": 0.001}
    files = [
        group_file("contracts", {"tests": {"one": passed, "two": passed}}, {"tests": {"one": failed}}),
        group_file("micro", {"rows": [{**timed, "naive_ratio": 2.5, "bound_ratio": 0.3}]}),
        group_file("throughput", {"rows": [row | {"ratio": 1.01, "half_width": 0.02}, dense]}),
        group_file("kernels", {"rows": [compared, {**compared, "same": False}]}),
        group_file(
            "training",
            {"cell": {"model": "x"}, "rows": [{"dtype": "float32", "metric": 93.81, "metric_name": "accuracy"}]},
        ),
    ]
    text = " ".join(one_gpu_found(Measured(gpu_records.save(tmp_path, values, *files))).split())
    assert text.startswith("One NVIDIA H200, driver 580.1, torch 2.11.0, commit c0ffee0, 2026-01-02; all tables:")
    for words in (
        "- `contracts`: 2 of 3 tests passed; `one` failed.",
        "- `memory`: 4 of 5 ranks hold the planned model states, to the byte; at the fullest moment they hold 1.000",
        "- `throughput`: `baseline` streamed over `baseline` kept, steps per second: vgg19 1.010 ± 0.020.",
        "- `throughput`: no compression over `baseline` kept, steps per second: vgg19 1.500 ± 0.100.",
        "- `micro`: a gradient compressed by top-k at 0.01 with its full residual: 100 Mi elements 1.00 ms, 2.50 times",
        "- `kernels`: 1 of 2 have the bits of plain torch, at all sizes and precisions that were run; not `finite,",
        "- `training`: x, accuracy: float32 93.8.",
    ):
        assert words in text
