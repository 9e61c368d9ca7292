"""The host-wide allocation table, connected to the engines that know containers' leases."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from gpulaunch.leases.lease import Lease
from gpulaunch.leases.table import Table

if TYPE_CHECKING:
    from gpulaunch.launch.launch import Launch


def open_table(*, described: bool, warn: Callable[[str], None], private: bool = False) -> Table:
    """Open the allocation table on which all launchers of this machine agree.

    Args:
        described: whether only records of described machines matter, and none of this machine's own
            GPUs.
        warn: called with each warning.
        private: whether a container's own table will do.

    Raises:
        FailedError: no directory can hold the table.
    """
    return Table(described=described, warn=warn, private=private, ended_containers=ended_containers)


def open_table_of(launch: "Launch", warn: Callable[[str], None]) -> Table:
    """Open the allocation table that a launch takes part in; see open_table."""
    return open_table(described=launch.machine.key is not None, warn=warn, private=launch.private)


def ended_containers(leases: Iterable[Lease]) -> set[str]:
    """Return the ids of the leases whose containers have certainly all ended."""
    from gpulaunch.containers.standings import standings_of  # late: few leases are containers'

    return {lease_id for lease_id, standing in standings_of(leases).items() if not standing.holds}
