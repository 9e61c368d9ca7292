"""The answers of podman as plain values.

Each function raises ValueError, KeyError, TypeError or AttributeError for any other answer.
"""

from collections.abc import Mapping
from typing import Any

from gpulaunch.containers.asked import Asked
from gpulaunch.containers.docker.answers import checked_pid, checked_text, parse_container
from gpulaunch.containers.engine import Info
from gpulaunch.containers.life import Container
from gpulaunch.containers.podman import ID_PREFIX
from gpulaunch.containers.podman.command import read_command
from gpulaunch.containers.podman.gpu_flags import asked_gpus
from gpulaunch.errors import UsageError
from gpulaunch.process.system import parse_time
from gpulaunch.records import replace

RESTART_S = 4.0
"""Seconds after a container's end within which its restart policy starts it again, if ever."""

_STATES = {
    "configured": "created",
    "created": "created",
    "initialized": "created",
    "running": "running",
    "stopping": "running",
    "paused": "paused",
    "stopped": "exited",
    "exited": "exited",
    "removing": "removing",
}
_ACTIONS = {"remove": "destroy", "restart": "stop", "start": "start"}
"""Podman's events that decide, in docker's words: what docker calls stop, a start may follow."""

_CDI_DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
_FIRST_WITH_CDI = (4, 1)


def parse_inspected(document: Mapping[str, Any], now_s: float) -> Container:
    """Read one container in the answer of podman container inspect.

    Args:
        document: the answer.
        now_s: the time, in seconds since 1970.
    """
    state = document["State"]
    status = _STATES.get(state["Status"], "running")  # unknown, as after a crash: its pids tell
    made_by, asked = _read_creation(document["Config"])
    found = parse_container({**document, "State": {**state, "Status": status}})
    restarts = found.restarts
    if restarts and status == "exited":
        # A policy acts at once or, as after podman stop, never.
        restarts = now_s - parse_time(state["FinishedAt"]).timestamp() < RESTART_S
    pids = {checked_pid(state.get(name)) for name in ("Pid", "ConmonPid")}
    return replace(
        found,
        # Nothing starts a container of podman run once that is over.
        has_failed=status == "created" and made_by == "run",
        is_for_later=made_by == "create",
        restarts=restarts,
        given=asked.devices if asked else (),
        sees_all=asked is not None and asked.number == "all",
        watched=frozenset(pids - {0}),
    )


def _read_creation(config: Mapping[str, Any]) -> tuple[str, Asked | None]:
    """Return the subcommand that made a container, and the GPUs that its flags asked for."""
    try:
        command = read_command(config.get("CreateCommand") or ("podman",))
        return "".join(command.subcommand[-1:]), asked_gpus(command, {})
    except UsageError:
        return "", None


def parse_info(answer: Mapping[str, Any], user_id: int) -> Info:
    """Read the answer of podman info.

    Args:
        answer: the whole answer.
        user_id: id of the user who asked, whose store it is.
    """
    version = checked_text(answer["version"]["Version"])
    numbers = tuple(int(number) for number in version.split(".")[:2])
    root = answer["store"]["graphRoot"]
    if not isinstance(root, str) or not root.startswith("/"):
        raise ValueError(root)
    return Info(
        id=f"{ID_PREFIX}{user_id}:{root}",
        version=version,
        cdi_directories=_CDI_DIRECTORIES if numbers >= _FIRST_WITH_CDI else (),
        security=("rootless",) if answer["host"]["security"]["rootless"] else (),
    )


def parse_action(event: Mapping[str, Any]) -> str | None:
    """Return an event of podman events in docker's words; None if it decides nothing."""
    return _ACTIONS.get(event["Status"])
