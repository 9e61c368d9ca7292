"""Launches under real Open MPIs, 4.1 and 5, on two hosts, each with its own table.

Their GPUs are those of a described DGX-1, so no GPU is needed.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import DGX, Launcher, held
from mpi import HOSTS, VERSIONS, Mpi, why_not

SHOW = "echo $OMPI_COMM_WORLD_RANK $(hostname) $CUDA_VISIBLE_DEVICES"


LATER = ("sh", "-c", 'sleep 0.3; exec "$@"', "sh")
"""Beginning of a rank's command: Open MPI 5.0.11 hangs at times after a job of milliseconds."""


def said(done: subprocess.CompletedProcess[str]) -> str:
    """Return what gpulaunch said, without what Open MPI itself did, with JOB for the job's id."""
    lines = [line for line in done.stderr.splitlines(keepends=True) if line.startswith("gpulaunch")]
    return re.sub(r"mpi \S+", "mpi JOB", "".join(lines))


class Site:
    """An Open MPI of two hosts with four slots each, and gpulaunch on both.

    Attributes:
        mpi: the Open MPI.
        launcher: gpulaunch as it runs on the host where mpirun is called.
        tables: the folder with the table of each host.
    """

    def __init__(self, version: str, launcher: Launcher, directory: Path) -> None:
        self.launcher, self.tables = launcher, directory / "tables"
        for host in HOSTS:
            (self.tables / host).mkdir(parents=True)
        passed = {**launcher.environment, "GPULAUNCH_STATE_DIR": f"{self.tables}/$host"}
        self.mpi = Mpi(version, directory, passed=passed)

    def run(self, *command: str, ranks: int = 4) -> subprocess.CompletedProcess[str]:
        """Run a command in each rank, on both hosts alike."""
        place = ("-np", str(ranks), "--map-by", f"ppr:{ranks // 2}:node")
        return self.mpi.run(*place, *LATER, *command)

    def shown(self, *launch: str, ranks: int = 4, job: str = SHOW) -> list[str]:
        """Return what launches in all ranks print, which must succeed, in order."""
        done = self.run("gpulaunch", *DGX, *launch, "--", "sh", "-c", job, ranks=ranks)
        assert (done.returncode, said(done)) == (0, "")
        return sorted(done.stdout.splitlines())

    @contextmanager
    def on(self, host: str) -> Iterator[Launcher]:
        """Return gpulaunch with the table of a host."""
        own = self.launcher.environment["GPULAUNCH_STATE_DIR"]
        self.launcher.environment["GPULAUNCH_STATE_DIR"] = str(self.tables / host)
        yield self.launcher
        self.launcher.environment["GPULAUNCH_STATE_DIR"] = own

    def order(self, host: str, *options: str) -> list[int]:
        """Return the GPUs that one launch would get on a host, in rank order."""
        with self.on(host) as launcher:
            done = launcher.run(*DGX, *options, "--dry-run", "--json", "--", "true")
        return [gpu["index"] for gpu in json.loads(done.stdout)["gpus"]]


@pytest.fixture(params=VERSIONS)
def site(request: pytest.FixtureRequest, launcher: Launcher, tmp_path: Path) -> Site:
    """Return an Open MPI of each version with two hosts."""
    if reason := why_not():
        pytest.skip(reason)
    return Site(request.param, launcher, tmp_path)


def test_one_launcher_per_rank(site: Site) -> None:
    """Ranks divide on each host what one launch for all of them would get there, every time."""
    gpus = site.order("na", "-n", "4")
    want = [
        f"{rank} {host} {','.join(map(str, [own, *(gpu for gpu in gpus if gpu != own)]))}"
        for rank, (host, own) in enumerate((host, gpu) for host in HOSTS for gpu in gpus)
    ]
    assert site.shown("-n", "1", ranks=8) == want
    assert site.shown(ranks=8) == want


def test_ranks_beside_others(site: Site) -> None:
    """Ranks keep off the GPUs of others on their host, and have the best of the rest."""
    with site.on("nb") as launcher, held(launcher, *DGX, "--only", "0,3", "-n", "2"):
        here, there = site.order("na", "-n", "2"), site.order("nb", "-n", "2")
        assert here == [0, 3]
        assert not {0, 3}.intersection(there)
        want = [f"{rank} {'na' if rank < 2 else 'nb'} " for rank in range(4)]
        gpus = [here, here[::-1], there, there[::-1]]
        shown = [start + ",".join(map(str, own)) for start, own in zip(want, gpus, strict=True)]
        assert site.shown("-n", "1") == shown


def test_inside_one_lease(site: Site) -> None:
    """Around mpirun on this host, launches for its ranks divide the GPUs of that lease."""
    gpus = site.order("na", "-n", "4")
    inner = ("gpulaunch", *DGX, "-n", "1", "-o", "visible=own", "--", "sh", "-c", SHOW)
    command = site.mpi.command("-np", "4", *inner, hosts=False)
    environment = {**site.mpi.environment, **site.launcher.environment}
    environment["GPULAUNCH_STATE_DIR"] = str(site.tables / "na")
    done = site.launcher.run(*DGX, "-n", "4", "--", *command, env=environment)
    assert (done.returncode, said(done)) == (0, ""), done.stderr
    got = [int(line.split()[2]) for line in sorted(done.stdout.splitlines())]
    assert got == gpus


def test_around_far_ranks(site: Site) -> None:
    """A launch around mpirun of several hosts says which have no lease, and what to type."""
    command = site.mpi.command("-np", "2", *LATER, "true")
    environment = {**site.mpi.environment, **site.launcher.environment}
    done = site.launcher.run(*DGX, "-n", "4", "--", *command, env=environment)
    assert done.returncode == 0
    assert said(done) == (
        "gpulaunch: warning: mpirun starts ranks on na, nb, too, where they have no lease: write "
        "'mpirun ... gpulaunch -n 1 -- COMMAND', a launch for each rank\n"
    )


def test_rank_map(site: Site, tmp_path: Path) -> None:
    """A rank takes the GPU that a map gives it."""
    path = tmp_path / "map"
    rows = [("na", 5), ("na", 2), ("nb", 7), ("nb", 0)]
    ranks = [{"rank": rank, "node": node, "gpu": gpu} for rank, (node, gpu) in enumerate(rows)]
    path.write_text(json.dumps({"ranks": ranks}))
    got = site.shown("-o", f"rank_map={path}")
    assert got == ["0 na 5,2", "1 na 2,5", "2 nb 7,0", "3 nb 0,7"]
