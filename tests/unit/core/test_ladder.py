"""The ladder of memory, with a GPU that is none: which figure stands on which rung, and why one is missing."""

import os
import threading
import time

import pynvml
import pytest
import torch

from benchmarks.core.devices import NO_PROCESS, Idle, Nvml, NvmlUnavailable
from benchmarks.core.rank_memory import EVALUATION, METHODS, STEADY, Rung, rung_problem
from benchmarks.training.measure.probe import Meter
from tests.gpus import MIB, FakeCuda, FakeGpu, FakeNvml

UUID = "11111111-2222-3333-4444-555555555555"
GPU = torch.device("cuda", 0)


def by_name(meter: Meter) -> dict[str, Rung]:
    rungs = meter.rungs()
    assert [rung.name for rung in rungs] == list(METHODS), "every rung is there, with bytes or a reason"
    return {rung.name: rung for rung in rungs}


def climb(gpu: FakeGpu, nvml: FakeNvml, cuda: FakeCuda) -> Meter:
    """A run that holds 100 MiB and a bit, needs 300 in warm-up, 200 in steps after it, and 400 in an evaluation."""

    def use(mebibytes: int) -> None:
        cuda.allocate(mebibytes * MIB)
        gpu.used_bytes += mebibytes * MIB
        gpu.processes[os.getpid()] = (gpu.processes[os.getpid()] or 0) + mebibytes * MIB

    opened = Nvml(nvml)
    idle = opened.idle()
    gpu.used_bytes += 450 * MIB  # the context
    gpu.processes[os.getpid()] = 450 * MIB
    device = opened.device(UUID)
    meter = Meter(GPU, device, idle.get(device.uuid), 1, cuda)
    meter.start()
    use(100)
    cuda.allocate(4)  # a step counter
    for window, mebibytes in ((None, 200), (STEADY, 100), (EVALUATION, 300), (STEADY, 50)):
        if window:
            meter.enter(window)
        use(mebibytes)
        meter.sample()
        use(-mebibytes)
    meter.stop()
    meter.at_boundary({"parameters": [torch.empty(100 * MIB, dtype=torch.uint8, device="meta")]})
    meter.without_gradients()
    return meter


@pytest.fixture
def gpu() -> FakeGpu:
    return FakeGpu(f"GPU-{UUID}", used_bytes=30 * MIB)


def test_each_method_has_its_own_rung_and_windows_stay_apart(gpu: FakeGpu) -> None:
    rungs = by_name(climb(gpu, FakeNvml(gpu), FakeCuda()))
    assert rungs["model_state_itemised"].bytes == 100 * MIB
    assert rungs["allocated"].bytes == 100 * MIB + 512
    peak = rungs["peak_allocated"]
    assert (peak.warmup_bytes, peak.bytes, peak.evaluation_bytes) == tuple(n * MIB + 512 for n in (300, 200, 400))
    device = rungs["nvml_device"]
    assert device.baseline_bytes == 30 * MIB
    assert (device.warmup_bytes, device.bytes, device.evaluation_bytes) == tuple(n * MIB for n in (780, 680, 880))
    assert rungs["peak_reserved"].bytes >= peak.evaluation_bytes, "what an evaluation leaves cached stays reserved"
    assert not any(rung.flags for rung in rungs.values())
    process = rungs["nvml_process"]
    assert (process.warmup_bytes, process.bytes, process.evaluation_bytes) == tuple(n * MIB for n in (750, 650, 850))


@pytest.mark.parametrize("processes", [{}, {os.getpid(): None}, {os.getpid(): 0}, {4_194_999: 5 * MIB}])
def test_without_process_memory_it_is_what_the_device_has_more_than_when_idle(processes: dict[int, int | None]) -> None:
    gpu = FakeGpu(f"GPU-{UUID}", used_bytes=30 * MIB)
    nvml = FakeNvml(gpu)
    device = Nvml(nvml).device(UUID)
    gpu.processes = processes
    reading = device.read()
    assert reading.process_bytes is None and reading.process_reason == NO_PROCESS
    meter = Meter(GPU, device, Idle(20 * MIB), 1, FakeCuda())
    meter.start()
    gpu.used_bytes = 70 * MIB
    meter.stop()
    meter.at_boundary({})
    meter.without_gradients()
    process = by_name(meter)["nvml_process"]
    assert process.bytes == 50 * MIB and "pid-namespace" in process.flags and "less its idle baseline" in process.method


@pytest.mark.parametrize(("ranks", "pids"), [(2, ()), (1, (77,))])
def test_a_device_that_others_use_says_nothing_of_this_process(ranks: int, pids: tuple[int, ...]) -> None:
    gpu = FakeGpu(f"GPU-{UUID}", used_bytes=30 * MIB)
    meter = Meter(GPU, Nvml(FakeNvml(gpu)).device(UUID), Idle(30 * MIB, pids), ranks, FakeCuda())
    meter.start()
    meter.stop()
    meter.at_boundary({})
    meter.without_gradients()
    rungs = by_name(meter)
    assert rungs["nvml_process"].bytes is None and rungs["nvml_process"].reason == NO_PROCESS
    assert ("foreign-process" if pids else "shared-device") in rungs["nvml_device"].flags


def test_a_process_that_comes_later_is_found_by_counting(gpu: FakeGpu) -> None:
    gpu.processes = {1234: 100 * MIB, os.getpid(): MIB}
    meter = Meter(GPU, Nvml(FakeNvml(gpu)).device(UUID), Idle(0), 1, FakeCuda())
    meter.start()
    meter.stop()
    meter.at_boundary({})
    meter.without_gradients()
    rungs = by_name(meter)
    assert "foreign-process" in rungs["nvml_device"].flags
    assert (rungs["nvml_process"].bytes, rungs["nvml_process"].flags) == (MIB, ()), "NVML tells them apart"


def test_what_nvml_refuses_is_a_reason(gpu: FakeGpu) -> None:
    gpu.memory_error, gpu.process_error = pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_NOT_SUPPORTED
    rungs = by_name(climb(gpu, FakeNvml(gpu), FakeCuda()))
    assert rungs["nvml_device"].reason == "NVML, memory of the device: Insufficient Permissions"
    assert rungs["nvml_process"].reason == "NVML, memory of processes: Not Supported"
    assert rungs["peak_allocated"].bytes is not None


def test_the_difference_to_the_allocator_is_explained(gpu: FakeGpu) -> None:
    meter = climb(gpu, FakeNvml(gpu), FakeCuda(allocated=7 * 512, requested=7 * 512))
    difference = meter.ladder()["difference"]
    assert difference["baseline_bytes"] == 7 * 512
    assert difference["rounding_bytes"] == 508, "a counter of 4 bytes takes 512"
    # The tensor stands for one on the GPU, but lies on none: it is all in the rest, with the counter.
    assert difference["states_bytes"] == 0 and difference["other_bytes"] == 100 * MIB + 4


def test_without_a_gpu_rungs_say_why_and_the_host_is_measured() -> None:
    meter = Meter(torch.device("cpu"), "no CUDA device")
    meter.start()
    meter.stop()
    meter.at_boundary({"parameters": [torch.zeros(3)]})
    meter.without_gradients()
    rungs = by_name(meter)
    assert {rung.reason for rung in rungs.values() if rung.bytes is None} == {"no CUDA device"}
    assert [name for name, rung in rungs.items() if rung.bytes] == ["model_state_itemised", "resident", "peak_resident"]
    assert rungs["peak_resident"].bytes >= rungs["resident"].bytes * 0.99
    assert meter.ladder()["difference"] is None


def test_a_device_is_found_by_uuid_never_by_number() -> None:
    other, mine = FakeGpu("GPU-other"), FakeGpu(f"GPU-{UUID}")
    nvml = Nvml(FakeNvml(other, mine))
    for name in (UUID, f"GPU-{UUID}"):
        assert nvml.device(name, 0, "1").uuid == mine.uuid
    with pytest.raises(NvmlUnavailable, match="no device GPU-unknown: Not Found"):
        nvml.device("unknown")


def test_a_slice_is_found_and_its_whole_is_not_taken_for_it() -> None:
    part = FakeGpu("MIG-abc", used_bytes=5 * MIB, is_slice=True)
    whole = FakeGpu(f"GPU-{UUID}", slices=[part], memory_error=pynvml.NVML_ERROR_NO_PERMISSION)
    nvml = Nvml(FakeNvml(whole))
    assert nvml.idle() == {whole.uuid: Idle(None), part.uuid: Idle(5 * MIB)}
    found = nvml.device(UUID, 0, "MIG-abc")
    assert found.uuid == "MIG-abc" and found.is_mig and nvml.device("abc").uuid == "MIG-abc"
    with pytest.raises(NvmlUnavailable, match="split"):
        nvml.device(UUID)


def test_a_meter_looks_often_and_once_more_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.training.measure.probe.INTERVAL_SECONDS", 30.0)
    gpu = FakeGpu(f"GPU-{UUID}", used_bytes=MIB)
    nvml = FakeNvml(gpu)
    meter = Meter(GPU, Nvml(nvml).device(UUID), cuda=FakeCuda())
    meter.start()
    before = nvml.reads
    gpu.used_bytes = 9 * MIB
    meter.step_done()
    deadline = time.monotonic() + 10
    while nvml.reads == before and time.monotonic() < deadline:
        time.sleep(0.002)
    gpu.used_bytes = MIB
    meter.stop()
    meter.at_boundary({})
    meter.without_gradients()
    assert by_name(meter)["nvml_device"].warmup_bytes == 9 * MIB
    assert not any(thread.name == "nvml-sampler" for thread in threading.enumerate())


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"bytes": None}, "give one of them"),
        ({"bytes": -1}, "whole numbers"),
        ({"bytes": None, "reason": "two\nlines"}, "texts of one line"),
    ],
)
def test_a_rung_that_contradicts_itself_is_found(change: dict[str, object], problem: str) -> None:
    good = Rung(name="resident", method="statm", bytes=5).as_dict()
    assert rung_problem(good) is None
    assert problem in str(rung_problem(good | change))
