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
from benchmarks.doctor.finding import FAILED, NOT_RUN, OK, WARNING
from benchmarks.doctor.gpu_checks import Facts, Gpu, Machine, ask
from tests.findings import only
from tests.gpus import MIB, FakeGpu, FakeNvml

H100 = Gpu("NVIDIA H100", (9, 0), 80 << 30)
CPU_BUILD = Facts(torch="2.13.0+cpu", nvml_error="NVML: library not found")
NO_GPU = Facts(torch="2.10.0", cuda="12.8", nccl="2.27.5", no_gpu="Found no NVIDIA driver")
CRASH = Facts(error="the process that asks them ended with -11: it printed nothing")
BARE, WITH_DRIVER = Machine(None, False), Machine("570.86.15", True)
NO_LIBRARY = Machine("570.86.15", False)


def with_gpu(*gpus: Gpu, **more: Any) -> Facts:
    known: dict[str, Any] = {"libcuda": True, "driver": "570.86.15", "driver_cuda": (12, 8)}
    known |= {"torch": "2.10.0", "cuda": "12.8", "nccl": "2.27.5", "gpus": gpus or (H100, H100)}
    return Facts(**(known | more))


@pytest.mark.parametrize(
    ("facts", "environment", "status", "needed_status", "words"),
    [
        (with_gpu(), {}, OK, OK, "2 x NVIDIA H100 (sm_90, 80.0 GiB)"),
        (CPU_BUILD, {}, NOT_RUN, FAILED, "built for CPUs"),
        (NO_GPU, {"CUDA_VISIBLE_DEVICES": ""}, NOT_RUN, FAILED, "-> unset CUDA_VISIBLE_DEVICES"),
        (with_gpu(gpus=(), no_gpu="CUDA unknown error"), {}, FAILED, FAILED, "CUDA unknown error"),
        (CRASH, {}, FAILED, FAILED, "ended with -11"),
    ],
)
def test_no_gpu_is_not_run_unless_one_is_needed_or_a_driver_answers(facts, environment, status, needed_status, words):
    only(gpu.check_gpu(facts, False, environment), status)
    assert words in only(gpu.check_gpu(facts, True, environment), needed_status)


def test_every_gpu_that_fails_has_a_line():
    old = Gpu("Tesla P100", (6, 0), 16 << 30, error="CUDA error: no kernel image is available")
    first, second = gpu.check_gpu(with_gpu(old, H100, old))
    assert first.detail.startswith("GPU 0, Tesla P100 (sm_60): CUDA error: no kernel image")
    assert (second.status, second.detail[:5]) == (FAILED, "GPU 2")


@pytest.mark.parametrize(
    ("facts", "machine", "status", "needed_status", "words"),
    [
        (with_gpu(), WITH_DRIVER, OK, OK, "570.86.15"),
        (with_gpu(driver="535.104.05", driver_cuda=(12, 2)), WITH_DRIVER, OK, OK, ""),  # minor version compatibility
        (with_gpu(driver="520.61.05", driver_cuda=(11, 8)), WITH_DRIVER, FAILED, FAILED, "too old for torch's CUDA 12"),
        (with_gpu(cuda="13.0"), WITH_DRIVER, FAILED, FAILED, "a driver for CUDA 13"),
        (Facts(torch="2.10.0", cuda="12.8", nvml_error="NVML: no"), NO_LIBRARY, FAILED, FAILED, "not its library"),
        (with_gpu(gpus=(), driver_cuda=None), NO_LIBRARY, FAILED, FAILED, "not its device files"),
        (NO_GPU, BARE, NOT_RUN, FAILED, "no NVIDIA driver"),
        (CPU_BUILD, WITH_DRIVER, WARNING, FAILED, "cells train without a GPU"),
        (CRASH, WITH_DRIVER, NOT_RUN, FAILED, "ended with -11"),
    ],
)
def test_the_driver_must_answer_and_know_torchs_major_version(facts, machine, status, needed_status, words):
    assert words in only(gpu.check_driver(facts, machine), status)
    only(gpu.check_driver(facts, machine, needed=True), needed_status)


@pytest.mark.parametrize(
    ("facts", "machine", "status", "words"),
    [
        (with_gpu(H100, Gpu("A", (9, 0), 1, process_reason=NO_PROCESS)), WITH_DRIVER, WARNING, "--pid=host"),
        (with_gpu(Gpu("A", (9, 0), 1, nvml_error="NVML: the GPU is split (MIG)")), WITH_DRIVER, WARNING, "MIG-..."),
        (with_gpu(nvml_error="NVML: package nvidia-ml-py is not installed"), WITH_DRIVER, FAILED, "pip install nvidia"),
        (with_gpu(nvml_error="NVML: Driver/library version mismatch"), WITH_DRIVER, FAILED, "restart the machine"),
        (CPU_BUILD, BARE, NOT_RUN, "NVML: library not found"),
    ],
)
def test_memory_that_nvml_cannot_tell_is_a_warning_and_no_nvml_beside_a_gpu_a_failure(facts, machine, status, words):
    assert words in only(gpu.check_nvml(facts, machine), status)


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
    fake.ones = lambda *shape, **_: torch.ones(*shape) * 2
    assert probe._torch_facts(fake, None)["gpus"][0]["error"] == "a matrix product is wrong"


def test_the_probe_answers_here_and_one_that_crashes_or_hangs_is_a_fact():
    facts = ask(60)
    assert (facts.error, facts.torch, facts.cuda) == (None, torch.__version__, torch.version.cuda)
    assert len(facts.gpus) == torch.cuda.device_count()
    for code, seconds, words in (
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 20, "ended with -11"),
        ("import time; time.sleep(60)", 0.3, "did not answer in 0.3 s"),
    ):
        assert words in ask(seconds, command=[sys.executable, "-c", code]).error
