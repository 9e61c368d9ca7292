"""Commands that take their work out of the lease, and what to type instead."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise, takewhile

from gpulaunch.containers.engines import ENGINES
from gpulaunch.errors import UsageError, printable
from gpulaunch.files.document import read_text

_SUDO = frozenset({"sudo", "doas"})
_RESET = "starts the command without CUDA_VISIBLE_DEVICES, so it sees all GPUs: write"
_KEEP_ENVIRONMENT = ("-E", "--preserve-env")
_CLEAR = frozenset({"-", "-i", "--ignore-environment", "--unset=CUDA_VISIBLE_DEVICES"})
_CHOICE = r"(?:^|[\s;&|(])CUDA_VISIBLE_DEVICES=[\"']?((?:\d|GPU-|MIG-)[^\s;&|\"')]*)"
"""What sets the variable to GPUs, in an argument of env or a line of a shell; not to "$GPUS"."""

_CHOOSING = ("--num_gpus", "--num_accelerators", "-i", "--include", "-e", "--exclude", "--gpu_ids")
_WHATEVER = ", whatever GPUs this lease has: write"


def explain_hand_over(command: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Return why a job will not run inside its lease, and what to type instead; None if it will.

    Only the command itself is looked at, not what a script starts.
    """
    program = os.path.basename(command[0])
    explain = _PROGRAMS.get(program)
    reason = explain(command, environment) if explain else None
    return f"{program} {reason}" if reason else None


def refuse_sudo(command: Sequence[str]) -> None:
    """Refuse `sudo docker run`, whose container would not get the GPUs of this lease.

    Raises:
        UsageError: the command makes or starts containers through sudo or doas.
    """
    program = os.path.basename(command[0])
    if program not in _SUDO:
        return
    for at, word in enumerate(command[1:], 1):
        engine = os.path.basename(word)
        if engine not in ENGINES:
            continue
        # late: few commands are a container's, and hardly any are one through sudo
        from gpulaunch.containers.docker.line import read_line
        from gpulaunch.containers.podman import read_command

        if engine == "podman":
            meant = read_command(command[at:])
            verb = " ".join(meant.subcommand) if meant.launches or meant.starts else ""
        else:
            verb = read_line(command[at:]).word
        if verb:
            verb = f"{engine} {verb}"
            raise UsageError(
                f"'{program} {verb}': its container would not get the GPUs of this launch",
                f"write '{program} gpulaunch {verb} ...', or '{verb} ...' as a member of the group "
                "docker",
            )
        return


def _explain_sudo(command: Sequence[str], _: Mapping[str, str]) -> str | None:
    if any(word.startswith(_KEEP_ENVIRONMENT) for word in command[1:]):
        return None
    program = os.path.basename(command[0])
    return f"{_RESET} '{program} gpulaunch ... -- COMMAND'"


def _explain_env(command: Sequence[str], _: Mapping[str, str]) -> str | None:
    words = list(takewhile(lambda word: word.startswith("-") or "=" in word, command[1:]))
    if not _CLEAR.isdisjoint(words):
        return f"{_RESET} 'env ... gpulaunch ... -- COMMAND'"
    return _explain_choice(" ".join(words))


def _explain_shell(command: Sequence[str], _: Mapping[str, str]) -> str | None:
    words = pairwise(command[1:])
    lines = [line for word, line in words if re.fullmatch("-[a-zA-Z]*c[a-zA-Z]*", word)]
    return _explain_choice(lines[0]) if lines else None


def _explain_choice(line: str) -> str | None:
    choice = re.search(_CHOICE, line)
    if not choice:
        return None
    instead = f"gpulaunch -n {choice[1].count(',') + 1} --only {choice[1]} -- COMMAND"
    return f"sets CUDA_VISIBLE_DEVICES={choice[1]}{_WHATEVER} '{instead}' without it"


def _explain_launcher(command: Sequence[str], _: Mapping[str, str]) -> str | None:
    instead = f"gpulaunch -n N -- {os.path.basename(command[0])} ... SCRIPT"
    for word, following in pairwise([*command[1:], ""]):
        option, _equals, value = word.partition("=")
        if option.replace("gpu-", "gpu_") in _CHOOSING and (value or following) != "all":
            return f"chooses GPUs by {option}{_WHATEVER} '{instead}' without it"
        if word.endswith(".py"):  # what follows is for the script
            break
    return None


def _explain_tmux(command: Sequence[str], environment: Mapping[str, str]) -> str | None:
    import socket  # late: few jobs are tmux

    path = _tmux_socket(command, environment)
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
        except OSError:
            return None  # it starts a server, which belongs to the job
    return (
        f"hands the command to its server at {path}, which runs already, outside this lease: "
        "write 'tmux ... \"gpulaunch ... -- COMMAND\"'"
    )


def _tmux_socket(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the path of the socket that tmux uses, as its manual says: -S, -L, $TMUX, default."""
    name = "default"
    for word, following in pairwise([*command[1:], ""]):
        if word.startswith("-S"):
            return word[2:] or following
        if word.startswith("-L"):
            name = word[2:] or following
            break
        if not word.startswith("-"):
            break
    inside = environment.get("TMUX", "").partition(",")[0]
    if inside and name == "default":
        return inside
    return f"{environment.get('TMUX_TMPDIR') or '/tmp'}/tmux-{os.getuid()}/{name}"  # noqa: S108


_HOST_OPTIONS = ("--host", "-host", "-H", "--hosts", "-hosts")
_FILE_OPTIONS = ("--hostfile", "-hostfile", "--machinefile", "-machinefile", "-f")
_MOST_NAMED = 3

_WITH_TWO_VALUES = frozenset({"mca", "prtemca", "pmixmca", "gmca", "genv"})
_WITH_ITS_VALUE = r"-[A-Za-z]\d+|-.*=.*"
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
        own_name: name of this machine, by which mpirun knows it where it is called localhost.
    """
    rows = [line.partition("#")[0].split() for line in hostfile.splitlines()]
    names = [words[0] for words in rows if words]
    return tuple(dict.fromkeys(own_name if name in _HERE else name for name in names))


def _explain_mpirun(command: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Return why ranks of mpirun have no lease, and what to type instead; None if all have it."""
    if _has_own_launches(command):
        return None
    own_name = os.uname().nodename
    named = [host for text in _values(command, _HOST_OPTIONS) for host in text.split(",")]
    for path in _values(command, _FILE_OPTIONS):
        with suppress(UsageError):  # mpirun will tell that it cannot be read
            named += hosts_of(read_text(path), own_name)
    here = {own_name, own_name.partition(".")[0], *_HERE}
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


def _explain_srun(command: Sequence[str], environment: Mapping[str, str]) -> str | None:
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
        alone = word in _ALONE or re.fullmatch(_WITH_ITS_VALUE, word)
        at += 3 if word.lstrip("-") in _WITH_TWO_VALUES else 1 if alone else 2
    return command[1:at]


_PROGRAMS: Mapping[str, Callable[[Sequence[str], Mapping[str, str]], str | None]] = {
    **dict.fromkeys(_SUDO, _explain_sudo),
    "env": _explain_env,
    **dict.fromkeys(("sh", "bash", "dash", "zsh"), _explain_shell),
    **dict.fromkeys(("accelerate", "accelerate-launch", "deepspeed"), _explain_launcher),
    "tmux": _explain_tmux,
    "srun": _explain_srun,
    **dict.fromkeys(("mpirun", "mpiexec", "orterun", "prterun"), _explain_mpirun),
}
