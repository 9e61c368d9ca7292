"""Tests at every step, with every case or with larger inputs, only on request.

    python -m pytest -m long -o faulthandler_timeout=0

Each calls its short form, which says what is proved.
"""

from collections.abc import Iterator
from pathlib import Path

import ctrl_c
import pytest
import test_bake_off
import test_crashes
import test_ctrl_c
import test_docker_faults
import test_docker_hostile
import test_many_leases
import test_mps
import test_papers
from conftest import Launcher
from engine import Engine
from mapa import PUBLISHED
from reproduce import FIGURES
from reproduction import Reproduction
from test_crashes import documents, lease  # noqa: F401  fixtures

pytest_plugins = ("fake_nvml",)

pytestmark = pytest.mark.long


# Killed at every step


def test_killed_at_every_step_of_a_launch(tmp_path: Path) -> None:
    """At each step instead of some."""
    test_crashes.test_killed_at_every_step_of_a_launch(tmp_path, 1)


def test_each_call_may_fail(tmp_path: Path) -> None:
    """Each call instead of some."""
    test_crashes.test_each_call_may_fail(tmp_path, 1)


def test_killed_at_every_step_of_waiting(tmp_path: Path, lease: dict) -> None:  # noqa: F811
    """At each step instead of some."""
    test_crashes.test_killed_at_every_step_of_waiting(tmp_path, lease, 1)


def test_killed_at_every_step_of_a_release_with_a_straggler(tmp_path: Path) -> None:
    """At each step instead of some."""
    test_crashes.test_killed_at_every_step_of_a_release_with_a_straggler(tmp_path, 1)


def test_killed_at_every_step_of_a_launch_in_ci(tmp_path: Path) -> None:
    """At each step instead of some."""
    test_crashes.test_killed_at_every_step_of_a_launch_in_ci(tmp_path, 1)


def test_killed_at_every_step_of_a_container(tmp_path: Path, docker: Engine) -> None:
    """At each step instead of some."""
    test_docker_faults.test_killed_at_every_step(tmp_path, docker, 1)


def test_killed_at_every_step_of_sharing(fake_nvml_library: Path, tmp_path: Path) -> None:
    """At each step instead of every eighteenth."""
    test_mps.test_killed_at_every_step_of_sharing(fake_nvml_library, tmp_path, 1)


# Papers


@pytest.fixture(scope="module")
def found() -> dict[str, Reproduction]:
    """Compute every figure that needs no clock, with 40 random sets instead of 4."""
    return {name: compute() for name, compute in FIGURES.items() if name not in test_papers.TIMED}


def test_random_sets_on_a_dgx1(found: dict[str, Reproduction]) -> None:
    """40 sets instead of 4, and within 1.5 percentage points instead of 4."""
    test_papers.test_random_sets_on_a_dgx1(found, 1.5)


@pytest.mark.parametrize("machine", PUBLISHED)
def test_quartiles_of_the_published_simulator(found: dict[str, Reproduction], machine: str) -> None:
    """Machines of 16 GPUs besides the DGX-1."""
    test_papers.test_quartiles_of_the_published_simulator(found, machine)


@pytest.mark.parametrize("machine", PUBLISHED)
def test_quirks_of_the_published_simulator(machine: str) -> None:
    """Machines of 16 GPUs besides the DGX-1."""
    test_papers.test_quirks_of_the_published_simulator(machine)


def test_table_3(found: dict[str, Reproduction]) -> None:
    """40 sets instead of 4, nearer to the paper, and the longest run times as well."""
    test_papers.test_table_3(found, 0.03, ("75 %", "max", "throughput"))


def test_the_document_is_what_the_commands_print(found: dict[str, Reproduction]) -> None:
    """Every figure without a clock instead of those that take little time."""
    assert test_papers.agreeing(found) == found.keys()


@pytest.mark.parametrize("machine", test_bake_off.COMPARED)
def test_no_policy_serves_jobs_better_than_the_default(machine: str) -> None:
    """24 traces of 100 jobs instead of 8 of 50."""
    test_bake_off.test_no_policy_serves_jobs_better_than_the_default(machine, 24, 100)


# Many leases


def test_leases_through_the_api() -> None:
    """100,000 leases instead of 2,000."""
    test_many_leases.test_leases_through_the_api(100_000)


def test_served_in_order(launcher: Launcher, tmp_path: Path) -> None:
    """100 jobs in the queue instead of 20."""
    test_many_leases.test_served_in_order(launcher, tmp_path, 100)


# Interrupts


@pytest.mark.parametrize("threads", ctrl_c.THREADS)
def test_nothing_is_left_of_an_interrupt(threads: int) -> None:
    """20,000 interrupts instead of 300."""
    test_ctrl_c.test_nothing_is_left_of_an_interrupt(threads, 20_000)


# An engine that lies


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
