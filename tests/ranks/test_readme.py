"""The code and the tables of README and of the pages about the library, as they stand there."""

import contextlib
import io
import re
import runpy
import shlex
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from resireduce.__main__ import main
from resireduce.comm.base import Communicator
from resireduce.comm.nodes import NodeSlices
from resireduce.grouping import Grouping, compressible
from resireduce.pipeline import find_grouping
from resireduce.planning.memory import residual_bytes
from resireduce.planning.models import find_builder
from resireduce.scheme import MERGES, RESIDUAL_DTYPES, SCHEMES, build_residual
from tests.processes import on_processes
from tests.ranks.trainers import shared_folder
from tests.worlds import Net, loss_of, residuals, same, seeded

ROOT = Path(__file__).parents[2]
LIBRARY = ("tutorial", "library", "refused")
README = (ROOT / "README.md").read_text(encoding="utf-8")
MANUAL = "".join((ROOT / f"docs/{name}.md").read_text(encoding="utf-8") for name in LIBRARY)
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
SECTIONS = dict(re.findall(r"^##? (.+?)\n(.*?)(?=^##? |\Z)", MANUAL, re.MULTILINE | re.DOTALL))
TRAINS = ("Compressors", "DGC in full", "Groups and specific layers", "Two levels: nodes")
TRAINS += ("Buckets: which tensors travel together",)
"""Sections whose code goes before the loop of the tutorial."""


def code(section: str, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", SECTIONS[section], re.MULTILINE | re.DOTALL)


def table(section: str) -> list[dict[str, str]]:
    """The rows of a section's table, by heading, without backticks."""
    head, _, *rows = [line.strip("|").split("|") for line in SECTIONS[section].splitlines() if line.startswith("|")]
    return [
        {key.strip(" `"): value.strip().replace("`", "") for key, value in zip(head, row, strict=True)} for row in rows
    ]


def test_the_training_loop_of_the_readme_trains(alone: None) -> None:
    (loop,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    model = nn.Sequential(*[nn.Linear(120, 120) for _ in range(3)])
    before = [parameter.clone() for parameter in model.parameters()]
    batches = torch.randn(3, 5, 120, generator=torch.Generator().manual_seed(0))

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).square().mean()

    exec(loop, {"torch": torch, "model": model, "batches": batches, "loss": loss})
    assert not any(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def check_the_whole_script(communicator: Communicator) -> None:
    """As torchrun runs it, which has joined the ranks already."""
    joined = patch("torch.distributed.init_process_group"), patch("torch.distributed.destroy_process_group")
    on_cpu, reading = patch("torch.cuda.is_available", return_value=False), contextlib.redirect_stdout(io.StringIO())
    with joined[0], joined[1], on_cpu, reading as said:
        runpy.run_path(str(ROOT / "docs/quickstart.py"))["main"]("w+2d")
    if communicator.rank == 0:
        (right,), numbers = re.findall(r"([0-9.]+) %", said.getvalue()), re.findall(r"[0-9,]{6,}", said.getvalue())
        total, residuals = (int(one.replace(",", "")) for one in numbers)
        assert float(right) > 90, "without training it is half"
        assert 2 * residuals == 2 * 128 * 128 * 4 < total


def test_the_whole_script_trains_two_ranks_and_tells_what_they_hold() -> None:
    on_processes(2, check_the_whole_script)


def check_page(communicator: Communicator) -> None:
    """Two ranks stop and go on, and are then where two that never stopped are; the other snippets train too."""
    (start, loop), (save, load, checkpoint, share) = code("2. Three lines in your loop"), code("4. Stop and go on")
    mine = [torch.Generator().manual_seed(2 * step + communicator.rank) for step in range(3)]
    names = {"build_model": lambda: seeded(Net), "loss": lambda model, seed: loss_of(model, seed.clone_state())}
    page, again = {**names, "batches": mine}, {**names, "batches": mine}
    exec(code("3. Choose what to store")[0], page)
    assert page["states"]["total"] > 0
    exec(start + loop + save + checkpoint + loop, page)
    whole = page["model"]
    dist.barrier()
    exec(start + load, again)
    for residual in residuals(again["optimizer"]).values():
        residual.zero_()  # what the files of `load` have brought: the checkpoint has it too
    exec(re.sub("dcp.save.*", "", checkpoint) + loop, again)
    assert again["model"] is not whole and same(again["model"], whole) and not same(whole, seeded(Net))
    exec(load + share + loop, again)
    exec(code("5. In DistributedDataParallel")[0], page)
    assert residuals(page["compressed"])
    exec(code("Closing the optimizer")[0], page)
    assert page["optimizer"].wrapped is page["plain"] and not same(page["model"], seeded(Net))
    exec(code("Clipping, and half precision")[0], page)
    assert page["optimizer"].grad_norm is not None and not page["optimizer"].overflowed
    for section in TRAINS:
        (snippet,) = code(section)
        exec(snippet + loop + code("Gradient accumulation")[0], page)
        assert not same(page["model"], seeded(Net))
    exec(code("Gradient accumulation")[1], page)
    assert not same(page["model"], seeded(Net))
    assert len(page["groups"]["groups"]) == 2


def in_a_folder(communicator: Communicator) -> None:
    """Both ranks in rank 0's folder, where nothing else is."""
    with shared_folder():
        check_page(communicator)


def test_the_snippets_of_the_page_train_stop_and_go_on_on_two_ranks() -> None:
    on_processes(2, in_a_folder)


def test_every_snippet_of_the_page_is_run() -> None:
    by_name = {"2. Three lines in your loop", "3. Choose what to store", "4. Stop and go on"}
    by_name |= {"5. In DistributedDataParallel", "Closing the optimizer", "Clipping, and half precision"}
    by_name |= {"Gradient accumulation"}
    assert {section for section in SECTIONS if code(section)} == {*by_name, *TRAINS}


def test_what_the_page_says_that_may_travel_together() -> None:
    rows = table("Buckets: which tensors travel together")
    named = {name for row in rows for name in re.findall(r'"([^"]+)"', row["merge"])}
    assert named == set(MERGES)


def test_the_commands_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    (commands,) = code("3. Choose what to store", "")
    for command in commands.splitlines():
        python, dash, module, *arguments = shlex.split(command)
        assert (python, dash, module, main(arguments)) == ("python", "-m", "resireduce", 0)
    assert "w+2d" in capsys.readouterr().out


def test_what_the_page_says_that_schemes_save() -> None:
    rows = table("Schemes")
    assert {row["Scheme"] for row in rows} == set(SCHEMES)
    for name in ("vgg19", "bert-base", "gpt2-medium", "resnet50"):
        with torch.device("meta"):
            model = find_builder(name)()
        parameters = compressible(model)
        held = residual_bytes(parameters, find_grouping(model, "auto", parameters))
        for row in rows:
            assert row[name] == f"{100 * (1 - held[row['Scheme']] / held['baseline']):.1f} %", (name, row["Scheme"])


def test_what_the_page_says_that_two_levels_hold() -> None:
    """Streamed, by SGD with momentum, as large as the parameters; against kept gradients and whole residuals."""
    for row in table("Two levels: nodes"):
        with torch.device("meta"):
            model = find_builder(row["Model"])()
        whole, total = compressible(model), sum(p.nbytes for p in model.parameters())
        grouping = find_grouping(model, "auto", whole)
        slices = {name: torch.empty(NodeSlices(p.shape, 8).shape_of(0), device="meta") for name, p in whole.items()}
        flat, by_nodes = (residual_bytes(tensors, grouping) for tensors in (whole, slices))
        held = [flat["baseline"], by_nodes["baseline"], by_nodes["w+2d"]]
        shares = [f"{100 * (2 * total + one) / (3 * total + held[0]):.1f} %" for one in held]
        sizes = [f"{one / 2**20:,.1f} MiB" for one in held[:2]]
        assert [*row.values()] == [row["Model"], *sizes, *shares]


def test_what_the_page_says_that_precisions_take() -> None:
    rows = table("Precision of residuals")
    assert [row["residual_dtype"] for row in rows] == ["None", *RESIDUAL_DTYPES]
    like = torch.empty(64, 100, dtype=torch.float64)
    for row in rows[1:]:
        residual = build_residual("baseline", Grouping(), row["residual_dtype"]).of("w")
        residual.register("w", like)
        assert residual.nbytes() / like.numel() == float(row["Bytes an element"]), row


@pytest.mark.parametrize("page", ["refused", "trainers", "fsdp"])
def test_the_messages_of_a_page_are_the_library_s(page: str) -> None:
    library = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "resireduce").rglob("*.py"))
    _, _, rows = (ROOT / f"docs/{page}.md").read_text(encoding="utf-8").partition("| Said |")
    rows, _, _ = rows.partition("\n\n")
    said = [text for row in rows.splitlines()[2:] for text in re.findall("`([^`]+)`", row.split("|")[1])]
    assert len(said) > 5 and [text for text in said if text not in library] == []
    assert all(row.rstrip(" |").count("|") == 3 for row in rows.splitlines()[2:]), "each has a cure"


@pytest.mark.parametrize("name", sorted(path.relative_to(ROOT).as_posix() for path in PAGES))
def test_links_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", text):
        file = (ROOT / name).parent / target if target else ROOT / name
        assert file.exists(), f"{name}: {target}"
        if anchor:
            heads = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}, anchor
