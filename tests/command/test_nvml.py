"""This machine's GPUs as NVML tells of them, from the real nvidia-ml-py to the job on them."""

import json
import os
import pwd
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest
from conftest import complaint, held

pytest_plugins = ("fake_nvml",)

ALL = [0, 1, 2, 3, 4, 5, 6, 7]
SHOW_GPUS = ("sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
SHOW_CPUS = (sys.executable, "-c", "import os; print(*sorted(os.sched_getaffinity(0)))")
NO_GPUS_HINT = "without GPUs, try a described machine: --topology dgx1-v100"
STATUS_HINT = "add --wait to queue, or see 'gpulaunch status'"
# nvmlReturn_t
NOT_SUPPORTED, NO_PERMISSION, INSUFFICIENT_POWER, DRIVER_NOT_LOADED = 3, 4, 8, 9
FUNCTION_NOT_FOUND, LIB_RM_VERSION_MISMATCH = 13, 18
GPU_IS_LOST, RESET_REQUIRED, UNKNOWN = 15, 16, 999
USER = pwd.getpwuid(os.getuid()).pw_name


def document(launcher, *arguments) -> dict:
    run = launcher.run(*arguments, "--json")
    assert (run.returncode, run.stderr) == (0, "")
    return json.loads(run.stdout)


def links(launcher) -> list[tuple]:
    found = document(launcher, "topo")["links"]
    return [(x["a"], x["b"], x["path"], x["nvlink_count"], x["bandwidth_gb_per_s"]) for x in found]


def states(launcher, *arguments) -> list[str]:
    return [gpu["state"] for gpu in document(launcher, "status", *arguments)["gpus"]]


def outcome(run: subprocess.CompletedProcess[str]) -> tuple[int, str, str]:
    return run.returncode, run.stdout, run.stderr


# What the machine is


def test_common_ancestor(launcher, dgx1_v100):
    """NVML's level of the common ancestor gives the path; an unknown level counts as farthest.

    A PCIe link is as fast as the slower and narrower of its two ends can be.
    """
    dgx1_v100.drop("ancestor ")
    dgx1_v100.drop("nvlink ")
    levels = {1: 0, 2: 20, 3: 30, 4: 40, 5: 50, 6: 60, 7: 10}
    dgx1_v100.add(*(f"ancestor 0 {gpu} {level}" for gpu, level in levels.items()))
    dgx1_v100.change(7, gen=4, width=8)
    assert links(launcher)[:7] == [
        (0, 1, "PIX", 0, 12.0),
        (0, 2, "PXB", 0, pytest.approx(11.4)),
        (0, 3, "PHB", 0, 10.0),
        (0, 4, "NODE", 0, pytest.approx(9.84)),
        (0, 5, "SYS", 0, 6.0),
        (0, 6, "SYS", 0, 6.0),
        (0, 7, "PIX", 0, 6.0),
    ]


def test_card_that_changed_its_index(launcher, dgx1_v100):
    """A lease follows the GPU, not its index: when cards are renumbered it blocks the same card."""
    with held(launcher, "--only", "0"):
        dgx1_v100.swap(0, 5)
        found = document(launcher, "status")
        by_index = [launcher.run("--only", index, "--", "true").returncode for index in ("0", "5")]
    assert [gpu["uuid"] for gpu in found["gpus"] if not gpu["free"]] == ["GPU-v100-0"]
    assert ([lease["gpus"] for lease in found["leases"]], by_index) == ([[5]], [0, 75])


# What the GPUs are used for


def test_outside_use(launcher, dgx1_v100):
    """A GPU with a compute process and no lease is in use outside gpulaunch, as the line says.

    All processes of a GPU are named, lowest pid first; an invisible one has no user. A driver older
    than 510, which knows version 2 alone of the lists of processes, tells them, too.
    """
    nobody = 2**22 + 1  # beyond the kernel's largest pid
    dgx1_v100.add(f"process 0 {nobody} 300", f"process 0 {os.getpid()} 300")
    run = launcher.run("-n", "8", "--", "echo", "ran")
    who = f"pid {os.getpid()}, {USER}; pid {nobody}"
    used = f"8 GPUs requested: 7 of 8 are free, 1 is in use outside gpulaunch ({who})"
    assert outcome(run) == (75, "", complaint(used, STATUS_HINT))
    dgx1_v100.answer("nvmlDeviceGetComputeRunningProcesses_v3", FUNCTION_NOT_FOUND)
    gpu = document(launcher, "status")["gpus"][0]
    assert (gpu["state"], gpu["free"], gpu["outside"]) == ("outside", False, who)


def test_outside_use_that_has_just_ended(launcher, dgx1_v100):
    """Outside use in NVML's first answer is looked at again, as a lease may have just ended."""
    dgx1_v100.add(*(f"ending {gpu} {os.getpid()} 300" for gpu in ALL))
    assert outcome(launcher.run("-n", "8", "--", "echo", "ran")) == (0, "ran\n", "")


def test_memory_in_use(launcher, dgx1_v100):
    """Over 128 MiB used by no visible process is outside use; the driver's reserve is not.

    A screen on a GPU is no use that counts, whatever memory it takes. Where an older driver may
    count its reserve, here 300 MiB, as use, 1.5 GiB is the bound.
    """
    dgx1_v100.change(0, used_mib=128)
    dgx1_v100.change(1, used_mib=129)
    dgx1_v100.add(f"graphics 2 {os.getpid()} 700")
    found = [(gpu["state"], gpu["outside"]) for gpu in document(launcher, "status")["gpus"]]
    outside = ("outside", "129 MiB in use by a process that is not visible here")
    assert found == [("free", None), outside, *[("free", None)] * 6]
    dgx1_v100.answer("nvmlDeviceGetMemoryInfo_v2", FUNCTION_NOT_FOUND)
    dgx1_v100.change(0, used_mib=1200)
    dgx1_v100.change(1, used_mib=1300)
    assert states(launcher) == ["free", "outside", *["free"] * 6]


def test_leased_gpu_at_work(launcher, dgx1_v100):
    """The job of a lease is a compute process on its own GPU, and no use outside gpulaunch."""
    with held(launcher, "--only", "0") as job:
        dgx1_v100.add(f"process 0 {job.job_pid} 9000")
        run = launcher.run("-q", "-n", "8", "--", "true")
        gpu = document(launcher, "status")["gpus"][0]
    assert (gpu["state"], gpu["outside"]) == ("leased", None)
    want = complaint("8 GPUs requested: 7 of 8 are free, 1 is leased", STATUS_HINT)
    assert outcome(run) == (75, "", want)


# NVML that knows less, or fails

OPTIONAL = [
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetCpuAffinity",
    "nvmlDeviceGetMemoryAffinity",
    "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetNvLinkVersion",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2",
    "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v2",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetP2PStatus",
    "nvmlDeviceGetComputeMode",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetName",
    "nvmlSystemGetDriverVersion",
]


@pytest.mark.parametrize(
    ("functions", "code", "words"),
    [
        (("nvmlDeviceGetHandleByIndex_v2",), GPU_IS_LOST, "GPU is lost"),
        (("nvmlDeviceGetUUID", *OPTIONAL), INSUFFICIENT_POWER, "Insufficient External Power"),
        (("nvmlDeviceGetUUID",), UNKNOWN, "it has no UUID"),
    ],
    ids=["handle", "everything", "uuid"],
)
def test_lost_gpu(launcher, dgx1_v100, functions, code, words):
    """A GPU without a handle or identity is left out with a warning; the others work, by UUID.

    What was linked to it is still linked to the others as before.
    """
    before = links(launcher)
    for function in functions:
        dgx1_v100.answer(function, code, gpu=3)
    run = launcher.run("-n", "all", "--", *SHOW_GPUS)
    assert (run.returncode, run.stderr) == (0, f"gpulaunch: warning: GPU 3 is left out: {words}\n")
    assert sorted(run.stdout.strip().split(",")) == [f"GPU-v100-{i}" for i in ALL if i != 3]
    found = json.loads(launcher.run("topo", "--json").stdout)["links"]
    got = [(x["a"], x["b"], x["path"], x["nvlink_count"]) for x in found]
    assert got == [link[:4] for link in before if 3 not in link[:2]]


@pytest.mark.parametrize("code", [UNKNOWN, FUNCTION_NOT_FOUND])
def test_nothing_optional_is_supported(launcher, dgx1_v100, code):
    """Where NVML knows only the GPUs' names, they are alike and as far apart as can be."""
    for function in OPTIONAL:
        dgx1_v100.answer(function, code)
    got = document(launcher, "topo")
    facts = {(gpu["numa_node"], gpu["cpuset"], gpu["compute_capability"]) for gpu in got["gpus"]}
    assert facts == {(None, "", None)}
    assert links(launcher) == [(a, b, "SYS", 0, 6.0) for a, b in combinations(ALL, 2)]
    run = launcher.run("-n", "all", "--", *SHOW_GPUS)
    assert (run.returncode, run.stderr, len(run.stdout.split(","))) == (0, "", 8)


def test_calls_without_an_answer(launcher, dgx1_v100):
    """Calls that fail, or that card or driver do not know, cost only what they would have told."""
    cache = Path(launcher.environment["XDG_RUNTIME_DIR"], "gpulaunch.topology.json")
    codes = (UNKNOWN, NOT_SUPPORTED, FUNCTION_NOT_FOUND)
    for first in range(8):
        cache.unlink(missing_ok=True)
        for function in OPTIONAL[first::8]:
            dgx1_v100.answer(function, codes[first % 3])
        run = launcher.run("-n", "all", "--", *SHOW_GPUS)
        got = (run.returncode, run.stderr, len(run.stdout.split(",")))
        assert got == (0, "", 8), OPTIONAL[first::8]
        dgx1_v100.drop("error ")


def test_nvml_fails(launcher, dgx1_v100):
    """Where NVML as a whole fails, nothing is decided or run; one line names the failed call."""
    loaded = "nvmlInit failed: Driver Not Loaded"
    updated = "RM has detected an NVML/RM version mismatch."
    reboot = "the driver was updated since its kernel modules were loaded: reboot, or reload them"
    for function, code, line, hint in (
        ("nvmlDeviceGetCount_v2", UNKNOWN, "nvmlDeviceGetCount failed: Unknown Error", None),
        ("nvmlInitWithFlags", DRIVER_NOT_LOADED, loaded, NO_GPUS_HINT),
        ("nvmlInitWithFlags", LIB_RM_VERSION_MISMATCH, f"nvmlInit failed: {updated}", reboot),
    ):
        dgx1_v100.answer(function, code)
        run = launcher.run("--", "echo", "ran")
        assert outcome(run) == (125, "", complaint(f"NVML: {line}", hint))
        dgx1_v100.drop("error ")
    assert launcher.records() == []


def test_library_that_does_not_load(launcher, tmp_path):
    """A library that is there and does not load is reported with the reason, and is a driver."""
    launcher.is_executed = True
    (tmp_path / "libnvidia-ml.so.1").write_text("not an ELF file")
    launcher.environment["LD_LIBRARY_PATH"] = str(tmp_path)
    run = launcher.run("--", "echo", "ran")
    launcher.environment["GPULAUNCH_TOPOLOGY"] = "dgx1-v100"
    hidden = launcher.run("--", "echo", "ran")
    why = f"{tmp_path}/libnvidia-ml.so.1: file too short"
    want = complaint(f"libnvidia-ml.so.1 is there and does not load: {why}")
    assert outcome(run) == (125, "", want)
    assert hidden.returncode == 2


# Real GPUs and described ones


def test_described_machine_where_no_gpu_is(launcher, nvml):
    """Where NVML lists no GPU, status 125 has a hint, and GPULAUNCH_TOPOLOGY is enough.

    It is not where the driver fails, which may have GPUs, as where there are some.
    """
    want = complaint("NVML lists no GPU in service", NO_GPUS_HINT)
    assert outcome(launcher.run("--", "echo", "ran")) == (125, "", want)
    launcher.environment["GPULAUNCH_TOPOLOGY"] = "dgx1-v100"
    assert outcome(launcher.run("--", "echo", "ran")) == (0, "ran\n", "")
    nvml.answer("nvmlInitWithFlags", UNKNOWN)
    assert launcher.run("--", "echo", "ran").returncode == 2


def test_described_and_real_leases_apart(launcher, dgx1_v100):
    """Leases of described GPUs never show among real ones, nor these there, even by equal UUIDs."""
    described = ("--topology", "dgx1-v100")
    for gpu in document(launcher, "topo", *described)["gpus"]:
        dgx1_v100.change(gpu["index"], uuid=gpu["uuid"])
    with held(launcher, *described, "-n", "3", "--profile", "vgg16"):
        real_before = states(launcher)
        with held(launcher, "-n", "all") as job:
            real, pretended = states(launcher), states(launcher, *described)
            fits = launcher.run(*described, "-n", "5", "--", "true").returncode
    assert (real_before, sorted(job.gpus.split(","))) == (["free"] * 8, [str(i) for i in ALL])
    assert real == ["leased"] * 8
    assert pretended == ["leased", "free", "leased", "leased", "free", "free", "free", "free"]
    assert fits == 0


# The CPUs next to the GPUs


def test_cpus_next_to_the_gpus(launcher, dgx1_v100):
    """A job whose GPUs share a NUMA node runs on the CPUs there.

    It does not with -o bind_cpu=false, for GPUs of two nodes, and where no near one is allowed.
    """
    allowed = os.sched_getaffinity(0)
    if len(allowed) == 1:
        pytest.skip("needs a machine with two CPUs")
    near = max(allowed)
    for gpu in range(4):
        dgx1_v100.change(gpu, cpus=near)
    for options, cpus in (
        (("--only", "0,1"), {near}),
        (("-o", "bind_cpu=false", "--only", "0,1"), allowed),
        (("--only", "3,4"), allowed),
        (("--only", "4,5"), allowed),
    ):
        run = launcher.run(*options, "-n", "2", "--", *SHOW_CPUS)
        assert outcome(run) == (0, " ".join(map(str, sorted(cpus))) + "\n", ""), options
