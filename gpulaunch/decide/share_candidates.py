"""GPUs that jobs of the same user have already, for a request that shares."""
# pure: decides on plain values

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from gpulaunch.decide.choose import best_of, choose
from gpulaunch.decide.placement.choice import Choice
from gpulaunch.decide.placement.place import Placement
from gpulaunch.decide.request import Request
from gpulaunch.decide.share_options import Joining, joining, joinings
from gpulaunch.leases.lease import Lease
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.gpu_names import gpus_named
from gpulaunch.machine.topology import Topology


class Joined(NamedTuple):
    """The share group that a request joins.

    Attributes:
        placement: its GPUs, mapped to ranks.
        choice: of them alone.
        joining: with whom.
    """

    placement: Placement
    choice: Choice
    joining: Joining


class Place(NamedTuple):
    """What there is besides what is shared.

    Attributes:
        topology: the machine.
        leases: of other jobs.
        admitted: the GPUs that would do, busy or not.
        free: the GPUs that nobody uses.
        outside: UUIDs of those in use outside gpulaunch.
        barred: whether earlier requests have a right to GPUs, given their UUIDs.
    """

    topology: Topology
    leases: Sequence[Lease]
    admitted: Sequence[Gpu]
    free: Sequence[Gpu]
    outside: Collection[str]
    barred: Callable[[Sequence[str]], bool]


def join(request: Request, place: Place, count: int) -> Joined | list[str]:
    """The share group to join, or of each why not.

    Joining comes before GPUs that are free, so that those stay whole; but a job that depends on
    links is not sent to worse ones than it would get alone.

    Args:
        request: one that shares.
        place: what there is.
        count: how many GPUs it needs.
    """
    refused = []
    for one, found in tried(request, place, count):
        if isinstance(found, Joined):
            return found
        refused.append(f"{named(place.topology, one)}: {found}")
    return refused


def tried(request: Request, place: Place, count: int) -> Iterator[tuple[Joining, Joined | str]]:
    """Each share group, the best to join first, with what becomes of joining it, or why it is not joined."""
    uuids = [gpu.uuid for gpu in place.admitted]
    for one in joinings(request, place.leases, uuids, count, place.outside):
        yield one, _joined(request, place, one, count)


def named(topology: Topology, one: Joining) -> str:
    """What people call the GPUs of a share group."""
    return gpus_named(gpu for gpu in topology.gpus if gpu.uuid in one.group)


def _joined(request: Request, place: Place, one: Joining, count: int) -> Joined | str:
    if one.problem:
        return one.problem
    if place.barred(one.group):
        return "earlier requests wait for it"
    gpus = [gpu for gpu in place.admitted if gpu.uuid in one.group]
    unoccupied = [gpu for gpu in place.topology.gpus if gpu in place.free or gpu in gpus]
    choice = choose(request, place.topology, unoccupied, gpus, count, place.leases)
    placement = best_of(request, choice)
    if isinstance(placement, str):
        return placement
    if request.bandwidth_sensitive and _effective(placement) < _effective_alone(
        request, place, count
    ):
        return "free GPUs have faster links"
    return Joined(placement, choice, one)


def _effective_alone(request: Request, place: Place, count: int) -> float:
    """Effective bandwidth of the GPUs that it would get for itself, GB/s; 0 if there are none."""
    choosable = [gpu for gpu in place.free if gpu in place.admitted]
    if count > len(choosable):
        return 0.0
    found = best_of(
        request, choose(request, place.topology, place.free, choosable, count, place.leases)
    )
    return 0.0 if isinstance(found, str) else _effective(found)


def _effective(placement: Placement) -> float:
    return placement.scores.effective_bandwidth or 0.0


def opened(request: Request, uuids: Sequence[str], leases: Sequence[Lease]) -> Joining:
    """What becomes of GPUs that are free if the request is the first to share them.

    Args:
        request: one that shares.
        uuids: of the GPUs.
        leases: of other jobs. Of a job with several GPUs a launch inside it may be left, with the
            MPS daemon of all.
    """
    found = joining(request, uuids, ())
    if any(lease.share and not set(uuids).isdisjoint(lease.share.group) for lease in leases):
        return found._replace(
            problem="the MPS daemon of another share group has it still", part=None, prediction=None
        )
    return found
