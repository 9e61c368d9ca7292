"""Ranks under real Open MPIs, 4.1 and 5, where a map of `gpulaunch cluster` puts them."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from conftest import DGX, Launcher
from mpi import HOSTS, PYPI, VERSIONS, why_not
from ranks import crossed_matrix, rank_command, ranks_of, wanted
from test_mpi import Site

# An all-reduce of the numbers from 1 on over all ranks, by mpi4py.
ALL_REDUCE = """\
from mpi4py import MPI
print(MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank + 1), flush=True)
"""

CLUSTER = """\
name = "hosts"
source = "made up"

[[nodes]]
names = "na,nb"
machine = "dgx1-v100"
cores = ["0-1"]
gb_per_s = 1.0
source = "made up"

[network]
source = "made up"

[[network.switches]]
name = "switch"
nodes = "na,nb"
"""


@pytest.fixture(params=VERSIONS)
def site(request: pytest.FixtureRequest, launcher: Launcher, tmp_path: Path) -> Site:
    """Return an Open MPI of each version with two hosts."""
    if reason := why_not():
        pytest.skip(reason)
    return Site(request.param, launcher, tmp_path)


def starter(site: Site) -> list[str]:
    """Return the options that name the hosts and how to reach them."""
    *program, _, hostfile = site.mpi.command()
    launcher = shlex.join(program).replace(" --bind-to none", "")
    return ["--launcher", launcher, "--hostfile", hostfile]


def cluster(site: Site, *arguments: str) -> str:
    """Run a command of `gpulaunch cluster` on the two hosts; return its output."""
    site.launcher.environment |= site.mpi.environment
    word, *rest = arguments
    done = site.launcher.run("cluster", word, *starter(site), *DGX, *rest)
    complaints = [line for line in done.stderr.splitlines() if "gpulaunch" in line]
    assert (done.returncode, complaints) == (0, [])  # Open MPI itself warns of a race at times
    return done.stdout


def test_ranks_run_where_the_map_says(site: Site, tmp_path: Path) -> None:
    """Every rank has the host, the core and the GPU of its row, and no lease is left."""
    pattern = ("--ranks", "4", "--gpu-pattern", crossed_matrix(tmp_path))
    output = cluster(site, "run", *pattern, "-o", str(tmp_path), "--", *rank_command(tmp_path))
    assert ranks_of(output) == wanted(tmp_path)
    nodes = [node for _, node, _, _ in wanted(tmp_path)]
    assert nodes[0] == nodes[2] != nodes[1] == nodes[3]
    for host in HOSTS:
        with site.on(host) as launcher:
            assert launcher.records() == []


def test_this_machine_is_not_the_first_host(site: Site, tmp_path: Path) -> None:
    """The machine of mpirun itself may stand anywhere in the hostfile, as localhost, too.

    Ranks there get GPUs that CUDA_VISIBLE_DEVICES admits, where no engine has granted any.
    """
    own = os.uname().nodename
    site.mpi.hostfile.write_text("na slots=1\nlocalhost slots=1\n")
    pattern = ("--ranks", "4", "--gpu-pattern", crossed_matrix(tmp_path))
    output = cluster(site, "run", *pattern, "-o", str(tmp_path), "--", *rank_command(tmp_path))
    assert ranks_of(output) == wanted(tmp_path)
    assert {node for _, node, _, _ in wanted(tmp_path)} == {"na", own}
    site.mpi.hostfile.write_text("localhost\n")
    site.launcher.environment["CUDA_VISIBLE_DEVICES"] = "2,3"
    output = cluster(site, "run", "--ranks", "2", "--", *rank_command(tmp_path))
    assert [gpu for _, _, _, gpu in ranks_of(output)] == [2, 3]


def test_all_reduce(site: Site, tmp_path: Path) -> None:
    """Ranks of real MPI programs find each other through the launches around them."""
    program = tmp_path / "all_reduce.py"
    program.write_text(ALL_REDUCE)
    pattern = ("--ranks", "4", "--gpu-pattern", "ring")
    output = cluster(site, "run", *pattern, "--", str(PYPI / "python"), str(program))
    assert output.split() == ["10"] * 4


def test_rankfiles_are_obeyed(site: Site, tmp_path: Path) -> None:
    """A rankfile of `cluster map` puts each rank on the node of the map, without a launch."""
    described = tmp_path / "hosts.toml"
    described.write_text(CLUSTER)
    kind = "rankfile" if site.mpi.version == "4.1" else "rankfile5"
    pattern = ("--gpu-pattern", crossed_matrix(tmp_path), "-o", str(tmp_path))
    done = site.launcher.run("cluster", "map", "--cluster", str(described), *pattern)
    assert done.returncode == 0, done.stderr
    rankfile = str(tmp_path / kind)
    place = ("-rf", rankfile) if kind == "rankfile" else ("--map-by", f"rankfile:file={rankfile}")
    binding = " ".join(site.mpi.command(*place)).replace(" --bind-to none", "").split()
    ran = subprocess.run(
        [*binding, "-np", "4", *rank_command(tmp_path)],
        env=site.mpi.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert [row[:2] for row in ranks_of(ran.stdout)] == [row[:2] for row in wanted(tmp_path)]
