"""Launches inside a real Slurm of two nodes with eight stand-in GPUs each.

Each node has a table of its own, as machines do, and its GPUs are those of a described DGX-1.
"""

import json
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import DGX, Launcher, complaint, until
from ranks import crossed_matrix, rank_command, ranks_of, wanted
from slurm import TABLES, Slurm
from test_users import Accounts, User, accounts, alice, root  # noqa: F401  fixtures

pytest_plugins = ("fake_nvml",)

SHOW = "echo $SLURM_PROCID $CUDA_VISIBLE_DEVICES"
HOLD = f"{SHOW}; read line"
NODE = ("-N1", "-w", "n1")


def said(done: subprocess.CompletedProcess[str]) -> str:
    """Return what gpulaunch complained of, with JOB for the job's number."""
    lines = [line for line in done.stderr.splitlines(keepends=True) if line.startswith("gpulaunch")]
    return re.sub(r"slurm \d+(\.\d+)?", "slurm JOB", "".join(lines))


class Site:
    """Slurm, and a user who launches in it.

    Attributes:
        slurm: the cluster.
        launcher: gpulaunch as it runs outside of jobs.
        environment: of srun and the others, for its jobs.
    """

    def __init__(self, slurm: Slurm, launcher: Launcher) -> None:
        self.slurm, self.launcher = slurm, launcher
        tables = Path(tempfile.mkdtemp(dir=slurm.directory))  # pytest's is closed to other users
        for table in (tables, tables / "n1", tables / "n2"):
            table.mkdir(exist_ok=True)
            table.chmod(0o1777)
        self.environment = {**launcher.environment, TABLES: str(tables)}
        del self.environment["GPULAUNCH_STATE_DIR"]
        launcher.environment["GPULAUNCH_STATE_DIR"] = str(tables / "n1")
        launcher.state = tables / "n1"
        slurm.environment["PATH"] = launcher.environment["PATH"]

    def command(self, *options: str, launch: tuple[str, ...] = (), job: str = SHOW) -> list[str]:
        """Return argv of srun with a launch in each task."""
        return ["srun", "-Q", *options, "gpulaunch", *DGX, *launch, "--", "sh", "-c", job]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a program of Slurm to its end."""
        return self.slurm.run(*command, environment=self.environment)

    def shown(self, *options: str, **named) -> list[str]:
        """Return what launches print that must succeed, line by line, in order."""
        done = self.run(*self.command(*options, **named))
        assert (done.returncode, done.stderr) == (0, "")
        return sorted(done.stdout.splitlines())

    def refused(self, *options: str, **named) -> str:
        """Return what launches say that are refused."""
        done = self.run(*self.command(*options, **named))
        assert (done.returncode, done.stdout) == (2, "")
        return said(done)

    def batch(self, script: str, *options: str) -> tuple[int, str]:
        """Run a script of sh by sbatch; return its exit status and its output."""
        file, output = self.launcher.state / "job", self.launcher.state / "output"
        file.write_text(f"#!/bin/sh\n{script}")
        done = self.run("sbatch", "-W", "-o", str(output), *options, str(file))
        return done.returncode, output.read_text()

    @contextmanager
    def holding(self, *options: str, tasks: int = 1, **named) -> Iterator[list[str]]:
        """Run launches that keep their GPUs for the length of the block; what they print."""
        command = self.command(*options, **{"job": HOLD, **named})
        pipes = {"stdin": subprocess.PIPE, "environment": self.environment}
        with self.slurm.start_job(*command, **pipes) as job:
            yield sorted(job.stdout.readline().strip() for _ in range(tasks))
            _, stderr = job.communicate("\n")
            assert (job.returncode, stderr) == (0, "")

    def status(self) -> dict:
        """Return the table of node n1 as it is seen from outside of Slurm."""
        return json.loads(self.launcher.run("status", *DGX, "--json").stdout)

    def states(self) -> list[str]:
        """Return the states of the first three GPUs of node n1."""
        return [gpu["state"] for gpu in self.status()["gpus"]][:3]


@pytest.fixture
def site(slurm: Slurm, launcher: Launcher) -> Iterator[Site]:
    """Yield the cluster with nothing running in it, and empty tables."""
    path = slurm.environment["PATH"]
    slurm.await_idle()
    yield Site(slurm, launcher)
    slurm.environment["PATH"] = path


def test_what_was_granted(site: Site) -> None:
    """Without -n a launch has all GPUs that Slurm granted; with it, some of these alone.

    A job that was granted none gets none, and is told how to ask Slurm for some.
    """
    want = "slurm JOB was granted no GPU on n1"
    hint = "ask for GPUs: srun --gres=gpu:N, or --gpus-per-task=N; "
    hint += "-o ignore_engine=true goes past that"
    assert site.refused(*NODE, "-n1", launch=("-n", "2")) == complaint(want, hint)
    assert site.shown(*NODE, "-n1", "--gres=gpu:4") == ["0 0,1,2,3"]
    assert site.shown(*NODE, "-n1", "--gres=gpu:4", launch=("-n", "2")) == ["0 0,3"]
    want = "3 GPUs requested: 2 of dgx1-v100's 8 satisfy what slurm JOB granted"
    assert site.refused(*NODE, "-n1", "--gres=gpu:2", launch=("-n", "3")) == complaint(want)


def test_batch_script(site: Site) -> None:
    """A batch script's launch has all GPUs of the job on its node, and launches in it a part."""
    launch = f"gpulaunch {' '.join(DGX)}"
    inner = f"{launch} -- sh -c 'echo in \\$CUDA_VISIBLE_DEVICES'"
    script = f"{launch} -- sh -c 'echo $CUDA_VISIBLE_DEVICES'\n{launch} -n 2 -- sh -c \"{inner}\"\n"
    got = site.batch(f"{script}exit 5\n", *NODE, "-n4", "--gres=gpu:4")
    assert got == (5, "0,1,2,3\nin 0\n")


def test_one_launcher_per_rank(site: Site) -> None:
    """Ranks divide the grant in the order that one launch of all would have, and see all of it."""
    chain = ("--pattern", "chain")
    dry_run = (*DGX, "--only", "0-3", "-n", "4", *chain, "--dry-run", "--json", "--", "true")
    found = json.loads(site.launcher.run(*dry_run).stdout)["gpus"]
    gpus = [str(gpu["index"]) for gpu in found]
    assert gpus != sorted(gpus)
    want = [
        f"{rank} {','.join([own, *(gpu for gpu in gpus if gpu != own)])}"
        for rank, own in enumerate(gpus)
    ]
    for count in (("-n", "1"), ()):
        assert site.shown(*NODE, "-n4", "--gres=gpu:4", launch=(*count, *chain)) == want


def test_ranks_that_slurm_binds_to_one_gpu(site: Site) -> None:
    """Ranks have the GPUs to which Slurm bound them; two of one GPU run at the same time."""
    got = site.shown(*NODE, "-n2", "--gpus-per-task=2")
    assert [sorted(re.split("[ ,]", line)[1:]) for line in got] == [["0", "1"], ["2", "3"]]
    options = (*NODE, "-n4", "--gres=gpu:2", "--gpu-bind=map_gpu:0,0,1,1")
    with site.holding(*options, tasks=4) as lines:
        assert lines == ["0 0", "1 0", "2 1", "3 1"]
        assert site.states() == ["leased", "leased", "free"]


def test_two_jobs_on_one_node(site: Site) -> None:
    """Two jobs of Slurm on one node have their own GPUs, and whoever is outside sees whose."""
    named = {"tasks": 4, "launch": ("--name", "x")}
    with (
        site.holding(*NODE, "-n1", "--gres=gpu:2") as first,
        site.holding(*NODE, "-n4", "--gres=gpu:4", **named) as second,
    ):
        gpus = [re.split("[ ,]", line)[1:] for line in (*first, second[0])]
        assert [sorted(own) for own in gpus] == [["0", "1"], ["4", "5", "6", "7"]]
        jobs = [lease["engine_job"] for lease in site.status()["leases"]]
        assert {job["engine"] for job in jobs} == {"slurm"}
        ranks = sorted((job["ranks"], job["rank"]) for job in jobs)
        assert ranks == [(1, 0), (4, 0), (4, 1), (4, 2), (4, 3)]
        outside = site.launcher.run(*DGX, "-n", "3", "--", "true")
        assert outside.returncode == 75
        line = next(line for line in outside.stderr.splitlines() if " has GPUs " in line)
        line = re.sub(r"slurm \d+", "slurm JOB", re.sub(r"for \d+ s", "for TIME", line))
        assert line.partition(" has ")[2] == (
            "GPUs 0-1,4-7 (sh of slurm JOB.0 for TIME, x of slurm JOB.0, 4 ranks, for TIME)"
        )
        shown = site.launcher.run("status", *DGX).stdout
        rows = [re.split("  +", line) for line in shown.splitlines() if line.startswith("x (")]
        assert sorted((row[1], row[3]) for row in rows) == [("running", gpu) for gpu in "4567"]
        found = {re.sub(r"slurm \d+", "slurm N", row[-1]).partition(":")[0] for row in rows}
        assert found == {f"slurm N.0, rank {rank} of 4" for rank in range(4)}


def test_rank_that_has_ended(site: Site) -> None:
    """The GPU of a rank that has ended, or not begun, is nobody else's while the step runs."""
    job = f'[ "$SLURM_PROCID" = 0 ] || exit 0; {HOLD}'
    with site.holding(*NODE, "-n2", "--gres=gpu:2", job=job):
        until(lambda: len(site.status()["leases"]) == 1)
        assert site.states() == ["leased", "leased", "free"]
        assert site.launcher.run(*DGX, "--only", "0,1", "--", "true").returncode == 75


def test_shards(site: Site) -> None:
    """Jobs to which Slurm gave shards of one GPU both run, and nobody else gets that GPU."""
    with site.holding(*NODE, "-n2", "--gres=shard:2", tasks=2) as lines:
        assert lines == ["0 0", "1 0"]
        shared = [lease["engine_job"]["shared"] for lease in site.status()["leases"]]
        assert (shared, site.states()[:2]) == ([True, True], ["shared", "free"])
        assert site.launcher.run(*DGX, "--only", "0", "--", "true").returncode == 75


def test_mps(site: Site) -> None:
    """A share by MPS, of which Slurm does not tell the GPU, needs its name, and stays Slurm's."""
    job = f"{SHOW} $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
    want = "slurm JOB has a share by MPS, and does not tell on which of 8 GPUs"
    refused = site.refused(*NODE, "-n1", "--gres=mps:50", job=job)
    assert refused == complaint(want, "name it: --only GPU")
    assert site.shown(*NODE, "-n1", "--gres=mps:50", job=job, launch=("--only", "3")) == ["0 3 50"]


def test_exit_status_and_signals(site: Site) -> None:
    """Status and signals of a launch in a task are Slurm's to see and to send."""
    trap = "trap 'echo got it; exit 4' USR1; echo ready; while :; do sleep 0.1; done"
    command = site.command(*NODE, "-n1", "--gres=gpu:1", job=trap)
    with site.slurm.start_job(*command, environment=site.environment) as job:
        assert job.stdout.readline() == "ready\n"
        (number,) = site.slurm.jobs()
        site.slurm.run("scancel", "--signal=USR1", f"{number}.0")
        assert job.communicate()[0] == "got it\n"
        assert job.returncode == 4


def test_outside_of_tasks(site: Site) -> None:
    """A launch in a shell that salloc made, which is on none of the job's nodes, is refused.

    A launch around srun of two nodes says that the far tasks have no lease.
    """
    done = site.run("salloc", "-N2", "--gres=gpu:2", "gpulaunch", *DGX, "--", "true")
    assert said(done) == complaint(
        "slurm JOB has its GPUs on n[1-2], and this is no task of it",
        "write 'srun gpulaunch ...', or go past it with -o ignore_engine=true",
    )
    script = f"exec gpulaunch {' '.join(DGX)} -- srun -N2 hostname\n"
    _, output = site.batch(script, "-N2", "-n2", "--gres=gpu:1")
    want = "srun starts tasks on 2 nodes, and only those on this one have a lease: "
    want += "write 'srun ... gpulaunch -- COMMAND', a launch for each task"
    assert f"gpulaunch: warning: {want}" in output.splitlines()


def test_map_of_other_ranks(site: Site, tmp_path: Path) -> None:
    """A rank that is not where a map has it, or was not granted its GPU, is refused with both."""
    path = tmp_path / "map"
    mapped = ("-o", f"rank_map={path}")
    rows = [{"rank": rank, "node": "n2", "gpu": rank} for rank in range(4)]
    path.write_text(json.dumps({"ranks": rows}))
    refused = site.refused(*NODE, "-n4", "--gres=gpu:4", launch=mapped)
    want = [f"{path}: rank {rank} belongs on n2, and runs on n1" for rank in range(4)]
    assert sorted(refused.splitlines()) == [f"gpulaunch: error: {line}" for line in want]
    path.write_text(json.dumps({"ranks": [{"rank": 0, "node": "n1", "gpu": 5}]}))
    refused = site.refused(*NODE, "-n1", "--gres=gpu:1", launch=mapped)
    want = f"{path}: rank 0 is to have GPU 5 of n1, not what slurm JOB granted"
    assert refused == complaint(want)


def test_ordinary_user(site: Site, alice: User) -> None:  # noqa: F811
    """A user who is not root has the same in a job: a grant, ranks, and a lease with its name."""
    launch = (alice.script, *alice.first, *DGX, "--", "sh", "-c", SHOW)
    command = ("srun", "-Q", *NODE, "-n2", "--gres=gpu:2", *launch)
    environment = {**alice.environment, TABLES: site.environment[TABLES], **site.slurm.environment}
    environment["PATH"] = "/usr/bin:/bin"
    del environment["GPULAUNCH_STATE_DIR"]
    options = {**alice.options, "env": environment}
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert (sorted(done.stdout.splitlines()), done.stderr) == (["0 0,1", "1 1,0"], "")


# `gpulaunch cluster run`

BOTH = ("salloc", "-Q", "-N2", "--gres=gpu:8", "--exclusive")
RUN = ("gpulaunch", "cluster", "run")


def test_ranks_run_where_the_map_says(site: Site, tmp_path: Path) -> None:
    """Every rank of a step has the node, the core and the GPU of its row, and no lease is left."""
    pattern = ("--ranks", "4", "--gpu-pattern", crossed_matrix(tmp_path), "-o", str(tmp_path))
    done = site.run(*BOTH, *RUN, *DGX, *pattern, "--", *rank_command(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert ranks_of(done.stdout) == wanted(tmp_path)
    nodes = [node for _, node, _, _ in wanted(tmp_path)]
    assert nodes[0] == nodes[2] != nodes[1] == nodes[3]
    assert site.launcher.records() == []


@pytest.mark.usefixtures("dgx1_v100")
def test_gpus_that_nvml_tells_of(site: Site) -> None:
    """Ranks run on the nodes' own GPUs, their status is the step's, and no lease is left."""
    job = ("sh", "-c", "echo $SLURM_PROCID $CUDA_VISIBLE_DEVICES; exit 3")
    done = site.run(*BOTH, *RUN, "--ranks", "4", "--gpu-pattern", "ring", "--", *job)
    ranks = sorted(line.split() for line in done.stdout.splitlines())
    assert (done.returncode, [rank for rank, _ in ranks]) == (3, ["0", "1", "2", "3"]), done.stderr
    assert site.launcher.records() == []


def test_scancel(site: Site, tmp_path: Path) -> None:
    """A cancelled job leaves no rank and no lease."""
    started = tmp_path / "started"
    command = (*BOTH, *RUN, *DGX, "--", "sh", "-c", f"echo >> {started}; exec sleep 600")
    with site.slurm.start_job(*command, environment=site.environment) as job:
        until(lambda: started.exists() and len(started.read_text()) == 4)
        assert site.slurm.run("scancel", *site.slurm.jobs()).returncode == 0
        job.communicate()
    site.slurm.await_idle()
    assert job.returncode != 0
    until(lambda: site.launcher.records() == [])


def test_wishes_of_the_allocation(site: Site, tmp_path: Path) -> None:
    """What an allocation says of its tasks does not stand in the way of the map.

    Nor of the line of a dry run. Without binding, GPUs alone say how many ranks a node takes.
    """
    options = (*DGX, "--no-bind-cpu", "-o", str(tmp_path), "--", *rank_command(tmp_path))
    line = shlex.join([*RUN, *options])
    script = f'{line}; eval "$({line.replace("run", "run --dry-run", 1)})"'
    allocate = ("salloc", "-Q", "-N2", "--gres=gpu:2", "--ntasks-per-gpu=1")
    done = site.run(*allocate, "sh", "-c", script)
    assert (done.returncode, done.stderr) == (0, "")
    seen = [(node, gpu) for _, node, _, gpu in ranks_of(done.stdout)]
    assert sorted(seen) == [(node, gpu) for node in ("n1", "n2") for gpu in (0, 0, 1, 1)]


def test_what_is_said_of_an_allocation(site: Site, tmp_path: Path) -> None:
    """What cannot be mapped as it was asked for is said in one line, with what helps.

    GPUs that Slurm deals out itself, GPUs that get no rank for want of cores, and switches that
    make no tree, for which one for all nodes is assumed.
    """
    true = (*RUN, *DGX, "--", "true")
    done = site.run("salloc", "-Q", "-N2", "--ntasks=2", "--gpus-per-task=1", *true)
    line = "slurm JOB has GPUs for each task, which Slurm deals out itself"
    hint = "make it with --gres=gpu:N or --gpus-per-node=N instead of --gpus-per-task"
    assert (done.returncode, said(done)) == (2, complaint(line, hint))
    done = site.run("salloc", "-Q", "-N2", "--gres=gpu:4", *true)
    line = "2 ranks: the 2 nodes of slurm JOB have 8 GPUs and 2 cores; "
    line += "with --no-bind-cpu a rank needs no core of its own"
    assert (done.returncode, said(done)) == (0, f"gpulaunch: warning: {line}\n")
    scontrol = tmp_path / "scontrol"
    switches = "SwitchName=s1 Nodes=n1\\nSwitchName=s2 Nodes=n2\\n"
    scontrol.write_text(f"#!/bin/sh\nprintf '{switches}'\n")
    scontrol.chmod(0o755)
    site.slurm.environment["PATH"] = f"{tmp_path}:{site.slurm.environment['PATH']}"
    done = site.run(*BOTH, *RUN, *DGX, "--ranks", "2", "--dry-run", "--", "true")
    line = "what Slurm tells of the network is left out: the network is no tree: "
    line += "nodes 'n1' and 'n2' have no switch above both"
    assert (done.stderr, "srun" in done.stdout) == (f"gpulaunch: warning: {line}\n", True)


def test_launchers_and_hosts_are_needed(launcher: Launcher) -> None:
    """A launcher that is neither srun nor mpirun is refused; without any, the ways are named."""
    done = launcher.run("cluster", "run", "--launcher", "ssh", "--", "true")
    line = "--launcher: 'ssh' is neither srun nor Open MPI's mpirun"
    hint = "'gpulaunch cluster map' writes files for others"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", complaint(line, hint))
    done = launcher.run("cluster", "run", "--", "true")
    line = "this is no Slurm allocation"
    hint = "run it inside salloc or sbatch, or name hosts for mpirun with --hostfile"
    assert (done.returncode, done.stderr) == (2, complaint(line, hint))
