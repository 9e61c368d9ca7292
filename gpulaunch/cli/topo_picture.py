"""`gpulaunch topo --svg FILE`: draw a machine, and the users of its GPUs."""

from gpulaunch.cli.output import warn
from gpulaunch.files.write import write_text
from gpulaunch.launch.surroundings import read_shown
from gpulaunch.process.system import user_name
from gpulaunch.show.status import status_document
from gpulaunch.show.topology.legend import GpuState
from gpulaunch.show.topology.svg import topology_svg


def write_picture(topology: str | None, path: str) -> int:
    """Draw the machine in its present state."""
    shown = read_shown(topology, warn)
    machine, table = shown.machine, shown.table
    seen = table.peek(problems=[]).of(machine)
    document = status_document(
        machine.topology, seen.leases, machine.outside, user_name, drained=seen.drained
    )
    users = {lease["id"]: lease["user"] for lease in document["leases"]}
    states = {}
    for gpu in document["gpus"]:
        names = dict.fromkeys(users[lease] for lease in gpu["leases"])
        states[gpu["index"]] = GpuState(gpu["state"], ", ".join(names))
    write_text(path, topology_svg(machine.topology, states))
    return 0
