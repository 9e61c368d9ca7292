"""Launches inside a real Slurm of two nodes with eight stand-in GPUs each.

Each node has a table of its own, as machines do, and its GPUs are those of a described DGX-1.
"""

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import DGX, Launcher, complaint, until
from slurm import TABLES, Slurm
from test_users import Accounts, User, accounts, alice, root  # noqa: F401  fixtures

from gpulaunch.machine.gpu import parse_cpuset

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

    def srun(self, *options: str, **named) -> subprocess.CompletedProcess[str]:
        """Run a launch in each task to its end."""
        return self.slurm.run(*self.command(*options, **named), environment=self.environment)

    def shown(self, *options: str, **named) -> list[str]:
        """Return what launches print that must succeed, line by line, in order."""
        done = self.srun(*options, **named)
        assert (done.returncode, done.stderr) == (0, "")
        return sorted(done.stdout.splitlines())

    @contextmanager
    def holding(self, *options: str, tasks: int = 1, **named) -> Iterator[list[str]]:
        """Run launches that keep their GPUs for the length of the block; what they print."""
        command = self.command(*options, **{"job": HOLD, **named})
        pipes = {"stdin": subprocess.PIPE, "environment": self.environment}
        with self.slurm.start_job(*command, **pipes) as job:
            lines = [job.stdout.readline().strip() for _ in range(tasks)]
            yield sorted(lines)
            _, stderr = job.communicate("\n")
            assert (job.returncode, stderr) == (0, "")

    def status(self) -> dict:
        """Return the table of node n1 as it is seen from outside of Slurm."""
        return json.loads(self.launcher.run("status", *DGX, "--json").stdout)


@pytest.fixture
def site(slurm: Slurm, launcher: Launcher) -> Iterator[Site]:
    """Return the cluster with nothing running in it, and empty tables."""
    path = slurm.environment["PATH"]
    slurm.await_idle()
    yield Site(slurm, launcher)
    slurm.environment["PATH"] = path


def test_job_without_gpus(site: Site) -> None:
    """A job that was granted no GPU gets none, and is told how to ask Slurm for some."""
    done = site.srun(*NODE, "-n1", launch=("-n", "2"))
    assert (done.returncode, done.stdout) == (2, "")
    assert said(done) == complaint(
        "slurm JOB was granted no GPU on n1",
        "ask for GPUs: srun --gres=gpu:N, or --gpus-per-task=N; -o ignore_engine=true goes past "
        "that",
    )
    assert site.shown(*NODE, "-n1", launch=("-o", "ignore_engine=true", "-n", "2")) == ["0 0,3"]


def test_all_that_was_granted(site: Site) -> None:
    """Without -n a launch has all GPUs that Slurm granted; with it, some of these alone."""
    assert site.shown(*NODE, "-n1", "--gres=gpu:4") == ["0 0,1,2,3"]
    assert site.shown(*NODE, "-n1", "--gres=gpu:4", launch=("-n", "2")) == ["0 0,3"]
    done = site.srun(*NODE, "-n1", "--gres=gpu:2", launch=("-n", "3"))
    want = "3 GPUs requested: 2 of dgx1-v100's 8 satisfy what slurm JOB granted"
    assert (done.returncode, said(done)) == (2, complaint(want))


def test_batch_script(site: Site, tmp_path: Path) -> None:
    """A batch script's launch has all GPUs of the job on its node, and launches in it a part."""
    script, output = tmp_path / "job", tmp_path / "output"
    launch = f"gpulaunch {' '.join(DGX)}"
    inner = f"{launch} -- sh -c 'echo in \\$CUDA_VISIBLE_DEVICES'"
    script.write_text(
        f"#!/bin/sh\n{launch} -- sh -c 'echo $CUDA_VISIBLE_DEVICES'\n"
        f'{launch} -n 2 -- sh -c "{inner}"\nexit 5\n'
    )
    options = ("-W", "-o", str(output), *NODE, "-n4", "--gres=gpu:4")
    done = site.slurm.run("sbatch", *options, str(script), environment=site.environment)
    assert (done.returncode, output.read_text()) == (5, "0,1,2,3\nin 0\n")


def order(site: Site, *options: str) -> list[str]:
    """Return the GPUs that one launch would get outside of Slurm, in rank order."""
    done = site.launcher.run(*DGX, *options, "--dry-run", "--json", "--", "true")
    return [str(gpu["index"]) for gpu in json.loads(done.stdout)["gpus"]]


def first_then(own: str, others: list[str]) -> str:
    """Return CUDA_VISIBLE_DEVICES with one GPU before the others."""
    return ",".join([own, *(gpu for gpu in others if gpu != own)])


def test_one_launcher_per_rank(site: Site) -> None:
    """Ranks divide the grant in the order that one launch of all would have, and see all of it."""
    chain = ("--pattern", "chain")
    gpus = order(site, "--only", "0-3", "-n", "4", *chain)
    assert gpus != sorted(gpus)
    want = [f"{rank} {first_then(gpu, gpus)}" for rank, gpu in enumerate(gpus)]
    options = (*NODE, "-n4", "--gres=gpu:4")
    for count in (("-n", "1"), ()):
        assert site.shown(*options, launch=(*count, *chain)) == want


def test_ranks_that_slurm_binds_to_one_gpu(site: Site) -> None:
    """Ranks have the GPUs to which Slurm bound them; two of one GPU run at the same time."""
    got = site.shown(*NODE, "-n2", "--gpus-per-task=2")
    assert [sorted(re.split("[ ,]", line)[1:]) for line in got] == [["0", "1"], ["2", "3"]]
    options = (*NODE, "-n4", "--gres=gpu:2", "--gpu-bind=map_gpu:0,0,1,1")
    with site.holding(*options, tasks=4) as lines:
        assert lines == ["0 0", "1 0", "2 1", "3 1"]
        assert [gpu["state"] for gpu in site.status()["gpus"]][:3] == ["leased", "leased", "free"]


def test_two_jobs_on_one_node(site: Site) -> None:
    """Two jobs of Slurm on one node have their own GPUs, and whoever is outside sees whose.

    All ranks of a step are one row of status.
    """
    named = {"tasks": 4, "launch": ("--name", "x")}
    with (
        site.holding(*NODE, "-n1", "--gres=gpu:2") as first,
        site.holding(*NODE, "-n4", "--gres=gpu:4", **named) as second,
    ):
        gpus = [re.split("[ ,]", line)[1:] for line in (*first, second[0])]
        assert [sorted(own) for own in gpus] == [["0", "1"], ["4", "5", "6", "7"]]
        status = site.status()
        jobs = [lease["engine_job"] for lease in status["leases"]]
        assert {job["engine"] for job in jobs} == {"slurm"}
        assert sorted((job["ranks"], job["rank"]) for job in jobs) == [
            (1, 0),
            *((4, rank) for rank in range(4)),
        ]
        free = [gpu["index"] for gpu in status["gpus"] if gpu["free"]]
        assert free == [2, 3]
        outside = site.launcher.run(*DGX, "-n", "3", "--", "true")
        assert outside.returncode == 75
        line = next(line for line in outside.stderr.splitlines() if " has GPUs " in line)
        line = re.sub(r"slurm \d+", "slurm JOB", re.sub(r"for \d+ s", "for TIME", line))
        assert line.partition(" has ")[2] == (
            "GPUs 0-1,4-7 (sh of slurm JOB.0 for TIME, x of slurm JOB.0, 4 ranks, for TIME)"
        )
        shown = site.launcher.run("status", *DGX).stdout
        (row,) = (line.split() for line in shown.splitlines() if line.startswith("x "))
        assert (row[1], parse_cpuset(row[3])) == ("running", {4, 5, 6, 7})
        assert " slurm N.N, N of N ranks: " in re.sub(r"\d+", "N", " ".join(row))


def test_rank_that_has_ended(site: Site) -> None:
    """The GPU of a rank that has ended, or not begun, is nobody else's while the step runs."""
    job = f'[ "$SLURM_PROCID" = 0 ] || exit 0; {HOLD}'
    with site.holding(*NODE, "-n2", "--gres=gpu:2", job=job):
        until(lambda: len(site.status()["leases"]) == 1)
        assert [gpu["state"] for gpu in site.status()["gpus"]][:3] == ["leased", "leased", "free"]
        busy = site.launcher.run(*DGX, "--only", "0,1", "--", "true")
        assert busy.returncode == 75


def test_shards(site: Site) -> None:
    """Jobs to which Slurm gave shards of one GPU both run, and nobody else gets that GPU."""
    with site.holding(*NODE, "-n2", "--gres=shard:2", tasks=2) as lines:
        assert lines == ["0 0", "1 0"]
        status = site.status()
        assert [lease["engine_job"]["shared"] for lease in status["leases"]] == [True, True]
        assert [gpu["state"] for gpu in status["gpus"]][:2] == ["shared", "free"]
        assert site.launcher.run(*DGX, "--only", "0", "--", "true").returncode == 75


def test_mps(site: Site) -> None:
    """A share by MPS, of which Slurm does not tell the GPU, needs its name, and stays Slurm's."""
    job = f"{SHOW} $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
    done = site.srun(*NODE, "-n1", "--gres=mps:50", job=job)
    want = "slurm JOB has a share by MPS, and does not tell on which of 8 GPUs"
    assert (done.returncode, said(done)) == (2, complaint(want, "name it: --only GPU"))
    assert site.shown(*NODE, "-n1", "--gres=mps:50", job=job, launch=("--only", "3")) == ["0 3 50"]


def test_exit_status_and_signals(site: Site) -> None:
    """Status and signals of a launch in a task are Slurm's to see and to send."""
    assert site.srun(*NODE, "-n1", "--gres=gpu:1", job="exit 3").returncode == 3
    trap = "trap 'echo got it; exit 4' USR1; echo ready; while :; do sleep 0.1; done"
    command = site.command(*NODE, "-n1", "--gres=gpu:1", job=trap)
    with site.slurm.start_job(*command, environment=site.environment) as job:
        assert job.stdout.readline() == "ready\n"
        (number,) = site.slurm.jobs()
        site.slurm.run("scancel", "--signal=USR1", f"{number}.0")
        assert job.communicate()[0] == "got it\n"
        assert job.returncode == 4


def test_shell_of_salloc(site: Site) -> None:
    """A launch in a shell that salloc made, which is on none of the job's nodes, is refused."""
    launch = ("gpulaunch", *DGX, "--", "true")
    options = ("-N2", "--gres=gpu:2")
    done = site.slurm.run("salloc", *options, *launch, environment=site.environment)
    assert said(done) == complaint(
        "slurm JOB has its GPUs on n[1-2], and this is no task of it",
        "write 'srun gpulaunch ...', or go past it with -o ignore_engine=true",
    )


def test_srun_that_leaves_the_node(site: Site, tmp_path: Path) -> None:
    """A launch around srun of two nodes says that the far tasks have no lease."""
    script, output = tmp_path / "job", tmp_path / "output"
    script.write_text(f"#!/bin/sh\nexec gpulaunch {' '.join(DGX)} -- srun -N2 hostname\n")
    options = ("-W", "-o", str(output), "-N2", "-n2", "--gres=gpu:1")
    site.slurm.run("sbatch", *options, str(script), environment=site.environment)
    want = "srun starts tasks on 2 nodes, and only those on this one have a lease: "
    want += "write 'srun ... gpulaunch -- COMMAND', a launch for each task"
    assert f"gpulaunch: warning: {want}" in output.read_text().splitlines()


def write_map(path: Path, *rows: tuple[str, int, int]) -> tuple[str, ...]:
    """Write a map of ranks, of node, core and GPU each; the option that names it."""
    ranks = [
        {"rank": rank, "node": node, "core": core, "gpu": gpu}
        for rank, (node, core, gpu) in enumerate(rows)
    ]
    path.write_text(json.dumps({"cluster": "tests", "policy": "none", "ranks": ranks}))
    return ("-o", f"rank_map={path}")


def test_rank_map(site: Site, tmp_path: Path) -> None:
    """A rank takes the GPU and the core that a map gives it, on its node alone."""
    rows = [("n1", 0, 3), ("n1", 1, 1), ("n2", 1, 0), ("n2", 0, 2)]
    mapped = write_map(tmp_path / "map", *rows)
    options = ("-N2", "-n4", "--ntasks-per-node=2", "--gpus-per-node=4", "--cpu-bind=none")
    job = f"{SHOW} $(grep Cpus_allowed_list /proc/self/status | cut -f2)"
    got = site.shown(*options, launch=(*mapped, "-o", "visible=own"), job=job)
    assert got == ["0 3 0", "1 1 1", "2 0 1", "3 2 0"]
    got = site.shown(*options, launch=mapped)
    assert got == ["0 3,1", "1 1,3", "2 0,2", "3 2,0"]
    wrong = write_map(tmp_path / "wrong", *(("n2", 0, gpu) for gpu in range(4)))
    done = site.srun(*NODE, "-n4", "--gres=gpu:4", launch=wrong)
    want = {
        f"gpulaunch: error: {tmp_path}/wrong: rank {rank} belongs on n2, and runs on n1"
        for rank in range(4)
    }
    assert (set(said(done).splitlines()), done.returncode) == (want, 2)
    done = site.srun(*NODE, "-n1", "--gres=gpu:1", launch=write_map(tmp_path / "far", ("n1", 0, 5)))
    want = f"{tmp_path}/far: rank 0 is to have GPU 5 of n1, not what slurm JOB granted"
    assert (said(done), done.returncode) == (complaint(want), 2)


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
