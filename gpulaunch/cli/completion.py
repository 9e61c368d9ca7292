"""`gpulaunch completion SHELL`: print the script by which a shell completes words."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from gpulaunch.cli.arguments import SUPPRESS, Parser
from gpulaunch.errors import GpulaunchError, UsageError
from gpulaunch.typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpulaunch.leases.lease import Lease
    from gpulaunch.leases.ticket import Ticket

_SHELLS = ("bash", "zsh", "fish")
_MOST_JOBS = 100


def main(arguments: Sequence[str]) -> int:
    """Print a script, or names for one."""
    options = make_parser().parse_args(arguments)
    if options.names:
        with suppress(GpulaunchError, OSError):  # no names are better than a message on the line
            for line in dict.fromkeys(_NAMES[options.names]()):
                print(line)
        return 0
    if options.shell is None:
        raise UsageError("no shell given", f"known are {', '.join(_SHELLS)}")
    from gpulaunch.cli.completion_scripts import completion_script  # late: names do without

    print(completion_script(options.shell), end="")
    return 0


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(
        "gpulaunch completion",
        "Print a script by which a shell completes gpulaunch's commands, options and names.",
        epilog='bash, in ~/.bashrc:  eval "$(gpulaunch completion bash)"\n'
        'zsh, in ~/.zshrc, after compinit:  eval "$(gpulaunch completion zsh)"\n'
        "fish:  gpulaunch completion fish > ~/.config/fish/completions/gpulaunch.fish",
    )
    parser.add_argument(
        "shell", metavar="SHELL", nargs="?", choices=_SHELLS, help="bash, zsh or fish"
    )
    parser.add_argument("--names", choices=_NAMES, help=SUPPRESS)  # for the scripts
    return parser


def _profiles() -> Iterable[str]:
    from gpulaunch.profiles.catalog import profile_names

    return profile_names()


def _machines() -> Iterable[str]:
    from gpulaunch.machine.catalog import machine_names

    return machine_names()


def _clusters() -> Iterable[str]:
    from gpulaunch.cluster.cluster_file import cluster_names

    return cluster_names()


def _jobs() -> Iterator[str]:
    """Yield the names of this user's newest launches, and the ids of their leases."""
    from gpulaunch.history.read import RECENT_S, read_history

    for launch in read_history(within_s=RECENT_S)[: -_MOST_JOBS - 1 : -1]:
        yield from _named((launch.name, launch.id or launch.key), launch.command)


def _leases() -> Iterator[str]:
    """Yield the names and ids of the leases and tickets that this user may end."""
    from gpulaunch.launch.open_table import open_table

    snapshot = open_table(described=True, warn=lambda _: None).peek(problems=[])
    records: list[Lease | Ticket] = [*snapshot.leases, *snapshot.tickets]
    for record in records:
        if os.geteuid() in (0, record.user_id):
            yield from _named((record.name, record.id), record.command)


def _named(names: Iterable[str | None], command: Sequence[str]) -> Iterator[str]:
    """Yield lines of a name and, after a tab, what it stands for."""
    shown = " ".join(command)[:60]
    for name in names:
        if name and name.isprintable():
            yield f"{name}\t{shown if shown.isprintable() else ''}"


_NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "clusters": _clusters,
    "jobs": _jobs,
    "leases": _leases,
    "machines": _machines,
    "profiles": _profiles,
}
