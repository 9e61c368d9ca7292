"""Launches of the co-run model's jobs, one after the other, on one GPU that they share by MPS.

The launches are real; driver, GPU and MPS are the tests' stand-ins. Each job is a profile in a
file, and its cap is what its client found in its environment when it attached to the daemon.
"""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from conftest import Launcher
from corun import Benchmark, Machine
from fake_mps import FakeMps, meet
from fake_nvml import NVML_SOURCE, FakeNvml, compiled

from gpulaunch.leases.share import Client, Objective
from gpulaunch.sharing.capacity import Capacity
from gpulaunch.sharing.interference import judge
from gpulaunch.sharing.partition import allot_newcomer

_BUSY = 75  # exit status of a launch that would have to wait
_GPU = "GPU-of-the-model"
_MEMORY_MIB = 16384


class Arrivals:
    """Launches on a machine whose only GPU is the model's.

    Args:
        model: the model of the GPU.
        launcher: a launcher that meets the stand-ins.
        mps: the stand-in of MPS.
        folder: where profiles go.
    """

    def __init__(self, model: Machine, launcher: Launcher, mps: FakeMps, folder: Path) -> None:
        self._model, self._launcher, self._mps, self._folder = model, launcher, mps, folder

    def caps(self, jobs: Sequence[Benchmark]) -> list[int]:
        """Launch jobs in this order; return the caps that their clients found, in percent.

        The first that may not join ends the list.

        Args:
            jobs: the jobs, each staying until all have come.
        """
        running: list[subprocess.Popen[str]] = []
        found: list[int] = []
        try:
            for job in jobs:
                words = ("-q", "--share", "-p", str(self._profile(job)), "--", "mps_client")
                process = self._launcher.start(*words, stdin=subprocess.PIPE)
                running.append(process)
                line = process.stdout.readline()
                if not line:
                    assert process.wait() == _BUSY, process.stderr.read()
                    break
                how, pid = line.split()
                assert how == "attached"
                (event,) = self._mps.wait_for("attached", pid=int(pid))
                found.append(int(event.said["environment"]["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]))
        finally:
            for process in running:
                process.communicate("\n" if process.poll() is None else None, timeout=60)
        return found

    def _profile(self, job: Benchmark) -> Path:
        """Write what is known of a job when it runs alone."""
        demand = self._model.demand(job)
        used = demand.memory_bandwidth_utilization_percentage
        path = self._folder / f"{job.name}.toml"
        path.write_text(
            f'name = "{job.name}"\n[resources]\nmemory_mib = {demand.memory_bytes >> 20}\n'
            f"sm_utilization_percentage = {demand.sm_utilization_percentage}\n"
            f'memory_bandwidth_utilization_percentage = {used}\nsource = "the model"\n'
            f"[sm_curve]\nsm_percentage = {[point.sm_percentage for point in demand.curve]}\n"
            f"throughput = {[point.throughput for point in demand.curve]}\n"
            'source = "the model"\n'
        )
        return path


@contextmanager
def arrivals(model: Machine, folder: Path) -> Iterator[Arrivals]:
    """Describe the machine in an empty folder; nothing of it outlives the block."""
    launcher = Launcher(folder)
    nvml = FakeNvml(compiled(NVML_SOURCE, folder / "libnvidia-ml.so.1").parent, folder / "nvml")
    gpu = {"uuid": _GPU, "name": "Model", "memory_mib": _MEMORY_MIB, "cc": "7.0"}
    nvml.describe([gpu], ["driver 550.54.15"])
    launcher.environment |= nvml.environment
    models = folder / "config" / "gpulaunch" / "gpus"
    models.mkdir(parents=True)
    (models / "model.toml").write_text(
        'name = "Model"\nmodels = ["Model"]\ncompute_capability = "7.0"\n'
        f"sm_count = {model.sm_count}\nwarp_schedulers_per_sm = 2\nmax_clock_mhz = 700\n"
        "dram_bandwidth_gb_per_s = 180\nl2_bandwidth_gb_per_s = 500\n"
        'power_limit_w = 250\nmps_clients = 48\nsource = "made up: only sm_count matters"\n'
    )
    with closing(FakeMps()) as mps:
        meet(launcher, mps)
        yield Arrivals(model, launcher, mps, folder)


def foretold(model: Machine, jobs: Sequence[Benchmark]) -> list[int]:
    """Return the caps that the deciding functions give to jobs that come in this order.

    The first that may not join ends the list.
    """
    gpu = Capacity(_MEMORY_MIB << 20, 48, sm_count=model.sm_count)
    objective = Objective()
    residents = []
    for job in jobs:
        newcomer = model.demand(job)
        clients = [Client(demand, objective) for demand, _ in residents]
        held = [*(cap for _, cap in residents), None]
        verdict = judge([*clients, Client(newcomer, objective)], gpu, held=held)
        if not verdict.compatible:
            break
        cap = allot_newcomer(residents, newcomer, gpu, objective).sm_percentage
        residents.append((newcomer, cap))
    return [cap for _, cap in residents]
