"""Setup of the permanent state directory, which root makes."""

import os
from collections.abc import Callable, Iterable

from gpulaunch.errors import FailedError, UsageError
from gpulaunch.leases.lease import Lease
from gpulaunch.leases.state_directory import SET_UP
from gpulaunch.leases.table import Table

TMPFILES = "/etc/tmpfiles.d/gpulaunch.conf"
_ENTRY = f"""# made by gpulaunch setup: the allocation table, on which all users' launchers agree
d {SET_UP} 1777 root root -
"""


def set_up(
    warn: Callable[[str], None], ended_containers: Callable[[Iterable[Lease]], set[str]]
) -> None:
    """Make SET_UP, owned by root, world-writable and sticky, now and at every boot.

    Args:
        warn: called with each warning.
        ended_containers: see Table.

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
            _make_unless_used(Table(described=True, warn=warn, ended_containers=ended_containers))
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
