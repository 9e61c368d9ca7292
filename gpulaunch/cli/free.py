"""`gpulaunch free ID`: end a lease from outside."""

import os
from collections.abc import Sequence

from gpulaunch.cli.arguments import Parser, add_topology
from gpulaunch.cli.output import report, warn
from gpulaunch.errors import GpulaunchError
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
    parser.add_argument("id", nargs="+", help="as 'gpulaunch status' shows it")
    add_topology(parser)
    options = parser.parse_args(arguments)
    machine = None if options.topology is None else shown_machine(options.topology, warn)
    # Ids are unique across machines, so no GPU is asked.
    table = open_table(described=True, warn=warn)
    grace_s = read_grace(Settings({}, os.environ))
    status = 0
    for lease_id in dict.fromkeys(options.id):
        try:
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
    return status


def _format_gpus(lease: Lease, machine: Machine | None) -> str:
    if machine is None:
        return ", ".join(lease.uuids)
    index_of = {gpu.uuid: gpu.index for gpu in machine.topology.gpus}
    return (
        f"GPUs {','.join(str(index_of.get(uuid, '?')) for uuid in lease.uuids)} of "
        f"{machine.topology.name}"
    )
