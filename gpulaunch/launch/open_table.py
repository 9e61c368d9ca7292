"""Open the host-wide allocation table, with what tells when the containers of leases have ended."""

from collections.abc import Callable, Iterable

from gpulaunch.leases.lease import Lease
from gpulaunch.leases.table import Table


def open_table(*, described: bool, warn: Callable[[str], None], private: bool = False) -> Table:
    """Open the allocation table on which all launchers of this machine agree.

    Args:
        described: only records of described machines are of interest, never those of this machine's
            own GPUs.
        warn: where to say what is odd but no failure.
        private: a container's own table will do.

    Raises:
        FailedError: no directory will do.
    """
    return Table(described=described, warn=warn, private=private, ended_containers=ended_containers)


def ended_containers(leases: Iterable[Lease]) -> set[str]:
    """Return the ids of those leases whose containers have all ended; in doubt they have not."""
    from gpulaunch.containers.standings import standings_of  # late: few leases are containers'

    return {lease_id for lease_id, standing in standings_of(leases).items() if not standing.holds}
