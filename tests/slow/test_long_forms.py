"""Tests of engines at every step, with every case, only on request.

    python -m pytest -m long -o faulthandler_timeout=0

Each calls its short form, which says what is proved. Other tests have their long form in place, as
one more value of a parameter.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import test_docker_faults
import test_docker_hostile
import test_mps
from engine import Engine

pytest_plugins = ("fake_nvml",)

pytestmark = pytest.mark.long


def test_killed_at_every_step_of_a_container(tmp_path: Path, docker: Engine) -> None:
    """At each step instead of some."""
    test_docker_faults.test_killed_at_every_step(tmp_path, docker, 1)


def test_killed_at_every_step_of_sharing(fake_nvml_library: Path, tmp_path: Path) -> None:
    """At each step instead of every eighteenth."""
    test_mps.test_killed_at_every_step_of_sharing(fake_nvml_library, tmp_path, 1)


@pytest.fixture(scope="module")
def told() -> Iterator[test_docker_hostile.Told]:
    """Yield what every command makes of every lie."""
    with test_docker_hostile.told_by(1) as found:
        yield found


@pytest.mark.parametrize("whose", [test_docker_hostile.OWN, test_docker_hostile.STRANGE])
@pytest.mark.parametrize("lie", test_docker_hostile.LIES)
def test_launch_beside_a_lie(told: test_docker_hostile.Told, lie: str, whose: str) -> None:
    """All lies, the user's own and a stranger's, with all commands instead of every fifth."""
    test_docker_hostile.test_launch_beside_a_lie(told, lie, whose)


@pytest.mark.parametrize("lie", test_docker_hostile.LIES)
def test_docker_with_a_lie(told: test_docker_hostile.Told, lie: str) -> None:
    """All docker commands and doctor instead of one."""
    test_docker_hostile.test_docker_with_a_lie(told, lie)
