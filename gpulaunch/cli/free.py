"""`gpulaunch free ID`: end a lease from outside."""

from collections.abc import Sequence

from gpulaunch.cli.arguments import Parser, add_topology
from gpulaunch.cli.output import report, warn
from gpulaunch.core.leases.lease import Lease
from gpulaunch.errors import GpulaunchError
from gpulaunch.free import free
from gpulaunch.prepare import read_shown


def main(arguments: Sequence[str]) -> int:
    """End leases, and say which GPUs are free again."""
    parser = Parser("gpulaunch free", "End leases, or places in the queue: TERM to the job, KILL after the grace.")
    parser.add_argument("id", nargs="+", help="as 'gpulaunch status' shows it")
    add_topology(parser)
    options = parser.parse_args(arguments)
    machine, table, grace_s = read_shown(options.topology, warn)
    index_of = {gpu.uuid: gpu.index for gpu in machine.topology.gpus}
    status = 0
    for lease_id in dict.fromkeys(options.id):
        try:
            record = free(machine, table, lease_id, grace_s)
        except GpulaunchError as problem:  # the others are ended all the same
            report(problem)
            status = max(status, problem.exit_status)
            continue
        if isinstance(record, Lease):
            gpus = ",".join(str(index_of.get(uuid, "?")) for uuid in record.uuids)
            print(f"ended lease {record.id}: GPUs {gpus} of {machine.topology.name}")
        else:
            print(f"{record.id} has left the queue")
    return status
