"""The doctor's checks of GPUs, on machines that stand-ins describe."""

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.core.devices import NO_PROCESS, Nvml
from benchmarks.doctor import in_child as probe
from benchmarks.doctor import machine_checks as gpu
from benchmarks.doctor.machine_checks import FAILED, NOT_RUN, OK, WARNING, Facts, Gpu, ask
from tests.findings import only
from tests.gpus import MIB, FakeGpu, FakeNvml

H100 = Gpu("NVIDIA H100", (9, 0), 80 << 30)
CPU_BUILD = Facts(torch="2.13.0+cpu", nvml_error="NVML: library not found")
NO_GPU = Facts(torch="2.10.0", cuda="12.8", nccl="2.27.5", no_gpu="Found no NVIDIA driver")
CRASH = Facts(error="the process that asks them ended with -11: it printed nothing")


def with_gpu(*gpus: Gpu, **more: Any) -> Facts:
    known: dict[str, Any] = {"torch": "2.10.0", "cuda": "12.8", "nccl": "2.27.5", "driver": "570.86.15"}
    return Facts(**(known | {"gpus": gpus or (H100, H100)} | more))


@pytest.mark.parametrize(
    ("facts", "environment", "driver", "status", "needed_status", "words"),
    [
        (with_gpu(), {}, True, OK, OK, "2 x NVIDIA H100 (sm_90, 80.0 GiB)"),
        (CPU_BUILD, {}, False, NOT_RUN, FAILED, "built for CPUs"),
        (CPU_BUILD, {}, True, WARNING, FAILED, "built for CPUs"),
        (NO_GPU, {}, False, NOT_RUN, FAILED, "Found no NVIDIA driver"),
        (NO_GPU, {}, True, FAILED, FAILED, "--gpus all"),
        (NO_GPU, {"CUDA_VISIBLE_DEVICES": ""}, True, NOT_RUN, FAILED, "among CUDA_VISIBLE_DEVICES=''"),
        (CRASH, {}, False, FAILED, FAILED, "ended with -11"),
    ],
)
def test_no_gpu_is_not_run_unless_one_is_needed_or_a_driver_is_there(
    facts, environment, driver, status, needed_status, words, tmp_path
):
    place = tmp_path if driver else tmp_path / "nowhere"
    only(gpu.check_gpu(facts, False, environment, place), status)
    assert words in only(gpu.check_gpu(facts, True, environment, place), needed_status)


def test_every_gpu_that_fails_has_a_line():
    old = Gpu("Tesla P100", (6, 0), 16 << 30, error="CUDA error: no kernel image is available")
    first, second = gpu.check_gpu(with_gpu(old, H100, old))
    assert first.detail.startswith("GPU 0, Tesla P100: CUDA error: no kernel image")
    assert (second.status, second.detail[:5]) == (FAILED, "GPU 2")


@pytest.mark.parametrize(
    ("facts", "status", "words"),
    [
        (with_gpu(), OK, "570.86.15"),
        (with_gpu(H100, Gpu("A", (9, 0), 1, nvml_reason=NO_PROCESS)), WARNING, "--pid=host"),
        (with_gpu(nvml_error="NVML: package nvidia-ml-py is not installed"), FAILED, "is not installed"),
        (CPU_BUILD, NOT_RUN, "torch sees no GPU"),
    ],
)
def test_memory_that_nvml_cannot_tell_is_a_warning_and_no_nvml_beside_a_gpu_a_failure(facts, status, words):
    assert words in only(gpu.check_nvml(facts), status)


def test_the_probe_asks_nvml_of_the_process_itself():
    known = FakeGpu("GPU-1", used_bytes=5 * MIB, processes={4242: 3 * MIB})
    properties = SimpleNamespace(name="NVIDIA H100", total_memory=80 << 30, major=9, minor=0, uuid="1")
    cuda = SimpleNamespace(get_device_properties=lambda device: properties, device_count=lambda: 1)
    cuda.init = lambda: None
    fake = SimpleNamespace(cuda=cuda, __version__="2.10.0", version=SimpleNamespace(cuda="12.8"))
    fake.device, fake.ones = torch.device, lambda *shape, **_: torch.ones(*shape)
    found = probe._torch_facts(fake, Nvml(FakeNvml(known)))
    facts = Facts.from_dict(json.loads(json.dumps(found)))
    assert facts.gpus == (Gpu("NVIDIA H100", (9, 0), 80 << 30, nvml_reason=NO_PROCESS),)
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
