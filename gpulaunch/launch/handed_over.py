"""Commands that take their work out of the lease, and what to type instead."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, takewhile

from gpulaunch.containers.engines import ENGINES
from gpulaunch.errors import UsageError
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

    Args:
        command: argv of the job.
        environment: environment of this process.
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
        from gpulaunch.containers.podman.command import read_command

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
    path = _tmux_socket(command, environment)
    if not _is_served(path):
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


def _is_served(path: str) -> bool:
    """Return whether a program listens at a socket."""
    import socket  # late: few jobs are tmux

    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
        except OSError:
            return False
    return True


def _explain_mpirun(command: Sequence[str], environment: Mapping[str, str]) -> str | None:
    from gpulaunch.launch.far_ranks import explain_mpirun  # late: few jobs are MPI's

    return explain_mpirun(command, environment, [os.uname().nodename], _read_hostfile)


def _read_hostfile(path: str) -> str:
    """Return the text of a hostfile; empty if it cannot be read, which mpirun will tell."""
    try:
        return read_text(path)
    except UsageError:
        return ""


def _explain_srun(command: Sequence[str], environment: Mapping[str, str]) -> str | None:
    from gpulaunch.launch.far_ranks import explain_srun

    return explain_srun(command, environment)


_PROGRAMS: Mapping[str, Callable[[Sequence[str], Mapping[str, str]], str | None]] = {
    **dict.fromkeys(_SUDO, _explain_sudo),
    "env": _explain_env,
    **dict.fromkeys(("sh", "bash", "dash", "zsh"), _explain_shell),
    **dict.fromkeys(("accelerate", "accelerate-launch", "deepspeed"), _explain_launcher),
    "tmux": _explain_tmux,
    "srun": _explain_srun,
    **dict.fromkeys(("mpirun", "mpiexec", "orterun", "prterun"), _explain_mpirun),
}
