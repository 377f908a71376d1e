"""`python -m benchmarks measure links`: two nodes on this machine, and every form of a step on them."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.core.paths import ROOT
from benchmarks.micro import links_command
from benchmarks.micro.links_command import UNSLOWED, slow_nodes
from benchmarks.micro.pace import make_cells
from resireduce.scheme import MERGES

PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
TBF = "tbf rate 1mbit burst 8kb latency 50ms"


def nodes_or_skip() -> None:
    """Skip where this user may not make networks."""
    if os.name != "posix" or os.geteuid() != 0:
        pytest.skip("needs root")
    script = f"export PATH={PATH}; ip link add name end type veth && tc qdisc add dev end root {TBF}"
    if subprocess.run(["unshare", "--net", "sh", "-c", script], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces, or no links that can be slowed, for this root")


def test_every_form_is_timed_flat_and_by_nodes_where_it_can_be() -> None:
    cells = make_cells("gpt2-bytes", links_command.FORMS)
    assert len({cell.name for cell in cells}) == len(cells) == 2 * len(links_command.FORMS)
    assert {cell.merge for cell in cells if cell.density == 0.01} == {*MERGES, links_command.SIZE_BYTES}
    single = make_cells("gpt2-bytes", links_command.FORMS, nodes=3, ranks_per_node=1)
    assert {(cell.world_size, cell.hierarchy) for cell in single} == {(3, "flat")}
    assert len(single) == len(links_command.FORMS)


def test_a_config_without_the_model_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    larger = str(ROOT / "benchmarks/config/larger.yaml")
    assert main(["measure", "links", "--config", larger, "--model", "vgg-digits"]) == 2
    assert capsys.readouterr().err.startswith(f"error: config: no setting of vgg-digits in {larger}\n")


def test_medians_are_those_of_the_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def nodes(rate: str, count: int):  # type: ignore[no-untyped-def]
        yield [["env"]] * count

    rank, count = tmp_path / "python", 2 * len(links_command.FORMS)
    seconds = [[2.0 * number + one for one in range(7)] for number in range(count)]
    found_by_ranks = {"seconds": seconds, "merged": [{"messages": number, "costs": None} for number in range(count)]}
    rank.write_text(f"#!/bin/sh\necho '{json.dumps(found_by_ranks)}' > $4/rank$RANK.json\n")
    rank.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(rank))
    monkeypatch.setattr(links_command, "slow_nodes", nodes)
    output = tmp_path / "links.json"
    assert main(["measure", "links", "--rounds", "7", "--steps", "2", "--output", str(output)]) == 0
    rows = json.loads(output.read_text())["rows"]
    assert [row["median"] for row in rows] == [(2.0 * number + 3) / 2 for number in range(count)]
    assert [row["messages"] for row in rows] == [*range(count)]


def said_on(node: list[str], *command: str) -> str:
    path = ["env", f"PATH={PATH}"]
    return subprocess.run([*node, *path, *command], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(("rate", "count"), [("100mbit", 3), (UNSLOWED, 2)])
def test_nodes_reach_each_other_at_the_rate_of_their_links_and_nothing_else(rate: str, count: int) -> None:
    nodes_or_skip()
    before = said_on([], "ls", "/sys/class/net")
    with slow_nodes(rate, count) as nodes:
        for number, node in enumerate(nodes, 1):
            interfaces = said_on(node, sys.executable, "-c", "import socket; print(socket.if_nameindex())")
            assert "'eth0'" in interfaces and interfaces.count("(") == 2
            shown = said_on(node, "tc", "qdisc", "show", "dev", "eth0")
            assert ("tbf" in shown) == ("rate 100Mbit" in shown) == (rate != UNSLOWED)
            others = [f"10.88.0.{other}" for other in range(1, count + 1) if other != number]
            reach = f"print(*(socket.socket().connect_ex((one, 9)) == errno.ECONNREFUSED for one in {others}))"
            found = said_on(node, sys.executable, "-c", f"import errno, socket; {reach}").split()
            assert found == ["True"] * (count - 1), "somebody is there, who does not listen"
        held = nodes[0][1].removeprefix("--net=")
    assert not Path(held).exists() and said_on([], "ls", "/sys/class/net") == before
