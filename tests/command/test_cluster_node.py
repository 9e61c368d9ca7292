"""What a node of an allocation tells, with NVIDIA's library as it would be there."""

import os

import pytest
from conftest import Launcher

from gpulaunch.cluster.cluster import Node
from gpulaunch.cluster.node import read_reports

pytest_plugins = ("fake_nvml",)


def told(launcher: Launcher, **variables: str) -> tuple[str, Node]:
    """Return the task and the node of this node's report."""
    launcher.environment |= variables
    done = launcher.run("cluster", "node")
    assert (done.returncode, done.stderr) == (0, "")
    (found,) = read_reports(done.stdout)
    return done.stdout.split()[1], found


@pytest.mark.usefixtures("hgx_h100")
def test_granted_gpus(launcher: Launcher) -> None:
    """A task of Slurm tells its number, its node's name and cores, and the GPUs granted to it."""
    task, node = told(
        launcher,
        SLURM_JOB_ID="7",
        SLURM_STEP_ID="0",
        SLURM_STEP_TASKS_PER_NODE="1(x4)",
        SLURM_NODEID="3",
        SLURM_PROCID="3",
        SLURM_LOCALID="0",
        SLURMD_NODENAME="n3",
        CUDA_VISIBLE_DEVICES="1,4",
    )
    gpus = [gpu.uuid for gpu in node.topology.gpus]
    assert (task, node.name, gpus) == ("3", "n3", ["GPU-h100-1", "GPU-h100-4"])
    cores = [cpu for cpus in node.sockets for cpu in cpus]
    assert set(cores) <= os.sched_getaffinity(0)
