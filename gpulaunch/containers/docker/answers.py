"""The answers of the Docker Engine as plain values.

Each function raises ValueError, KeyError, TypeError or AttributeError for any other answer: a
program of another user may listen at the engine's socket.
"""
# pure: decides on plain values

from collections.abc import Iterable, Mapping
from typing import Any

from gpulaunch.containers.asked import without_kinds
from gpulaunch.containers.engine import Image, Info
from gpulaunch.containers.life import (
    GPUS_LABEL,
    LATER_LABEL,
    LEASE_LABEL,
    SHARE_LABEL,
    Container,
    service_of,
)
from gpulaunch.containers.ways import VISIBLE

_STATES = frozenset({"created", "running", "paused", "restarting", "removing", "exited", "dead"})
_MOST_GPUS = 1024
_LARGEST_PID = 1 << 22


def parse_container(document: Mapping[str, Any]) -> Container:
    """Read the answer of GET /containers/ID/json, or of podman with docker's states."""
    state = document["State"]
    if state["Status"] not in _STATES:
        raise ValueError(state["Status"])
    labels = parse_labels(document["Config"])
    policy = document["HostConfig"].get("RestartPolicy") or {}
    given = _given_gpus(document["HostConfig"], document["Config"].get("Env") or ())
    return Container(
        id=checked_text(document["Id"]),
        name=document["Name"].removeprefix("/"),
        state=state["Status"],
        has_failed=state.get("ExitCode", 0) != 0 or bool(state.get("Error")),
        restarts=_restarts(policy, state, document.get("RestartCount", 0)),
        image_id=str(document["Image"]),
        lease_id=labels.get(LEASE_LABEL),
        uuids=tuple(uuid for uuid in labels.get(GPUS_LABEL, "").split(",") if uuid),
        created_at=str(document.get("Created", "")),
        shares=SHARE_LABEL in labels,
        given=() if "all" in given else given,
        sees_all="all" in given,
        pid=(pid := checked_pid(state.get("Pid"))),
        watched=frozenset({pid} - {0}),
        is_for_later=LATER_LABEL in labels,
        service=service_of(labels),
    )


def parse_image(document: Mapping[str, Any]) -> Image:
    """Read the answer of GET /images/NAME/json."""
    config = document["Config"]
    assignments = [str(text).partition("=") for text in config.get("Env") or ()]
    return Image(
        user=str(config.get("User") or ""),
        labels=parse_labels(config),
        variables={name: value for name, _, value in assignments},
    )


def parse_running(answer: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Read the answer of GET /containers/json: the names of containers by their ids."""
    names = {}
    for entry in answer:
        # Links give a container further names, such as /other/alias.
        own = [name for name in entry.get("Names") or () if name.count("/") == 1]
        names[checked_text(entry["Id"])] = own[0].removeprefix("/") if own else entry["Id"][:12]
    return names


def _given_gpus(host: Mapping[str, Any], environment: Iterable[str]) -> tuple[str, ...]:
    """Return the GPUs that --gpus, --device or the variable of NVIDIA's runtime gave a container.

    Source: moby daemon/devices_nvidia_linux.go, where a count of N stands for the GPUs 0 to N-1,
    and docs/reference/commandline/container_run.md of docker/cli.

    Args:
        host: its HostConfig.
        environment: its variables, as NAME=VALUE.
    """
    names: list[str] = []
    for request in host.get("DeviceRequests") or ():
        driver = request.get("Driver") or ""
        capabilities = {word for some in request.get("Capabilities") or () for word in some}
        if driver == "cdi" or driver.startswith("nvidia") or (not driver and "gpu" in capabilities):
            count = request.get("Count") or 0
            names += request.get("DeviceIDs") or ()
            names += ["all"] if count < 0 else map(str, range(min(count, _MOST_GPUS)))
    names = _gpu_names(",".join(names))
    if not names and str(host.get("Runtime")).startswith("nvidia"):
        for variable in environment:  # the last one counts
            name, _, value = variable.partition("=")
            names = _gpu_names(value) if name == VISIBLE else names
    return tuple(dict.fromkeys(names))


def _gpu_names(devices: str) -> list[str]:
    """Return the names of GPUs in a list with commas, without those of other kinds of devices."""
    nothing = ("", "none", "void")
    return [name for name in without_kinds(devices) if "=" not in name and name not in nothing]


def checked_pid(value: object) -> int:
    """Return a number that can be a pid; 0 for any other value."""
    return value if isinstance(value, int) and 0 < value <= _LARGEST_PID else 0


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
