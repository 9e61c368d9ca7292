"""Ranks on the nodes of a real Slurm where a map puts them."""

import json
import subprocess
from pathlib import Path

import pytest
from conftest import DGX, Launcher, complaint, until
from test_slurm import Site, site  # noqa: F401  a fixture

BOTH = ("salloc", "-Q", "-N2", "--gres=gpu:8", "--exclusive")

# What a rank sees: its number, node, local rank, cores and GPUs.
RANK = """\
import json, os
names = ["SLURM_PROCID", "SLURMD_NODENAME", "SLURM_LOCALID"]
if "OMPI_COMM_WORLD_RANK" in os.environ:
    names = ["OMPI_COMM_WORLD_RANK", "HOST", "OMPI_COMM_WORLD_LOCAL_RANK"]
    os.environ["HOST"] = os.uname().nodename
seen = [os.environ.get(name, "-1") for name in (*names, "CUDA_VISIBLE_DEVICES")]
os.write(1, (json.dumps([*seen, sorted(os.sched_getaffinity(0))]) + "\\n").encode())
"""


def ranks_of(output: str) -> list[tuple[int, str, list[int], int]]:
    """Return rank, node, cores and first GPU of each rank, in order."""
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("[")]
    return sorted(
        (int(rank), node, cores, int(gpus.split(",")[0])) for rank, node, _, gpus, cores in rows
    )


def wanted(directory: Path) -> list[tuple[int, str, list[int], int]]:
    """Return what a map says, in the form of ranks_of()."""
    rows = json.loads((directory / "map.json").read_text())["ranks"]
    return [(row["rank"], row["node"], [row["core"]], row["gpu"]) for row in rows]


@pytest.fixture
def rank_program(tmp_path: Path) -> list[str]:
    """Return the command of a rank that tells what it sees."""
    program = tmp_path / "rank.py"
    program.write_text(RANK)
    return ["/usr/bin/python3", str(program)]


@pytest.fixture
def crossed(tmp_path: Path) -> str:
    """Return the file of a matrix whose heavy pairs are ranks 0 and 2, and 1 and 3."""
    path = tmp_path / "crossed.csv"
    path.write_text("0,1,9,0\n1,0,0,9\n9,0,0,1\n0,9,1,0\n")
    return str(path)


def cluster(site: Site, *arguments: str, **options) -> subprocess.CompletedProcess[str]:
    """Run a command of `gpulaunch cluster` inside an allocation of both nodes."""
    command = (*BOTH, "gpulaunch", "cluster", *arguments)
    return site.slurm.run(*command, environment=site.environment, **options)


def test_ranks_run_where_the_map_says(
    site: Site, tmp_path: Path, rank_program: list[str], crossed: str
) -> None:
    """Every rank of a step has the node, the core and the GPU of its row, and no lease is left."""
    options = (*DGX, "--gpu-pattern", crossed, "-o", str(tmp_path))
    done = cluster(site, "run", *options, "--", *rank_program)
    assert (done.returncode, done.stderr) == (0, "")
    assert ranks_of(done.stdout) == wanted(tmp_path)
    nodes = [node for _, node, _, _ in wanted(tmp_path)]
    assert nodes[0] == nodes[2] != nodes[1] == nodes[3]
    assert site.launcher.records() == []


def test_more_ranks_than_cores(site: Site, tmp_path: Path, rank_program: list[str]) -> None:
    """Without binding, GPUs alone say how many ranks a node takes: all eight, each another one."""
    options = (*DGX, "--no-bind-cpu", "--gpu-pattern", "ring", "-o", str(tmp_path))
    done = cluster(site, "run", *options, "--", *rank_program)
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


@pytest.mark.parametrize(
    ("arguments", "line", "hint"),
    [
        (
            ("run", *DGX, "--ranks", "17", "--no-bind-cpu", "--", "true"),
            "17 ranks requested, each with a core and a GPU of its own: the 2 nodes of slurm JOB "
            "have 16 GPUs and 16 cores, and take 16",
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
def test_mistakes(
    site: Site, tmp_path: Path, arguments: tuple[str, ...], line: str, hint: str | None
) -> None:
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
