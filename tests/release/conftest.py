"""What tests of a release share; .ci/release sets the variable that they want."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from bare_machine import BareMachine

ARCHIVES = "GPULAUNCH_TEST_BARE_MACHINES"
"""The directory in which .ci/bare-machine has put the archives."""


@pytest.fixture(
    scope="session",
    params=[
        pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in ("debian", "ubuntu")
    ],
)
def bare_machine(request: pytest.FixtureRequest) -> Iterator[BareMachine]:
    """Yield a newly installed system."""
    archives = os.environ.get(ARCHIVES)
    if archives is None:
        pytest.skip(f"{ARCHIVES} is not set: .ci/release sets it")
    if os.geteuid() != 0:
        pytest.skip("needs root to enter another root directory")
    with tempfile.TemporaryDirectory() as root:
        yield BareMachine(Path(archives, f"{request.param}.tar"), Path(root))
