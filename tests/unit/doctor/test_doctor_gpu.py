"""The doctor's checks of GPUs, on machines that stand-ins describe."""

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.core.devices import NO_PROCESS, Nvml
from benchmarks.doctor import gpu_checks as gpu
from benchmarks.doctor import in_child as probe
from benchmarks.doctor.finding import FAILED, NOT_RUN, OK, WARNING, Finding
from benchmarks.doctor.gpu_checks import Facts, Gpu, Machine, ask
from tests.findings import only
from tests.gpus import MIB, FakeGpu, FakeNvml

H100 = Gpu("NVIDIA H100", (9, 0), 80 << 30)
CPU_BUILD = Facts(torch="2.13.0+cpu", nvml_error="NVML: library not found")
NO_GPU = Facts(torch="2.10.0", cuda="12.8", nccl="2.27.5", no_gpu="Found no NVIDIA driver")
CRASH = Facts(error="the process that asks them ended with -11: it printed nothing")
BARE, WITH_DRIVER = Machine(None, False), Machine("570.86.15", True)


def with_gpu(*gpus: Gpu, **more: Any) -> Facts:
    known: dict[str, Any] = {"libcuda": True, "driver": "570.86.15", "driver_cuda": (12, 8)}
    known |= {"torch": "2.10.0", "cuda": "12.8", "nccl": "2.27.5", "gpus": gpus or (H100, H100)}
    return Facts(**(known | more))


def statuses(findings: list[Finding]) -> list[str]:
    return [finding.status for finding in findings]


# --- gpu ---


def test_gpus_that_multiply_are_ok():
    said = only(gpu.check_gpu(with_gpu(), needed=True), OK)
    assert said.startswith("2 x NVIDIA H100 (sm_90, 80.0 GiB)")


@pytest.mark.parametrize(
    ("facts", "environment", "words"),
    [
        (CPU_BUILD, {}, "built for CPUs -> image cuda12"),
        (NO_GPU, {}, "torch sees no GPU: Found no NVIDIA driver"),
        (NO_GPU, {"CUDA_VISIBLE_DEVICES": ""}, "among CUDA_VISIBLE_DEVICES='' -> unset CUDA_VISIBLE_DEVICES"),
        (Facts(torch_error="ImportError: libcudnn"), {}, "ImportError: libcudnn -> see check packages"),
    ],
)
def test_no_gpu_is_not_run_unless_one_is_needed(facts, environment, words):
    assert statuses(gpu.check_gpu(facts, False, environment)) == [NOT_RUN]
    assert words in only(gpu.check_gpu(facts, True, environment), FAILED)


def test_a_driver_that_answers_beside_a_torch_that_sees_no_gpu_is_a_failure():
    facts = with_gpu(gpus=(), no_gpu="CUDA unknown error")
    assert "CUDA unknown error" in only(gpu.check_gpu(facts, environment={}), FAILED)
    assert statuses(gpu.check_gpu(facts, environment={"CUDA_VISIBLE_DEVICES": ""})) == [NOT_RUN]


def test_a_crash_of_torch_or_the_driver_is_a_failure_even_if_no_gpu_is_needed():
    assert "ended with -11" in only(gpu.check_gpu(CRASH), FAILED)


def test_every_gpu_that_fails_has_a_line():
    old = Gpu("Tesla P100", (6, 0), 16 << 30, error="CUDA error: no kernel image is available")
    first, second = gpu.check_gpu(with_gpu(old, H100, old))
    assert first.detail.startswith("GPU 0, Tesla P100 (sm_60): CUDA error: no kernel image")
    assert (second.status, second.detail[:5]) == (FAILED, "GPU 2")


# --- driver ---


@pytest.mark.parametrize(
    ("version", "newest", "cuda", "status"),
    [
        ("570.86.15", (12, 8), "12.8", OK),
        ("535.104.05", (12, 2), "12.8", OK),  # minor version compatibility
        ("520.61.05", (11, 8), "12.8", FAILED),
        ("570.86.15", (12, 8), "13.0", FAILED),
    ],
)
def test_the_driver_must_know_torchs_major_version(version, newest, cuda, status):
    facts = with_gpu(driver=version, driver_cuda=newest, cuda=cuda)
    (finding,) = gpu.check_driver(facts, WITH_DRIVER)
    assert finding.status == status, finding
    if status == FAILED:
        assert f"too old for torch's CUDA {cuda}" in finding.detail
        assert f"a driver for CUDA {cuda[:2]}" in finding.cure


def test_a_container_without_access_to_the_gpus_is_a_failure():
    facts = Facts(torch="2.10.0", cuda="12.8", nvml_error="NVML: library not found")
    said = only(gpu.check_driver(facts, Machine("570.86.15", False)), FAILED)
    assert "not its library libcuda" in said and "--gpus all" in said and "--nv" in said
    no_files = with_gpu(gpus=(), driver_cuda=None)
    assert "not its device files" in only(gpu.check_driver(no_files, Machine("570.86.15", False)), FAILED)


@pytest.mark.parametrize(
    ("facts", "machine", "words"),
    [
        (NO_GPU, BARE, "no NVIDIA driver"),
        (with_gpu(gpus=(), driver_cuda=None, nvml_error="NVML: library not found"), BARE, "the driver does not answer"),
        (CPU_BUILD, BARE, "built for CPUs"),
        (Facts(torch_error="ImportError: no"), WITH_DRIVER, "ImportError"),
        (CRASH, WITH_DRIVER, "ended with -11"),
    ],
)
def test_no_driver_is_not_run_unless_a_gpu_is_needed(facts, machine, words):
    assert words in only(gpu.check_driver(facts, machine), NOT_RUN)
    assert words in only(gpu.check_driver(facts, machine, needed=True), FAILED)


def test_a_driver_that_torch_cannot_use_is_a_warning():
    assert "cells train without a GPU" in only(gpu.check_driver(CPU_BUILD, WITH_DRIVER), WARNING)
    only(gpu.check_driver(CPU_BUILD, WITH_DRIVER, needed=True), FAILED)


# --- nvml ---


@pytest.mark.parametrize(
    ("gpu_", "cure"),
    [
        (Gpu("A", (9, 0), 1, process_reason=NO_PROCESS), "--pid=host"),
        (Gpu("A", (9, 0), 1, device_reason="NVML, memory of the device: Insufficient Permissions"), "MIG-..."),
        (Gpu("A", (9, 0), 1, nvml_error="NVML: the GPU is split (MIG), and which slice ..."), "MIG-..."),
        (Gpu("A", (9, 0), 1, process_reason="NVML, memory of processes: Not Supported"), "compute,utility"),
    ],
)
def test_what_cannot_be_read_is_a_warning_for_each_gpu(gpu_, cure):
    found = gpu.check_nvml(with_gpu(H100, gpu_), WITH_DRIVER)
    assert statuses(found) == [WARNING]
    assert found[0].detail.startswith("GPU 1: NVML") and cure in found[0].cure


@pytest.mark.parametrize(
    ("reason", "cure"),
    [
        ("NVML: package nvidia-ml-py is not installed", "pip install nvidia-ml-py"),
        ("NVML: library not found", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"),
        ("NVML: Driver/library version mismatch", "restart the machine"),
    ],
)
def test_no_nvml_beside_a_gpu_is_a_failure(reason, cure):
    without = Facts(torch="2.13.0+cpu", nvml_error=reason)
    assert cure in only(gpu.check_nvml(with_gpu(nvml_error=reason), WITH_DRIVER), FAILED)
    assert reason in only(gpu.check_nvml(without, BARE), NOT_RUN)
    only(gpu.check_nvml(without, BARE, needed=True), FAILED)


# --- the probe ---


def test_the_probe_asks_nvml_of_the_process_itself():
    known = FakeGpu("GPU-1", used_bytes=5 * MIB, processes={4242: 3 * MIB})
    properties = SimpleNamespace(name="NVIDIA H100", total_memory=80 << 30, major=9, minor=0, uuid="1")
    cuda = SimpleNamespace(get_device_properties=lambda device: properties, device_count=lambda: 1)
    cuda.init = lambda: None
    fake = SimpleNamespace(cuda=cuda, __version__="2.10.0", version=SimpleNamespace(cuda="12.8"))
    fake.device, fake.ones = torch.device, lambda *shape, **_: torch.ones(*shape)
    found = probe._torch_facts(fake, Nvml(FakeNvml(known)))
    facts = Facts.from_dict(json.loads(json.dumps(found)))
    assert facts.gpus == (Gpu("NVIDIA H100", (9, 0), 80 << 30, process_reason=NO_PROCESS),)
    assert facts.cuda == "12.8"
    fake.ones = lambda *shape, **_: torch.ones(*shape) * 2
    assert probe._torch_facts(fake, None)["gpus"][0]["error"] == "a matrix product is wrong"

    def refuse():
        raise RuntimeError("Found no NVIDIA driver\non your system")

    cuda.init = refuse
    assert probe._torch_facts(fake, None)["no_gpu"] == "Found no NVIDIA driver on your system"


def test_the_probe_answers_here():
    facts = ask(60)
    assert (facts.error, facts.torch, facts.cuda) == (None, torch.__version__, torch.version.cuda)
    assert len(facts.gpus) == torch.cuda.device_count()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended with -11"),
        ("raise SystemExit('libcuda: bad')", "ended with 1: libcuda: bad"),
        ("import time; time.sleep(60)", "did not answer in 0.3 s"),
    ],
)
def test_a_probe_that_crashes_or_hangs_is_a_fact(code, words):
    assert words in ask(0.3 if "sleep" in code else 20, command=[sys.executable, "-c", code]).error
