"""Containers: what an engine says of them, and what they are given besides GPUs."""
# pure: decides on plain values

from collections.abc import Mapping, Sequence

from gpulaunch.leases.environment import COUNT_VARIABLE, LEASE_VARIABLE, mps_environment
from gpulaunch.leases.lease import Share
from gpulaunch.machine.driver import DRIVERS
from gpulaunch.machine.gpu import Gpu
from gpulaunch.records import Record

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
"""Variable with the GPUs of a container, for NVIDIA's container runtime."""

LEASE_LABEL = "io.gpulaunch.lease"
"""Id of the lease that a container was made under."""

GPUS_LABEL = "io.gpulaunch.gpus"
"""UUIDs of the GPUs that a container was made with."""

SHARE_LABEL = "io.gpulaunch.share"
"""A container's percentage of the SMs, if it shares its GPUs."""

LATER_LABEL = "io.gpulaunch.later"
"""Says that a container holds its GPUs before its first start, as after docker create."""

PROFILE_LABEL = "io.gpulaunch.profile"
"""The name of the profile of an image's jobs."""

PROJECT_LABEL = "com.docker.compose.project"
"""The project of compose that a container belongs to."""

HOST_VARIABLES = tuple(entry.visible_variable for entry in DRIVERS.values())
"""Variables to hide from an engine's client.

By -e CUDA_VISIBLE_DEVICES it would carry the host's GPU numbers into the container, where GPUs are
counted anew.
"""


def container_variables(
    own: Sequence[str],
    gpus: Sequence[Gpu],
    driver: str,
    lease_id: str,
    share: Share | None = None,
) -> dict[str, str]:
    """Return the variables that a container with GPUs is given.

    Args:
        own: those that its user gives it, as NAME=VALUE.
        gpus: its GPUs in rank order.
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
    if names and not any(text.startswith(f"{entry.visible_variable}=") for text in own):
        variables |= {**entry.constants, entry.visible_variable: ",".join(map(str, names))}
    if share:
        variables |= mps_environment(share)
    return variables | {LEASE_VARIABLE: lease_id, COUNT_VARIABLE: str(len(gpus))}


def container_labels(
    gpus: Sequence[Gpu], lease_id: str, share: Share | None = None, *, later: bool = False
) -> dict[str, str]:
    """Return the labels by which a container is known to be a lease's.

    Args:
        share: its share of the GPUs, if it shares them.
        later: whether it is only made now, and started later.
    """
    labels = {GPUS_LABEL: ",".join(gpu.uuid for gpu in gpus), LEASE_LABEL: lease_id}
    if share:
        labels[SHARE_LABEL] = str(share.sm_percentage)
    if later:
        labels[LATER_LABEL] = "true"
    return labels


def service_of(labels: Mapping[str, str]) -> str | None:
    """Return project and service of compose in a container's labels; None if there is none."""
    project = labels.get(PROJECT_LABEL)
    return f"{project}/{labels.get('com.docker.compose.service')}" if project else None


class Image(Record):
    """What an image says of its containers.

    Attributes:
        user: user of their programs; "" for root.
    """

    user: str
    labels: Mapping[str, str]
    variables: Mapping[str, str]


class Container(Record):
    """A container, as its engine described it at one moment.

    Attributes:
        id: 64 hexadecimal digits.
        name: name without docker's leading slash.
        state: created, running, paused, restarting, removing, exited or dead.
        has_failed: whether it was to start, and could not.
        restarts: whether its policy may start it again by itself.
        lease_id: id of the lease that it was made under, or None.
        created_at: time of its creation, in a form that sorts.
        shares: whether it was made to share its GPUs.
        given: indices, UUIDs or beginnings of UUIDs of the GPUs that its flags named or counted; or
            "all", which says nothing of their use.
        watched: pids of the processes whose end changes its state.
        is_for_later: whether it holds its GPUs before its first start, however long that takes.
        service: project and service of compose, as PROJECT/SERVICE; None for a container of its
            own.
    """

    id: str
    name: str
    state: str
    has_failed: bool
    restarts: bool
    image_id: str
    lease_id: str | None
    uuids: tuple[str, ...]
    created_at: str = ""
    shares: bool = False
    given: tuple[str, ...] = ()
    watched: frozenset[int] = frozenset()
    is_for_later: bool = False
    service: str | None = None

    @property
    def holds(self) -> bool:
        """True if its GPUs are taken.

        They are while it runs, is about to be started, or may come back until it is removed.
        """
        if self.state in ("removing", "dead"):
            return False
        if self.state == "created":  # no policy starts what has never run
            return not self.has_failed
        return self.state != "exited" or self.restarts

    @property
    def is_only_made(self) -> bool:
        """True if it was made to be started at once, and has not been."""
        return self.state == "created" and not self.is_for_later
