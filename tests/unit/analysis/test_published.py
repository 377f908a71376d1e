"""The paper's numbers as data: complete, and one clear line for a file that is not right."""

from pathlib import Path

import pytest

from benchmarks.analysis.published import NUMBERS_FILE, load_published
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
    ("old", "new", "message"),
    [
        ("table2-baseline-vgg19,", "table2-baseline-resnet50,", "it is there twice"),
        (",quantity,", ",colour,", "the row cannot be read: KeyError: 'quantity'"),
        (",72.6,", ",72.6%,", "could not convert string to float: '72.6%'"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = NUMBERS_FILE.read_text()
    assert old in text
    path = tmp_path / "numbers.csv"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        load_published(path)
    assert message in str(caught.value) and "\n" not in str(caught.value)
