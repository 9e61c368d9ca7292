"""Ranks on the nodes of a real Slurm where a map puts them."""

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import DGX, Launcher, complaint, until
from ranks import crossed_matrix, rank_command, ranks_of, wanted
from slurm import Slurm
from test_slurm import Site

pytest_plugins = ("fake_nvml",)

BOTH = ("salloc", "-Q", "-N2", "--gres=gpu:8", "--exclusive")


@pytest.fixture
def site(slurm: Slurm, launcher: Launcher) -> Iterator[Site]:
    """Yield Slurm with nothing running in it, and empty tables."""
    path = slurm.environment["PATH"]
    slurm.await_idle()
    yield Site(slurm, launcher)
    slurm.environment["PATH"] = path


def cluster(site: Site, *arguments: str, **options) -> subprocess.CompletedProcess[str]:
    """Run a command of `gpulaunch cluster` inside an allocation of both nodes."""
    command = (*BOTH, "gpulaunch", "cluster", *arguments)
    return site.slurm.run(*command, environment=site.environment, **options)


def test_ranks_run_where_the_map_says(site: Site, tmp_path: Path) -> None:
    """Every rank of a step has the node, the core and the GPU of its row, and no lease is left."""
    pattern = ("--ranks", "4", "--gpu-pattern", crossed_matrix(tmp_path))
    done = cluster(site, "run", *DGX, *pattern, "-o", str(tmp_path), "--", *rank_command(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert ranks_of(done.stdout) == wanted(tmp_path)
    nodes = [node for _, node, _, _ in wanted(tmp_path)]
    assert nodes[0] == nodes[2] != nodes[1] == nodes[3]
    assert site.launcher.records() == []


@pytest.mark.usefixtures("dgx1_v100")
def test_gpus_that_nvml_tells_of(launcher: Launcher, slurm: Slurm) -> None:
    """Ranks run on the nodes' own GPUs, their status is the step's, and no lease is left."""
    slurm.await_idle()
    site = Site(slurm, launcher)
    job = ("sh", "-c", "echo $SLURM_PROCID $CUDA_VISIBLE_DEVICES; exit 3")
    done = cluster(site, "run", "--ranks", "4", "--gpu-pattern", "ring", "--", *job)
    ranks = sorted(line.split() for line in done.stdout.splitlines())
    assert (done.returncode, [rank for rank, _ in ranks]) == (3, ["0", "1", "2", "3"]), done.stderr
    assert site.launcher.records() == []


def test_scancel(site: Site, tmp_path: Path) -> None:
    """A cancelled job leaves no rank and no lease."""
    started = tmp_path / "started"
    script = f"echo >> {started}; exec sleep 600"
    command = (*BOTH, "gpulaunch", "cluster", "run", *DGX, "--", "sh", "-c", script)
    with site.slurm.start_job(*command, environment=site.environment) as job:
        until(lambda: started.exists() and len(started.read_text()) == 4)
        assert site.slurm.run("scancel", *site.slurm.jobs()).returncode == 0
        job.communicate()
    site.slurm.await_idle()
    assert job.returncode != 0
    until(lambda: site.launcher.records() == [])


def test_wishes_of_the_allocation(site: Site, tmp_path: Path) -> None:
    """What an allocation says of its tasks does not stand in the way of the map.

    Without binding, GPUs alone say how many ranks a node takes.
    """
    wish = "--ntasks-per-gpu=1"
    command = ("salloc", "-Q", "-N2", "--gres=gpu:2", wish, "gpulaunch", "cluster", "run", *DGX)
    options = ("--no-bind-cpu", "-o", str(tmp_path), "--", *rank_command(tmp_path))
    done = site.slurm.run(*command, *options, environment=site.environment)
    assert (done.returncode, done.stderr) == (0, "")
    seen = {(node, gpu) for _, node, _, gpu in ranks_of(done.stdout)}
    assert seen == {("n1", 0), ("n1", 1), ("n2", 0), ("n2", 1)}


def test_gpus_that_slurm_deals_out(site: Site) -> None:
    """An allocation whose GPUs cannot be mapped is refused with how to make it."""
    asked = ("-N2", "--ntasks=2", "--gpus-per-task=1")
    command = ("salloc", "-Q", *asked, "gpulaunch", "cluster", "run", *DGX, "--", "true")
    done = site.slurm.run(*command, environment=site.environment)
    job = done.stderr.partition("slurm ")[2].partition(" ")[0]
    said = complaint(
        f"slurm {job} has GPUs for each task, which Slurm deals out itself",
        "make it with --gres=gpu:N or --gpus-per-node=N instead of --gpus-per-task",
    )
    assert (done.returncode, done.stderr) == (2, said)


def test_fewer_cores_than_gpus(site: Site) -> None:
    """GPUs that get no rank for want of cores are told of, and how they would."""
    command = ("salloc", "-Q", "-N2", "--gres=gpu:4", "gpulaunch", "cluster", "run", *DGX)
    done = site.slurm.run(*command, "--", "true", environment=site.environment)
    job = done.stderr.partition("slurm ")[2].partition(" ")[0]
    want = (
        f"gpulaunch: warning: 2 ranks: the 2 nodes of slurm {job} have 8 GPUs and 2 cores; with "
        "--no-bind-cpu a rank needs no core of its own\n"
    )
    assert (done.returncode, done.stderr) == (0, want)


def test_dry_run(site: Site, tmp_path: Path) -> None:
    """The line of a dry run starts the ranks where the map says, whatever the allocation wished."""
    options = (*DGX, "--no-bind-cpu", "-o", str(tmp_path), "--", *rank_command(tmp_path))
    script = f'eval "$(gpulaunch cluster run --dry-run {shlex.join(options)})"'
    command = ("salloc", "-Q", "-N2", "--gres=gpu:2", "--ntasks-per-node=1", "sh", "-c", script)
    done = site.slurm.run(*command, environment=site.environment)
    assert (done.returncode, done.stderr, len(ranks_of(done.stdout))) == (0, "", 4)


def test_other_launchers(site: Site) -> None:
    """A launcher that is neither srun nor mpirun is refused, and no rank is started."""
    done = cluster(site, "run", "--launcher", "ssh", "--", "true")
    line = "--launcher: 'ssh' is neither srun nor Open MPI's mpirun"
    hint = "'gpulaunch cluster map' writes files for others"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", complaint(line, hint))
    assert not (Path(site.environment["HOME"]) / ".cache").exists()


def test_switches_that_nothing_joins(site: Site, tmp_path: Path) -> None:
    """Where Slurm's switches make no tree, one for all nodes is assumed, and that is said."""
    scontrol = tmp_path / "scontrol"
    lines = "SwitchName=s1 Nodes=n1\\nSwitchName=s2 Nodes=n2\\n"
    scontrol.write_text(f"#!/bin/sh\nprintf '{lines}'\n")
    scontrol.chmod(0o755)
    script = (
        f"PATH={tmp_path}:$PATH gpulaunch cluster run {shlex.join(DGX)} --ranks 2 --dry-run -- true"
    )
    done = site.slurm.run(*BOTH, "sh", "-c", script, environment=site.environment)
    assert done.stderr == (
        "gpulaunch: warning: what Slurm tells of the network is left out: the network is no tree: "
        "nodes 'n1' and 'n2' have no switch above both\n"
    )
    assert "srun" in done.stdout


def test_outside_an_allocation(launcher: Launcher) -> None:
    """Without an allocation, the ways to one are named."""
    done = launcher.run("cluster", "run", "--", "true")
    line = "this is no Slurm allocation"
    hint = "run it inside salloc or sbatch, or name hosts for mpirun with --hostfile"
    assert (done.returncode, done.stderr) == (2, complaint(line, hint))
