"""Places in the queue: whom a ring makes wake others."""

from collections.abc import Collection
from pathlib import Path

import pytest
from values import ticket

from gpulaunch.launch.place_in_queue import PlaceInQueue
from gpulaunch.leases.bell import LOOK, WAKE, ring
from gpulaunch.leases.table import Table
from gpulaunch.leases.ticket import Ticket
from gpulaunch.records import replace


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    """Return an empty table."""
    monkeypatch.setenv("GPULAUNCH_STATE_DIR", str(tmp_path))
    return Table(described=True, warn=pytest.fail, ended_containers=lambda _: set())


def joined(table: Table) -> PlaceInQueue:
    """Join the queue."""

    def write(ticket_id: str, number: int) -> Ticket:
        return replace(ticket(number), id=ticket_id)

    return PlaceInQueue(
        table,
        write,
        passes=True,
        timeout_s=20,
        warn=pytest.fail,
        first=lambda *_: None,
        minute=lambda _: None,
    )


def test_only_an_event_is_passed_on(table: Table) -> None:
    """A launch rung after an event, and not without one, wakes the next if it cannot start."""
    calls: list[tuple[set[str], bool]] = []

    def wake_next(skipped: Collection[str], after_event: bool) -> None:
        calls.append((set(skipped), after_event))

    first, second = joined(table), joined(table)
    try:
        for words, want in (
            (LOOK, []),
            (WAKE, []),
            (LOOK + WAKE, [True]),
            (LOOK, [True] * 2),
            (LOOK, [True] * 2),
        ):
            ring(table.directory, second.ticket.id, words)
            second.sleep("busy", first.ticket, [], [], wake_next)
            assert calls == [(set(), each) for each in want]
    finally:
        second.close()
        first.close()


def test_the_first_asks_one_after_the_other(table: Table) -> None:
    """Without an event the first wakes each that might start once, and then begins again."""
    might_start = ["a", "b"]
    woken: list[str | None] = []

    def wake_next(skipped: Collection[str], after_event: bool) -> str | None:
        assert not after_event
        woken.append(next((one for one in might_start if one not in skipped), None))
        return woken[-1]

    first = joined(table)
    try:
        for _ in range(5):
            ring(table.directory, first.ticket.id, LOOK)
            first.sleep("busy", None, [], [], wake_next)
    finally:
        first.close()
    assert woken == ["a", "b", None, "a", "b"]
