"""Containers: the labels that identify them, and the state that says if they hold their GPUs."""
# pure: decides on plain values

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gpulaunch.machine.gpu import Gpu
from gpulaunch.records import Record

if TYPE_CHECKING:  # few launches need these
    from gpulaunch.leases.lease import Share

LEASE_LABEL = "io.gpulaunch.lease"
"""Id of the lease that a container was made under."""

GPUS_LABEL = "io.gpulaunch.gpus"
"""UUIDs of the GPUs that a container was made with."""

SHARE_LABEL = "io.gpulaunch.share"
"""A container's percentage of the SMs, if it shares its GPUs."""

LATER_LABEL = "io.gpulaunch.later"
"""Says that a container holds its GPUs before its first start, as after docker create."""

PROJECT_LABEL = "com.docker.compose.project"
"""The project of compose that a container belongs to."""

START_FOLLOWS_S = 2.0
"""Seconds after a stop within which docker restart starts a container again."""

RELEASE_FOLLOWS_S = 10.0
"""Longest wait for the companion of a container that has ended to release its lease.

It looks every 3 s at least while no process tells of a start, and may take 2 s more to be sure.
"""

PROFILE_LABEL = "io.gpulaunch.profile"
"""The profile of an image's jobs: its name, or the whole of it as TOML."""


def service_of(labels: Mapping[str, str]) -> str | None:
    """Return project and service of compose in a container's labels; None if there is none."""
    project = labels.get(PROJECT_LABEL)
    return f"{project}/{labels.get('com.docker.compose.service')}" if project else None


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


class Image(Record):
    """What an image says of its containers.

    Attributes:
        user: user of their programs; "" for root.
        labels: labels by name.
        variables: environment variables by name.
    """

    user: str
    labels: Mapping[str, str]
    variables: Mapping[str, str]


class Container(Record):
    """A container, as its engine described it at one moment.

    Attributes:
        id: 64 hexadecimal digits.
        name: name without the leading slash.
        state: created, running, paused, restarting, removing, exited or dead.
        has_failed: whether it was to start, and could not.
        restarts: whether its policy may start it again by itself.
        image_id: id of its image.
        lease_id: id of the lease that it was made under, or None.
        uuids: UUIDs of the GPUs that it was made with.
        created_at: time of its creation, in a form that sorts.
        shares: whether it was made to share its GPUs.
        given: indices, UUIDs or beginnings of UUIDs of the GPUs that its flags named or counted; or
            "all", which says nothing of their use.
        pid: pid of its first process, as the host counts; 0 if it does not run.
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
    pid: int = 0
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


class Standing(Record):
    """The known state of a lease's containers.

    Attributes:
        holds: whether the containers, or an engine that cannot be asked, keep the lease.
        containers: the containers as their engine describes them.
        problem: reason why the state is unknown, or None.
        forbidden: whether the reason is that this user is not allowed to ask.
    """

    holds: bool
    containers: tuple[Container, ...]
    problem: str | None
    forbidden: bool = False

    @property
    def keeper(self) -> Container | None:
        """The container that holds the lease, or else one that did."""
        return next((c for c in self.containers if c.holds), next(iter(self.containers), None))
