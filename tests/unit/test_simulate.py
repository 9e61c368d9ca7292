"""The simulator: events, queue and machines, held against decide() asked anew at every event."""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from mixes import MIXES, loaded_mix
from values import cases, machine

import gpulaunch
from gpulaunch.decide.decide import decide
from gpulaunch.decide.decision import Constraint, Grant, Request, Sharing, State
from gpulaunch.decide.needs import admitted_gpus
from gpulaunch.lab.simulate.event_loop import Rules, Stay, simulate
from gpulaunch.lab.simulate.generate import poisson_batches
from gpulaunch.lab.simulate.machines import SimulatedJob, lease_of, ticket_of
from gpulaunch.lab.simulate.measures import measure, quartiles
from gpulaunch.leases.lease import Client, Objective
from gpulaunch.machine.topology import Topology
from gpulaunch.placement.policies import POLICIES
from gpulaunch.profiles.demand import Demand
from gpulaunch.profiles.pattern import PATTERNS
from gpulaunch.records import replace
from gpulaunch.sharing.speed import capacity_by

DGX = machine("dgx1-v100")
MINSKY = machine("power8-minsky")
BASELINE = Rules("baseline", "cut")


def job(
    number: int,
    gpus: int,
    arrival_s: float,
    duration_s: float,
    *,
    sensitive: bool = False,
    only: tuple[str, ...] = (),
    **more,
) -> SimulatedJob:
    """Make a job; an insensitive one has no pattern, so its GPUs stand in ascending order."""
    pattern = PATTERNS["ring" if sensitive else "none"]
    constraints = (Constraint("--only", frozenset(only)),) if only else ()
    request = Request(gpus, pattern, sensitive and gpus > 1, "preserve", "cut", constraints)
    return SimulatedJob(number, f"job{number}", request, arrival_s, duration_s, **more)


@cache
def generated(seed: int, count: int) -> tuple[SimulatedJob, ...]:
    """Make jobs by topo-aware-sc17's generator for a Minsky, with profiles and utilities."""
    trace = gpulaunch.generate_trace("poisson", seed, count)
    return gpulaunch.Simulator("power8-minsky").read_trace(trace).jobs


def checked(topology: Topology, jobs: Sequence[SimulatedJob], rules: Rules) -> list[Stay]:
    """Simulate; check that all jobs have run, once, and that none held a GPU of another."""
    stays = simulate(topology, jobs, rules)
    assert sorted(stay.job.id for stay in stays) == list(range(len(jobs)))
    starts = [stay.started_s for stay in stays]
    assert starts == sorted(starts)
    assert all(stay.job.arrival_s <= stay.started_s <= stay.ended_s for stay in stays)
    by_gpu: dict[tuple[int, int], list[Stay]] = {}
    for stay in stays:
        assert len(set(stay.gpus)) == len(stay.gpus)
        for gpu in stay.gpus:
            by_gpu.setdefault((stay.machine, gpu), []).append(stay)
    for own in by_gpu.values():
        all_end_s = alone_end_s = 0.0
        for stay in own:
            shares = stay.job.request.sharing is not None
            free_s = alone_end_s if shares else all_end_s
            assert stay.started_s >= free_s, "a GPU is held twice"
            all_end_s = max(all_end_s, stay.ended_s)
            if not shares:
                alone_end_s = stay.ended_s
    return stays


def log(stays: Iterable[Stay]) -> list[tuple[int, tuple[int, ...], float, float]]:
    """Return id, GPUs, start and end of each job, in the order of starts."""
    return [(stay.job.id, stay.gpus, stay.started_s, stay.ended_s) for stay in stays]


# ----------------------------------------------------------------------------------- time and queue


def test_a_few_jobs() -> None:
    """Jobs start on arrival or once enough GPUs are free; an end comes before an arrival then."""
    jobs = [job(0, 5, 0, 10), job(1, 3, 1, 4), job(2, 4, 2, 3), job(3, 1, 2, 1), job(4, 4, 13, 5)]
    assert log(checked(DGX, jobs, BASELINE)) == [
        (0, (0, 1, 2, 3, 4), 0, 10),
        (1, (5, 6, 7), 1, 5),
        (2, (0, 1, 2, 3), 10, 13),
        (3, (4,), 10, 11),
        (4, (0, 1, 2, 3), 13, 18),
    ]


def test_backfill_depends_on_the_limits_on_each_machine() -> None:
    """Two machines with the same free GPUs differ in when a job that waits could start there."""
    jobs = [limited(100, job(0, 5, 0, 90)), limited(5, job(1, 5, 0, 5)), job(2, 8, 1, 5)]
    jobs += [limited(10, job(number, 3, 2, 9)) for number in (3, 4)]
    stays = checked(DGX, jobs, replace(BASELINE, machines=2))
    assert [(stay.job.id, stay.machine, stay.started_s) for stay in stays] == [
        (0, 0, 0),
        (1, 1, 0),
        (3, 0, 2),
        (2, 1, 5),
        (4, 1, 10),
    ]


def limited(seconds: float, one: SimulatedJob) -> SimulatedJob:
    return replace(one, request=replace(one.request, ends_within_s=float(seconds)))


def test_tick() -> None:
    """With a look every second a job starts at the look after the one that sees an end."""
    jobs = [job(0, 8, 0.4, 1.2), job(1, 8, 0.5, 1.0)]
    assert log(checked(DGX, jobs, replace(BASELINE, tick_s=1.0))) == [
        (0, (*range(8),), 1, 3),
        (1, (*range(8),), 4, 5),
    ]


@pytest.mark.parametrize("policy", ["baseline", "preserve", "topo_aware"])
@pytest.mark.parametrize("queue", ["fifo", "backfill", "first_fit"])
def test_it_decides_as_the_launcher_would(policy: str, queue: str) -> None:
    """Each start is what decide() grants, asked anew for each waiting job at each event."""
    jobs = []
    for number, row in enumerate(loaded_mix(0, 20, 8, 0.9, MIXES["uniform 1-5"])):
        sensitive = row["bandwidth_sensitive"]
        one = job(number, row["gpus"], row["arrival_s"], row["duration_s"], sensitive=sensitive)
        jobs.append(limited(1.5 * one.duration_s, one) if number % 3 else one)
    rules = Rules(policy, "cut", queue=queue)
    assert log(checked(DGX, jobs, rules)) == plainly(DGX, jobs, rules)


def plainly(topology, jobs: list[SimulatedJob], rules: Rules) -> list[tuple]:
    """Simulate with nothing but a list of events and decide()."""
    fields = {"policy": rules.policy, "bandwidth_model": rules.model}
    fields["in_order"] = rules.queue == "fifo"
    jobs = [replace(one, request=replace(one.request, **fields)) for one in jobs]
    uuid = {gpu.index: gpu.uuid for gpu in topology.gpus}
    queue, running, started = [], {}, []
    coming = sorted(jobs, key=lambda one: (one.arrival_s, one.id))
    while coming or running:
        ends = [one[0] for one in running.values()]
        now = min([*ends, *(round(one.arrival_s, 9) for one in coming[:1])])
        running = {key: one for key, one in running.items() if one[0] > now}
        while coming and round(coming[0].arrival_s, 9) <= now:
            one = coming.pop(0)
            admitted = tuple(gpu.uuid for gpu in admitted_gpus(one.request, topology))
            ticket = ticket_of(replace(one, arrival_s=round(one.arrival_s, 9)), admitted)
            queue.append((one, ticket))
        ahead, left = [], []
        for one, ticket in queue:
            leases = [lease for _, lease in running.values()]
            decision = decide(one.request, State(topology, leases, ahead=ahead, clock_s=now))
            if isinstance(decision, Grant):
                gpus = decision.placement.gpus
                end = round(now + one.duration_s, 9)
                held = lease_of(one, decision, tuple(uuid[gpu] for gpu in gpus))
                running[one.id] = end, replace(held, clock_s=now)
                started.append((one.id, gpus, now, end))
            else:
                left.append((one, ticket))
                ahead += [] if rules.queue == "first_fit" else [ticket]
        queue = left
    return started


@pytest.mark.parametrize("policy", ["topo_aware", "topo_aware_p"])
def test_it_waits_for_utility_as_the_launcher_would(policy: str) -> None:
    """Starts are decide()'s, too, where some jobs need utility and neighbours slow them down."""
    jobs = []
    for one in generated(seed=1, count=20):
        asked = one.request
        if one.id % 3 == 0:
            asked = replace(asked, least_utility=0.0)
        jobs.append(replace(one, arrival_s=one.arrival_s / 3, request=asked))
    for queue in ("backfill", "first_fit"):
        rules = Rules(policy, "cut", queue=queue)
        assert log(checked(MINSKY, jobs, rules)) == plainly(MINSKY, jobs, rules), queue


def asking(number: int, gpus: int, arrival_s: float, least: float, *only: int) -> SimulatedJob:
    """Make a job of 5 s that needs a utility, a long one if it must have certain GPUs."""
    uuids = tuple(MINSKY.gpus[gpu].uuid for gpu in only)
    one = job(number, gpus, arrival_s, 100.0 if only else 5.0, sensitive=True, only=uuids)
    return replace(one, request=replace(one.request, least_utility=least))


TOLD_APART = {
    "the same state at another time": (
        *(DGX, "baseline"),
        [
            limited(10, job(0, 5, 0, 10)),
            job(1, 8, 1, 5),
            limited(3, job(2, 1, 2, 1)),
            limited(3, job(3, 1, 8, 1)),
        ],
    ),
    "a job that may pass one that waits for utility, and one that may not": (
        *(MINSKY, "topo_aware_p"),
        [
            asking(0, 2, 0, 0.0, 0, 2),
            asking(1, 2, 1, 0.9),
            asking(2, 2, 2, 0.0),
            asking(3, 2, 10, 0.1),
        ],
    ),
    "a job that needs more utility": (
        *(MINSKY, "topo_aware_p"),
        [
            asking(0, 1, 0, 0.0, 0),
            asking(1, 1, 0, 0.0, 2),
            asking(2, 2, 1, 0.1),
            asking(3, 2, 10, 0.5),
        ],
    ),
    "the order in which neighbours began": (
        *(MINSKY, "topo_aware"),
        [
            *(asking(0, 1, 0, 0.0, 0), asking(1, 1, 1, 0.0, 2), asking(2, 1, 2, 0.0)),
            *(asking(3, 1, 200, 0.0, 2), asking(4, 1, 201, 0.0, 0), asking(5, 1, 202, 0.0)),
        ],
    ),
}


@cases(TOLD_APART, "topology", "policy", "jobs")
def test_what_is_told_apart(topology: Topology, policy: str, jobs: list[SimulatedJob]) -> None:
    """No decision is taken over from an earlier one that differs in what a row says."""
    rules = Rules(policy, "cut")
    assert log(checked(topology, jobs, rules)) == plainly(topology, jobs, rules)


@pytest.mark.parametrize("policy", POLICIES)
def test_conservation(policy: str) -> None:
    """At no time a GPU is held twice, and all jobs end."""
    times = ("bandwidth", "interference")
    rules = Rules(policy, "cut", machines=3, time_models=times, lasting=True, tick_s=1.1)
    checked(MINSKY, generated(seed=3, count=25), rules)


# --------------------------------------------------------------------------------- several machines


def test_machines_fill_as_the_policy_says() -> None:
    """Baseline takes the first machine with room, best-fit the fullest, others the least loss."""
    jobs = [job(0, 3, 0, 9), job(1, 2, 1, 9), job(2, 1, 2, 9), job(3, 2, 3, 9)]

    def machines(policy: str) -> list[int]:
        return [stay.machine for stay in checked(MINSKY, jobs, Rules(policy, "cut", machines=3))]

    assert machines("baseline") == [0, 1, 0, 1]
    assert machines("best_fit") == [0, 1, 0, 1]
    scattered = [job(0, 2, 0, 9), job(1, 4, 0, 5), job(2, 1, 6, 9)]
    assert machines("preserve") == [0, 1, 0, 1]
    stays = checked(MINSKY, scattered, Rules("preserve", "cut", machines=2))
    assert [stay.machine for stay in stays] == [0, 1, 0]


def test_best_effort_compares_machines_by_links() -> None:
    """best-effort takes the machine whose set has the most aggregate bandwidth, not the first."""
    held = [job(0, 6, 0, 100, only=tuple(DGX.gpus[gpu].uuid for gpu in (1, 2, 3, 4, 6, 7)))]
    stays = checked(
        DGX, [*held, job(1, 2, 1, 5, sensitive=True)], Rules("best_effort", "cut", machines=2)
    )
    assert [(stay.machine, sorted(stay.gpus)) for stay in stays[1:]] == [(1, [0, 3])]


def test_of_machines_that_are_alike_the_first_is_taken() -> None:
    """Of equal machines the first is taken: the decision does not depend on how many there are."""
    jobs = generated(seed=5, count=40)
    few, many = (checked(MINSKY, jobs, Rules("topo_aware", "cut", machines=n)) for n in (40, 400))
    assert few == many


# ---------------------------------------------------------------------------------------- run times

SLOWER = {
    "a double NVLink: 40 GB/s by the cut model": ((0, 3), {}, 100),
    "a single one": ((0, 1), {}, 100 * (1 + 0.63 * (40 / 20 - 1))),
    "PCIe": ((0, 5), {}, 100 * (1 + 0.63 * (40 / 12 - 1))),
    "a job that says how much it waits for its links": (
        *((0, 5), {"communication_share": 0.3}),
        100 * (1 + 0.3 * (40 / 12 - 1)),
    ),
    "an insensitive job": ((0, 5), {"sensitive": False}, 100),
}


@cases(SLOWER, "gpus", "fields", "want_s")
def test_slow_links_make_sensitive_jobs_slower(
    gpus: tuple[int, ...], fields: dict[str, Any], want_s: float
) -> None:
    """A sensitive job spends 63 % of its best time on links, and more the slower they are."""
    rules = Rules("baseline", "cut", time_models=("bandwidth",))
    only = tuple(DGX.gpus[gpu].uuid for gpu in gpus)
    fields = {"sensitive": True, "only": only, **fields}
    (stay,) = checked(DGX, [job(0, 2, 0, 100, **fields)], rules)
    assert (sorted(stay.gpus), stay.ended_s) == (list(gpus), pytest.approx(want_s))


def test_neighbours_slow_jobs_down_while_they_are_there() -> None:
    """A job speeds up once its noisy neighbour has left; with `lasting` it stays slow."""
    quiet, noisy = (
        replace(job(0, 1, 0, 1).request, profile=name, slowdowns=slowdowns)
        for name, slowdowns in (("quiet", {"noisy": (0.5, 0.0)}), ("noisy", {"quiet": (0.0, 0.5)}))
    )
    jobs = [SimulatedJob(0, "quiet", quiet, 0.0, 10.0), SimulatedJob(1, "noisy", noisy, 2.0, 3.0)]
    rules = Rules("baseline", "cut", time_models=("interference",))
    assert log(checked(MINSKY, jobs, rules)) == [
        (0, (0,), 0, 11),
        (1, (1,), 2, 5),
    ]  # 2 + 3 / 1.5 of 10, then 6 more
    assert log(checked(MINSKY, jobs, replace(rules, lasting=True))) == [
        (0, (0,), 0, 15),
        (1, (1,), 2, 5),
    ]


def test_measured_split_slowdown() -> None:
    """Where a job says how much slower it is on two sockets, that counts, and not the bandwidth."""
    held = [job(0, 1, 0, 100), job(1, 1, 0, 100)]  # baseline gives 0 and 1; the pair gets 2 and 3
    pair = job(2, 2, 1, 10, sensitive=True, split_slowdown=0.25)
    rules = Rules("baseline", "cut", time_models=("bandwidth",))
    assert log(checked(MINSKY, [*held, pair], rules))[2] == (2, (2, 3), 1, 11)
    assert log(checked(MINSKY, [held[0], replace(pair, id=1)], rules))[1] == (1, (1, 2), 1, 13.5)


def sharing_job(number: int, sm: float) -> SimulatedJob:
    capacity = capacity_by(None, 16 << 30, 48)
    client = Client(Demand(f"p{number}", sm, 10.0, 1 << 30), Objective(), {})
    sharing = Sharing(client, None, 0, {gpu.uuid: capacity for gpu in DGX.gpus}, {})
    request = Request(
        1, PATTERNS["none"], bandwidth_sensitive=False, policy="preserve", bandwidth_model="cut"
    )
    return SimulatedJob(number, f"job{number}", replace(request, sharing=sharing), 0.0, 10.0)


def test_jobs_share_gpus_by_the_launchers_rules() -> None:
    """Two jobs that fit share a GPU, which is in use once; a third has its own; both are slowed.

    A job joins another one's GPU where none is free.
    """
    jobs = [sharing_job(0, 50.0), sharing_job(1, 40.0), sharing_job(2, 90.0)]
    rules = Rules("preserve", "cut", time_models=("sharing",))
    stays = checked(DGX, jobs, rules)
    assert [stay.gpus for stay in stays[:2]] == [stays[0].gpus] * 2
    assert stays[2].gpus != stays[0].gpus
    ends_s = [round(stay.ended_s, 6) for stay in stays]
    # u (U - u) = 0.5 x 0.4: 1.2 times as long; alone on 80 % of the SMs: 0.1 + 0.9 / 0.8.
    assert ends_s == [12.0, 12.0, 12.25]
    utilization = measure(DGX, stays, rules).utilization
    assert utilization == pytest.approx((12 + 12.25) / (8 * 12.25))
    stays = checked(DGX, [job(0, 7, 0, 50), sharing_job(1, 50.0), sharing_job(2, 40.0)], rules)
    assert (stays[1].gpus, {stay.started_s for stay in stays}) == (stays[2].gpus, {0})


# ------------------------------------------------------------------------------------------- traces


def test_poisson_batches() -> None:
    """Gaps, batches, networks and GPU counts have the published generator's distributions."""
    rows = list(poisson_batches(1, 20_000))
    gaps = [b["arrival_s"] - a["arrival_s"] for a, b in pairwise(rows)]
    assert sum(gaps) / len(gaps) == pytest.approx(10, abs=0.1)
    assert sum((gap - 10) ** 2 for gap in gaps) / len(gaps) == pytest.approx(
        10, rel=0.05
    )  # Poisson: variance = mean

    def share(text: str, key: str = "profile") -> float:
        return sum(text in row[key] for row in rows) / len(rows)

    assert share("-b1-") == pytest.approx(0.9**3, abs=0.01)
    assert share("-b4-") == pytest.approx(3 * 0.9**2 * 0.1, abs=0.01)
    assert share("googlenet") == pytest.approx(0.2, abs=0.01)
    assert sum(row["gpus"] for row in rows) / len(rows) == pytest.approx(1 + 2 * 0.39, abs=0.02)
    least = [row["min_utility"] for row in rows]
    assert 0.30 <= min(least) < max(least) <= 0.52


# ----------------------------------------------------------------------------------------- measures


def test_measures_by_hand() -> None:
    """Waits, makespan, throughput and utilization of three jobs match hand figures."""
    jobs = [job(0, 1, 0, 10), job(1, 4, 2, 10), job(2, 2, 3, 5)]
    rules = Rules("baseline", "cut")
    replay = measure(MINSKY, checked(MINSKY, jobs, rules), rules)
    assert [(one.id, one.wait_s, one.run_s, one.turnaround_s) for one in replay.jobs] == [
        (0, 0, 10, 10),
        (1, 8, 10, 18),
        (2, 17, 5, 22),
    ]
    assert replay.makespan_s == 25
    assert replay.throughput_jobs_per_hour == pytest.approx(3 * 3600 / 25)
    assert replay.utilization == pytest.approx((1 * 10 + 4 * 10 + 2 * 5) / (4 * 25))


def test_what_a_job_needs_is_judged_by_what_its_policy_goes_by() -> None:
    """A job that got the bandwidth it asked for, by the model it asked, has not been failed."""
    asked = job(0, 3, 0, 5, sensitive=True, only=tuple(DGX.gpus[gpu].uuid for gpu in (1, 4, 5)))
    rules = Rules("preserve_paper", "mapa")
    jobs = [replace(asked, request=replace(asked.request, least_gb_per_s=20.5))]
    assert measure(DGX, checked(DGX, jobs, rules), rules).violations == 0


def test_quality_and_rings() -> None:
    """Quality is the share of the best aggregate bandwidth: {0,1,4} of a DGX-1 has 87 of 125."""
    held = [job(0, 2, 0, 9), job(1, 1, 0, 50), job(2, 1, 0, 50), job(3, 1, 0, 9)]
    rules = Rules("baseline", "cut")
    last = job(4, 3, 10, 5, sensitive=True)
    replay = measure(DGX, checked(DGX, [*held, last], rules), rules)
    (found,) = (one for one in replay.jobs if one.id == 4)
    assert found.gpus in ((0, 1, 4), (0, 4, 1), (1, 0, 4))
    assert (found.aggregate_bandwidth, found.quality, found.nvlink_ring) == (87, 87 / 125, False)


def test_quartiles() -> None:
    """Quartiles are linear between two values, as numpy's are; the mean is the last."""
    assert quartiles([]) is None
    assert set(quartiles([3.0]).values()) == {3}
    assert [*quartiles([4.0, 1.0, 2.0, 23.0]).values()] == [1, 1.75, 3, 8.75, 23, 7.5]
