"""A launch through a container engine, and the command line that starts it."""
# pure: decides on plain values

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpulaunch.containers.command import ContainerCommand
from gpulaunch.containers.life import GPUS_LABEL, LEASE_LABEL, SHARE_LABEL
from gpulaunch.containers.ways import NO_WAY
from gpulaunch.leases.environment import COUNT_VARIABLE, LEASE_VARIABLE
from gpulaunch.machine.drivers import DEFAULT_DRIVER, DRIVERS
from gpulaunch.machine.gpu import Gpu
from gpulaunch.records import Record

if TYPE_CHECKING:  # few launches need these
    from gpulaunch.containers.engine import Asked, ContainerEngine, EngineClient
    from gpulaunch.leases.share import Share

HOST_VARIABLES = tuple(entry.visible_variable for entry in DRIVERS.values())
"""Variables to hide from the engine's client.

By -e CUDA_VISIBLE_DEVICES it would carry the host's GPU numbers into the container, where GPUs are
counted anew.
"""


class ContainerLaunch(Record):
    """The additional facts of a launch through a container engine.

    Attributes:
        engine: the kind of engine.
        client: client of the engine that the command talks to.
        command: the client's command line.
        asked: request for GPUs in its flags, or None.
        way: way by which GPUs get in: one of WAYS, or NO_WAY.
        engine_id: the engine's own id.
        container_id: id of the container if it exists already and is to be started again.
        driver: name of the GPUs' driver in the registry.
    """

    engine: "ContainerEngine"
    client: "EngineClient"
    command: ContainerCommand
    asked: "Asked | None"
    way: str
    engine_id: str
    container_id: str | None
    driver: str = DEFAULT_DRIVER

    @property
    def leaves_out_gpus(self) -> bool:
        """True if the container gets none of the GPUs that are held for it."""
        return self.way == NO_WAY and self.container_id is None

    @property
    def all_text(self) -> str | None:
        """What says `all`, such as "--gpus all"; None if nothing does."""
        return self.asked.text if self.asked and self.asked.number == "all" else None


class PlainCommand(Record):
    """A command line that runs without a lease: without GPUs, or for containers with a lease.

    Attributes:
        argv: the command line to run.
        hidden: variables to hide from it.
    """

    argv: tuple[str, ...]
    hidden: tuple[str, ...] = ()


def started_command(
    container: ContainerLaunch,
    gpus: Sequence[Gpu],
    lease_id: str | None,
    share: "Share | None" = None,
) -> tuple[str, ...]:
    """Return the command line to run, with GPUs unless the container was made with them.

    Args:
        container: the launch.
        gpus: GPUs in rank order.
        lease_id: id of the lease; None as long as there is none.
        share: its share of the GPUs, if it shares them.

    Returns:
        The user's command line with exactly these GPUs, and labels that identify the lease.
    """
    command = container.command
    if command.starts:
        return command.argv
    entry = DRIVERS[container.driver]
    uuids = [gpu.uuid for gpu in gpus]
    added = container.engine.flags_for(
        command, gpus, container.way, container.asked, container.driver
    )
    names = uuids if share else _numbers_inside(gpus)  # MPS numbers its GPUs in its own way
    if names and not _sets_variable(command, entry.visible_variable):
        for name, value in {**entry.constants, entry.visible_variable: ",".join(names)}.items():
            added += ["-e", f"{name}={value}"]
    if gpus:
        added += ["--label", f"{GPUS_LABEL}={','.join(uuids)}"]
    if share:
        from gpulaunch.containers.mps_client import mps_flags  # late: few containers share

        added += [*mps_flags(command, share), "--label", f"{SHARE_LABEL}={share.sm_percentage}"]
    if lease_id:
        added += ["--label", f"{LEASE_LABEL}={lease_id}", "-e", f"{LEASE_VARIABLE}={lease_id}"]
    if gpus:
        added += ["-e", f"{COUNT_VARIABLE}={len(gpus)}"]
    return replace_gpu_flags(container.engine, command, added)


def replace_gpu_flags(
    engine: "ContainerEngine", command: ContainerCommand, added: Sequence[str]
) -> tuple[str, ...]:
    """Return a run or create command without its flags about GPUs, and with others.

    Everything else stays unchanged and in place. The additions come after the user's flags, since
    of two assignments to one variable or label the last one counts.
    """
    replaced = set()
    for flag in command.flags:
        if engine.is_gpu_flag(flag):
            replaced |= set(range(flag.begin, flag.end))
    kept = [word for at, word in enumerate(command.argv[: command.flags_end]) if at not in replaced]
    return (*kept, *added, *command.argv[command.flags_end :])


def _numbers_inside(gpus: Sequence[Gpu]) -> list[str]:
    """Return the GPUs' numbers in a container, in rank order; [] if they ascend.

    A container counts its GPUs anew, by PCI address.
    """
    indices = sorted(gpu.index for gpu in gpus)
    numbers = [indices.index(gpu.index) for gpu in gpus]
    return [] if numbers == sorted(numbers) else list(map(str, numbers))


def _sets_variable(command: ContainerCommand, variable: str) -> bool:
    return any(value.startswith(f"{variable}=") for value in command.values("-e", "--env"))
