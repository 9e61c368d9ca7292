"""What a launch that cannot start is told of those who have the GPUs."""

from values import box, lease, ticket

from gpulaunch.leases.holders import who_has_what
from gpulaunch.leases.lease import EngineJob, Lease
from gpulaunch.leases.table import Snapshot
from gpulaunch.records import field_names, replace

NO_DATE = {"started_at": "2026-02-31T00:00:00Z", "name": "train"}


def test_each_user_is_told_once() -> None:
    """A user has one line with all GPUs and jobs, and the queue has one."""
    leases = [
        lease("a", 0, 2, 3, user_id=4_000_000, **NO_DATE),
        lease("b", 1, user_id=4_000_001, **NO_DATE),
        lease("c", 4, user_id=4_000_000, **NO_DATE | {"name": None}),
    ]
    seen = Snapshot(leases, [ticket(1, 8, user_id=4_000_001)])
    assert who_has_what(box(), seen, None) == [
        "uid 4000000 has GPUs 0,2-4 (train for ?, vgg16 for ?)",
        "uid 4000001 has GPU 1 (train for ?)",
        "earlier in the queue: uid 4000001 for 8 GPUs",
    ]


def test_a_lease_stays_the_same_while_its_gpus_are_busy() -> None:
    """When its GPUs were last busy, and nothing else, makes no other lease of it.

    Launches inside it look for it.
    """
    before = lease("a", 0)
    after = replace(before, busy_s=1.0)
    assert (after == before, hash(after) == hash(before)) == (True, True)
    same = [name for name in field_names(Lease) if replace(before, **{name: "other"}) == before]
    assert same == ["busy_s"]


def test_many_are_told_in_short() -> None:
    """Of users, of jobs and of those in the queue five are named, and the others counted."""
    users = [lease(f"a{i}", i, user_id=4_000_000 + i, **NO_DATE) for i in range(7)]
    *told, rest = who_has_what(box(), Snapshot(users, []), None)
    assert (len(told), rest) == (5, "and 2 more users")
    assert who_has_what(box(), Snapshot(users[:5], []), None) == told
    jobs = [lease(f"a{i}", i, user_id=4_000_000, **NO_DATE) for i in range(6)]
    waiting = [ticket(i, user_id=4_000_000) for i in range(8)]
    first, second = who_has_what(box(), Snapshot(jobs, waiting), None)
    assert first == f"uid 4000000 has GPUs 0-5 ({'train for ?, ' * 5}and 1 more)"
    assert second == f"earlier in the queue: {'uid 4000000 for 1 GPU, ' * 5}and 3 more"


def test_a_step_is_told_once() -> None:
    """Of the leases of a step's ranks the first stands for all; a job of one rank for itself."""
    step = EngineJob("slurm", "7.0", 4_000_000, rank=0, ranks=2)
    alone = EngineJob("slurm", "8.0", 4_000_000)
    jobs = [step, replace(step, rank=1), alone, alone]
    leases = [
        lease(f"a{i}", i, user_id=4_000_000, engine_job=job, **NO_DATE)
        for i, job in enumerate(jobs)
    ]
    once = "train of slurm 7.0, 2 ranks, for ?, "
    twice = "train of slurm 8.0 for ?, train of slurm 8.0 for ?"
    assert who_has_what(box(), Snapshot(leases, []), None) == [
        f"uid 4000000 has GPUs 0-3 ({once}{twice})"
    ]


def test_what_is_in_the_way_inside_a_lease() -> None:
    """Inside a lease only leases directly inside it are in the way; outside none of these is."""
    job = lease("job", 0, 1, 2, **NO_DATE)
    inner = lease("inner", 0, 1, within=job, **NO_DATE | {"name": "inner"})
    innermost = lease("innermost", 0, within=inner, **NO_DATE)
    seen = Snapshot([job, inner, innermost, lease("other", 5, **NO_DATE)], [])
    assert [line.partition(" has ")[2] for line in who_has_what(box(), seen, job)] == [
        "GPUs 0-1 (inner for ?)"
    ]
    assert [line.partition(" has ")[2] for line in who_has_what(box(), seen, inner)] == [
        "GPU 0 (train for ?)"
    ]
    assert [line.partition(" has ")[2] for line in who_has_what(box(), seen, None)] == [
        "GPUs 0-2,5 (train for ?, train for ?)"
    ]
