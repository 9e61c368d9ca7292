"""The use of a machine's GPUs outside gpulaunch: what its driver sees, and running containers."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gpulaunch.containers.engines import clients_at_hand
from gpulaunch.machine.find import Machine, look_again
from gpulaunch.records import replace

if TYPE_CHECKING:  # many machines have no engine
    from gpulaunch.containers.in_use import RunningContainer
    from gpulaunch.launch.launch import Launch


def read_containers(
    machine: Machine, warn: Callable[[str], None] | None = None
) -> "Sequence[RunningContainer]":
    """Return the running containers that were given GPUs of a machine, as far as engines tell.

    Args:
        machine: the machine.
        warn: called with what keeps an engine from telling.
    """
    clients = clients_at_hand()
    if not clients:
        return ()
    from gpulaunch.containers.in_use import running_containers  # late: see above

    containers, problems = running_containers(
        clients, machine.topology, numbered=machine.key is None
    )
    if warn:
        for problem in problems:
            warn(f"{problem}: GPUs of containers count only where they are seen in use")
    return containers


def with_containers(machine: Machine, containers: "Sequence[RunningContainer]") -> Machine:
    """Return the machine with the use of its GPUs by containers beside the use that is known."""
    if not containers:
        return machine
    from gpulaunch.containers.in_use import uses_of

    return replace(machine, outside=(*machine.outside, *uses_of(containers)))


def see_again(launch: "Launch") -> "Launch":
    """Return a launch with the use of its machine's GPUs read anew.

    A container that it is to start again is in nobody's way, even if it runs already.
    """
    machine = look_again(launch.machine)
    started = launch.container.container_id if launch.container else None
    others = [one for one in read_containers(machine) if one.id != started]
    return replace(launch, machine=with_containers(machine, others))
