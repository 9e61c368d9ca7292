"""Podman, which has no daemon: its command lines, read as podman reads them, and a client of it.

Containers are children of conmon, not of podman, and end with their processes. So their ends come
from pidfds, and the program is asked what they mean (docs/decisions/podman.md).
"""

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

from gpulaunch.containers.container import (
    HOST_VARIABLES,
    LATER_LABEL,
    LEASE_LABEL,
    VISIBLE,
    Container,
    Image,
)
from gpulaunch.containers.create import asked_container, asked_gpus, given_gpus, is_gpu_device
from gpulaunch.containers.docker.client import (
    checked_pid,
    checked_text,
    parse_container,
    parse_image,
)
from gpulaunch.containers.engine import (
    ANSWER_S,
    EngineClient,
    ForbiddenError,
    Info,
    LateError,
    NoAnswerError,
    NotFoundError,
    RefusedByEngineError,
)
from gpulaunch.containers.flags import Flag, read_flags
from gpulaunch.errors import FailedError, UsageError, printable
from gpulaunch.machine.driver import DRIVERS
from gpulaunch.process.system import parse_time, runs, user_name
from gpulaunch.records import Record, replace

_LAUNCHING = frozenset({("run",), ("create",), ("container", "run"), ("container", "create")})
_STARTING = frozenset({("start",), ("restart",), ("container", "start"), ("container", "restart")})
_COMPOSE_STARTS = frozenset({"create", "restart", "run", "start", "up", "scale", "watch"})

_ANYWHERE = ("--help", "--noout", "--syslog", "--trace", "--transient-store")
GLOBAL = frozenset({*_ANYWHERE, "-D", "--debug", "-h", "-r", "--remote", "-v", "--version"})
"""Switches before the subcommand: flags without a value but for --flag=value; others have one."""

RUN = frozenset(
    {
        *_ANYWHERE,
        *("-d", "--detach", "--disable-content-trust", "--env-host", "--http-proxy", "--init"),
        *("-i", "--interactive", "--no-healthcheck", "--no-hostname", "--no-hosts"),
        *("--oom-kill-disable", "--passwd", "--privileged", "-P", "--publish-all", "-q", "--quiet"),
        *("--read-only", "--read-only-tmpfs", "--replace", "--rm", "--rmi", "--rootfs"),
        *("--sig-proxy", "--tls-verify", "-t", "--tty", "--unsetenv-all"),
    }
)
"""Switches of run and create together. Flags end at the image; what follows is untouched."""

START = frozenset(
    {
        *_ANYWHERE,
        *("--all", "-a", "--attach", "-i", "--interactive", "-l", "--latest", "--running"),
        "--sig-proxy",
    }
)
"""Switches of start and restart together."""

_STORE = frozenset(
    {
        *("--db-backend", "--events-backend", "--imagestore", "--module", "--namespace", "--ns"),
        *("--root", "--runroot", "--storage-driver", "--storage-opt", "--tmpdir"),
        *("--transient-store", "--volumepath"),
    }
)
"""Flags that say in which store podman looks for containers."""

_REMOTE_VARIABLES = ("CONTAINER_HOST", "CONTAINER_CONNECTION")
_REMOTE = frozenset({"--url", "-H", "--host", "-c", "--connection"})


class PodmanCommand(Record):
    """A command line of podman.

    Attributes:
        subcommand: words such as ("run",) or ("container", "run"); one word for those that neither
            make nor start containers.
        flags: flags of the subcommand, if it makes or starts containers.
        flags_end: index after the last flag, and before the -- that may end them.
    """

    argv: tuple[str, ...]
    global_flags: tuple[Flag, ...] = ()
    subcommand: tuple[str, ...] = ()
    flags: tuple[Flag, ...] = ()
    flags_end: int = 0
    operands: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Program and subcommand, for messages."""
        return " ".join(("podman", *self.subcommand))

    @property
    def launches(self) -> bool:
        """True if it makes a container that can run; otherwise the client only prints something."""
        return self.subcommand in _LAUNCHING and bool(self.operands) and not self.says("--help")

    @property
    def starts(self) -> bool:
        """True if it starts containers that exist already."""
        return self.subcommand in _STARTING and not self.says("-h", "--help")

    def says(self, *names: str) -> bool:
        """Return whether a switch is on; the last one counts."""
        return next((flag.is_on for flag in reversed(self.flags) if flag.name in names), False)

    def values(self, *names: str) -> list[str]:
        """Return the values of a flag, in order."""
        return [flag.value for flag in self.flags if flag.name in names and flag.value is not None]


def read_command(argv: Sequence[str]) -> PodmanCommand:
    """Read a command line of podman; mistakes that podman itself refuses are left to it.

    A flag that is not known here is taken for one with a value.

    Raises:
        UsageError: start names nothing, or what compose is to do is not built.
    """
    argv = tuple(argv)
    global_flags, begin = _read_flags(argv, 1, GLOBAL)
    subcommand = argv[begin : begin + 1]
    if subcommand == ("compose",) and _COMPOSE_STARTS & {*argv[begin:]}:
        raise UsageError(
            "'podman compose' is not built: no leases for its containers",
            "launch each container with 'gpulaunch podman run', or call podman without gpulaunch",
        )
    begin += 1
    if subcommand == ("container",):
        more, begin = _read_flags(argv, begin, GLOBAL)
        if not any(flag.name in ("-h", "--help") for flag in more):
            subcommand += argv[begin : begin + 1]
            begin += 1
        global_flags += more
    command = PodmanCommand(argv, global_flags, subcommand)
    if subcommand in _LAUNCHING:
        flags, at = _read_flags(argv, begin, RUN)
        operands = argv[at + 1 :] if argv[at : at + 1] == ("--",) else argv[at:]
        return replace(command, flags=flags, flags_end=at, operands=operands)
    if subcommand not in _STARTING:
        return command
    flags, at, operands = (), begin, ()
    while at < len(argv):  # its flags may come among the containers, and after them
        more, at = _read_flags(argv, at, START)
        flags += more
        if argv[at : at + 1] == ("--",):
            operands += argv[at + 1 :]
            break
        operands += argv[at : at + 1]
        at += 1
    command = replace(command, flags=flags, flags_end=begin, operands=operands)
    if command.starts and not operands:
        raise UsageError(
            f"{command.title}: which containers that starts, gpulaunch does not know",
            f"name them: gpulaunch {command.title} CONTAINER",
        )
    return command


def _read_flags(
    argv: tuple[str, ...], at: int, switches: Collection[str]
) -> tuple[tuple[Flag, ...], int]:
    return read_flags(argv, at, lambda name: name not in switches)


def request_of(command: PodmanCommand, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return what a run or create command asks for, as a request of docker's API would say it.

    Podman splits --device and --gpus at commas, and --gpus names GPUs: --gpus 2 is the GPU with
    index 2, not two GPUs.

    Args:
        environment: environment of this process, from which -e without a value copies.
    """
    variables = []
    for assignment in command.values("-e", "--env"):
        if "=" in assignment:
            variables.append(assignment)
        elif assignment in environment and assignment not in HOST_VARIABLES:
            variables.append(f"{assignment}={environment[assignment]}")
    devices = [name for value in command.values("--device") for name in value.split(",")]
    requests = [
        {"Driver": "cdi", "DeviceIDs": [name for name in devices if is_gpu_device(name)]},
        {"Driver": "nvidia", "DeviceIDs": ",".join(command.values("--gpus")).split(",")},
    ]
    files = [name.partition(":")[0] for name in devices if not is_gpu_device(name)]
    return {
        "Image": "".join(command.operands[:1]),
        "AttachStdout": not command.says("-d", "--detach"),
        "Env": variables,
        "HostConfig": {
            "Binds": command.values("-v", "--volume"),
            "DeviceRequests": [one for one in requests if any(one["DeviceIDs"])],
            "Devices": [{"PathOnHost": path} for path in files],
            "Privileged": command.says("--privileged"),
            "RestartPolicy": {"Name": "".join(command.values("--restart")[-1:])},
        },
    }


def gpu_flags(command: PodmanCommand) -> list[Flag]:
    """Return the flags of a run or create command that name GPUs."""
    return [
        flag
        for flag in command.flags
        if flag.name == "--gpus"
        or (flag.name == "--device" and any(map(is_gpu_device, (flag.value or "").split(","))))
    ]


def with_gpus(
    command: PodmanCommand,
    uuids: Sequence[str],
    driver: str,
    variables: Mapping[str, str],
    labels: Mapping[str, str],
) -> tuple[str, ...]:
    """Return a run or create command for a container that sees these GPUs and no others.

    Everything but its flags about GPUs stays unchanged and in place. What is added comes after the
    user's flags, since of two assignments to one variable or label the last one counts.

    Args:
        uuids: UUIDs of the GPUs, in rank order; empty for a container without GPUs.
    """
    replaced = set()
    added = []
    for flag in gpu_flags(command):
        replaced |= set(range(flag.begin, flag.end))
        devices = (flag.value or "").split(",") if flag.name == "--device" else []
        others = [name for name in devices if not is_gpu_device(name)]
        added += ["--device", ",".join(others)] if others else []
    kept = [word for at, word in enumerate(command.argv[: command.flags_end]) if at not in replaced]
    for uuid in uuids:
        added += ["--device", f"{DRIVERS[driver].cdi_kind}={uuid}"]
    # An image may say "all", and a hook of NVIDIA's may read it.
    for name, value in {VISIBLE: "void", **variables}.items():
        added += ["-e", f"{name}={value}"]
    for name, value in labels.items():
        added += ["--label", f"{name}={value}"]
    return (*kept, *added, *command.argv[command.flags_end :])


_LOOK_S = 0.5


class PodmanClient(EngineClient):
    """The podman program, asked about one store.

    Args:
        words: the program and its flags that say which store.
        user_id: id of the user whose store it is; only they can ask.
    """

    title, program = "Podman", "podman"
    address_variable = "CONTAINERS_STORAGE_CONF"
    cannot_share = "podman's containers do not share GPUs yet"
    ways = frozenset({"cdi"})

    def __init__(self, words: Sequence[str], user_id: int) -> None:
        super().__init__(" ".join(words))
        self._words = tuple(words)
        self._user_id = user_id

    @classmethod
    def usual(cls) -> "PodmanClient":
        """Return a client of the store that podman would use from here."""
        return client_of(read_command([cls.program]))

    @classmethod
    def known(cls, user_id: int) -> "list[PodmanClient]":
        """Return a client of the user's store, which answers nobody else."""
        return [cls((cls.program,), user_id)]

    def info(self) -> Info:
        """Return podman's description of itself."""
        answer = self._ask("info", "--format", "json")
        return self._parse(answer, lambda info: _parse_info(info, self._user_id))

    def image(self, name: str) -> Image | None:
        """Return what an image says; None if it is not here, or its name is wrong."""
        try:
            content = self._ask("image", "inspect", "--format", "json", "--", name)
        except RefusedByEngineError:
            return None
        return self._parse(content, lambda answer: parse_image(answer[0]))

    def container(self, name: str) -> Container | None:
        """Return a container by name or id, or None."""
        try:
            content = self._ask("container", "inspect", "--format", "json", "--", name)
        except NotFoundError:
            return None
        found = self._parse(content, lambda answer: parse_inspected(answer[0], time.time()))
        if found.state not in ("created", "exited") and not any(map(runs, found.watched)):
            # Its conmon was killed, and nobody told podman of the container's end.
            found = replace(found, state="dead")
        return found

    def names(self, label: str | None = None) -> dict[str, str]:
        """Return the names of containers by id: of those with a label, or of all that run."""
        which = ["--filter", "status=running", "--filter", "status=paused"]
        if label:
            which = ["--filter", f"label={label}"]
        content = self._ask("ps", "--all", "--no-trunc", "--format", "json", *which)
        return self._parse(
            content, lambda answer: {checked_text(one["Id"]): one["Names"][0] for one in answer}
        )

    def last_action(self, container_id: str, since_s: float) -> str:
        """Return the last of what has happened; podman may keep no events, or hide them."""
        since = datetime.fromtimestamp(since_s, timezone.utc).isoformat().replace("+00:00", "Z")
        words = ("--stream=false", "--format", "json", "--since", since)
        try:
            lines = self._ask("events", *words, "--filter", f"container={container_id}").split(
                b"\n"
            )
        except RefusedByEngineError:
            return "stop"
        last = "start"
        for line in filter(None, lines):
            status = self._parse(line, lambda event: str(event["Status"]))
            last = {"restart": "stop", "start": "start"}.get(status, last)
        return last

    def end(
        self,
        container: Container,
        grace_s: float,
        before_signal: Callable[[set[int], int], object] | None = None,  # noqa: ARG002  for MPS alone
    ) -> None:
        """Stop a container so that it does not come back."""
        with suppress(NotFoundError):
            if container.state == "created":
                with suppress(FailedError):  # it is being started
                    self._ask("rm", container.id)
                    return
            if container.state == "paused":
                self._ask("unpause", container.id)
            grace = str(round(grace_s))
            # No restart policy acts after podman stop.
            self._ask("stop", "--time", grace, container.id, answer_s=grace_s + ANSWER_S)
            deadline = time.monotonic() + RESTART_S + 1
            while (now := self.container(container.id)) and now.holds:
                if time.monotonic() > deadline:
                    raise FailedError(f"{self.title} has stopped {container.name}, but it goes on")
                time.sleep(_LOOK_S)

    def _ask(self, *words: str, answer_s: float | None = None) -> bytes:
        """Run podman with these words, and return what it prints."""
        import subprocess  # late: few launches need it, and it costs 10 ms

        limit_s = self._left_s() if answer_s is None else answer_s
        if self._user_id != os.geteuid():
            owner = user_name(self._user_id)
            raise ForbiddenError(f"only {owner} can ask {self.title} about containers of {owner}")
        try:
            done = subprocess.run(  # noqa: S603
                [*self._words, *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=limit_s,
                start_new_session=True,  # no key at the terminal ends it
                check=False,
            )
        except subprocess.TimeoutExpired:
            shown_s = round(max(limit_s, self._answer_s), 1)
            raise LateError(f"no answer from {self.address} in {shown_s:g} s") from None
        except OSError as problem:
            reason = (problem.strerror or str(problem)).lower()
            raise NoAnswerError(f"cannot start {self._words[0]}: {reason}") from None
        if done.returncode == 0:
            return done.stdout
        text = done.stderr.decode(errors="replace").strip()
        if "no such container" in text or "no such object" in text:
            raise NotFoundError(f"{self.title} does not know that container")
        last = text.rpartition("\n")[2].removeprefix("Error: ")
        raise RefusedByEngineError(f"{self.address} failed: {printable(last) or 'no reason given'}")


RESTART_S = 4.0
"""Seconds after a container's end within which its restart policy starts it again, if ever."""

_STATES = {
    "configured": "created",
    "initialized": "created",
    "stopping": "running",
    "stopped": "exited",
}
"""Those of podman's states that docker does not have, as docker's."""

_CDI_DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
_FIRST_WITH_CDI = (4, 1)


def parse_inspected(document: Mapping[str, Any], now_s: float) -> Container:
    """Read one container in the answer of podman container inspect.

    Args:
        now_s: the time, in seconds since 1970.
    """
    state = document["State"]
    status = _STATES.get(state["Status"], state["Status"])
    found = parse_container({**document, "State": {**state, "Status": status}})
    config = document["Config"]
    labels: list[str] = []
    given: tuple[str, ...] = ()
    with suppress(UsageError):
        command = read_command(config.get("CreateCommand") or ("podman",))
        labels = command.values("-l", "--label")
        variables = dict(str(text).partition("=")[::2] for text in config.get("Env") or ())
        request = request_of(command, variables)
        given = given_gpus(request["HostConfig"], ())
        asked = asked_gpus(request, asked_container(request, ""), "", None, None)
        given = given or (asked.names if asked else ())
    # podman commit gives an image all labels of a container.
    if f"{LEASE_LABEL}={found.lease_id}" not in labels:
        found = replace(found, lease_id=None, uuids=())
    found = replace(found, is_for_later=f"{LATER_LABEL}=true" in labels)
    restarts = found.restarts
    if restarts and status == "exited":
        # A policy acts at once or, as after podman stop, never.
        restarts = now_s - parse_time(state["FinishedAt"]).timestamp() < RESTART_S
    pids = {checked_pid(state.get(name)) for name in ("Pid", "ConmonPid")}
    return replace(found, restarts=restarts, given=given, watched=frozenset(pids - {0}))


def _parse_info(answer: Mapping[str, Any], user_id: int) -> Info:
    version = checked_text(answer["version"]["Version"])
    numbers = tuple(int(number) for number in version.split(".")[:2])
    root = answer["store"]["graphRoot"]
    if not isinstance(root, str) or not root.startswith("/"):
        raise ValueError(root)
    return Info(
        id=f"podman:{user_id}:{root}",
        version=version,
        cdi_directories=_CDI_DIRECTORIES if numbers >= _FIRST_WITH_CDI else (),
    )


def client_of(command: PodmanCommand) -> PodmanClient:
    """Return a client of the store that a podman command would use.

    Raises:
        UsageError: it would ask a service, which may be on another machine.
    """
    origin = None
    for name in _REMOTE_VARIABLES:
        if os.environ.get(name):
            origin = f"{name}={printable(os.environ[name])}"
    for flag in command.global_flags:
        if flag.name in ("-r", "--remote"):
            origin = flag.name if flag.is_on else None
        elif flag.name in _REMOTE:
            origin = f"{flag.name} {printable(flag.value or '')}"
    if origin:
        raise UsageError(
            f"{origin}: podman would ask a service, whose GPUs may not be this machine's",
            "run 'gpulaunch podman' on the machine of the containers, without it",
        )
    words = [command.argv[0]]
    for flag in (*command.global_flags, *command.flags):
        if flag.name in _STORE:
            words += command.argv[flag.begin : flag.end]
    return PodmanClient(words, os.geteuid())
