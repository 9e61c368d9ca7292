"""When a container holds its GPUs."""
# pure: decides on plain values

from collections.abc import Mapping
from typing import Any, NamedTuple

from gpulaunch.containers.docker.gpu_flags import GPUS_LABEL, LEASE_LABEL, SHARE_LABEL

_STATES = frozenset({"created", "running", "paused", "restarting", "removing", "exited", "dead"})


class Container(NamedTuple):
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
        """Whether its GPUs are taken: it runs, was made to be started, or may come back until it is removed."""
        if self.state in ("removing", "dead"):
            return False
        if self.state == "exited" or (self.state == "created" and self.has_failed):
            return self.restarts
        return True


def parse_container(document: Mapping[str, Any]) -> Container:
    """Read what GET /containers/ID/json answers.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it is something else.
    """
    state = document["State"]
    if state["Status"] not in _STATES:
        raise ValueError(state["Status"])
    labels = parse_labels(document["Config"])
    policy = document["HostConfig"].get("RestartPolicy") or {}
    return Container(
        id=checked_text(document["Id"]),
        name=document["Name"].removeprefix("/"),
        state=state["Status"],
        has_failed=state.get("ExitCode", 0) != 0 or bool(state.get("Error")),
        restarts=_restarts(policy, state, document.get("RestartCount", 0)),
        image_id=checked_text(document["Image"]),
        lease_id=labels.get(LEASE_LABEL),
        uuids=tuple(uuid for uuid in labels.get(GPUS_LABEL, "").split(",") if uuid),
        created_at=str(document.get("Created", "")),
        shares=SHARE_LABEL in labels,
    )


def parse_labels(config: Mapping[str, Any]) -> dict[str, str]:
    """Labels of a container or an image, as its Config has them; what is no text is none."""
    return {
        key: value for key, value in (config.get("Labels") or {}).items() if isinstance(value, str)
    }


def checked_text(value: object) -> str:
    """An identifier, version or path as engines give them.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(value, str) or not value or not (value.isascii() and value.isprintable()):
        raise ValueError(f"{value!r} is no identifier")
    return value


def _restarts(policy: Mapping[str, Any], state: Mapping[str, Any], restarted: int) -> bool:
    """Whether the engine may start a container again by itself; after a failure as often as the policy says."""
    if policy.get("Name") != "on-failure":
        return policy.get("Name") in ("always", "unless-stopped")
    has_ended_well = state["Status"] == "exited" and state.get("ExitCode") == 0
    return not has_ended_well and not restarted >= (policy.get("MaximumRetryCount") or 0) > 0


class Standing(NamedTuple):
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
