"""The paper's numbers as data: complete, and one clear line for a file that is not right."""

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.analysis.published import COLUMNS, load_published
from benchmarks.core.config_reader import read_config
from benchmarks.core.workloads import WORKLOADS
from resireduce.errors import ConfigError
from resireduce.scheme import COMPRESSORS, SCHEMES

TABLE_SIZES = {"table1": 6, "table2": 8, "table3": 16, "table4": 16}
"""How many values each table of the paper holds."""


def test_each_table_of_the_paper_is_whole() -> None:
    names = [name.split("-")[0] for name in load_published()]
    assert {table: names.count(table) for table in TABLE_SIZES} == TABLE_SIZES


def test_values_name_what_this_project_knows() -> None:
    parts = read_config(Path("benchmarks/config/paper.yaml"))["parts"]
    for one in load_published().values():
        assert one.model is None or one.model in WORKLOADS, one
        assert one.scheme is None or one.scheme in SCHEMES, one
        assert one.compressor is None or one.compressor in COMPRESSORS, one
        assert one.experiment is None or one.experiment in parts, one


def test_values_that_the_paper_states_twice_agree() -> None:
    numbers = load_published()
    assert numbers["abstract-saving-max"].value == numbers["exp1-cloud-saving-vgg19"].value
    assert numbers["exp2-local-resireduce-bert-base"].value == numbers["table4-resireduce-0.01-bert-base"].value
    assert numbers["exp2-local-none-bert-base"].value == numbers["table4-none-bert-base"].value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: [*rows, rows[1]], "row 4: id: 'a' is there twice"),
        (lambda rows: [[*rows[0], "colour"], *([*row, "red"] for row in rows[1:])], "'colour' is not known"),
        (lambda rows: [rows[0], with_value(rows[1], "72.6%")], "value: '72.6%' is no number"),
        (lambda rows: [rows[0], rows[1][:-2]], "it has not 12 columns"),
    ],
)
def test_a_wrong_file_is_one_line(
    tmp_path: Path, change: Callable[[list[list[str]]], list[list[str]]], message: str
) -> None:
    rows = [list(COLUMNS), row("a"), row("b")]
    with (path := tmp_path / "numbers.csv").open("w", newline="") as file:
        csv.writer(file).writerows(change(rows))
    with pytest.raises(ConfigError) as caught:
        load_published(path)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def row(name: str) -> list[str]:
    return [name, "Table 2", "", "resnet50", "baseline", "topk", "0.01", "64", "metric", "72.6", "%", ""]


def with_value(row: list[str], value: str) -> list[str]:
    return [*row[:9], value, *row[10:]]
