"""What a launch says of its container."""
# pure: decides on plain values

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gpulaunch.containers.asked import AskedContainer
from gpulaunch.containers.life import GPUS_LABEL, LATER_LABEL, LEASE_LABEL, SHARE_LABEL
from gpulaunch.leases.environment import COUNT_VARIABLE, LEASE_VARIABLE, mps_environment
from gpulaunch.machine.drivers import DEFAULT_DRIVER, DRIVERS
from gpulaunch.machine.gpu import Gpu
from gpulaunch.records import Record

if TYPE_CHECKING:  # few launches need these
    from gpulaunch.containers.asked import Asked
    from gpulaunch.containers.engine import EngineClient
    from gpulaunch.containers.podman.command import PodmanCommand
    from gpulaunch.leases.share import Share

HOST_VARIABLES = tuple(entry.visible_variable for entry in DRIVERS.values())
"""Variables to hide from an engine's client.

By -e CUDA_VISIBLE_DEVICES it would carry the host's GPU numbers into the container, where GPUs are
counted anew.
"""


class ContainerLaunch(Record):
    """The container of a launch.

    Attributes:
        client: client of its engine.
        engine_id: the engine's own id.
        way: way by which GPUs get in: one of WAYS, or NO_WAY.
        driver: name of the GPUs' driver in the registry.
        asked: the request for GPUs, or None.
        attached: whether the command that makes it stays until it has ended.
        passes_signals: whether that passes on the signals that it gets.
        container_id: its id if it exists already and is to be started again.
        podman: the podman command that makes or starts it; None for docker's, which its engine
            makes.
    """

    client: "EngineClient"
    engine_id: str
    way: str
    driver: str = DEFAULT_DRIVER
    asked: "Asked | None" = None
    attached: bool = False
    passes_signals: bool = False
    container_id: str | None = None
    podman: "PodmanCommand | None" = None


def container_variables(
    asked: AskedContainer,
    gpus: Sequence[Gpu],
    driver: str,
    lease_id: str | None,
    share: "Share | None" = None,
) -> dict[str, str]:
    """Return the variables that a container with GPUs is given.

    Args:
        asked: the container.
        gpus: its GPUs in rank order.
        driver: name of their driver in the registry.
        lease_id: id of the lease; None as long as there is none.
        share: its share of the GPUs, if it shares them.
    """
    entry = DRIVERS[driver]
    # A container counts its GPUs anew, by PCI address; MPS does so in its own way.
    indices = sorted(gpu.index for gpu in gpus)
    numbers = [indices.index(gpu.index) for gpu in gpus]
    names: Sequence[object] = [] if numbers == sorted(numbers) else numbers
    if share:
        names = [gpu.uuid for gpu in gpus]
    variables: dict[str, str] = {}
    if names and asked.variable(entry.visible_variable) is None:
        variables |= {**entry.constants, entry.visible_variable: ",".join(map(str, names))}
    if share:
        variables |= mps_environment(share)
    if lease_id:
        variables[LEASE_VARIABLE] = lease_id
    return variables | {COUNT_VARIABLE: str(len(gpus))}


def container_labels(
    gpus: Sequence[Gpu], lease_id: str | None, share: "Share | None" = None, *, later: bool = False
) -> Mapping[str, str]:
    """Return the labels by which a container is known to be a lease's.

    Args:
        gpus: its GPUs in rank order.
        lease_id: id of the lease; None as long as there is none.
        share: its share of the GPUs, if it shares them.
        later: whether it is only made now, and started later.
    """
    labels = {GPUS_LABEL: ",".join(gpu.uuid for gpu in gpus)}
    if share:
        labels[SHARE_LABEL] = str(share.sm_percentage)
    if later:
        labels[LATER_LABEL] = "true"
    if lease_id:
        labels[LEASE_LABEL] = lease_id
    return labels
