"""Whom a job may join: the share groups that are there, and what becomes of each if it does."""
# pure: decides on plain values

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from gpulaunch.decide.request import Request, Sharing
from gpulaunch.leases.lease import Lease
from gpulaunch.leases.share import Client, Share
from gpulaunch.profiles.demand import Demand
from gpulaunch.sharing.capacity import Capacity, least
from gpulaunch.sharing.interference import Verdict, judge, preference
from gpulaunch.sharing.partition import Part, Prediction, for_newcomer, predict


class Joining(NamedTuple):
    """What becomes of some GPUs if a job comes to share them.

    Attributes:
        group: their UUIDs, ascending.
        residents: leases of the jobs that are there already; empty where it would be the first.
        verdict: on all of them together.
        problem: why it must not come; None if it may.
        part: how much it would get; None if it must not come.
        prediction: STP and ANTT of all of them then, by their curves; None where one has no curve.
    """

    group: tuple[str, ...]
    residents: tuple[Lease, ...]
    verdict: Verdict
    problem: str | None
    part: Part | None
    prediction: Prediction | None


def groups(leases: Iterable[Lease], user_id: int) -> dict[tuple[str, ...], list[Lease]]:
    """The jobs of a user that share GPUs, by the UUIDs of their share group.

    A launch inside a member is part of what that member uses. Groups of other users are nobody's to
    join: MPS serves one user at a time, and lets the others wait for ever.
    """
    found: dict[tuple[str, ...], list[Lease]] = {}
    for lease in leases:
        if lease.share and lease.user_id == user_id:
            found.setdefault(lease.share.group, []).append(lease)
    return {
        group: [lease for lease in members if not _is_inside(lease, members)]
        for group, members in found.items()
    }


def _is_inside(lease: Lease, members: Sequence[Lease]) -> bool:
    return any(other.id in lease.ancestors for other in members)


def joinings(
    request: Request,
    leases: Sequence[Lease],
    admitted: Collection[str],
    count: int,
    used: Collection[str],
) -> list[Joining]:
    """What becomes of each share group that this request could join, the best to join first.

    Args:
        request: one that shares.
        leases: of other jobs.
        admitted: UUIDs of the GPUs that would do.
        count: how many it needs; it shares with jobs on exactly its GPUs.
        used: UUIDs of those in use outside gpulaunch.
    """
    sharing = _sharing(request)
    found = []
    for group, members in groups(leases, sharing.user_id).items():
        others = [
            lease
            for lease in leases
            if lease not in members and not set(group).isdisjoint(lease.uuids)
        ]
        foreign = [lease for lease in others if not _is_inside(lease, members)]
        if (
            len(group) == count
            and set(group) <= set(admitted)
            and not foreign
            and set(group).isdisjoint(used)
        ):
            found.append(joining(request, group, members))
    return sorted(found, key=lambda one: _rank(request, one))


def joining(request: Request, group: Sequence[str], residents: Sequence[Lease]) -> Joining:
    """What becomes of some GPUs if a job comes to share them.

    Args:
        request: one that shares.
        group: UUIDs of the GPUs.
        residents: leases of the jobs that are there.
    """
    sharing = _sharing(request)
    shares = _shares(residents)
    capacity = least([sharing.capacities[uuid] for uuid in group if uuid in sharing.capacities])
    clients = [*(share.client for share in shares), sharing.client]
    verdict = judge(clients, capacity, sharing.bounds)
    problem = next((sharing.unfit[uuid] for uuid in group if uuid in sharing.unfit), None)
    if (
        problem is None
        and _depends_on_links(request, group)
        and any(share.bandwidth_sensitive for share in shares)
    ):
        problem = "it depends on the links between its GPUs, and so does a job that is there"
    problem = problem or "; ".join(verdict.reasons) or None
    part = None if problem else _part(sharing, shares, capacity)
    to_come = _to_come(sharing, shares)
    if to_come and not problem:
        everybody = [*clients, *(Client(demand, sharing.client.objective) for demand in to_come)]
        notes = tuple(
            f"with those still to come: {reason}"
            for reason in judge(everybody, capacity, sharing.bounds).reasons
        )
        verdict = verdict._replace(notes=(*verdict.notes, *notes))
    predicted = _predicted(sharing, shares, part) if part else None
    return Joining(tuple(sorted(group)), tuple(residents), verdict, problem, part, predicted)


def share_of(request: Request, joined: Joining) -> Share:
    """What the lease of a job says that comes to share GPUs."""
    sharing = _sharing(request)
    assert joined.part is not None  # noqa: S101  whoever must not come has no share
    return Share(
        joined.group,
        joined.part.sm_percentage,
        _depends_on_links(request, joined.group),
        sharing.client,
    )


def _depends_on_links(request: Request, group: Sequence[str]) -> bool:
    return request.bandwidth_sensitive and len(group) > 1


def _part(sharing: Sharing, shares: Sequence[Share], capacity: Capacity) -> Part:
    residents = [(share.client.demand, share.sm_percentage) for share in shares]
    part = for_newcomer(residents, sharing.client.demand, _to_come(sharing, shares), capacity)
    asked = sharing.sm_percentage
    return (
        part
        if asked is None
        else part._replace(sm_percentage=asked, overlaps=asked > part.left, reason="as asked for")
    )


def _predicted(sharing: Sharing, shares: Sequence[Share], part: Part) -> Prediction | None:
    demands = [*(share.client.demand for share in shares), sharing.client.demand]
    return predict(demands, [*(share.sm_percentage for share in shares), part.sm_percentage])


def _to_come(sharing: Sharing, shares: Sequence[Share]) -> list[Demand]:
    """Those who were announced, less those who have come."""
    left = list(sharing.announced)
    for share in shares:
        come = next((demand for demand in left if demand.name == share.client.demand.name), None)
        if come:
            left.remove(come)
    return left


def _rank(request: Request, one: Joining) -> tuple[object, ...]:
    sharing = _sharing(request)
    demands = [share.client.demand for share in _shares(one.residents)]
    capacity = least([sharing.capacities[uuid] for uuid in one.group if uuid in sharing.capacities])
    return (
        one.problem is not None,
        preference(sharing.client.demand, demands, sharing.client.objective, capacity),
        one.group,
    )


def _shares(residents: Iterable[Lease]) -> list[Share]:
    return [lease.share for lease in residents if lease.share]


def _sharing(request: Request) -> Sharing:
    assert request.sharing is not None  # noqa: S101  for the type checker
    return request.sharing
