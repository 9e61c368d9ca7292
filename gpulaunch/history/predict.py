"""When those that wait for GPUs will probably start, by what can be read of jobs' run times."""

from collections.abc import Collection, Sequence

from gpulaunch.decide.needs import leased_until_s
from gpulaunch.history.forecast import (
    DRAWS,
    Experience,
    StartRange,
    draw_remaining,
    predict_starts,
    relations_of,
)
from gpulaunch.history.read import RECENT_S, read_history
from gpulaunch.leases.directory import drains_by_gpu
from gpulaunch.leases.lease import Lease, Ticket
from gpulaunch.leases.queue import ENDLESS
from gpulaunch.leases.table import Snapshot
from gpulaunch.machine.find import Machine
from gpulaunch.process.system import seconds_since_boot
from gpulaunch.records import replace

_MOST = 200  # tickets, the first ones, of which it is told: the time grows with their number


def predicted_starts(
    machine: Machine, seen: Snapshot, stopped: Collection[str] = ()
) -> dict[str, StartRange]:
    """Return when launches that wait will probably start, by the ids of their tickets.

    A ticket for GPUs of a lease, that of a stopped launcher, one for GPUs that are not there, those
    after the first _MOST, and those of which it cannot be told have none.

    Args:
        stopped: ids of tickets that are passed, since their launcher is stopped.
    """
    waiting = (one for one in seen.tickets if one.uuids and one.within is None)
    tickets = [one for one in waiting if one.id not in stopped][:_MOST]
    if not tickets:
        return {}
    clock_s = seconds_since_boot()
    experience = _read_experience(machine)
    busy_until_s = leased_until_s(machine.topology, seen.leases)
    unfit = {*drains_by_gpu(machine.topology, seen.drained)}
    unfit |= {use.uuid for use in machine.outside if use.uuid not in busy_until_s}
    uuids = {gpu.uuid for gpu in machine.topology.gpus}
    running = []
    for lease in seen.leases:
        if not uuids.isdisjoint(lease.held_from(None)):
            ran_s = max(0.0, clock_s - lease.clock_s) if lease.clock_s else 0.0
            limit_s = lease.ends_within_s if lease.time_limit_s is None else lease.time_limit_s
            drawn = _draw(experience, lease, len(lease.uuids), ran_s, limit_s)
            running.append((tuple(lease.held_from(None)), drawn))
    found = predict_starts(
        running,
        [(one, _draw(experience, one, one.gpus, 0.0, one.ends_within_s)) for one in tickets],
        busy_until_s | dict.fromkeys(unfit, ENDLESS),
        [gpu.uuid for gpu in machine.topology.gpus if gpu.uuid not in unfit],
        clock_s,
    )
    pairs = zip(tickets, found, strict=True)
    return {ticket.id: start for ticket, start in pairs if start is not None}


def predicted_start(machine: Machine, seen: Snapshot, ticket: Ticket) -> StartRange | None:
    """Return when a launch will probably start that comes after all tickets of a snapshot."""
    everyone = replace(seen, tickets=[*seen.tickets, ticket])
    return predicted_starts(machine, everyone).get(ticket.id)


def _read_experience(machine: Machine) -> Experience:
    """Return what is known of the run times of jobs on one machine."""
    name, described = machine.topology.name, machine.key is not None
    runs = []
    for past in read_history(everyone=True, within_s=RECENT_S):
        if past.duration_s is not None and (past.topology, past.described) == (name, described):
            what = past.user_id, past.command, past.name, past.profile, len(past.gpus)
            runs.append((relations_of(*what), past.duration_s))
    return Experience(runs)


def _draw(
    experience: Experience, record: Lease | Ticket, gpus: int, ran_s: float, limit_s: float | None
) -> Sequence[float]:
    """Draw how long a job still runs."""
    what = record.user_id, record.command, record.name, record.profile, gpus
    parts = experience.of(relations_of(*what), limit_s)
    return draw_remaining(parts, ran_s, limit_s, DRAWS, record.id)
