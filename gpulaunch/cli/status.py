"""`gpulaunch status`: who has what, since when, doing what."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from gpulaunch.cli.arguments import Parser, add_json, add_topology
from gpulaunch.cli.output import print_json, warn
from gpulaunch.cli.request import shown_machine
from gpulaunch.host.system import user_name
from gpulaunch.host.table import Table
from gpulaunch.render.documents import status_document


def main(arguments: Sequence[str]) -> int:
    """Print the allocation table of one machine."""
    parser = Parser("gpulaunch status", "Who has which GPUs, since when, doing what.")
    add_topology(parser)
    add_json(parser)
    options = parser.parse_args(arguments)
    machine = shown_machine(options.topology, warn)
    with Table(described=machine.key is not None, warn=warn).locked() as table:
        leases = table.leases(machine.key)
    document = status_document(machine.topology, leases, machine.outside, user_name)
    if options.json:
        print_json(document)
    else:
        from gpulaunch.render.tables import draw, status_table

        draw(status_table(document, datetime.now(UTC)), sys.stdout)
    return 0
