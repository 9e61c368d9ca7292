"""Ranks on the nodes of a real Slurm where a map puts them."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import DGX, Launcher, complaint, until
from ranks import crossed_matrix, rank_command, ranks_of, wanted
from slurm import Slurm
from test_slurm import Site

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
    options = (*DGX, "--gpu-pattern", crossed_matrix(tmp_path), "-o", str(tmp_path))
    done = cluster(site, "run", *options, "--", *rank_command(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert ranks_of(done.stdout) == wanted(tmp_path)
    nodes = [node for _, node, _, _ in wanted(tmp_path)]
    assert nodes[0] == nodes[2] != nodes[1] == nodes[3]
    assert site.launcher.records() == []


def test_more_ranks_than_cores(site: Site, tmp_path: Path) -> None:
    """Without binding, GPUs alone say how many ranks a node takes: all eight, each another one."""
    options = (*DGX, "--no-bind-cpu", "--gpu-pattern", "ring", "-o", str(tmp_path))
    done = cluster(site, "run", *options, "--", *rank_command(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    seen = [(rank, node, gpu) for rank, node, _, gpu in ranks_of(done.stdout)]
    assert seen == [(rank, node, gpu) for rank, node, _, gpu in wanted(tmp_path)]
    assert len({(node, gpu) for _, node, gpu in seen}) == 16


@pytest.mark.parametrize(
    ("job", "environment", "status"),
    [("exit 3", {}, 3), ("kill -9 $$", {}, 137), ("sleep 60", {"GPULAUNCH_TIME_LIMIT": "1s"}, 124)],
)
def test_status(site: Site, job: str, environment: dict[str, str], status: int) -> None:
    """The exit status is srun's own, which is that of the ranks."""
    site.environment |= environment
    done = cluster(site, "run", *DGX, "--", "sh", "-c", job)
    assert done.returncode == status
    assert site.launcher.records() == []


def test_scancel(site: Site, tmp_path: Path) -> None:
    """A cancelled job leaves no rank and no lease."""
    started = tmp_path / "started"
    script = f"echo >> {started}; exec sleep 600"
    command = (*BOTH, "gpulaunch", "cluster", "run", *DGX, "--", "sh", "-c", script)
    with site.slurm.start_job(*command, environment=site.environment) as job:
        until(lambda: started.exists() and len(started.read_text()) == 4)
        assert site.slurm.run("scancel", *site.slurm.jobs()).returncode == 0
        job.communicate(timeout=60)
    site.slurm.await_idle()
    assert job.returncode != 0
    until(lambda: site.launcher.records() == [])


def test_nodes_are_asked_once(site: Site) -> None:
    """What an allocation has is shown, and its nodes are asked by one step for all calls."""
    call = f"gpulaunch cluster show {' '.join(DGX)}"
    script = f"{call}; {call} --json; srun -n1 -N1 sh -c 'echo step $SLURM_STEP_ID'"
    done = site.slurm.run(*BOTH, "sh", "-c", script, environment=site.environment)
    lines = done.stdout.splitlines()
    cores = len(json.loads("\n".join(lines[5:-1]))["nodes"][0]["sockets"][0])
    assert lines[1:5] == [
        "├── s1",
        f"│   └── n1: 8 x Tesla V100-SXM2-16GB; {cores} cores in 1 socket",
        "└── s2",
        f"    └── n2: 8 x Tesla V100-SXM2-16GB; {cores} cores in 1 socket",
    ]
    assert lines[-1] == "step 1"


def test_the_controller_knows_the_network(site: Site, tmp_path: Path) -> None:
    """Where Slurm tells tasks no place in the network, its controller is asked for the switches."""
    prolog = tmp_path / "prolog"
    prolog.write_text("#!/bin/sh\necho unset SLURM_TOPOLOGY_ADDR\n")
    prolog.chmod(0o755)
    done = cluster(site, "show", *DGX, "--launcher", f"srun --task-prolog={prolog}")
    names = [line.split()[-1] for line in done.stdout.splitlines() if ":" not in line]
    assert (done.returncode, names) == (0, ["s1", "s2"])


@pytest.mark.parametrize(
    ("arguments", "line", "hint"),
    [
        (
            ("run", *DGX, "--ranks", "17", "--no-bind-cpu", "--", "true"),
            (
                "17 ranks requested, each with a core and a GPU of its own: the 2 nodes of "
                "slurm JOB have 16 GPUs and 16 cores, and take 16"
            ),
            None,
        ),
        (("run", *DGX), "no command given", "gpulaunch cluster run [OPTIONS] -- COMMAND [ARG...]"),
        (
            ("run", *DGX, "--hostfile", "x", "--launcher", "srun", "--", "true"),
            "--hostfile goes with mpirun: Slurm has its own list of nodes",
            None,
        ),
        (
            ("show", "--launcher", "ssh"),
            "--launcher: 'ssh' is neither srun nor Open MPI's mpirun",
            "'gpulaunch cluster map' writes files for others",
        ),
    ],
)
def test_mistakes(site: Site, arguments: tuple[str, ...], line: str, hint: str | None) -> None:
    """What cannot be is refused in one line with the numbers, and no rank is started."""
    done = cluster(site, *arguments)
    job = done.stderr.partition("slurm ")[2].partition(" ")[0]
    assert done.stdout == ""
    assert done.stderr.replace(f"slurm {job}", "slurm JOB") == complaint(line, hint)
    assert done.returncode == 2
    assert not (Path(site.environment["HOME"]) / ".cache").exists()


def test_outside_an_allocation(launcher: Launcher) -> None:
    """Without an allocation, the ways to one are named."""
    done = launcher.run("cluster", "run", "--", "true")
    line = "this is no Slurm allocation"
    hint = "run it inside salloc or sbatch, or name hosts for mpirun with --hostfile"
    assert (done.returncode, done.stderr) == (2, complaint(line, hint))
