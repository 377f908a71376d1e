"""What all tests share."""

import gc
import sys

import pytest
from hypothesis import settings

# Optimizers of others (Makefile): behind all else, and not in the environment, whose processes would load them.
sys.path.append(f"{sys.prefix}/optimizers")

# The same examples on every run and machine; a slow machine is no failure.
settings.register_profile("suite", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("suite")


# What 8,700 tests and all that they import leave on the heap lives to the end: looked through again in each full
# collection of garbage, it would take a minute of the tests' time.
gc.disable()


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()


@pytest.fixture
def own_settings():
    """Put back what a rank sets for its whole process."""
    import torch

    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    with torch.random.fork_rng(devices=[]):
        yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)


@pytest.fixture
def no_figures(monkeypatch):
    """Figures take most of a report's time; some tests draw them."""
    from benchmarks.analysis.charts import draw

    def blank(tables):
        return {table.name: draw.Drawn(table.name, None, {}, "<svg/>", b"\x89PNG", b"%PDF") for table in tables}

    monkeypatch.setattr(draw, "draw_all", blank)
