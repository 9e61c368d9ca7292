"""Tests with more seeds, more cases, larger inputs, or every step, only on request.

    python -m pytest -m long -o faulthandler_timeout=0

Each calls its short form, which says what is proved.
"""

from collections.abc import Iterator
from pathlib import Path

import ctrl_c
import pytest
import test_bake_off
import test_batch
import test_crashes
import test_crowd
import test_ctrl_c
import test_docker_faults
import test_docker_hostile
import test_large_inputs
import test_machines
import test_many_leases
import test_mps
import test_needs
import test_nodes
import test_nsight
import test_nvml
import test_papers
import test_policies
import test_queue
import test_scan
import test_scores
import test_simulate
import test_smi_text
import test_topo_aware
from conftest import Launcher
from engine import Engine
from fake_nvml import FakeNvml
from hypothesis import given, settings
from mapa import PUBLISHED
from reproduce import FIGURES
from reproduction import Reproduction
from test_batch import Site, site  # noqa: F401  a fixture
from test_crashes import documents, lease  # noqa: F401  fixtures
from test_policies import MODELS, POLICIES, SIXTEEN

from gpulaunch.machine.read_description import MAX_GPUS

pytest_plugins = ("fake_nvml",)

pytestmark = pytest.mark.long


# Placement


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("policy", POLICIES)
def test_policy_finds_what_trying_everything_finds(policy: str, model: str, seed: int) -> None:
    """120 random requests of each policy, bandwidth model and seed instead of 40 of one seed."""
    test_policies.test_policy_finds_what_trying_everything_finds(policy, model, seed, 120)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("policy", POLICIES)
def test_ranking_is_in_order_and_leaves_out_only_what_is_alike(policy: str, model: str) -> None:
    """40 random requests of each policy and bandwidth model instead of 16."""
    test_policies.test_ranking_is_in_order_and_leaves_out_only_what_is_alike(policy, model, 40)


@pytest.mark.parametrize("sensitive", [True, False], ids=["sensitive", "insensitive"])
@pytest.mark.parametrize("case", SIXTEEN)
def test_set_of_sixteen_is_the_best_of_all(case: str, sensitive: bool) -> None:
    """Sets of up to 13 of the 16 GPUs instead of up to 3."""
    test_policies.test_set_of_sixteen_is_the_best_of_all(case, sensitive)


@pytest.mark.parametrize("name", test_topo_aware.NAMES)
def test_against_every_set(name: str) -> None:
    """100 requests on each machine instead of 25."""
    test_topo_aware.test_against_every_set(name, 100)


@pytest.mark.parametrize("name", test_topo_aware.NAMES)
def test_against_every_placement(name: str) -> None:
    """60 requests on every machine instead of 12 on some."""
    test_topo_aware.test_against_every_placement(name, 60)


@pytest.mark.parametrize("seed", range(300))
def test_least_cut_of_random_graphs(seed: int) -> None:
    """300 graphs instead of 60."""
    test_topo_aware.test_least_cut_of_random_graphs(seed)


@pytest.mark.parametrize("name", test_topo_aware.SOCKETS)
def test_what_fits_in_a_socket_is_not_split(name: str) -> None:
    """Every set of free GPUs instead of every fourth."""
    test_topo_aware.test_what_fits_in_a_socket_is_not_split(name, 1)


@pytest.mark.parametrize("name", test_topo_aware.SOCKETS)
def test_other_names(name: str) -> None:
    """60 requests on each machine instead of 20."""
    test_topo_aware.test_other_names(name, 60)


@pytest.mark.parametrize("slowest_first", [True, False])
@pytest.mark.parametrize("pattern", test_scores.MAPPED)
@pytest.mark.parametrize("seed", range(14))
def test_mapping_is_the_best_of_all(pattern: str, seed: int, *, slowest_first: bool) -> None:
    """14 random machines for each pattern instead of 6."""
    test_scores.test_mapping_is_the_best_of_all(pattern, seed, slowest_first=slowest_first)


@pytest.mark.parametrize("seed", range(300))
def test_against_trying_everything(seed: int) -> None:
    """300 situations instead of 60."""
    test_needs.test_against_trying_everything(seed)


# The queue and the simulator


@pytest.mark.parametrize("seed", range(24))
def test_first_in_first_out(seed: int) -> None:
    """24 crowds instead of 4."""
    test_queue.test_first_in_first_out(seed)


def test_backfill_starves_nobody() -> None:
    """24 crowds instead of 4."""
    test_queue.test_backfill_starves_nobody(24)


@pytest.mark.parametrize("policy", test_simulate.POLICIES)
@pytest.mark.parametrize("queue", ["fifo", "backfill"])
@pytest.mark.parametrize("seed", range(3))
def test_it_decides_as_the_launcher_would(policy: str, queue: str, seed: int) -> None:
    """Three traces of 40 jobs instead of one of 20."""
    test_simulate.test_it_decides_as_the_launcher_would(policy, queue, seed, 40)


@pytest.mark.parametrize("policy", ["topo_aware", "topo_aware_p", "preserve"])
@pytest.mark.parametrize("seed", range(6))
def test_it_waits_for_utility_as_the_launcher_would(policy: str, seed: int) -> None:
    """Six traces of 40 jobs instead of one of 20."""
    test_simulate.test_it_waits_for_utility_as_the_launcher_would(policy, seed, 40)


@pytest.mark.parametrize("policy", test_simulate.POLICIES)
def test_conservation(policy: str) -> None:
    """Traces of 60 jobs instead of 25."""
    test_simulate.test_conservation(policy, 60)


def test_what_was_decided_before_changes_nothing() -> None:
    """Traces of 60 jobs instead of 25."""
    test_simulate.test_what_was_decided_before_changes_nothing(60)


# Descriptions of machines, and texts


@pytest.mark.parametrize("seed", range(300))
def test_any_machine_there_and_back(seed: int) -> None:
    """300 machines instead of 60."""
    test_machines.test_any_machine_there_and_back(seed)


@pytest.mark.parametrize("seed", range(200))
def test_any_cluster_there_and_back(seed: int) -> None:
    """200 clusters instead of 40."""
    test_nodes.test_any_cluster_there_and_back(seed)


def test_most_machines() -> None:
    """As many machines as there may be GPUs instead of an eighth."""
    test_large_inputs.test_most_machines(MAX_GPUS)


@settings(max_examples=1500)
@given(test_smi_text.damaged())
def test_any_damage(text: str) -> None:
    """1,500 damaged texts instead of 25 or 200."""
    test_smi_text.test_any_damage.hypothesis.inner_test(text)


@pytest.mark.parametrize(("name", "piece"), test_scan.REPEATED)
def test_work_grows_with_size(name: str, piece: str) -> None:
    """A piece 400 and 1,600 times instead of 50 and 200 times."""
    test_scan.test_work_grows_with_size(name, piece, 400)


def test_many_rows() -> None:
    """20,000 kernels instead of 4,000."""
    test_nsight.test_many_rows(20_000)


# Killed at every step


def test_killed_at_every_step_of_a_launch(tmp_path: Path) -> None:
    """At each step instead of every fifth."""
    test_crashes.test_killed_at_every_step_of_a_launch(tmp_path, 1)


def test_each_call_may_fail(tmp_path: Path) -> None:
    """Each call instead of every fifth."""
    test_crashes.test_each_call_may_fail(tmp_path, 1)


def test_killed_at_every_step_of_waiting(tmp_path: Path, lease: dict) -> None:  # noqa: F811
    """At each step instead of every fifth."""
    test_crashes.test_killed_at_every_step_of_waiting(tmp_path, lease, 1)


def test_killed_at_every_step_of_a_release_with_a_straggler(tmp_path: Path) -> None:
    """At each step instead of every fifth."""
    test_crashes.test_killed_at_every_step_of_a_release_with_a_straggler(tmp_path, 1)


def test_killed_at_every_step_of_a_launch_in_ci(tmp_path: Path) -> None:
    """At each step instead of every fifth."""
    test_crashes.test_killed_at_every_step_of_a_launch_in_ci(tmp_path, 1)


def test_killed_at_every_step_of_a_container(tmp_path: Path, docker: Engine) -> None:
    """At each step instead of every fifth."""
    test_docker_faults.test_killed_at_every_step(tmp_path, docker, 1)


def test_killed_at_every_step_of_sharing(fake_nvml_library: Path, tmp_path: Path) -> None:
    """At each step instead of every ninth."""
    test_mps.test_killed_at_every_step_of_sharing(fake_nvml_library, tmp_path, 1)


# Drivers


@pytest.mark.parametrize("code", test_nvml.CODES)
@pytest.mark.parametrize("function", test_nvml.OPTIONAL)
def test_call_without_an_answer(
    launcher: Launcher, dgx1_v100: FakeNvml, function: str, code: int
) -> None:
    """Each error of each call instead of one."""
    test_nvml.test_call_without_an_answer(launcher, dgx1_v100, function, code)


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


def test_all_six_job_files(found: dict[str, Reproduction]) -> None:
    """Machines of 16 GPUs besides the DGX-1."""
    test_papers.test_all_six_job_files(found, list(PUBLISHED))


def test_table_3(found: dict[str, Reproduction]) -> None:
    """40 sets instead of 4, nearer to the paper, and the longest run times as well."""
    test_papers.test_table_3(found, 0.03, ("75 %", "max", "throughput"))


def test_the_document_is_what_the_commands_print(found: dict[str, Reproduction]) -> None:
    """Every figure without a clock instead of those that take little time."""
    assert test_papers.agreeing(found) == found.keys()


@pytest.mark.parametrize("machine", test_bake_off.COMPARED)
def test_no_policy_serves_sensitive_jobs_better_than_the_default(machine: str) -> None:
    """24 traces of 100 jobs instead of 8 of 50."""
    test_bake_off.test_no_policy_serves_sensitive_jobs_better_than_the_default(machine, 24, 100)


# A crowd


def test_a_crowd_with_random_deaths(launcher: Launcher, tmp_path: Path) -> None:
    """200 launches instead of 100."""
    test_crowd.test_a_crowd_with_random_deaths(launcher, tmp_path, 200)


# Many leases


def test_leases_through_the_api() -> None:
    """100,000 leases instead of 2,000."""
    test_many_leases.test_leases_through_the_api(100_000)


def test_launches_by_the_command_line() -> None:
    """10,000 launches instead of 150."""
    test_many_leases.test_launches_by_the_command_line(10_000)


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


# Batches


def test_many_jobs(site: Site) -> None:  # noqa: F811
    """300 jobs instead of 60."""
    test_batch.test_many_jobs(site, 300)


@pytest.mark.parametrize("policy", test_batch.REPLAYED)
def test_the_simulator_says_what_a_batch_does(site: Site, policy: str) -> None:  # noqa: F811
    """40 jobs instead of 12."""
    test_batch.test_the_simulator_says_what_a_batch_does(site, policy, 40)
