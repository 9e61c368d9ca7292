"""How ranks of one step divide GPUs, and what their leases keep from whom."""

import json

import pytest
from values import box, lease, request, ticket, uuids

from gpulaunch.decide.decide import decide
from gpulaunch.decide.decision import Decision, Grant, Refuse, Situation, Wait
from gpulaunch.launch.assess import is_still_valid
from gpulaunch.launch.launch import Launch
from gpulaunch.leases.engine_job import EngineJob
from gpulaunch.leases.lease import Lease, parse_lease
from gpulaunch.leases.queue import ENDLESS, first_to_try
from gpulaunch.leases.table import Snapshot
from gpulaunch.machine.driver import OutsideUse
from gpulaunch.machine.find import Machine
from gpulaunch.records import replace

USER = 1000


def job(local_rank: int = 0, ranks: int = 4, **fields) -> EngineJob:
    """Make a rank's step of Slurm."""
    defaults = {"engine": "slurm", "id": "4711.0", "user_id": USER, "rank": local_rank}
    return EngineJob(**{**defaults, "local_rank": local_rank, "ranks": ranks, **fields})


def held(indices: tuple[int, ...], own: EngineJob | None = None, **fields) -> Lease:
    """Make a lease of GPUs, of a step or not."""
    return lease(fields.pop("id", "a"), *indices, **{"engine_job": own, **fields})


def of(decision: Decision) -> tuple[int, ...] | str:
    """Return the launch's own GPUs, or why it has none."""
    return decision.gpus if isinstance(decision, Grant) else decision.reason


def ask(own: EngineJob, *leases: Lease, gpus: int | None = 4, outside=(), within=None) -> Decision:
    """Decide for one rank of a step whose ranks ask for so many GPUs together."""
    situation = Situation(box(), [*leases, *filter(None, [within])], outside, within)
    return decide(request(gpus, engine_job=own), situation)


def test_each_rank_decides_alike() -> None:
    """Without any other of the step, each rank comes to its own part of the same GPUs."""
    assert [of(ask(job(rank))) for rank in range(4)] == [(0,), (1,), (2,), (3,)]
    assert [of(ask(job(rank, 2))) for rank in range(2)] == [(0, 1), (2, 3)]


def test_first_rank_decides_for_all() -> None:
    """When one rank has begun, the others take theirs of what it chose, in its order."""
    group = uuids((7, 2, 5, 4))
    first = held((5,), job(2, group=group))
    got = [of(ask(job(rank), first)) for rank in (0, 1, 3)]
    assert got == [(7,), (2,), (4,)]


def test_others_keep_off_the_whole_group() -> None:
    """For launches that are not of the step, or of a rank that runs, all its GPUs are taken."""
    first = held((0,), job(0, group=uuids((0, 1, 2, 3))))
    others = decide(request(None), Situation(box(), [first]))
    assert isinstance(others, Wait)
    assert of(decide(request(4), Situation(box(), [first]))) == (4, 5, 6, 7)
    assert of(ask(job(0, id="4712.0"), first)) == (4,)
    assert of(ask(job(0, user_id=1001), first)) == (4,)
    assert of(ask(job(0), first)) == "1 GPU requested: 0 of 1 admitted are free, 1 is leased"


def test_nested_launch_in_a_rank() -> None:
    """A launch inside a rank's lease has the GPUs of that lease, whatever the others hold."""
    group = uuids((0, 1, 2, 3))
    ranks = [held((rank,), job(rank, group=group), id=f"lease{rank}") for rank in range(4)]
    inside = Situation(box(), ranks, within=ranks[1])
    assert of(decide(request(1, engine_job=job(1)), inside)) == (1,)
    assert of(decide(request(1), inside)) == (1,)


@pytest.mark.parametrize(
    ("gpus", "ranks", "reason"),
    [
        pytest.param(
            None,
            3,
            "8 GPUs cannot be divided evenly among the 3 ranks of slurm 4711.0 on this node: -n "
            "says how many each gets",
            id="all of 8 among 3",
        ),
        pytest.param(
            12,
            4,
            "the 4 ranks of slurm 4711.0 on this node ask for 3 GPUs each, 12 in all: there are 8",
            id="3 for each of 4",
        ),
    ],
)
def test_too_few(gpus: int | None, ranks: int, reason: str) -> None:
    """Ranks that cannot have as many GPUs each are refused, with the numbers."""
    decision = ask(job(0, ranks), gpus=gpus)
    assert (type(decision), of(decision)) == (Refuse, reason)


def test_ranks_that_ask_differently() -> None:
    """A rank that asks for another number of GPUs than the first one is refused."""
    first = held((0,), job(0, group=uuids((0, 1, 2, 3))))
    assert of(ask(job(1), first, gpus=8)) == (
        "slurm 4711.0 has 4 GPUs here for its 4 ranks, and this one asks for 8 in all: every rank "
        "has to ask for as many"
    )


def test_group_that_is_given() -> None:
    """A group that is known beforehand is taken in its order, if all of it is free."""
    group = uuids((6, 4, 2, 0))
    assert of(ask(job(1, group=group))) == (4,)
    busy = held((2,))
    assert of(ask(job(1, group=group), busy)) == (
        "4 GPUs requested: 3 of 4 admitted are free, 1 is leased"
    )


def test_gpu_in_use_outside() -> None:
    """A rank waits while somebody outside uses its own GPU, and not for the others'."""
    group = uuids((0, 1, 2, 3))
    first = held((0,), job(0, group=group))
    use = [OutsideUse("GPU-1", "pid 7, bob")]
    assert of(ask(job(2), first, outside=use)) == (2,)
    assert of(ask(job(1), first, outside=use)) == (
        "1 GPU requested: 0 of 1 admitted are free, 1 is in use outside gpulaunch (pid 7, bob)"
    )


def test_shared_by_the_engine() -> None:
    """Leases of GPUs that the engine shares, or bound ranks of one step to, overlap."""
    shard = job(ranks=1, shared=True)
    first = held((0,), replace(shard, id="1.0"))
    situation = Situation(box(1), [first], [OutsideUse("GPU-0", "pid 7")])
    assert of(decide(request(1, engine_job=shard), situation)) == (0,)
    assert isinstance(decide(request(1), situation), Wait)
    bound = held((0,), job(0, bound=True))
    for engine_job, kind in ((job(1, bound=True), Grant), (job(0, bound=True, id="1.0"), Wait)):
        asked = request(1, engine_job=engine_job)
        assert isinstance(decide(asked, Situation(box(1), [bound])), kind)
    alone = held((0,), job(ranks=1, id="1.0"))
    situation = Situation(box(1), [alone])
    assert isinstance(decide(request(1, engine_job=shard), situation), Wait)


def test_ticket_of_a_rank() -> None:
    """A rank that waits is tried when another of its step has started, however few are free."""
    waiting = ticket(1, 2, only=(0, 1), step="slurm 4711.0", user_id=USER)
    busy = dict.fromkeys(uuids((0, 1)), ENDLESS)
    assert first_to_try([], [waiting], busy, 0.0) is None
    begun = {("slurm 4711.0", USER)}
    assert first_to_try([], [waiting], busy, 0.0, begun=begun) == waiting
    assert first_to_try([], [waiting], busy, 0.0, begun={("slurm 4711.0", 7)}) is None


@pytest.mark.parametrize(
    "own",
    [
        job(2, group=uuids((3, 1, 0, 2))),
        job(0, 1, rank=None, shared=True),
        job(1, bound=True, engine="mpi", id="prterun-vm-1@1"),
    ],
    ids=str,
)
def test_record(own: EngineJob) -> None:
    """The engine's job is in the lease's record, without its user, and comes back from it."""
    before = held((0,), own, user_id=USER)
    document = json.loads(json.dumps(before.to_document()))
    assert "user_id" not in document["engine_job"]
    assert parse_lease(document, USER) == before


def test_record_of_others() -> None:
    """A lease without an engine has no such key, and a form that is unknown here is no engine."""
    plain = held((0,))
    document = json.loads(json.dumps(plain.to_document()))
    assert "engine_job" not in document
    for unknown in (5, {"engine": 1}, {"engine": "slurm", "id": "1", "ranks": "many"}):
        assert parse_lease(document | {"engine_job": unknown}, plain.user_id) == plain
    newer = {"engine": "slurm", "id": "1", "colour": "red"}
    got = parse_lease(document | {"engine_job": newer}, plain.user_id).engine_job
    assert got == EngineJob("slurm", "1", plain.user_id)


def rank_launch(own: EngineJob) -> Launch:
    """Make the launch of one rank of four that ask for four GPUs."""
    machine = Machine(box(), (), None)
    fields = {"within": None, "name": None, "publish": "all", "wait": False, "wait_timeout_s": None}
    flags = {"private": False, "by_uuid": False, "bind_cpu": True}
    asked = request(4, engine_job=own)
    return Launch(("true",), asked, machine, **fields, **flags, time_limit_s=None, grace_s=1.0)


@pytest.mark.parametrize(
    ("taken", "holds"),
    [
        (held((0,)), False),
        (held((3,)), False),
        (held((4,)), True),
        (held((1,), job(1, group=uuids((0, 1, 2, 3)))), True),
        (held((4,), job(1, group=uuids((7, 4, 5, 6)))), False),
    ],
    ids=["own", "another-rank's", "nobody's", "its-step", "its-step-elsewhere"],
)
def test_lost_race(taken: Lease, holds: bool) -> None:
    """What a first rank chose holds until somebody else has one of the GPUs of all ranks."""
    launch = rank_launch(job(0))
    grant = ask(job(0))
    assert isinstance(grant, Grant)
    got = is_still_valid(launch, grant, Snapshot([], []), Snapshot([taken], []))
    assert got == holds
