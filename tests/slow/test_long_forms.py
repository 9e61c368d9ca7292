"""Tests of tests/unit with more seeds, more cases or larger inputs: python -m pytest -m long.

Each calls its short form, which says what is proved.
"""

import pytest
import test_machines
import test_needs
import test_nodes
import test_policies
import test_queue
import test_scan
import test_simulate
import test_smi_text
import test_topo_aware
from hypothesis import given, settings
from test_policies import MODELS, POLICIES, SIXTEEN

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


@pytest.mark.parametrize("seed", range(300))
def test_least_cut_of_random_graphs(seed: int) -> None:
    """300 graphs instead of 60."""
    test_topo_aware.test_least_cut_of_random_graphs(seed)


@pytest.mark.parametrize("seed", range(300))
def test_against_trying_everything(seed: int) -> None:
    """300 situations instead of 60."""
    test_needs.test_against_trying_everything(seed)


# The queue and the simulator


def test_backfill_starves_nobody() -> None:
    """24 crowds instead of 8."""
    test_queue.test_backfill_starves_nobody(24)


@pytest.mark.parametrize("policy", test_simulate.POLICIES)
@pytest.mark.parametrize("passable_s", [0.0, 40.0])
@pytest.mark.parametrize("seed", range(3))
def test_it_decides_as_the_launcher_would(policy: str, passable_s: float, seed: int) -> None:
    """Three traces instead of one."""
    test_simulate.test_it_decides_as_the_launcher_would(policy, passable_s, seed)


@pytest.mark.parametrize("policy", ["topo_aware", "topo_aware_p", "preserve"])
@pytest.mark.parametrize("seed", range(6))
def test_it_waits_for_utility_as_the_launcher_would(policy: str, seed: int) -> None:
    """Six traces instead of one."""
    test_simulate.test_it_waits_for_utility_as_the_launcher_would(policy, seed)


# Descriptions of machines, and texts


@pytest.mark.parametrize("seed", range(300))
def test_any_machine_there_and_back(seed: int) -> None:
    """300 machines instead of 60."""
    test_machines.test_any_machine_there_and_back(seed)


@pytest.mark.parametrize("seed", range(200))
def test_any_cluster_there_and_back(seed: int) -> None:
    """200 clusters instead of 40."""
    test_nodes.test_any_cluster_there_and_back(seed)


@settings(max_examples=1500)
@given(test_smi_text.damaged())
def test_any_damage(text: str) -> None:
    """1,500 damaged texts instead of 25 or 200."""
    test_smi_text.test_any_damage.hypothesis.inner_test(text)


@pytest.mark.parametrize(("name", "piece"), test_scan.REPEATED)
def test_work_grows_with_size(name: str, piece: str) -> None:
    """A piece 400 and 1,600 times instead of 100 and 400 times."""
    test_scan.test_work_grows_with_size(name, piece, 400)
