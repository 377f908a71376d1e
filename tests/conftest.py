"""What all tests share."""

import gc
import os
import sys

import pytest
from hypothesis import settings

# Optimizers of others (Makefile): behind all else, and not in the environment, whose processes would load them.
sys.path.append(f"{sys.prefix}/optimizers")

# The same examples on every run and machine; a slow machine is no failure.
settings.register_profile("suite", deadline=None, derandomize=True, max_examples=15)
settings.load_profile("suite")


# What thousands of tests and all that they import leave on the heap lives to the end: looked through again in each full
# collection of garbage, it would take a minute of the tests' time.
gc.disable()


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def quick_garbage():
    """Collections of garbage, and the library's search for a GradScaler, look at nothing from before this module."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def ranks_on_one_core():
    """Ranks that are threads share Python's lock: on two cores a third of their time would go into passing it on."""
    from tests.threads import LocalWorld

    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores, worker = sorted(os.sched_getaffinity(0)), os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    core = {cores[int(worker.removeprefix("gw")) % len(cores)]}
    guard = LocalWorld._guard

    def guard_on_core(self, work, rank):
        os.sched_setaffinity(0, core)  # of this thread alone
        return guard(self, work, rank)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalWorld, "_guard", guard_on_core)
        yield


@pytest.fixture(autouse=True)
def own_environment():
    """What a command sets for its whole process ends with the test: another one of this worker would inherit it."""
    before = os.environ.copy()
    yield
    for name in (os.environ.keys() | before.keys()) - {"PYTEST_CURRENT_TEST"}:  # pytest's own
        if name not in before:
            del os.environ[name]
        elif os.environ.get(name) != before[name]:
            os.environ[name] = before[name]


@pytest.fixture
def alone(tmp_path):
    """A process group of this process only."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


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
