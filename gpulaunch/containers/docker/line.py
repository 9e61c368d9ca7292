"""A docker command line, as far as gpulaunch reads it: which engine, and what its client is to do.

All else is read by docker's client. The options before the subcommand are those of docker/cli
20.10 to 29.7, cli/flags/options.go; compose's those of its version 2, cmd/compose/compose.go.
"""

import json
import os
from collections.abc import Sequence

from gpulaunch.containers import DOCKER_SOCKET, DOCKER_VARIABLE
from gpulaunch.containers.flags import Flag, read_flags
from gpulaunch.errors import FailedError, UsageError, call_failed, printable
from gpulaunch.records import Record

_MAKES = frozenset({"run", "create", "start", "restart"})
_COMPOSE_MAKES = _MAKES | {"up", "scale", "watch"}
_OF_ADDRESS = frozenset(
    {
        *("-c", "--context", "-H", "--host", "--tls", "--tlsverify"),
        *("--tlscacert", "--tlscert", "--tlskey"),
    }
)
"""Options that name an engine, or say how to talk to it: they go before DOCKER_HOST."""

_VALUED = (_OF_ADDRESS - {"--tls", "--tlsverify"}) | {"--config", "-l", "--log-level"}
_OF_COMPOSE = frozenset(
    {
        *("--ansi", "--env-file", "-f", "--file", "--parallel", "--profile", "--progress"),
        *("--project-directory", "-p", "--project-name"),
        *("--insecure-registry", "--workdir"),  # which compose hides
    }
)

TLS_VARIABLES = ("DOCKER_TLS", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "DOCKER_CONTEXT")
"""Variables that say how to talk to an engine, besides its address."""


class DockerLine(Record):
    """A docker command line.

    Attributes:
        alias: name by which it was called if that is another one, such as nvidia-docker.
        word: what is to be done, such as "run", or "compose up"; "" if nothing is made or started.
        at: index in argv of the word that says so.
    """

    argv: tuple[str, ...]
    alias: str | None
    options: tuple[Flag, ...]
    word: str
    at: int

    @property
    def title(self) -> str:
        """Program and subcommand, for messages."""
        return f"docker {self.word}".rstrip()

    @property
    def is_compose(self) -> bool:
        """Whether compose is called, which makes any number of containers."""
        return self.word.startswith("compose")

    @property
    def argv_at_door(self) -> tuple[str, ...]:
        """The command line without options that would go past a door."""
        named = [flag for flag in self.options if flag.name in _OF_ADDRESS]
        dropped = {at for flag in named for at in range(flag.begin, flag.end)}
        return tuple(word for at, word in enumerate(self.argv) if at not in dropped)

    def option(self, *names: str) -> str | None:
        """Return the value of an option before the subcommand; the last one counts."""
        found = [flag.value or "" for flag in self.options if flag.name in names]
        return found[-1] if found else None


def read_line(argv: Sequence[str]) -> DockerLine:
    """Read a docker command line; what docker does not understand is left to it."""
    alias = os.path.basename(argv[0])
    argv = (argv[0] if alias == "docker" else "docker", *argv[1:])
    options, begin = read_flags(argv, 1, _VALUED.__contains__)
    word, at = _find_word(argv, begin)
    return DockerLine(argv, None if alias == "docker" else alias, options, word, at)


def _find_word(argv: Sequence[str], begin: int) -> tuple[str, int]:
    """Return what makes or starts containers, "" if nothing does, and its place."""
    places = [at for at in range(begin, len(argv)) if argv[at] != "--"]  # docker skips it, too
    first, second = (*(argv[at] for at in places[:2]), "", "")[:2]
    if second == "--help":  # -h is the host's name for run
        return "", 0
    if first in _MAKES:
        return first, places[0]
    if first == "container" and second in _MAKES:
        return second, places[1]
    if first == "compose":
        _, at = read_flags(argv, places[0] + 1, _OF_COMPOSE.__contains__)
        if at < len(argv) and argv[at] in _COMPOSE_MAKES:
            return f"compose {argv[at]}", at
    return "", 0


def socket_of(line: DockerLine) -> str:
    """Return the path of the engine's socket, by docker's order of flags, variables and contexts.

    Raises:
        UsageError: the engine is not on this machine, or docker has no such context.
        FailedError: the context cannot be read.
    """
    context, host = line.option("-c", "--context"), line.option("-H", "--host")
    named = os.environ.get(DOCKER_VARIABLE)
    if not context and host is None and not named:
        context = os.environ.get("DOCKER_CONTEXT") or _current_context(line)
    if context and context != "default":
        return _local_path(_host_of_context(line, context), f"docker context {printable(context)}")
    if host is None:
        path = _local_path(named or "", f"{DOCKER_VARIABLE}={printable(named or '')}")
    else:
        path = _local_path(host, f"-H {printable(host)}")
    # With TLS docker looks for an engine at a port, whether another one is named or none.
    options = [
        flag.name
        for flag in line.options
        if flag.name == "--tlsverify" or (flag.name == "--tls" and flag.is_on)
    ]
    variables = [
        f"{name}={printable(os.environ[name])}"
        for name in ("DOCKER_TLS", "DOCKER_TLS_VERIFY")
        if os.environ.get(name)
    ]
    if options or variables:
        raise UsageError(
            f"{[*options, *variables][0]} is for an engine with TLS, which may be on another "
            "machine, whose GPUs are not this one's",
            "leave it out, or run gpulaunch on that machine",
        )
    return path


def _local_path(host: str, origin: str) -> str:
    host = host.strip() or f"unix://{DOCKER_SOCKET}"
    if host.startswith("unix://"):
        # A relative path counts from the working directory, as docker reads it.
        return os.path.abspath(host.removeprefix("unix://") or DOCKER_SOCKET)
    raise UsageError(
        f"{origin} is no Unix socket, so its engine may be on another machine, "
        "whose GPUs are not this one's",
        "run gpulaunch on that machine, or name its engine's socket: unix://" + DOCKER_SOCKET,
    )


def _current_context(line: DockerLine) -> str | None:
    try:
        with open(f"{_directory(line)}/config.json", "rb") as file:
            return str(json.load(file).get("currentContext") or "")
    except (OSError, ValueError, AttributeError):  # docker itself will report it
        return None


def _host_of_context(line: DockerLine, context: str) -> str:
    """Return an engine's address, from where docker keeps it: docker/cli cli/context/store."""
    from hashlib import sha256  # late: few use contexts

    name = sha256(context.encode(errors="replace")).hexdigest()
    path = f"{_directory(line)}/contexts/meta/{name}/meta.json"
    try:
        with open(path, "rb") as file:
            return str(json.load(file)["Endpoints"]["docker"]["Host"])
    except FileNotFoundError:
        shown = "see 'docker context ls'"
        raise UsageError(f"docker has no context {printable(context)}", shown) from None
    except OSError as problem:
        raise call_failed(path, problem) from None
    except (ValueError, LookupError, TypeError):
        raise FailedError(f"{path}: no context of docker's") from None


def _directory(line: DockerLine) -> str:
    own = line.option("--config") or os.environ.get("DOCKER_CONFIG")
    return own or os.path.expanduser("~/.docker")
