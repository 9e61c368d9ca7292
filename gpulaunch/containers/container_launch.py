"""A launch through Docker."""
# pure: decides on plain values

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from gpulaunch.containers.command import ContainerCommand
from gpulaunch.containers.docker.gpu_flags import Asked, with_gpus
from gpulaunch.containers.ways import NO_WAY
from gpulaunch.machine.gpu import Gpu

if TYPE_CHECKING:  # what few launches need, the others do not load
    from gpulaunch.leases.share import Share

HOST_VARIABLES = ("CUDA_VISIBLE_DEVICES",)
"""What docker is not to see: -e CUDA_VISIBLE_DEVICES would carry the host's numbers in, where
GPUs are counted anew.
"""


class ContainerLaunch(NamedTuple):
    """What a launch through Docker needs to know besides.

    Attributes:
        command: docker's command line, read.
        asked: what its flags say about GPUs, or None.
        way: by which GPUs get in: one of WAYS, or NO_WAY.
        socket_path: of the engine.
        engine_id: its own.
        container_id: of the container, if it is there already and is to be started again.
    """

    command: ContainerCommand
    asked: Asked | None
    way: str
    socket_path: str
    engine_id: str
    container_id: str | None

    @property
    def leaves_out_gpus(self) -> bool:
        """Whether the container gets none of the GPUs that are held for it."""
        return self.way == NO_WAY and self.container_id is None


class PlainCommand(NamedTuple):
    """A command line that is run without a lease: it needs no GPU, or its containers have a lease.

    Attributes:
        argv: what is run.
        hidden: variables that it is not to see.
    """

    argv: tuple[str, ...]
    hidden: tuple[str, ...] = ()


def started_command(
    container: ContainerLaunch,
    gpus: Sequence[Gpu],
    lease_id: str | None,
    share: "Share | None" = None,
) -> tuple[str, ...]:
    """What is run: docker's command line, with the GPUs in it unless the container was made with them.

    Args:
        container: the launch.
        gpus: in rank order; none for a container that is to see none.
        lease_id: None as long as there is no lease.
        share: its part of the GPUs, if it shares them.
    """
    if container.command.starts:
        return container.command.argv
    return with_gpus(container.command, gpus, container.way, lease_id, container.asked, share)
