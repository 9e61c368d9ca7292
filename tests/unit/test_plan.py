"""`gpulaunch plan`: groups of jobs that share a GPU, against a checker of its own, and by hand."""

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulaunch.cli.plan import plan_document
from gpulaunch.leases.lease import Client, Objective
from gpulaunch.profiles.demand import Demand
from gpulaunch.records import as_list, replace
from gpulaunch.sharing.caps import best_caps
from gpulaunch.sharing.interference import judge
from gpulaunch.sharing.plan import Plan, PlannedJob, PlanSite, make_plan, run_together
from gpulaunch.sharing.speed import Capacity

CARD = Capacity(memory_bytes=80 << 30, most_clients=48, sm_count=108, power_limit_w=300.0)


def site(objective: str = "energy", gpus: int = 1) -> PlanSite:
    return PlanSite(CARD, gpus, Objective(objective))


def job(name: str, sm: float, duration_s: float = 10.0, **options) -> PlannedJob:
    """Make a job that wants little energy, without any use of memory."""
    client = Client(Demand(name, sm, 0.0, 0, 157.0), Objective("energy"))
    return PlannedJob(name, client, duration_s, **options)


def names(plan: Plan) -> list[list[str]]:
    """Return which jobs run together, group after group."""
    return [[member.job.name for member in group.members] for group in plan.groups]


def complaints(jobs: Sequence[PlannedJob], plan: Plan, where: PlanSite) -> list[str]:
    """All rules that a plan breaks, checked without the code that makes it."""
    found = []
    tasks: Counter[str] = Counter()
    spans: dict[str, list[tuple[float, float]]] = {}
    for group in plan.groups:
        clients = [member.job.client for member in group.members]
        found += [f"{group}: {reason}" for reason in judge(clients, where.capacity).reasons]
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


# random queues


@st.composite
def queues(draw) -> tuple[list[PlannedJob], PlanSite]:
    objective = draw(st.sampled_from(("throughput", "energy", "product")))
    jobs: list[PlannedJob] = []
    for name in draw(st.lists(st.sampled_from("abcdefghij"), min_size=1, unique=True)):
        demand = Demand(
            name,
            draw(st.floats(0, 100) | st.floats(0, 20)),
            draw(st.floats(0, 60)),
            draw(st.integers(0, 40 << 30)),
            draw(st.none() | st.floats(60, 300) | st.floats(60, 300)),
        )
        earlier = st.lists(st.sampled_from([job.name for job in jobs]), max_size=2)
        jobs.append(
            PlannedJob(
                name,
                Client(demand, Objective(objective)),
                draw(st.floats(0.1, 1000)),
                draw(st.integers(1, 12)),
                tuple(draw(earlier) if jobs else ()),
            )
        )
    return jobs, site(objective, draw(st.integers(1, 3)))


@given(queues())
def test_every_plan_keeps_the_rules(queue) -> None:
    """Each task runs once, after its predecessors, in a group that judge allows, one per GPU.

    The groups are the same whatever the order of the jobs; the baseline alone goes by it.
    """
    jobs, where = queue
    plan = make_plan(jobs, where)
    assert complaints(jobs, plan, where) == []
    assert make_plan(jobs[::-1], where).groups == plan.groups


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
    caps = best_caps([member.job.demand for member in group.members], CARD, Objective("energy"))
    assert tuple(member.sm_percentage for member in group.members) == caps


def test_more_than_anybody_measured_is_said() -> None:
    """A group that is predicted to reach more than 2.47 times has a note that none ever did."""
    where = replace(site("throughput"), capacity=replace(CARD, power_limit_w=None))
    plan = make_plan([job(str(i), 5, 10.0) for i in range(4)], where)
    assert [len(group.members) for group in plan.groups] == [4]
    assert plan.groups[0].notes == ("no group is known that reached more than 2.47 times",)


def test_dependencies_are_respected() -> None:
    """A job starts once all that it is after have ended, even if a GPU waits for that."""
    chain = [job("a", 10, 10), job("b", 10, 30, after=("a",)), job("c", 10, 5, after=("b",))]
    chain.append(job("d", 10, 5))
    plan = make_plan(chain, site("energy", gpus=2))
    starts = {member.job.name: group.start_s for group in plan.groups for member in group.members}
    assert starts == {"a": 0.0, "d": 0.0, "b": 10.0, "c": 40.0}
    assert plan.cost.time_s == plan.sequential.time_s == 45.0
    # The other GPU idles, and counts.
    assert plan.cost.energy_j == pytest.approx(157 * 50 + 57 * (90 - 50))


def test_each_job_gets_a_gpu_while_there_are_enough() -> None:
    """Nobody shares beside an empty GPU; what is too much is spread."""
    spread = make_plan([job(name, 10) for name in "abc"], site(gpus=3))
    assert [group.gpu for group in spread.groups] == [0, 1, 2]
    assert spread.groups[0].why_alone == "there is a GPU for each"
    crowd = make_plan([job(name, 10) for name in "abcd"], site(gpus=3))
    assert names(crowd) == [["a", "b"], ["c"], ["d"]]


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


def cost(division: list[list[PlannedJob]], where: PlanSite) -> float:
    """Return what groups cost that run one after the other, by what the objective wants."""
    time_s = energy_j = 0.0
    for group in division:
        demands = [job.demand for job in group]
        caps = best_caps(demands, CARD, where.objective) if len(group) > 1 else ()
        _, both = run_together(group, caps, where)
        time_s += both.time_s
        energy_j += both.energy_j
    return _wanted(time_s, energy_j, where)


def _wanted(time_s: float, energy_j: float, where: PlanSite) -> float:
    wanted = {"throughput": time_s, "energy": energy_j, "product": time_s * energy_j}
    return wanted[where.objective.name]


def drawn_job(chance: random.Random, name: str) -> PlannedJob:
    """Return a job that takes 1 to 60 minutes."""
    sm, bandwidth, memory = chance.uniform(2, 95), chance.uniform(0, 60), chance.randrange(40 << 30)
    demand = Demand("made up", sm, bandwidth, memory, chance.uniform(60, 300))
    return PlannedJob(name, Client(demand), 60 * 10 ** chance.uniform(0, 1.78))


@pytest.mark.parametrize("objective", ["throughput", "energy", "product"])
def test_nearly_the_best_division(objective: str) -> None:
    """A plan is within 5 % of the best division of five jobs that may share."""
    where = site(objective)
    for seed in range(3):
        chance = random.Random(seed)
        drawn = [drawn_job(chance, name) for name in "abcde"]
        jobs = [
            replace(one, client=replace(one.client, objective=where.objective)) for one in drawn
        ]
        best = min(
            cost(division, where)
            for division in divisions(jobs)
            if all(judge([job.client for job in group], CARD).compatible for group in division)
        )
        plan = make_plan(jobs, where)
        assert _wanted(plan.cost.time_s, plan.cost.energy_j, where) < 1.05 * best
