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
    table = open_table(described=True, warn=warn)
    status = 0
    ending = _Ending(table, machine, Options({}, os.environ).grace)
    if options.mine:
        for launch in ending.ahead():  # they might start at the end of the others
            ending.end_ahead(launch)
    for text in own_ids(table, machine) if options.mine else options.id:
        try:
            ending.end(text)
        except GpulaunchError as problem:  # the others are ended all the same
            report(problem)
            status = max(status, problem.exit_status)
    if options.mine and machine and not ending.found:
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


class _Ending:
    """The end of leases and of launches that wait, on one machine or, with None, on any."""

    def __init__(self, table: Table, machine: Machine | None, grace_s: float) -> None:
        self._table, self._machine, self._grace_s = table, machine, grace_s
        self.found: set[str] = set()

    def end(self, text: str) -> None:
        """End what a text means: one's own launches come before the leases of others.

        Raises:
            GpulaunchError: there is no such thing, or it cannot be ended.
        """
        if not has_own(self._table, text, self._machine):
            with suppress(UsageError):
                self.end_ahead(find_past(text, self.ahead()))
                return
        lease_id = find_id(self._table, text, self._machine)
        if lease_id in self.found:
            return
        self.found.add(lease_id)
        record = free(self._table, lease_id, self._grace_s, self._machine)
        called = printable((record.name if record else None) or text)
        if isinstance(record, Lease):
            print(f"ended {called} ({gpus_called(self._gpus_of(record))})")
        elif record:
            print(f"{called} has left the queue")
        else:
            print(f"ended {called}, whose record cannot be read")

    def ahead(self) -> list[PastLaunch]:
        """Return this user's launches that wait for others and have no place in the queue yet."""
        past, tickets = read_history(within_s=RECENT_S), self._table.peek(problems=[]).tickets
        return before_queue(past, tickets, self._machine)

    def end_ahead(self, launch: PastLaunch) -> None:
        """End a launch that has no place in the queue yet."""
        if launch.key not in self.found:
            self.found.add(launch.key)
            end_before_queue(launch, self._grace_s)
            name = printable(launch.name or launch.key)
            print(f"{name} has been ended before it was in the queue")

    def _gpus_of(self, lease: Lease) -> Sequence[str]:
        """Return the names of a lease's GPUs; their UUIDs if nothing here knows them."""
        if self._machine:
            name_of = {gpu.uuid: gpu.name for gpu in self._machine.topology.gpus}
            return [name_of.get(uuid, "?") for uuid in lease.uuids]
        past = (one.gpus for one in read_history(within_s=RECENT_S) if one.id == lease.id)
        return next(past, lease.uuids)
