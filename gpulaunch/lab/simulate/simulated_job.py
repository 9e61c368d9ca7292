"""A job of a trace, and the lease and ticket that it would have, as far as decisions see them."""
# pure: decides on plain values

from gpulaunch.decide.decision import Grant
from gpulaunch.decide.request import Request
from gpulaunch.leases.lease import Lease, Ticket
from gpulaunch.leases.queue import CHOOSY_S
from gpulaunch.records import Record


class SimulatedJob(Record):
    """One job.

    Attributes:
        id: place in the trace, from 0.
        name: name of the job, not necessarily unique.
        request: request to a machine.
        arrival_s: arrival, in seconds from the beginning of the trace.
        duration_s: run time in seconds, alone on the best GPUs of the idle machine.
        communication_share: share of that time spent waiting for links, 0 to 1; None if unknown.
        split_slowdown: measured slowdown with its GPUs on several sockets, as a fraction (0.25 is
            25 %); None if not measured.
    """

    id: int
    name: str
    request: Request
    arrival_s: float
    duration_s: float
    communication_share: float | None = None
    split_slowdown: float | None = None


def lease_of(job: SimulatedJob, grant: Grant, uuids: tuple[str, ...]) -> Lease:
    """Return the lease that the launcher would record for a job that starts.

    Args:
        job: the job.
        grant: the decision to start it.
        uuids: UUIDs of its GPUs, in rank order.
    """
    request = job.request
    return Lease(
        id=f"job{job.id}",
        user_id=request.sharing.user_id if request.sharing else 0,
        uuids=uuids,
        ancestors=(),
        profile=request.profile,
        name=request.name,
        host_gb_per_s=request.wishes.host_gb_per_s,
        apart_from=request.wishes.apart_from,
        share=grant.share_option.share if grant.share_option else None,
        ends_within_s=request.ends_within_s,
    )


def ticket_of(job: SimulatedJob, uuids: tuple[str, ...]) -> Ticket:
    """Return the ticket that the launcher would record for a job that joins the queue.

    Args:
        job: the job; its number in the queue is its place in the trace.
        uuids: UUIDs of the GPUs that the request admits.
    """
    choosy = job.request.is_choosy
    return Ticket(
        id=f"job{job.id}",
        user_id=0,
        number=job.id + 1,
        uuids=uuids,
        gpus=job.request.gpus or len(uuids),
        passable_until_s=job.arrival_s + CHOOSY_S if choosy else 0.0,
        choosy=choosy,
        ends_within_s=job.request.ends_within_s,
        in_order=job.request.in_order,
    )
