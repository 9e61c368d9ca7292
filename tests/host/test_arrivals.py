"""The caps that jobs find which come one after the other are those that were decided.

The launches are real; driver, GPU and MPS are the tests' stand-ins. Each job of the co-run model is
a profile in a file, and its cap is what its client found in its environment when it attached to the
daemon.
"""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from conftest import Launcher
from corun import BENCHMARKS, Benchmark, Machine
from fake_mps import FakeMps, meet
from fake_nvml import NVML_SOURCE, FakeNvml, compiled

from gpulaunch.leases.share import Client, Objective
from gpulaunch.sharing.capacity import Capacity
from gpulaunch.sharing.interference import judge
from gpulaunch.sharing.partition import allot_newcomer

MODEL = Machine()
BUSY = 75  # exit status of a launch that would have to wait
MEMORY_MIB = 16384


@pytest.fixture
def mps(launcher: Launcher, tmp_path: Path) -> Iterator[FakeMps]:
    """Have the launcher meet the stand-ins, on a machine whose only GPU is the model's."""
    nvml = FakeNvml(compiled(NVML_SOURCE, tmp_path / "libnvidia-ml.so.1").parent, tmp_path / "nvml")
    gpu = {"uuid": "GPU-of-the-model", "name": "Model", "memory_mib": MEMORY_MIB, "cc": "7.0"}
    nvml.describe([gpu], ["driver 550.54.15"])
    launcher.environment |= nvml.environment
    models = tmp_path / "config" / "gpulaunch" / "gpus"
    models.mkdir(parents=True)
    (models / "model.toml").write_text(
        'name = "Model"\nmodels = ["Model"]\ncompute_capability = "7.0"\n'
        f"sm_count = {MODEL.sm_count}\nwarp_schedulers_per_sm = 2\nmax_clock_mhz = 700\n"
        "dram_bandwidth_gb_per_s = 180\nl2_bandwidth_gb_per_s = 500\n"
        'power_limit_w = 250\nmps_clients = 48\nsource = "made up: only sm_count matters"\n'
    )
    with closing(FakeMps()) as mps:
        meet(launcher, mps)
        yield mps


def profile(job: Benchmark, folder: Path) -> str:
    """Write what is known of a job when it runs alone; return the path."""
    demand = MODEL.demand(job)
    used = demand.memory_bandwidth_utilization_percentage
    path = folder / f"{job.name}.toml"
    path.write_text(
        f'name = "{job.name}"\n[resources]\nmemory_mib = {demand.memory_bytes >> 20}\n'
        f"sm_utilization_percentage = {demand.sm_utilization_percentage}\n"
        f'memory_bandwidth_utilization_percentage = {used}\nsource = "the model"\n'
        f"[sm_curve]\nsm_percentage = {[point.sm_percentage for point in demand.curve]}\n"
        f"throughput = {[point.throughput for point in demand.curve]}\n"
        'source = "the model"\n'
    )
    return str(path)


def found_caps(
    launcher: Launcher, mps: FakeMps, folder: Path, jobs: Sequence[Benchmark]
) -> list[int]:
    """Launch jobs in this order, each staying until all have come; return their clients' caps.

    The first that may not join ends the list.
    """
    running: list[subprocess.Popen[str]] = []
    found: list[int] = []
    try:
        for job in jobs:
            words = ("-q", "--share", "-p", profile(job, folder), "--", "mps_client")
            process = launcher.start(*words, stdin=subprocess.PIPE)
            running.append(process)
            line = process.stdout.readline()
            if not line:
                assert process.wait() == BUSY, process.stderr.read()
                break
            how, pid = line.split()
            assert how == "attached"
            (event,) = mps.wait_for("attached", pid=int(pid))
            found.append(int(event.said["environment"]["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]))
    finally:
        for process in running:
            process.communicate("\n" if process.poll() is None else None, timeout=60)
    return found


def decided_caps(jobs: Sequence[Benchmark]) -> list[int]:
    """Return the caps that the deciding functions give to jobs that come in this order."""
    gpu = Capacity(MEMORY_MIB << 20, 48, sm_count=MODEL.sm_count)
    objective = Objective()
    residents = []
    for job in jobs:
        newcomer = MODEL.demand(job)
        clients = [Client(demand, objective) for demand, _ in residents]
        held = [*(cap for _, cap in residents), None]
        if not judge([*clients, Client(newcomer, objective)], gpu, held=held).compatible:
            break
        cap = allot_newcomer(residents, newcomer, gpu, objective).sm_percentage
        residents.append((newcomer, cap))
    return [cap for _, cap in residents]


@pytest.mark.parametrize("names", ["LAVAMD_DXTC", "DXTC_LAVAMD", "LBM_DXTC"])
def test_caps_by_the_rule(launcher: Launcher, mps: FakeMps, tmp_path: Path, names: str) -> None:
    """A pair gets the caps decided, in either order; one that the rule refuses does not share."""
    jobs = [BENCHMARKS[name] for name in names.split("_")]
    caps = found_caps(launcher, mps, tmp_path, jobs)
    assert caps == decided_caps(jobs)
    assert len(caps) == (2 if "LAVAMD" in names else 1)
