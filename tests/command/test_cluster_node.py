"""What a node of an allocation tells, with NVIDIA's library as it would be there."""

import os
from pathlib import Path

import pytest
from conftest import Launcher

from gpulaunch.cluster.node_report import NodeReport, read_reports

pytest_plugins = ("fake_nvml",)

FABRIC = """\
    Fabric
        State                             : Completed
        Status                            : Success
        CliqueId                          : 32766
        ClusterUUID                       : 15f9d2f1-7a3d-4b0c-9c5e-5a7a3f0f6a11
"""


def report(launcher: Launcher, **variables: str) -> NodeReport:
    """Return the report of this node."""
    launcher.environment |= variables
    done = launcher.run("cluster", "node")
    assert (done.returncode, done.stderr) == (0, "")
    (found,) = read_reports(done.stdout)
    return found


@pytest.mark.usefixtures("hgx_h100")
def test_granted_gpus(launcher: Launcher) -> None:
    """A task of Slurm tells its number, its place in the network and the GPUs that it was given."""
    found = report(
        launcher,
        SLURM_JOB_ID="7",
        SLURM_STEP_ID="0",
        SLURM_STEP_TASKS_PER_NODE="1(x4)",
        SLURM_NODEID="3",
        SLURM_PROCID="3",
        SLURM_LOCALID="0",
        SLURMD_NODENAME="n3",
        SLURM_TOPOLOGY_ADDR="core.leaf1.n3",
        SLURM_TOPOLOGY_ADDR_PATTERN="switch.switch.node",
        CUDA_VISIBLE_DEVICES="1,4",
    )
    gpus = [gpu.uuid for gpu in found.node.topology.gpus]
    assert (found.task, found.node.name, gpus) == (3, "n3", ["GPU-h100-1", "GPU-h100-4"])
    assert (found.address, found.domain) == (("core", "leaf1"), None)
    cores = [cpu for cpus in found.node.sockets for cpu in cpus]
    assert set(cores) <= os.sched_getaffinity(0)


@pytest.mark.usefixtures("hgx_h100")
def test_nvlink_domain(launcher: Launcher, tmp_path: Path) -> None:
    """GPUs on NVSwitches tell the domain that nvidia-smi knows; its failure leaves it out."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f'#!/bin/sh\n[ "$*" = -q ] && cat << END\n{FABRIC}END\n')
    smi.chmod(0o755)
    path = f"{tmp_path}:{launcher.environment['PATH']}"
    assert report(launcher, PATH=path).domain == "15f9d2f1-7a3d-4b0c-9c5e-5a7a3f0f6a11.32766"
    smi.write_text("#!/bin/sh\nexit 9\n")
    assert report(launcher).domain is None
