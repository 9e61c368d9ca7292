"""The use of a machine's GPUs outside gpulaunch: what its driver sees, and running containers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from gpulaunch.containers.engines import clients_at_hand
from gpulaunch.leases.environment import LEASE_VARIABLE
from gpulaunch.leases.holders import name_job
from gpulaunch.leases.lease import Lease
from gpulaunch.machine.driver import OutsideUse
from gpulaunch.machine.find import Machine, look_again
from gpulaunch.machine.topology import Topology
from gpulaunch.process.identity import Process
from gpulaunch.process.system import program_of, stat_fields, user_name, user_of, variable_of
from gpulaunch.records import replace
from gpulaunch.sharing.mps_directories import SERVER

if TYPE_CHECKING:  # few launches need these
    from gpulaunch.containers.in_use import RunningContainer
    from gpulaunch.launch.launch import Launch


def read_containers(
    machine: Machine, warn: Callable[[str], None] | None = None
) -> "Sequence[RunningContainer]":
    """Return the running containers that were given GPUs of a machine, as far as engines tell.

    Args:
        machine: the machine.
        warn: called with what keeps an engine from telling.
    """
    clients = clients_at_hand()
    if not clients:
        return ()
    from gpulaunch.containers.in_use import running_containers  # late: see above

    containers, problems = running_containers(
        clients, machine.topology, numbered=machine.key is None
    )
    if warn:
        for problem in problems:
            warn(f"{problem}: GPUs of containers count only where they are seen in use")
    return containers


def with_containers(machine: Machine, containers: "Sequence[RunningContainer]") -> Machine:
    """Return the machine with the use of its GPUs by containers beside the use that is known."""
    if not containers:
        return machine
    from gpulaunch.containers.in_use import uses_of

    return replace(machine, outside=(*machine.outside, *uses_of(containers)))


def see_again(launch: "Launch") -> "Launch":
    """Return a launch with the use of its machine's GPUs read anew.

    A container that it is to start again is in nobody's way, even if it runs already.
    """
    machine = look_again(launch.machine)
    started = launch.container.container_id if launch.container else None
    others = [one for one in read_containers(machine) if one.id != started]
    return replace(launch, machine=with_containers(machine, others))


def find_strays(
    topology: Topology, uses: Iterable[OutsideUse], leases: Sequence[Lease]
) -> list[OutsideUse]:
    """Return the use of GPUs by processes of live leases that do not have them, one by one.

    Args:
        topology: the machine.
        uses: use of its GPUs, by leases or otherwise.
        leases: all live leases of the machine.
    """
    cards = {gpu.uuid: gpu.mig.card_uuid for gpu in topology.gpus if gpu.mig}
    by_id = {lease.id: lease for lease in leases}
    strays = []
    for use in uses:
        for pid in use.pids:
            own = _leases_of(pid, by_id)
            had = {uuid for lease in own for uuid in lease.held_from(None)}
            if own and had.isdisjoint((use.uuid, cards.get(use.uuid, ""))):
                job = f"job {name_job(own[0])} (lease {own[0].id[:4]})"
                who = f"{job} of {user_name(own[0].user_id)}, which does not have it"
                strays.append(OutsideUse(use.uuid, who, (pid,), stray=own[0].id))
    return strays


def _leases_of(pid: int, by_id: Mapping[str, Lease]) -> list[Lease]:
    """Return the leases that a process belongs to, the innermost first.

    They are the one that its environment names, those whose job it is or descends from, and those
    that these were taken from. What another user wrote does not count: the process with the
    variable has to be of the lease's owner, and so has the job or, as under sudo, its parent.
    """
    if program_of(pid) == SERVER:  # it computes for MPS clients, whosever they are
        return []
    marked = by_id.get(variable_of(pid, LEASE_VARIABLE) or "")
    found = [marked] if marked and marked.user_id == user_of(pid) else []
    while len(fields := stat_fields(pid)) > 19:  # else it has ended, or is not visible here
        process, users = Process(pid, int(fields[19])), (user_of(pid), user_of(int(fields[1])))
        found += [one for one in by_id.values() if one.job == process and one.user_id in users]
        pid = int(fields[1])
    return found + [by_id[one] for lease in found for one in lease.ancestors if one in by_id]


def name_strays(
    topology: Topology, uses: Sequence[OutsideUse], leases: Sequence[Lease]
) -> list[OutsideUse]:
    """Return uses of GPUs, of those that nobody has with the job of a stray in place of its pid."""
    held = {uuid for lease in leases for uuid in lease.held_from(None)}
    strays = find_strays(topology, (use for use in uses if use.uuid not in held), leases)
    by_gpu = {stray.uuid: stray for stray in strays}
    return [
        replace(use, who=by_gpu[use.uuid].who, stray=by_gpu[use.uuid].stray)
        if use.uuid in by_gpu and use.state == "used" and not use.lost
        else use
        for use in uses
    ]
