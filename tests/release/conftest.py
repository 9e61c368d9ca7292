"""What tests of a release share; .ci/release sets the variable that they want."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from bare_machine import BareMachine, served

ARCHIVES = "GPULAUNCH_TEST_BARE_MACHINES"
"""The directory in which .ci/bare-machine has put the archives."""


@pytest.fixture(
    scope="session",
    params=[
        pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in ("debian", "ubuntu")
    ],
)
def bare_machine(request: pytest.FixtureRequest, address: str) -> Iterator[BareMachine]:
    """Yield a newly installed system."""
    archives = os.environ.get(ARCHIVES)
    if archives is None:
        pytest.skip(f"{ARCHIVES} is not set: .ci/release sets it")
    if os.geteuid() != 0:
        pytest.skip("needs root to enter another root directory")
    with tempfile.TemporaryDirectory(dir=archives) as root:
        yield BareMachine(Path(archives, f"{request.param}.tar"), Path(root), address)


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a clone of this repository."""
    with served(tmp_path_factory.mktemp("served")) as address:
        yield address


@pytest.fixture(scope="session")
def wheel(address: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel of the repository at the address."""
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    place = tmp_path_factory.mktemp("wheel")
    subprocess.run(["git", "clone", "--quiet", address, place / "clone"], check=True)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", place]
    subprocess.run(build, cwd=place / "clone", check=True)
    return next(place.glob("*.whl"))
