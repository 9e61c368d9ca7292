"""`gpulaunch plan`: groups of jobs that share a GPU, against a checker of its own, and by hand."""

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulaunch.leases.share import Client, Objective
from gpulaunch.profiles.demand import Demand
from gpulaunch.records import as_list, replace
from gpulaunch.sharing.capacity import Capacity
from gpulaunch.sharing.interference import judge
from gpulaunch.sharing.partition import partition
from gpulaunch.sharing.plan import (
    Group,
    Plan,
    PlannedJob,
    PlanSite,
    make_plan,
)
from gpulaunch.sharing.prediction import run_together
from gpulaunch.show.plan import plan_document

CARD = Capacity(memory_bytes=80 << 30, most_clients=48, sm_count=108, power_limit_w=300.0)


def site(objective: str = "energy", gpus: int = 1, **options) -> PlanSite:
    return PlanSite(CARD, gpus, Objective(objective, **options), 57.0)


def job(
    name: str, sm: float, duration_s: float = 10.0, power_w: float | None = 157.0, **options
) -> PlannedJob:
    """Make a job without any use of memory."""
    objective = options.pop("objective", "energy")
    return PlannedJob(
        name, Client(Demand(name, sm, 0.0, 0, power_w), Objective(objective)), duration_s, **options
    )


def names(plan: Plan) -> list[list[str]]:
    """Return which jobs run together, group after group."""
    return [[member.job.name for member in group.members] for group in plan.groups]


def complaints(jobs: Sequence[PlannedJob], plan: Plan, where: PlanSite) -> list[str]:
    """All rules that a plan breaks, checked without the code that makes it."""
    found = []
    tasks: Counter[str] = Counter()
    spans: dict[str, list[tuple[float, float]]] = {}
    for group in plan.groups:
        found += [f"{group}: {reason}" for reason in _refusals(group, where)]
        for member in group.members:
            tasks[member.job.name] += member.job.tasks
            spans.setdefault(member.job.name, []).append((group.start_s, member.end_s))
    if tasks != {job.name: job.tasks for job in jobs}:
        found.append(f"tasks: {tasks}")
    for each in jobs:
        start = min(start for start, _ in spans[each.name])
        late = [other for other in each.after if max(end for _, end in spans[other]) > start]
        found += [f"{each.name} starts before {other} has ended" for other in late]
    for gpu in range(where.gpus):
        own = sorted(
            (group.start_s, group.start_s + group.cost.time_s)
            for group in plan.groups
            if group.gpu == gpu
        )
        found += [
            f"GPU {gpu}: two at once" for (_, end), (start, _) in pairwise(own) if start < end
        ]
    return found


def _refusals(group: Group, where: PlanSite) -> tuple[str, ...]:
    clients = [member.job.client for member in group.members]
    return judge(clients, where.capacity).reasons


# random queues


@st.composite
def queues(draw) -> tuple[list[PlannedJob], PlanSite]:
    objective = draw(st.sampled_from(("throughput", "energy", "product")))
    jobs: list[PlannedJob] = []
    for name in draw(
        st.lists(st.sampled_from("abcdefghijkl"), min_size=1, max_size=10, unique=True)
    ):
        demand = Demand(
            name,
            draw(st.floats(0, 100) | st.floats(0, 20)),
            draw(st.floats(0, 60)),
            draw(st.integers(0, 40 << 30)),
            draw(st.none() | st.floats(60, 300) | st.floats(60, 300)),
        )
        jobs.append(
            PlannedJob(
                name,
                Client(demand, Objective(objective)),
                draw(st.floats(0.1, 1000)),
                draw(st.integers(1, 12)),
                tuple(
                    draw(st.lists(st.sampled_from([job.name for job in jobs]), max_size=2))
                    if jobs
                    else ()
                ),
            )
        )
    return jobs, site(objective, draw(st.integers(1, 3)))


@given(queues(), st.randoms(use_true_random=False))
def test_every_plan_keeps_the_rules(queue, shuffler) -> None:
    """Each task runs once, after its predecessors, in a group that judge allows, one per GPU.

    The groups are the same whatever the order of the jobs; the baseline alone goes by it.
    """
    jobs, where = queue
    plan = make_plan(jobs, where)
    assert complaints(jobs, plan, where) == []
    assert make_plan(shuffler.sample(jobs, len(jobs)), where).groups == plan.groups


@given(queues())
def test_one_gpu_never_loses_by_sharing(queue) -> None:
    """On one GPU a plan takes no longer than one job after the other, and is JSON without NaN."""
    jobs, where = queue
    where = replace(where, gpus=1)
    plan = make_plan(jobs, where)
    assert plan.gain.throughput >= 1 - 1e-6
    assert plan.sequential.time_s == pytest.approx(sum(job.alone_s for job in jobs))
    document = plan_document(plan, where, "card")
    json.dumps(document, allow_nan=False)
    unknown = any(job.client.demand.power_w is None for job in jobs)
    assert (document["predicted"]["energy_j"] is None) == unknown


# by hand


def test_two_halves_by_hand() -> None:
    """Two jobs at 50 % slow each other to 0.8: 12.5 s, not 20 s; idle power is paid once."""
    plan = make_plan([job("a", 50), job("b", 50)], site())
    (group,) = plan.groups
    assert (group.stp, group.antt) == pytest.approx((1.6, 1.25))
    assert as_list(plan.cost) == pytest.approx([12.5, 12.5 * (57 + 0.8 * 200)])
    assert as_list(plan.sequential) == pytest.approx([20, 20 * 157])
    assert as_list(plan.gain) == pytest.approx([1.6, 3140 / 2712.5])
    caps = partition([member.job.demand for member in group.members], CARD).sm_percentages
    assert tuple(member.sm_percentage for member in group.members) == caps


def test_groups_follow_each_other() -> None:
    """What does not fit together runs in turn, lowest utilization first, and says why."""
    plan = make_plan([job("big", 90), job("small", 20)], site())
    assert names(plan) == [["small"], ["big"]]
    assert [group.start_s for group in plan.groups] == [0.0, 10.0]
    assert plan.groups[0].why_alone == ("beside big: average SM utilization 110 % of at most 100 %")
    assert plan.groups[1].why_alone == "no other job can start then"
    assert as_list(plan.gain) == pytest.approx([1.0, 1.0])


def test_low_utilization_joins_before_opposing_power() -> None:
    """A partner that uses ten points less is taken, whatever the power of the other."""
    queue = [
        job("cool", 20, power_w=90.0),
        job("mild", 25, power_w=95.0),
        job("hot", 76, power_w=280.0),
    ]
    assert names(make_plan(queue, site())) == [["cool", "mild"], ["hot"]]


def test_power_beyond_the_limit() -> None:
    """A group that asks for more than the card's limit is slowed down to it."""
    (group,) = make_plan([job("a", 10, power_w=250.0), job("b", 10, power_w=250.0)], site()).groups
    assert group.cost.energy_j == pytest.approx(300 * group.cost.time_s)


def test_dependencies_are_respected() -> None:
    """A job starts once all that it is after have ended, even if a GPU waits for that."""
    chain = [
        job("a", 10, 10),
        job("b", 10, 30, after=("a",)),
        job("c", 10, 5, after=("b",)),
        job("d", 10, 5),
    ]
    plan = make_plan(chain, site("energy", gpus=2))
    starts = {member.job.name: group.start_s for group in plan.groups for member in group.members}
    assert starts == {"a": 0.0, "d": 0.0, "b": 10.0, "c": 40.0}
    assert plan.cost.time_s == plan.sequential.time_s == 45.0
    assert plan.cost.energy_j == pytest.approx(
        157 * 50 + 57 * (90 - 50)
    )  # the other GPU idles, and counts


def test_each_job_gets_a_gpu_while_there_are_enough() -> None:
    """Nobody shares beside an empty GPU; what is too much is spread."""
    spread = make_plan([job(name, 10) for name in "abc"], site(gpus=3))
    assert [(group.gpu, group.why_alone) for group in spread.groups] == [
        (0, "there is a GPU for each"),
        (1, "there is a GPU for each"),
        (2, "no other job can start then"),
    ]
    assert names(make_plan([job(name, 10) for name in "abcd"], site(gpus=3))) == [
        ["a", "b"],
        ["c"],
        ["d"],
    ]


def divisions(jobs: list[PlannedJob]) -> Iterator[list[list[PlannedJob]]]:
    """All ways to divide jobs into groups."""
    if not jobs:
        yield []
        return
    first, rest = jobs[0], jobs[1:]
    for size in range(len(rest) + 1):
        for others in combinations(rest, size):
            left = [job for job in rest if job not in others]
            yield from ([[first, *others], *division] for division in divisions(left))


def costs(division: list[list[PlannedJob]], where: PlanSite) -> tuple[float, float]:
    """Return time and energy of groups that run one after the other on the next free GPU."""
    ends, energy_j, spans = [0.0] * where.gpus, 0.0, []
    for group in division:
        demands = [job.demand for job in group]
        caps = partition(demands, CARD, where.objective).sm_percentages
        ends_s, group_j = run_together(
            demands,
            [job.alone_s for job in group],
            CARD,
            caps if len(group) > 1 else (),
            where.idle_w,
        )
        spans.append(max(ends_s))
        energy_j += group_j
    for span in sorted(spans, reverse=True):
        first = ends.index(min(ends))
        ends[first] += span
    return max(ends), energy_j + where.idle_w * (where.gpus * max(ends) - sum(spans))


def best_cost(jobs: list[PlannedJob], where: PlanSite) -> float:
    """Return the least cost of all divisions that judge allows, by what the objective wants."""
    return min(
        _wanted(*costs(division, where), where)
        for division in divisions(jobs)
        if len(division) >= min(len(jobs), where.gpus)
        and all(judge([job.client for job in group], CARD).compatible for group in division)
    )


def _wanted(time_s: float, energy_j: float, where: PlanSite) -> float:
    return {"throughput": time_s, "energy": energy_j, "product": time_s * energy_j}[
        where.objective.name
    ]


def drawn_queue(chance: random.Random, objective: str, size: int) -> list[PlannedJob]:
    """Return jobs that take 1 to 60 minutes."""
    jobs = []
    for number in range(size):
        demand = Demand(
            "made up",
            chance.uniform(2, 95),
            chance.uniform(0, 60),
            chance.randrange(40 << 30),
            chance.uniform(60, 300),
        )
        client = Client(demand, Objective(objective))
        jobs.append(PlannedJob(f"{number}", client, 60 * 10 ** chance.uniform(0, 1.78)))
    return jobs


@pytest.mark.parametrize(
    ("objective", "gpus"), [("throughput", 1), ("energy", 1), ("product", 1), ("energy", 3)]
)
def test_nearly_the_best_division(objective: str, gpus: int) -> None:
    """A plan is within 5 % of the best division of five jobs."""
    where = site(objective, gpus)
    for seed in range(3):
        jobs = drawn_queue(random.Random(seed), objective, 5)
        plan = make_plan(jobs, where)
        wanted = _wanted(plan.cost.time_s, plan.cost.energy_j, where)
        assert wanted < 1.05 * best_cost(jobs, where)
