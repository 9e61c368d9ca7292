"""Commands that start ranks on other machines, where a lease of this one means nothing.

Read from the command line alone: mpirun's hosts and hostfile, srun's number of nodes. torchrun is
not among them, since each machine has its own torchrun, which starts the ranks there.
"""
# pure: decides on plain values

import re
from collections.abc import Callable, Mapping, Sequence

from gpulaunch.errors import printable

_HOST_OPTIONS = ("--host", "-host", "-H", "--hosts", "-hosts")
_FILE_OPTIONS = ("--hostfile", "-hostfile", "--machinefile", "-machinefile", "-f")
_MOST_NAMED = 3

_WITH_TWO_VALUES = frozenset({"mca", "prtemca", "pmixmca", "gmca", "genv"})
_WITH_ITS_VALUE = re.compile(r"-[A-Za-z]\d+|-.*=.*")
"""An option and its value in one word: -N2, --nodes=2."""

_ALONE = frozenset(
    {
        *("--allow-run-as-root", "--oversubscribe", "--nooversubscribe", "--report-bindings"),
        *("--tag-output", "--timestamp-output", "--display-map", "--display-allocation"),
        *("--use-hwthread-cpus", "--nolocal", "--pernode", "--no-prefix", "--enable-recovery"),
        *("--exclusive", "--label", "--unbuffered", "--overlap", "--pty", "--no-kill", "--hold"),
        *("--contiguous", "--overcommit", "--use-min-nodes", "--spread-job"),
        *("--verbose", "--quiet", "-v", "-q", "-l", "-u", "-s", "-O", "-Q", "-K", "-E", "-X"),
    }
)
"""Options of mpirun and srun that take no value."""


_HERE = frozenset({"localhost", "127.0.0.1", "::1"})
"""Names of this machine that every machine has."""


def hosts_of(hostfile: str, own_name: str) -> tuple[str, ...]:
    """Return the hosts that a hostfile of Open MPI names, each once, in their order.

    Args:
        hostfile: its text.
        own_name: name of this machine, by which mpirun knows it where it is called localhost.
    """
    rows = [line.partition("#")[0].split() for line in hostfile.splitlines()]
    names = [words[0] for words in rows if words]
    return tuple(dict.fromkeys(own_name if name in _HERE else name for name in names))


def explain_mpirun(
    command: Sequence[str],
    environment: Mapping[str, str],
    own_names: Sequence[str],
    read: Callable[[str], str],
) -> str | None:
    """Return why ranks of mpirun have no lease, and what to type instead; None if all have it.

    Args:
        command: argv of mpirun.
        environment: variables that it will have.
        own_names: names of this machine.
        read: function that returns the text of a hostfile, empty if it cannot be read.
    """
    if _has_own_launches(command):
        return None
    named = [host for text in _values(command, _HOST_OPTIONS) for host in text.split(",")]
    for path in _values(command, _FILE_OPTIONS):
        named += hosts_of(read(path), own_names[0])
    here = {*own_names, *(name.partition(".")[0] for name in own_names), *_HERE}
    hosts = [host.partition(":")[0] for host in named]
    far = list(dict.fromkeys(host for host in hosts if host and host not in here))
    if not far and not hosts and _nodes_of_job(environment) > 1:
        far = [printable(environment.get("SLURM_JOB_NODELIST", "other nodes"))]
    if not far:
        return None
    shown = ", ".join(map(printable, far[:_MOST_NAMED])) + ", ..." * (len(far) > _MOST_NAMED)
    return (
        f"starts ranks on {shown}, too, where they have no lease: "
        "write 'mpirun ... gpulaunch -n 1 -- COMMAND', a launch for each rank"
    )


def explain_srun(command: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Return why tasks of srun have no lease, and what to type instead; None if all have it."""
    instead = "write 'srun ... gpulaunch -- COMMAND', a launch for each task"
    if _has_own_launches(command):
        return None
    if "SLURM_JOB_ID" not in environment:
        return f"has Slurm start the command where it likes, outside this lease: {instead}"
    asked = _values(command, ("-N", "--nodes"))
    least = asked[-1].partition("-")[0] if asked else ""
    nodes = int(least) if least.isdecimal() else _nodes_of_job(environment)
    if nodes < 2:
        return None
    return f"starts tasks on {nodes} nodes, and only those on this one have a lease: {instead}"


def _has_own_launches(command: Sequence[str]) -> bool:
    """Return whether each rank is started by a gpulaunch of its own."""
    return any(word.rpartition("/")[2] == "gpulaunch" for word in command)


def _nodes_of_job(environment: Mapping[str, str]) -> int:
    """Return how many nodes Slurm gave the job around this process; 1 outside of any."""
    text = environment.get("SLURM_JOB_NUM_NODES", "")
    return int(text) if text.isdecimal() else 1


def _values(command: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return the values of some of the starter's own options: --name value, --name=value, -N2."""
    found = []
    words = _own_words(command)
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if word in options and at + 1 < len(words):
            found.append(words[at + 1])
        elif equals and name in options:
            found.append(value)
        elif any(len(one) == 2 and word.startswith(one) and word != one for one in options):
            found.append(word[2:])
    return found


def _own_words(command: Sequence[str]) -> Sequence[str]:
    """Return the options of mpirun or srun with their values, without the program to start.

    The first word that is neither ends them, so an option with a value that is taken for one
    without ends them too early, and nothing is said.
    """
    at = 1
    while at < len(command) and command[at].startswith("-") and command[at] != "--":
        word = command[at]
        alone = word in _ALONE or _WITH_ITS_VALUE.fullmatch(word)
        at += 3 if word.lstrip("-") in _WITH_TWO_VALUES else 1 if alone else 2
    return command[1:at]
