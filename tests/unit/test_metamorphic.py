"""What must not change, or in one way only, when a machine or a request does."""

import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from test_policies import Case, Machine, random_needs, random_pattern, random_topology

from gpulaunch.decide.placement.place import place, ranking
from gpulaunch.decide.placement.problem import Needs, PlacementProblem
from gpulaunch.machine.topology import Topology
from gpulaunch.profiles.pattern import PATTERNS, Pattern
from gpulaunch.records import as_dict, replace

BY_LINKS = ["greedy", "preserve", "preserve_paper"]
POLICIES = ["baseline", "best_fit", *BY_LINKS]
CASES = 40  # of each test


def cases(
    seed: str, policy: str, *, most: int = 10, needs: bool = True
) -> Iterator[tuple[random.Random, Case]]:
    """Draw requests for 1 to 6 GPUs of machines some of which are busy."""
    rng = random.Random(f"{seed} {policy}")
    for _ in range(CASES):
        machine = Machine(random_topology(rng, rng.randrange(2, most + 1)))
        free = rng.sample(machine.indices, rng.randrange(2, len(machine.indices) + 1))
        count = rng.randrange(1, min(6, len(free)) + 1)
        model = rng.choice(("cut", "cut", "mapa", "measured"))
        case = Case(
            machine,
            free,
            free,
            count,
            policy,
            model,
            rng.random() < 0.6,
            random_pattern(rng, count),
        )
        yield rng, replace(case, needs=random_needs(rng, case)) if needs else case


def best(case: Case) -> tuple[int, ...] | None:
    """Return the scores that decide, of the winner; None if nothing has what is needed."""
    problem = case.problem()
    found = place(problem, case.policy)
    return found and problem.scores_by(problem.mask(found.gpus), found.by)


def renamed(case: Case, name: Mapping[int, int]) -> Case:
    """Return the same machine and request with other indices."""
    topology = case.machine.topology
    gpus = sorted(
        (replace(gpu, index=name[gpu.index]) for gpu in topology.gpus), key=lambda gpu: gpu.index
    )
    ends = [(link, *sorted((name[link.a], name[link.b]))) for link in topology.links]
    links = sorted(
        (replace(link, a=a, b=b) for link, a, b in ends), key=lambda link: (link.a, link.b)
    )
    needs = replace(
        case.needs,
        required=frozenset(name[gpu] for gpu in case.needs.required),
        within=tuple(frozenset(name[gpu] for gpu in group) for group in case.needs.within),
        at_most=tuple(
            (frozenset(name[gpu] for gpu in group), most) for group, most in case.needs.at_most
        ),
    )
    return replace(
        case,
        machine=Machine(replace(topology, gpus=tuple(gpus), links=tuple(links))),
        free=[name[gpu] for gpu in case.free],
        admitted=[name[gpu] for gpu in case.admitted],
        needs=needs,
    )


@pytest.mark.parametrize("policy", BY_LINKS)
def test_other_indices_give_the_same_gpus(policy: str) -> None:
    """Whatever the GPUs are called, the best scores are the same, and the set, but for ties."""
    for rng, case in cases("renamed", policy):
        if (
            case.pattern.collective is False or case.model == "cut"
        ):  # of two best rings the first has the say elsewhere
            name = dict(
                zip(
                    case.machine.indices,
                    rng.sample(range(20), len(case.machine.indices)),
                    strict=True,
                )
            )
            other = renamed(case, name)
            assert best(other) == best(case), case
            found = place(other.problem(), policy)
            if found:
                back = {new: old for old, new in name.items()}
                again = replace(case, admitted=[back[gpu] for gpu in found.gpus])
                assert best(again) == best(case), case


@pytest.mark.parametrize("policy", BY_LINKS)
def test_one_more_free_gpu_never_hurts(policy: str) -> None:
    """With another GPU free the first score of the best is as good as without, or better."""
    for rng, case in cases("one more", policy, needs=False):
        busy = sorted(set(case.machine.indices) - set(case.free))
        if busy:
            free = [*case.free, rng.choice(busy)]
            assert best(replace(case, free=free, admitted=free))[0] >= best(case)[0], case


@pytest.mark.parametrize("policy", BY_LINKS)
def test_admitting_fewer_never_helps(policy: str) -> None:
    """With some free GPUs ruled out, the best is as good as before, or worse, or there is none."""
    for rng, case in cases("fewer", policy):
        admitted = rng.sample(case.free, rng.randrange(case.count, len(case.free) + 1))
        fewer = replace(case, admitted=admitted)
        if case.needs.required <= {*admitted} and (found := best(fewer)) is not None:
            assert found <= best(case), case


@pytest.mark.parametrize("policy", BY_LINKS)
def test_asking_for_less_never_hurts(policy: str) -> None:
    """Without what it needs besides, a job gets what is as good by the scores, or better."""
    for _, case in cases("asking", policy):
        found = best(case)
        assert found is None or best(replace(case, needs=Needs())) >= found, case


def scaled(topology: Topology, factor: int) -> Topology:
    """Return a topology with every link so many times as fast."""
    fields = ("nvlink_gb_per_s", "nvlink_planned_gb_per_s", "pcie_gb_per_s")
    links = (
        replace(link, **{name: getattr(link, name) * factor for name in fields})
        for link in topology.links
    )
    return replace(topology, links=tuple(links), measured=())


@pytest.mark.parametrize("factor", [2, 10])
@pytest.mark.parametrize("policy", POLICIES)
def test_faster_links_everywhere_change_nothing_but_the_scale(policy: str, factor: int) -> None:
    """With all bandwidths times 2 or 10 the same GPUs come in the same order, at scaled scores."""
    for _, asked in cases(f"scaled {factor}", policy):
        before = replace(
            asked,
            machine=Machine(scaled(asked.machine.topology, 1)),
            model="cut",
            pattern=asked.pattern if not asked.pattern.given else PATTERNS["chain"],
            needs=replace(asked.needs, least_gb_per_s=0.0),
        )
        after = replace(before, machine=Machine(scaled(asked.machine.topology, factor)))
        one, other = (place(case.problem(), policy) for case in (before, after))
        assert (one and one.gpus) == (other and other.gpus), before
        if one and other:
            times = {
                name: pytest.approx(figure * factor)
                for name, figure in as_dict(one.scores).items()
                if name.endswith("bandwidth") and figure is not None
            }
            assert as_dict(other.scores) == as_dict(one.scores) | times, before


def answers(case: Case) -> tuple[Any, ...]:
    problem: PlacementProblem = case.problem()
    return place(problem, case.policy), list(ranking(problem, case.policy))


@pytest.mark.parametrize("policy", POLICIES)
def test_order_of_what_is_given_does_not_matter(policy: str) -> None:
    """In whatever order the free and admitted GPUs and the bounds come, the answer is the same."""
    for rng, case in cases("shuffled", policy, most=8):
        needs = case.needs
        shuffled = replace(
            case,
            free=rng.sample(case.free, len(case.free)),
            admitted=rng.sample(case.admitted, len(case.admitted)),
            needs=replace(needs, at_most=needs.at_most[::-1]),
        )
        assert answers(shuffled) == answers(case), case


@pytest.mark.parametrize("policy", POLICIES)
def test_same_input_same_answer(policy: str) -> None:
    """The answer is the same when asked again, also of a new choice and after other questions."""
    for _, case in cases("again", policy, most=8):
        first = answers(case)
        problem = case.problem()
        for other in POLICIES:
            place(problem, other)
        assert (place(problem, policy), list(ranking(problem, policy))) == first == answers(case), (
            case
        )


@pytest.mark.parametrize("policy", BY_LINKS)
def test_only_ratios_of_weights_matter(policy: str) -> None:
    """A pattern whose edges weigh 1000 times as much has the same placement."""
    for _, case in cases("weights", policy, most=8):
        if case.pattern.given:
            heavier = tuple((a, b, weight * 1024) for a, b, weight in case.pattern.given)
            heavy = replace(
                case, pattern=Pattern("heavy", collective=False, ranks=case.count, given=heavier)
            )
            assert place(heavy.problem(), policy) == place(case.problem(), policy), case
