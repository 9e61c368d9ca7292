"""How ranks of one step divide GPUs, and what their leases keep from whom."""

import json

import pytest
from values import box, lease, request, uuids

from gpulaunch.decide.decide import decide
from gpulaunch.decide.decision import Decision, Grant, Refuse, State, Wait
from gpulaunch.leases.lease import EngineJob, Lease, parse_lease
from gpulaunch.machine.driver import OutsideUse

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
    return decision.indices if isinstance(decision, Grant) else decision.reason


def ask(own: EngineJob, *leases: Lease, gpus: int | None = 4, outside=()) -> Decision:
    """Decide for one rank of a step whose ranks ask for so many GPUs together."""
    return decide(request(gpus, engine_job=own), State(box(), leases, outside))


def test_first_rank_decides_for_all() -> None:
    """When one rank has begun, the others take theirs of what it chose, in its order.

    A rank waits while somebody else uses its own GPU, and not for the others'.
    """
    group = uuids((7, 2, 5, 4))
    first = held((5,), job(2, group=group))
    assert [of(ask(job(rank), first)) for rank in (0, 1, 3)] == [(7,), (2,), (4,)]
    assert ask(job(3), first).reason.startswith("rank 3 of slurm 4711.0, of 4 on this node: ")
    use = [OutsideUse("GPU-7", "pid 7, bob")]
    assert of(ask(job(1), first, outside=use)) == (2,)
    assert of(ask(job(0), first, outside=use)) == (
        "1 GPU requested: 0 of 1 admitted are free, 1 is in use outside gpulaunch (pid 7, bob)"
    )
    assert of(ask(job(1, group=group))) == (2,)
    assert of(ask(job(1, group=group), held((5,)))) == (
        "4 GPUs requested: 3 of 4 admitted are free, 1 is leased"
    )


def test_ranks_that_cannot_have_as_many_each() -> None:
    """Ranks that cannot have as many GPUs each, or ask differently, are refused with numbers."""
    first = held((1,), job(1, group=uuids((0, 1, 2, 3))))
    asked = (ask(job(0, 3), gpus=None), ask(job(0), gpus=12), ask(job(0), first, gpus=8))
    assert {type(decision) for decision in asked} == {Refuse}
    uneven, many, differently = map(of, asked)
    node = "ranks of slurm 4711.0 on this node"
    want = f"8 GPUs cannot be divided evenly among the 3 {node}: -n says how many each gets"
    assert uneven == want
    assert many == f"the 4 {node} ask for 3 GPUs each, 12 in all: there are 8"
    want = "slurm 4711.0 has 4 GPUs here for its 4 ranks, and this one asks for 8 in all"
    assert differently == f"{want}: every rank has to ask for as many"


def test_others_keep_off_the_whole_group() -> None:
    """For launches that are not of the step, or of a rank that runs, all its GPUs are taken."""
    first = held((0,), job(0, group=uuids((0, 1, 2, 3))))
    others = decide(request(None), State(box(), [first]))
    assert isinstance(others, Wait)
    assert of(decide(request(4), State(box(), [first]))) == (4, 5, 6, 7)
    assert of(ask(job(0, id="4712.0"), first)) == (4,)
    assert of(ask(job(0, user_id=1001), first)) == (4,)
    assert of(ask(job(0), first)) == "1 GPU requested: 0 of 1 admitted are free, 1 is leased"


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
    """The engine's job is in the lease's record, without its user, and comes back from it.

    A lease without an engine has no such key, and a form that is unknown here is no engine.
    """
    before, plain = held((0,), own, user_id=USER), held((0,), user_id=USER)
    document = json.loads(json.dumps(before.to_document()))
    assert "user_id" not in document["engine_job"]
    assert parse_lease(document, USER) == before
    assert "engine_job" not in plain.to_document()
    for unknown in (5, {"engine": 1}, {"engine": "slurm", "id": "1", "ranks": "many"}):
        assert parse_lease(document | {"engine_job": unknown}, USER) == plain
    newer = {"engine": "slurm", "id": "1", "colour": "red"}
    assert parse_lease(document | {"engine_job": newer}, USER).engine_job == EngineJob(
        "slurm", "1", USER
    )
