"""The leases and tickets that a user means: by id, by the beginning of one, by name, or all own."""

import os
from collections.abc import Iterator

from gpulaunch.errors import UsageError, quoted
from gpulaunch.history.past_launch import LEAST_CHARACTERS
from gpulaunch.leases.lease import Lease
from gpulaunch.leases.table import Table
from gpulaunch.leases.ticket import Ticket
from gpulaunch.machine.find import Machine
from gpulaunch.process.system import user_name


def find_id(table: Table, text: str, machine: Machine | None) -> str:
    """Return the id of the live lease or ticket that is meant; the text itself if there is none.

    To all but root a name or the beginning of an id means another user's record only if it fits
    none of their own.

    Args:
        table: the allocation table.
        text: an id, its first characters, 4 or more, or the name of a job.
        machine: the machine of the record; None for any.

    Raises:
        UsageError: several records fit.
    """
    if table.file_of(text):
        return text
    fitting = _fitting(table, text, machine)
    mine = [record for record in fitting if os.geteuid() in (0, record.user_id)]
    found = mine or fitting
    if len(found) > 1:
        ids = ", ".join(f"{record.id} ({user_name(record.user_id)})" for record in found)
        raise UsageError(f"{quoted(text)} may be any of {ids}", "give its id")
    return found[0].id if found else text


def has_own(table: Table, text: str, machine: Machine | None) -> bool:
    """Return whether a text is a whole id, or means a live lease or ticket of this user."""
    if table.file_of(text):
        return True
    return any(one.user_id == os.geteuid() for one in _fitting(table, text, machine))


def own_ids(table: Table, machine: Machine | None) -> Iterator[str]:
    """Yield the ids of this user's live tickets and leases, and read the table anew for each.

    Tickets come first, since their launches would take GPUs that become free, and leases before
    those inside them.

    Args:
        table: the allocation table.
        machine: the machine of the records; None for any.
    """
    seen: set[str] = set()
    while True:
        own = [record.id for record in _records(table, machine) if record.user_id == os.geteuid()]
        new = next((record_id for record_id in own if record_id not in seen), None)
        if new is None:
            return
        seen.add(new)
        yield new


def _fitting(table: Table, text: str, machine: Machine | None) -> list[Lease | Ticket]:
    """Return this user's records of a name; if none, all of it, and those whose id begins so."""
    records = _records(table, machine)
    called = [record for record in records if record.name == text]
    if own := [record for record in called if record.user_id == os.geteuid()]:
        return own
    begun = [record for record in records if record.id.startswith(text)]
    return called + (begun if len(text) >= LEAST_CHARACTERS else [])


def _records(table: Table, machine: Machine | None) -> list[Lease | Ticket]:
    """Return the live tickets and leases of a machine, or of all."""
    # What cannot be read is no reason to end nothing else.
    snapshot = table.peek(problems=[])
    snapshot = snapshot.of(machine) if machine else snapshot
    return [*snapshot.tickets, *snapshot.leases]
