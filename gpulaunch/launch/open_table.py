"""The host-wide allocation table, opened by a launch, and set up by root.

It is connected to the engines that know containers' leases.
"""

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from gpulaunch.errors import FailedError, UsageError
from gpulaunch.leases.directory import SET_UP
from gpulaunch.leases.lease import Lease
from gpulaunch.leases.table import Table

if TYPE_CHECKING:
    from gpulaunch.launch.launch import Launch

TMPFILES = "/etc/tmpfiles.d/gpulaunch.conf"
_ENTRY = f"""# made by gpulaunch setup: the allocation table, on which all users' launchers agree
d {SET_UP} 1777 root root -
"""


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
    from gpulaunch.containers.standings import ended_leases  # late: few leases are containers'

    return ended_leases(leases)


def set_up(warn: Callable[[str], None]) -> None:
    """Make SET_UP, owned by root, world-writable and sticky, now and at every boot.

    Args:
        warn: called with each warning.

    Raises:
        UsageError: we are not root, or GPULAUNCH_STATE_DIR is set.
        FailedError: leases live in the directory that was used so far, or the directory or its
            entry for systemd-tmpfiles cannot be written.
    """
    if os.geteuid() != 0:
        raise UsageError("setup needs root", "sudo gpulaunch setup")
    if os.environ.get("GPULAUNCH_STATE_DIR"):
        raise UsageError(
            "GPULAUNCH_STATE_DIR is set, so nobody who has it would use what setup makes"
        )
    try:
        if os.path.isdir(SET_UP):
            _make_directory()
        else:
            _make_unless_used(open_table(described=True, warn=warn))
        os.makedirs(os.path.dirname(TMPFILES), exist_ok=True)
        with open(TMPFILES, "w") as file:
            file.write(_ENTRY)
    except OSError as problem:
        raise FailedError(
            f"{problem.filename}: {os.strerror(problem.errno or 0).lower()}"
        ) from None


def _make_unless_used(table: Table) -> None:
    """Make SET_UP under the lock of the present directory, if no lease lives there.

    Raises:
        FailedError: leases or tickets live there.
    """
    table.peek()  # asks engines about containers, which is too slow under the lock
    with table.locked() as locked:
        seen = locked.read()
        alive = len(seen.leases) + len(seen.tickets)
        if alive:
            verb = "lease lives" if alive == 1 else "leases live"
            raise FailedError(
                f"{alive} {verb} in {table.directory}",
                "wait for them to end, or see 'gpulaunch status'",
            )
        _make_directory()


def _make_directory() -> None:
    os.makedirs(SET_UP, exist_ok=True)
    os.chown(SET_UP, 0, 0)
    # All users write here; sticky, so that none can remove another user's records.
    os.chmod(SET_UP, 0o1777)  # noqa: S103
