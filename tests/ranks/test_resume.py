"""Killed at any step, training goes on from its checkpoint as if nothing had happened: bit for bit."""

import multiprocessing
import random
import time
from itertools import cycle
from pathlib import Path

import pytest
import torch

from resireduce.scheme import GRADIENTS, SCHEMES
from tests.ranks import resumed

COMPRESSORS = ("topk", "dgc", "randomk", "threshold", "dgc-momentum", "qsgd-max", "sidco-exp")
DTYPES = (None, "int4", "bfloat16", "int8", "float8_e4m3")
ROWS = [*zip(SCHEMES, cycle(COMPRESSORS), cycle(GRADIENTS), cycle(DTYPES), strict=False)]
"""Scheme, compressor, lifetime and precision of trainings, each of which is killed at another step."""


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_killed_at_any_step_it_goes_on_bit_for_bit(row: tuple[str | None, ...], tmp_path: Path) -> None:
    options = dict(zip(("scheme", "compressor", "gradients", "residual_dtype"), row, strict=True))
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    killed.mkdir()
    whole.mkdir()
    at = random.Random(str(row)).randrange(2, resumed.STEPS - 4)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.ranks.resumed"])
    process = context.Process(target=resumed.main, args=(str(killed), options))
    process.start()
    while process.is_alive() and not (killed / f"{at}.0.pt").exists():
        time.sleep(0.001)
    process.kill()
    process.join()
    assert process.exitcode == -9, "it was to be killed while it ran"
    assert at - 1 <= int((killed / "last").read_text()) < resumed.STEPS
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        resumed.train(killed, options)
        resumed.train(whole, options)
    finally:
        torch.set_num_threads(threads)
    expected, found = resumed.parameters(whole), resumed.parameters(killed)
    assert expected.keys() == found.keys() and all(torch.equal(expected[name], found[name]) for name in expected)
