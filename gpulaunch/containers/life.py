"""When a container holds its GPUs."""
# pure: decides on plain values

from gpulaunch.records import Record


class Container(Record):
    """A container, as its engine described it at one moment.

    Attributes:
        id: 64 hexadecimal digits.
        name: without the slash.
        state: created, running, paused, restarting, removing, exited or dead.
        has_failed: it was to start, and could not.
        restarts: its policy may start it again by itself.
        image_id: of the image that it was made of.
        lease_id: that it was made under, or None.
        uuids: GPUs that it was made with.
        created_at: when it was made, in a form that sorts.
        shares: it was made to share its GPUs.
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

    @property
    def holds(self) -> bool:
        """Whether its GPUs are taken.

        They are while it runs, is about to be started, or may come back until it is removed.
        """
        if self.state in ("removing", "dead"):
            return False
        if self.state == "exited" or (self.state == "created" and self.has_failed):
            return self.restarts
        return True


class Standing(Record):
    """What is known of a lease's containers.

    Attributes:
        holds: they, or an engine that cannot be asked, keep the lease.
        containers: as their engine describes them.
        problem: why it cannot be told, or None.
        forbidden: that is because this user may not ask.
    """

    holds: bool
    containers: tuple[Container, ...]
    problem: str | None
    forbidden: bool = False

    @property
    def keeper(self) -> Container | None:
        """The container that holds the lease, or else one that did."""
        return next((c for c in self.containers if c.holds), next(iter(self.containers), None))
