"""Machines with more sets than can be compared: needs hold there, too, and the answer is good."""

import random
from collections.abc import Callable
from functools import cache

import pytest
from values import V100, Needs, cards, cases, posed, request, wired_up, wiring

from gpulaunch.decide.decide import decide
from gpulaunch.decide.decision import Grant, Refuse, State
from gpulaunch.decide.explain import explain
from gpulaunch.machine.link import Wiring
from gpulaunch.machine.topology import Topology
from gpulaunch.placement import mapping, problem
from gpulaunch.placement.policies import Placement, place
from gpulaunch.profiles.pattern import PATTERNS
from gpulaunch.records import as_dict, replace


@cache
def machine(count: int, seed: int) -> Topology:
    """Draw GPUs on two sockets, no two of them with the same links."""
    rng = random.Random(seed)
    gpus = [replace(gpu, numa_node=gpu.index * 2 // count) for gpu in cards(count, **V100)]

    def wire(a: int, b: int) -> Wiring:
        is_near = gpus[a].numa_node == gpus[b].numa_node
        return wiring("PHB" if is_near else "SYS", rng.choice((0, 0, 1, 2)))

    return wired_up(gpus, wire)


def placed(
    topology: Topology, count: int, policy: str = "preserve", needs: Needs | None = None
) -> Placement | None:
    return place(posed(topology, count, **as_dict(needs or Needs())), policy)


HALVES = (frozenset(range(20)), frozenset(range(20, 40)))


NEEDS = {
    "one NUMA node": (
        Needs(within=HALVES),
        lambda gpus: gpus <= HALVES[0] or gpus <= HALVES[1],
    ),
    "required ones": (Needs(required=frozenset({3, 4, 33})), lambda gpus: {3, 4, 33} <= gpus),
    "one node and one required": (
        Needs(required=frozenset({33}), within=HALVES),
        lambda gpus: 33 in gpus <= HALVES[1],
    ),
}


@cases(NEEDS, "needs", "holds")
def test_needs_hold(needs: Needs, holds: Callable[[set[int]], bool]) -> None:
    """Eight of 40 GPUs are 76,904,685 sets; the one that is found has what is needed."""
    for policy in ("preserve", "greedy", "best_fit"):
        placement = placed(machine(40, 1), 8, policy, needs)
        assert placement is not None
        assert len(set(placement.gpus)) == 8
        assert holds(set(placement.gpus)), policy


def test_a_refusal_says_that_not_all_was_tried() -> None:
    """What no set that was tried has is refused as that, and not as what no set has."""
    untried = "; there are too many sets to try them all"
    for gpus in (4, 2):
        asked = request(gpus, least_gb_per_s=1e6)
        decision = decide(asked, State(machine(40, 1)))
        assert isinstance(decision, Refuse)
        assert decision.reason.endswith(untried) == (gpus == 4)


@pytest.mark.parametrize("seed", range(3))
def test_a_good_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Growth reaches nine tenths of the best effective bandwidth on machines where it is known."""
    topology = machine(14, seed)
    best = placed(topology, 5)
    monkeypatch.setattr(problem, "MOST_SETS", 100)
    found = placed(topology, 5)
    assert found.scores.effective_bandwidth >= 0.9 * best.scores.effective_bandwidth


def test_a_search_that_gives_up_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision that runs out of mappings goes on with good ones, and its explanation says so."""
    monkeypatch.setattr(mapping, "EFFORT", 20)
    asked = request(7, pattern=PATTERNS["stencil_3d"], policy="greedy")
    state = State(machine(12, 3))
    decision = decide(asked, state)
    assert isinstance(decision, Grant)
    assert len(set(decision.placement.gpus)) == 7
    reason = explain(asked, state, decision, 1, str).reason
    assert reason.endswith("; there were too many mappings to try them all")


def test_as_many_sets_as_may_be_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many sets as may be compared are compared, and not one more."""
    monkeypatch.setattr(problem, "MOST_SETS", 28)  # two of eight
    assert not posed(machine(8, 1), 2).too_many
    monkeypatch.setattr(problem, "MOST_SETS", 27)
    assert posed(machine(8, 1), 2).too_many
