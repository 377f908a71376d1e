"""Killed at any step, training goes on from its checkpoint as if nothing had happened: bit for bit."""

import multiprocessing
import random
import time
from pathlib import Path

import pytest
import torch

from tests.ranks import resumed

ROWS = [
    ("baseline", "topk", "streamed", None),
    ("baseline", "topk", "kept", None),
    ("none", "topk", "streamed", None),
    ("a", "topk", "streamed", None),
    ("w", "topk", "streamed", None),
    ("w", "dgc", "kept", "int4"),
    ("member", "topk", "streamed", None),
    ("d", "topk", "streamed", None),
    ("2d", "topk", "kept", "int8"),
    ("w+2d", "topk", "streamed", None),
    ("w+2d", "topk", "streamed", "int4"),
    ("w+2d", "topk", "streamed", "bfloat16"),
    ("w+2d", "dgc-momentum", "streamed", None),
    ("partial", "randomk", "streamed", "float8_e4m3"),
    ("baseline", "randomk", "streamed", None),
    ("baseline", "threshold", "streamed", None),
    ("baseline", "dgc-simple", "streamed", None),
    ("baseline", "fp16", "kept", None),
    ("baseline", "qsgd", "streamed", None),
    ("baseline", "qsgd-max", "streamed", "int8"),
]
"""Scheme, compressor, lifetime and precision of twenty trainings, each of which is killed at another step."""


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
