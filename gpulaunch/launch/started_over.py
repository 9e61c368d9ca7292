"""Containers that their engine alone started again over the lease of a job."""

from gpulaunch.containers.in_use import RunningContainer
from gpulaunch.launch.outside_use import read_containers
from gpulaunch.leases.lease import Lease
from gpulaunch.leases.table import Table
from gpulaunch.machine.find import Machine


def started_over(machine: Machine, table: Table, lease: Lease) -> list[str]:
    """Return a line about each container of gpulaunch's that runs without a lease over a live one.

    Args:
        machine: the machine.
        table: the allocation table, which is read only if there may be such a container.
        lease: the live lease.
    """
    if not _suspects(machine, lease):
        return []
    # A container's own lease ends after it, so one that runs both before and after this look at
    # the table, and has no lease there, has none.
    leases = table.peek().leases
    return [
        f"{one.beside(machine.topology, lease.id)}: '{one.program} stop {one.name}' ends it"
        for one in _suspects(machine, lease)
        if one.leases_beside(leases)
    ]


def _suspects(machine: Machine, lease: Lease) -> list[RunningContainer]:
    labelled = (one for one in read_containers(machine) if one.traits.lease_id)
    return [one for one in labelled if not set(one.uuids).isdisjoint(lease.uuids)]
