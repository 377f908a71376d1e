"""Command lines of ranks in containers, where tests/images starts none: on GPUs, for other users."""

from dataclasses import replace
from pathlib import Path

from benchmarks.launching.containers.runtime import Bind, Container, Runtime, bind_all, for_apptainer, passed
from tests.unit.launching.test_image_entry import ENTRY as IMAGE

DIGEST = "sha256:" + "ab" * 32
ENTRY = replace(IMAGE, digest=DIGEST, versions={"python": "3.11.2", "cuda": None})
RUN = ["python", "-m", "benchmarks.training.rank"]
VARIABLES = {"RANK": "1", "GLOO_SOCKET_IFNAME": "lo", "PATH": "/bin", "RESIREDUCE_IMAGE_DIGEST": "another"}
FIRST = Container(name="cell-0")


def runtime(name: str, **changes: object) -> Runtime:
    return replace(Runtime(name=name, image=ENTRY, program=(name,)), **changes)  # type: ignore[arg-type]


def test_devices_are_given_where_there_are_any_and_files_belong_to_the_caller():
    bare = runtime("docker").command(RUN, FIRST, {})
    options = ["--gpus=all", "--pid=host"]
    line = runtime("docker", gpus=True).command(RUN, FIRST, {})
    assert [word for word in line if word not in bare] == options and not set(options) & set(bare)
    owned = runtime("docker", user="1000:1000", groups=(20,)).command(RUN, FIRST, {})
    assert [word for word in owned if "user" in word or "group" in word] == ["--user=1000:1000", "--group-add=20"]


def test_apptainer_has_a_home_in_the_folder_of_the_launch_and_what_is_bound():
    container = replace(FIRST, folder=Path("/tmp/launch"), binds=(Bind(Path("/tmp/launch"), True), Bind(Path("/data"))))
    apptainer = runtime("apptainer", sif=Path("/images/cpu.sif"))
    line = apptainer.command(RUN, container, VARIABLES)
    at, end = line.index("--mount"), line.index("/images/cpu.sif")
    binds = [
        "type=bind,source=/tmp/launch,destination=/tmp/launch",
        "type=bind,source=/data,destination=/data,readonly",
    ]
    assert line[at + 1 : end : 2] == binds and line[end + 1 : end + 3] == ["env", "HOME=/tmp/launch"]
    assert line[-len(RUN) :] == RUN and f"RESIREDUCE_IMAGE_DIGEST={DIGEST}" in line
    assert replace(apptainer, gpus=True).command(RUN, container, VARIABLES) == [*line[:at], "--nv", *line[at:]]


PASSED = [
    *("CUBLAS_WORKSPACE_CONFIG", "CUDA_VISIBLE_DEVICES", "HOROVOD_RANK", "MASTER_ADDR", "NCCL_DEBUG"),
    *("OMPI_COMM_WORLD_RANK", "OMP_NUM_THREADS", "PMIX_RANK", "RESIREDUCE_DEVICE", "SLURM_PROCID"),
]
LEFT_OUT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "HOME", "SECRET_TOKEN", "APPTAINER_CACHEDIR")
HOST = dict.fromkeys((*LEFT_OUT, *PASSED), "1")


def test_only_variables_of_the_list_reach_a_container():
    assert passed(HOST) == PASSED
    assert sorted(for_apptainer(HOST)) == sorted([*PASSED, "APPTAINER_CACHEDIR", "HOME", "PATH"])
    assert runtime("apptainer").environment(HOST) == for_apptainer(HOST)
    assert runtime("docker").environment(HOST) == HOST, "it is the client's, which passes on what its options name"


def test_what_exists_is_bound_under_its_own_path_and_scratch_if_there_is_one(tmp_path):
    for name in ("data", "launch", "scratch"):
        (tmp_path / name).mkdir()
    (tmp_path / "weights.pt").write_text("")
    read = [tmp_path / "data", tmp_path / "weights.pt", tmp_path / "missing", None]
    found = bind_all([tmp_path / "launch", Path("/tmp")], read, {"TMPDIR": str(tmp_path / "scratch")})
    assert [(bind.path.name, bind.writable) for bind in found] == [
        *(("data", False), ("launch", True), ("scratch", True), ("weights.pt", False))
    ]


def test_odd_paths_are_quoted_as_csv():
    assert Bind(Path("/a:b/c d")).option() == "type=bind,source=/a:b/c d,destination=/a:b/c d,readonly"
    assert Bind(Path("/a,b"), True).option() == 'type=bind,"source=/a,b","destination=/a,b"'
