"""Launches under real Open MPIs on two hosts."""

from pathlib import Path

import pytest
from mpi import PYPI, VERSIONS, Mpi, why_not


@pytest.fixture(params=VERSIONS)
def mpi(request: pytest.FixtureRequest, tmp_path: Path) -> Mpi:
    """Return an Open MPI of each version with two hosts."""
    if reason := why_not():
        pytest.skip(reason)
    return Mpi(request.param, tmp_path)


def test_two_hosts(mpi: Mpi) -> None:
    """Open MPI runs ranks on both of its hosts, and tells each its place."""
    show = "echo $OMPI_COMM_WORLD_RANK $(hostname)"
    done = mpi.run("-np", "4", "--map-by", "node", "sh", "-c", show)
    assert (sorted(done.stdout.splitlines()), done.returncode) == (
        ["0 na", "1 nb", "2 na", "3 nb"],
        0,
    )


def test_all_reduce(tmp_path: Path) -> None:
    """An MPI program of four ranks on two hosts computes a sum over all of them."""
    if reason := why_not():
        pytest.skip(reason)
    program = "from mpi4py import MPI; w = MPI.COMM_WORLD; print(w.rank, w.allreduce(w.rank))"
    done = Mpi("5.0", tmp_path).run("-np", "4", str(PYPI / "python"), "-c", program)
    assert sorted(done.stdout.splitlines()) == ["0 6", "1 6", "2 6", "3 6"]
