"""`gpulaunch free ID|NAME|--mine`: end jobs from outside."""

import os
from collections.abc import Sequence
from contextlib import suppress

from gpulaunch.cli.arguments import Parser, add_topology
from gpulaunch.cli.output import report, warn
from gpulaunch.errors import GpulaunchError, UsageError, printable
from gpulaunch.history.past_launch import PastLaunch, find_past
from gpulaunch.history.read import RECENT_S, read_history
from gpulaunch.launch.free import find_id, free, has_own, own_ids
from gpulaunch.launch.options import Options
from gpulaunch.launch.past import before_queue, end_before_queue
from gpulaunch.launch.surroundings import open_table, shown_machine
from gpulaunch.leases.lease import Lease
from gpulaunch.leases.table import Table
from gpulaunch.machine.find import Machine
from gpulaunch.machine.gpu import gpus_called


def main(arguments: Sequence[str]) -> int:
    """End leases, and print which GPUs are free again."""
    parser = make_parser()
    if "--all" in arguments:
        parser.error("unknown option --all: did you mean --mine, for all that are yours?")
    options = parser.parse_args(arguments)
    if bool(options.id) == options.mine:
        parser.error("give ids or names of jobs, or --mine")
    # Ids are unique across machines, so for them no GPU is asked.
    asked = options.mine or options.topology is not None
    machine = shown_machine(options.topology, warn) if asked else None
    table = open_table(private=True, warn=warn)
    grace_s, ended, status = Options({}, os.environ).grace, set[str](), 0
    texts = options.id
    if options.mine:
        # First those that might start at the end of the others.
        texts = [launch.key for launch in _ahead(table, machine)]
        texts += own_ids(table, machine)
    for text in texts:
        try:
            _end(table, machine, grace_s, text, ended)
        except GpulaunchError as problem:  # the others are ended all the same
            report(problem)
            status = max(status, problem.exit_status)
    if machine and not texts:
        print(f"nothing on {machine.topology.name} is yours")
    return status


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(
        "gpulaunch free",
        "End jobs that run or wait: TERM to the job, KILL after the grace.",
    )
    parser.add_argument(
        "id",
        metavar="ID|NAME",
        nargs="*",
        help="as 'gpulaunch status' shows it, or its first 4 characters or more; or a job's name",
    )
    parser.add_argument(
        "--mine", action="store_true", help="all that are yours, on the machine that status shows"
    )
    add_topology(parser)
    return parser


def _ahead(table: Table, machine: Machine | None) -> list[PastLaunch]:
    """Return this user's launches that wait for others and have no place in the queue yet."""
    past, tickets = read_history(within_s=RECENT_S), table.peek(problems=[]).tickets
    return before_queue(past, tickets, machine)


def _end(table: Table, machine: Machine | None, grace_s: float, text: str, ended: set[str]) -> None:
    """End what a text means: one's own launches come before the leases of others.

    Args:
        machine: the machine of the lease; None for any.

    Raises:
        GpulaunchError: there is no such thing, or it cannot be ended.
    """
    if not has_own(table, text, machine):
        with suppress(UsageError):
            launch = find_past(text, _ahead(table, machine))
            end_before_queue(launch, grace_s)
            name = printable(launch.name or launch.key)
            print(f"{name} has been ended before it was in the queue")
            return
    lease_id = find_id(table, text, machine)
    if lease_id in ended:
        return
    ended.add(lease_id)
    record = free(table, lease_id, grace_s, machine)
    called = printable((record.name if record else None) or text)
    if isinstance(record, Lease):
        gpus: Sequence[str] = record.uuids  # if nothing here knows their names
        if machine:
            name_of = {gpu.uuid: gpu.name for gpu in machine.topology.gpus}
            gpus = [name_of.get(uuid, "?") for uuid in record.uuids]
        else:
            for past in read_history(within_s=RECENT_S):
                gpus = past.gpus if past.id == record.id else gpus
        print(f"ended {called} ({gpus_called(gpus)})")
    elif record:
        print(f"{called} has left the queue")
    else:
        print(f"ended {called}, whose record cannot be read")
