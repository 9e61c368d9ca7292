"""`gpulaunch status`: print who has which GPUs, since when, doing what."""

import sys
from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from gpulaunch.cli.arguments import Parser, add_json, add_topology
from gpulaunch.cli.output import print_json, warn
from gpulaunch.containers.life import Standing
from gpulaunch.launch.surroundings import read_shown
from gpulaunch.leases.holders import left_over_holders
from gpulaunch.leases.table import Snapshot
from gpulaunch.machine.find import Machine, read_health
from gpulaunch.process.system import is_stopped, user_name
from gpulaunch.show.status import status_document
from gpulaunch.typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpulaunch.forecast.starts import StartRange


def _find_standings(seen: Snapshot) -> dict[str, Standing]:
    """Return container states by lease, without permission errors for leases held by processes."""
    leases = [lease for lease in seen.leases if lease.engine is not None]
    if not leases:
        return {}
    from gpulaunch.containers.standings import standings_of  # late: few leases need it

    found = standings_of(leases)
    return {
        key: standing
        for key, standing in found.items()
        if key in seen.unlocked or not standing.forbidden
    }


def _predict(machine: Machine, seen: Snapshot, stopped: Collection[str]) -> "dict[str, StartRange]":
    """Return when those that wait will probably start, by ticket id."""
    if not seen.tickets:
        return {}
    from gpulaunch.launch.predict import predicted_starts  # late: often nobody waits

    return predicted_starts(machine, seen, stopped)


def main(arguments: Sequence[str]) -> int:
    """Print the allocation table of one machine."""
    parser = Parser("gpulaunch status", "Who has which GPUs, since when, doing what.")
    add_topology(parser)
    add_json(parser)
    options = parser.parse_args(arguments)
    shown = read_shown(options.topology, warn)
    machine, table = shown.machine, shown.table
    seen = table.peek().of(machine.key)
    standings = _find_standings(seen)
    left_over = left_over_holders(table, seen.leases)
    stopped = {ticket.id for ticket in seen.tickets if is_stopped(ticket.launcher)}
    stopped |= {lease.id for lease in seen.leases if is_stopped(lease.job)}
    document = status_document(
        machine.topology,
        seen.leases,
        machine.outside,
        user_name,
        seen.tickets,
        left_over,
        stopped,
        standings,
        shown.containers,
        read_health(machine),
        seen.drained,
        _predict(machine, seen, stopped),
    )
    if options.json:
        print_json(document)
    else:
        from gpulaunch.show.status_table import status_table
        from gpulaunch.show.terminal import draw

        draw(status_table(document, datetime.now(UTC)), sys.stdout)
    return 0
