"""The answers of the Docker Engine as plain values.

Each function raises ValueError, KeyError, TypeError or AttributeError for any other answer: a
program of another user may listen at the engine's socket.
"""
# pure: decides on plain values

from collections.abc import Mapping

from gpulaunch.containers.engine import Info
from gpulaunch.containers.labels import GPUS_LABEL, LEASE_LABEL, SHARE_LABEL
from gpulaunch.containers.life import Container
from gpulaunch.typing import Any

_STATES = frozenset({"created", "running", "paused", "restarting", "removing", "exited", "dead"})


def parse_container(document: Mapping[str, Any]) -> Container:
    """Read the answer of GET /containers/ID/json."""
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
    """Return the labels in the Config of a container or image, without values that are no text."""
    return {
        key: value for key, value in (config.get("Labels") or {}).items() if isinstance(value, str)
    }


def checked_text(value: object) -> str:
    """Return an identifier, version or path after checking that it can be one.

    Raises:
        ValueError: the value is something else.
    """
    if not isinstance(value, str) or not value or not (value.isascii() and value.isprintable()):
        raise ValueError(f"{value!r} is no identifier")
    return value


def _restarts(policy: Mapping[str, Any], state: Mapping[str, Any], restarted: int) -> bool:
    """Return whether the engine may start a container again by its restart policy."""
    if policy.get("Name") != "on-failure":
        return policy.get("Name") in ("always", "unless-stopped")
    has_ended_well = state["Status"] == "exited" and state.get("ExitCode") == 0
    return not has_ended_well and not restarted >= (policy.get("MaximumRetryCount") or 0) > 0


def parse_info(answer: Mapping[str, Any]) -> Info:
    """Read the answer of GET /info."""
    devices = answer.get("DiscoveredDevices")
    return Info(
        id=checked_text(answer["ID"]),
        version=checked_text(answer["ServerVersion"]),
        runtimes=tuple(answer.get("Runtimes") or ()),
        cdi_directories=tuple(map(checked_text, answer.get("CDISpecDirs") or ())),
        cdi_devices=None if devices is None else tuple(device.get("ID", "") for device in devices),
        security=tuple(_option_name(option) for option in answer.get("SecurityOptions") or ()),
    )


def _option_name(option: str) -> str:
    """Return the name in an option such as name=seccomp,profile=builtin."""
    return option.partition(",")[0].removeprefix("name=")


def parse_pids(answer: Mapping[str, Any]) -> set[int]:
    """Read the answer of GET /containers/ID/top: the table that ps writes."""
    titles = answer["Titles"]
    return {int(dict(zip(titles, row, strict=True))["PID"]) for row in answer["Processes"]}
