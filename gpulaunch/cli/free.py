"""`gpulaunch free ID|NAME|--mine`: end leases from outside."""

import os
import signal
from collections.abc import Sequence
from contextlib import suppress

from gpulaunch.cli.arguments import Parser, add_topology
from gpulaunch.cli.output import report, warn
from gpulaunch.errors import GpulaunchError, UsageError, printable
from gpulaunch.launch.find_records import find_id, own_ids
from gpulaunch.launch.free import free
from gpulaunch.launch.open_table import open_table
from gpulaunch.launch.read_launch import read_grace
from gpulaunch.launch.settings import Settings
from gpulaunch.launch.surroundings import shown_machine
from gpulaunch.leases.lease import Lease
from gpulaunch.machine.find import Machine


def main(arguments: Sequence[str]) -> int:
    """End leases, and print which GPUs are free again."""
    parser = Parser(
        "gpulaunch free",
        "End leases, or places in the queue: TERM to the job, KILL after the grace.",
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
    if "--all" in arguments:
        parser.error("unknown option --all: did you mean --mine, for all that are yours?")
    options = parser.parse_args(arguments)
    if bool(options.id) == options.mine:
        parser.error("give ids or names of jobs, or --mine")
    # Ids are unique across machines, so for them no GPU is asked.
    asked = options.mine or options.topology is not None
    machine = shown_machine(options.topology, warn) if asked else None
    table = open_table(described=True, warn=warn)
    grace_s = read_grace(Settings({}, os.environ))
    status = 0
    tried: set[str] = set()
    for text in own_ids(table, machine) if options.mine else options.id:
        try:
            lease_id = find_id(table, text, machine)
            if lease_id in tried:
                continue
            if not table.file_of(lease_id) and _end_before_the_queue(text, grace_s):
                print(f"{printable(text)} has been ended before it was in the queue")
                continue
            tried.add(lease_id)
            record = free(table, lease_id, grace_s, machine)
        except GpulaunchError as problem:  # the others are ended all the same
            report(problem)
            status = max(status, problem.exit_status)
            continue
        if isinstance(record, Lease):
            print(f"ended lease {record.id}: {_format_gpus(record, machine)}")
        elif record:
            print(f"{lease_id} has left the queue")
        else:
            print(f"ended {lease_id}, whatever it was")
    if options.mine and machine and not tried:
        print(f"nothing on {machine.topology.name} is yours")
    return status


def _end_before_the_queue(name: str, grace_s: float) -> bool:
    """End a detached launch that has no place in the queue yet: it comes after another one."""
    from gpulaunch.history.find import find_past  # late: few launches are detached
    from gpulaunch.history.read import read_history
    from gpulaunch.launch.past_end import open_launcher
    from gpulaunch.process.ending import wait_for_one

    try:
        launch = find_past(name, read_history())
    except UsageError:
        return False
    fd = None if launch.id or launch.exit_status is not None else open_launcher(launch)
    if fd is None:
        return False
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(fd, signal.SIGTERM)
        signal.pidfd_send_signal(fd, signal.SIGCONT)  # a stopped one would not receive TERM
    os.close(fd)
    wait_for_one([launch.launcher.pid], grace_s)
    return True


def _format_gpus(lease: Lease, machine: Machine | None) -> str:
    if machine is None:
        return ", ".join(lease.uuids)
    index_of = {gpu.uuid: gpu.index for gpu in machine.topology.gpus}
    return (
        f"GPUs {','.join(str(index_of.get(uuid, '?')) for uuid in lease.uuids)} of "
        f"{machine.topology.name}"
    )
