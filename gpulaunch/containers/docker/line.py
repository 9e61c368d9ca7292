"""A docker command line, as far as gpulaunch reads it: which engine, and what its client is to do.

All else is read by docker's client. The options before the subcommand are those of docker/cli
20.10 to 29.7, cli/flags/options.go; compose's those of its version 2, cmd/compose/compose.go.
"""

import json
import os
import re
from collections.abc import Iterator, Sequence

from gpulaunch.containers.docker import ADDRESS_VARIABLE, DEFAULT_SOCKET
from gpulaunch.errors import FailedError, UsageError, printable
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
    }
)

TLS_VARIABLES = ("DOCKER_TLS", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "DOCKER_CONTEXT")
"""Variables that say how to talk to an engine, besides its address."""


class DockerLine(Record):
    """A docker command line.

    Attributes:
        argv: it, with docker itself as the program.
        alias: name by which it was called if that is another one, such as nvidia-docker.
        options: options before the subcommand, each with its value; "" for none.
        kept: words before the subcommand that do not name the engine.
        rest: words from the subcommand on.
        word: what is to be done, such as "run", or "compose up"; "" if nothing is made or started.
        words_end: index in rest of the word that says so.
    """

    argv: tuple[str, ...]
    alias: str | None
    options: tuple[tuple[str, str], ...]
    kept: tuple[str, ...]
    rest: tuple[str, ...]
    word: str
    words_end: int

    @property
    def title(self) -> str:
        """Program and subcommand, for messages."""
        return f"docker {self.word}" if self.word else " ".join(("docker", *self.rest[:2]))

    @property
    def is_compose(self) -> bool:
        """Whether compose is called, which makes any number of containers."""
        return self.word.startswith("compose")

    @property
    def argv_at_door(self) -> tuple[str, ...]:
        """The command line without options that would go past a door."""
        return (self.argv[0], *self.kept, *self.rest)

    @property
    def without_secrets(self) -> tuple[str, ...]:
        """The command line without the values of variables, for others to see."""
        shown = []
        for before, word in zip(("", *self.argv), self.argv, strict=False):
            found = re.match(r"(--env=|-[a-zA-Z]*?e=?)?(\w+)=", word)
            is_value = found and (found[1] or re.fullmatch("--env|-[a-zA-Z]*e", before))
            shown.append(f"{found[0]}..." if found and is_value else word)
        return tuple(shown)

    def option(self, *names: str) -> str | None:
        """Return the value of an option before the subcommand; the last one counts."""
        return next((value for name, value in reversed(self.options) if name in names), None)


def read_line(argv: Sequence[str]) -> DockerLine:
    """Read a docker command line; what docker does not understand is left to it.

    Args:
        argv: the words from the client's name on.
    """
    alias = os.path.basename(argv[0])
    argv = (argv[0] if alias == "docker" else "docker", *argv[1:])
    options: list[tuple[str, str]] = []
    kept: list[str] = []
    at = 1
    for name, value, begin, end in _flags(argv, 1, _VALUED):
        options.append((name, value))
        kept += [] if name in _OF_ADDRESS else argv[begin:end]
        at = end
    rest = argv[at:]
    word, words_end = _find_word(rest)
    alias_of = None if alias == "docker" else alias
    return DockerLine(argv, alias_of, tuple(options), tuple(kept), rest, word, words_end)


def _flags(
    words: Sequence[str], at: int, valued: frozenset[str]
) -> Iterator[tuple[str, str, int, int]]:
    """Yield the flags up to the first other word: name, value, begin and end of each."""
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-", "--"):
        name, equals, value = words[at].partition("=")
        end = at + 1
        if not name.startswith("--"):  # -Dc NAME, -cNAME
            short = next((i for i, c in enumerate(name[1:], 1) if f"-{c}" in valued), 0)
            joined = words[at][short + 1 :].removeprefix("=") if short else ""
            name, value = f"-{name[short]}" if short else name, joined
            equals = joined
        if not equals and name in valued:
            value, end = (words[at + 1] if at + 1 < len(words) else ""), at + 2
        yield name, value, at, end
        at = end


def _find_word(rest: Sequence[str]) -> tuple[str, int]:
    """Return what makes or starts containers, "" if nothing does, and its place."""
    first, second = (*rest[:2], "", "")[:2]
    if any(word in ("--help", "-h") for word in rest[1:2]):
        return "", 0
    if first in _MAKES:
        return first, 0
    if first == "container" and second in _MAKES:
        return second, 1
    if first == "compose":
        at = max((end for *_, end in _flags(rest, 1, _OF_COMPOSE)), default=1)
        if at < len(rest) and rest[at] in _COMPOSE_MAKES:
            return f"compose {rest[at]}", at
    return "", 0


def socket_of(line: DockerLine) -> str:
    """Return the path of the engine's socket, by docker's order of flags, variables and contexts.

    Raises:
        UsageError: the engine is not on this machine.
        FailedError: docker does not know the context.
    """
    context, host = line.option("-c", "--context"), line.option("-H", "--host")
    named = os.environ.get(ADDRESS_VARIABLE)
    if context is None and host is None and not named:
        context = os.environ.get("DOCKER_CONTEXT") or _current_context(line)
    if context not in (None, "", "default"):
        return _local_path(_host_of_context(line, context), f"docker context {printable(context)}")
    if host is not None:
        return _local_path(host, f"-H {printable(host)}")
    return _local_path(
        named or f"unix://{DEFAULT_SOCKET}", f"{ADDRESS_VARIABLE}={printable(named or '')}"
    )


def _local_path(host: str, origin: str) -> str:
    if host.startswith("unix://"):
        # A relative path counts from the working directory, as docker reads it.
        return os.path.abspath(host.removeprefix("unix://") or DEFAULT_SOCKET)
    raise UsageError(
        f"{origin} is no Unix socket, so its engine may be on another machine, "
        "whose GPUs are not this one's",
        "run gpulaunch on that machine, or name its engine's socket: unix://" + DEFAULT_SOCKET,
    )


def _current_context(line: DockerLine) -> str | None:
    directory = (
        line.option("--config")
        or os.environ.get("DOCKER_CONFIG")
        or os.path.expanduser("~/.docker")
    )
    try:
        with open(os.path.join(directory, "config.json"), "rb") as file:
            return str(json.load(file).get("currentContext") or "")
    except (OSError, ValueError, AttributeError):  # docker itself will report it
        return None


def _host_of_context(line: DockerLine, context: str) -> str:
    """Ask docker for the engine's address in one of its contexts."""
    import subprocess  # late: few use contexts, and it costs 10 ms

    config = line.option("--config")
    words = ["docker", *(["--config", config] if config else [])]
    done = subprocess.run(  # noqa: S603
        [*words, "context", "inspect", context, "--format", "{{.Endpoints.docker.Host}}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        raise FailedError(f"docker context {printable(context)}: {printable(done.stderr.strip())}")
    return done.stdout.strip()
