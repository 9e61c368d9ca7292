"""Launches under real Open MPIs, 4.1 and 5, on two hosts, each with its own table.

Their hosts are this machine under other names, and their GPUs those of a described DGX-1.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import DGX, Launcher, held
from ranks import crossed_matrix, rank_command, ranks_of, wanted, write_cluster

_BUILT = Path(__file__).parents[2] / "build" / "mpi" / "venv" / "bin"
PYPI = Path(os.environ.get("GPULAUNCH_TEST_MPI") or _BUILT)
"""Folder of Open MPI 5 and of a python that has mpi4py, as .ci/mpi makes it."""

MPIRUN = {"4.1": "/usr/bin/mpirun", "5.0": str(PYPI / "mpirun")}
HOSTS = ("na", "nb")
SHOW = "echo $OMPI_COMM_WORLD_RANK $(hostname) $CUDA_VISIBLE_DEVICES"

# Called as ssh is. Only what ssh would pass on reaches the other host: its environment is clean.
AGENT = """\
#!/bin/bash
while [[ $1 == -* ]]; do shift; done
host=$1; shift
exec unshare --uts env -i {passed} bash -c "hostname $host; $*"
"""
AS_ROOT = {
    f"{engine}_ALLOW_RUN_AS_ROOT{confirm}": "1"
    for engine in ("OMPI", "PRTE")
    for confirm in ("", "_CONFIRM")
}
LATER = ("sh", "-c", 'sleep 0.3; exec "$@"', "sh")
"""Beginning of a rank's command: Open MPI 5.0.11 hangs at times after a job of milliseconds."""


def said(done: subprocess.CompletedProcess[str]) -> str:
    """Return what gpulaunch said, without what Open MPI itself did, with JOB for the job's id."""
    lines = [line for line in done.stderr.splitlines(keepends=True) if line.startswith("gpulaunch")]
    return re.sub(r"mpi \S+", "mpi JOB", "".join(lines))


class Site:
    """An Open MPI of two hosts with four slots each, and gpulaunch on both.

    Attributes:
        version: one of MPIRUN.
        launcher: gpulaunch as it runs on the host where mpirun is called.
        tables: the folder with the table of each host.
        hostfile: path of the hostfile.
        environment: of mpirun.
    """

    def __init__(self, version: str, launcher: Launcher, directory: Path) -> None:
        self.version, self.launcher, self.tables = version, launcher, directory / "tables"
        for host in HOSTS:
            (self.tables / host).mkdir(parents=True)
        self.hostfile = directory / "hosts"
        self.hostfile.write_text("".join(f"{host} slots=4\n" for host in HOSTS))
        table = {"GPULAUNCH_STATE_DIR": f"{self.tables}/$host"}
        passed = {**launcher.environment, **table, **AS_ROOT}
        words = " ".join(f'"{name}={value}"' for name, value in passed.items())
        self._agent = directory / "agent"
        self._agent.write_text(AGENT.format(passed=words))
        self._agent.chmod(0o755)
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(directory), **AS_ROOT}

    def starter(self) -> list[str]:
        """Return argv of mpirun on the two hosts, as far as the hostfile's name."""
        key = "--prtemca plm_ssh_agent" if self.version == "5.0" else "--mca plm_rsh_agent"
        return [MPIRUN[self.version], *key.split(), str(self._agent), "--hostfile"]

    def mpirun(self, *arguments: str) -> list[str]:
        """Return argv of mpirun on the two hosts, which binds nothing."""
        return [*self.starter(), str(self.hostfile), "--bind-to", "none", *arguments]

    def shown(self, *launch: str, ranks: int = 4) -> list[str]:
        """Return in order what launches in all ranks, on both hosts alike, see."""
        place = ("-np", str(ranks), "--map-by", f"ppr:{ranks // 2}:node")
        command = ("gpulaunch", *DGX, *launch, "--", "sh", "-c", SHOW)
        done = subprocess.run(
            self.mpirun(*place, *LATER, *command),
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, said(done)) == (0, "")
        return sorted(done.stdout.splitlines())

    def around(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a launch around mpirun on the first host."""
        table = {"GPULAUNCH_STATE_DIR": str(self.tables / "na")}
        environment = {**self.environment, **self.launcher.environment, **table}
        return self.launcher.run(*DGX, "-n", "4", "--", *command, env=environment)

    def cluster_run(self, *arguments: str) -> str:
        """Run `gpulaunch cluster run` on the two hosts; return its output."""
        self.launcher.environment |= self.environment
        starter = ("--launcher", shlex.join(self.starter()[:-1]), "--hostfile", str(self.hostfile))
        done = self.launcher.run("cluster", "run", *starter, *DGX, *arguments)
        assert (done.returncode, said(done)) == (0, "")
        return done.stdout

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


@pytest.fixture(params=MPIRUN)
def site(request: pytest.FixtureRequest, launcher: Launcher, tmp_path: Path) -> Site:
    """Return an Open MPI of each version with two hosts."""
    version = request.param
    if os.geteuid() != 0:
        pytest.skip("needs root to make hosts of other names")
    if not shutil.which(MPIRUN[version]):
        pytest.skip(f"no Open MPI {version}: .ci/mpi brings it")
    told = subprocess.check_output([MPIRUN[version], "--version"], text=True)
    if f"(Open MPI) {version}." not in told:
        pytest.skip(f"{MPIRUN[version]} is no Open MPI {version}")
    return Site(version, launcher, tmp_path)


def test_one_launcher_per_rank(site: Site) -> None:
    """Ranks divide on each host what one launch for all of them would get there."""
    gpus = site.order("na", "-n", "4")
    want = [
        f"{rank} {host} {','.join(map(str, [own, *(gpu for gpu in gpus if gpu != own)]))}"
        for rank, (host, own) in enumerate((host, gpu) for host in HOSTS for gpu in gpus)
    ]
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


def test_launch_around_mpirun(site: Site) -> None:
    """Launches for the ranks on this host divide the GPUs of the lease around mpirun.

    A launch around mpirun of several hosts says which have no lease, and what to type.
    """
    inner = ("gpulaunch", *DGX, "-n", "1", "-o", "visible=own", "--", "sh", "-c", SHOW)
    mpirun = (MPIRUN[site.version], "--bind-to", "none", "--oversubscribe", "-np", "4")
    done = site.around(*mpirun, *inner)
    assert (done.returncode, said(done)) == (0, ""), done.stderr
    got = [int(line.split()[2]) for line in sorted(done.stdout.splitlines())]
    assert got == site.order("na", "-n", "4")
    done = site.around(*site.mpirun("-np", "2", *LATER, "true"))
    warning = "mpirun starts ranks on na, nb, too, where they have no lease: write "
    warning += "'mpirun ... gpulaunch -n 1 -- COMMAND', a launch for each rank"
    assert (done.returncode, said(done)) == (0, f"gpulaunch: warning: {warning}\n")


# An all-reduce of the numbers from 1 on over all ranks, by mpi4py.
ALL_REDUCE = """\
from mpi4py import MPI
print(MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank + 1), flush=True)
"""


def test_ranks_run_where_the_map_says(site: Site, tmp_path: Path) -> None:
    """Every rank has the host, the core and the GPU of its row, and no lease is left."""
    pattern = ("--ranks", "4", "--gpu-pattern", crossed_matrix(tmp_path))
    output = site.cluster_run(*pattern, "-o", str(tmp_path), "--", *rank_command(tmp_path))
    assert ranks_of(output) == wanted(tmp_path)
    nodes = [node for _, node, _, _ in wanted(tmp_path)]
    assert nodes[0] == nodes[2] != nodes[1] == nodes[3]
    for host in HOSTS:
        with site.on(host) as launcher:
            assert launcher.records() == []


def test_all_reduce(site: Site, tmp_path: Path) -> None:
    """Ranks of real MPI programs find each other through the launches around them."""
    program = tmp_path / "all_reduce.py"
    program.write_text(ALL_REDUCE)
    # Ranks by turns on two names of one machine would wait for ever in Open MPI 4.1.
    options = ("--ranks", "4", "--gpu-pattern", "ring")
    output = site.cluster_run(*options, "--", str(PYPI / "python"), str(program))
    assert output.split() == ["10"] * 4


def test_this_machine_is_not_the_first_host(site: Site, tmp_path: Path) -> None:
    """The machine of mpirun itself may stand anywhere in the hostfile, as localhost, too.

    Ranks there get GPUs that CUDA_VISIBLE_DEVICES admits, where no engine has granted any.
    """
    site.hostfile.write_text("na slots=1\nlocalhost slots=1\n")
    site.launcher.environment["CUDA_VISIBLE_DEVICES"] = "2,3"
    output = site.cluster_run("--ranks", "4", "-o", str(tmp_path), "--", *rank_command(tmp_path))
    assert ranks_of(output) == wanted(tmp_path)
    gpus = {(node, gpu) for _, node, _, gpu in wanted(tmp_path)}
    own = os.uname().nodename
    assert gpus == {(node, gpu) for node, gpu in gpus if node == "na"} | {(own, 2), (own, 3)}
    assert len(gpus) == 4


def test_rankfiles_are_obeyed(site: Site, tmp_path: Path) -> None:
    """A rankfile of `cluster map` puts each rank on the node of the map, without a launch."""
    described = write_cluster(tmp_path, "na,nb", ["0-1"])
    pattern = ("--gpu-pattern", crossed_matrix(tmp_path), "-o", str(tmp_path))
    done = site.launcher.run("cluster", "map", "--cluster", described, *pattern)
    assert done.returncode == 0, done.stderr
    place = ["-rf", f"{tmp_path}/rankfile"]
    if site.version == "5.0":
        place = ["--map-by", f"rankfile:file={tmp_path}/rankfile5"]
    mpirun = [*site.starter(), str(site.hostfile), *place, "-np", "4"]
    words = [*mpirun, *rank_command(tmp_path)]
    output = subprocess.check_output(words, env=site.environment, text=True)
    assert [row[:2] for row in ranks_of(output)] == [row[:2] for row in wanted(tmp_path)]
