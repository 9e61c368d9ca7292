"""Public command lines of podman with GPUs, by podman alone and by gpulaunch.

Each is run as `podman create`, which reads the same flags as `podman run` and leaves a container to
look at; the image is the test's, and so are the files of the host.
"""

import subprocess
from collections.abc import Sequence

import command_lines
import pytest
from command_lines import CommandLine
from conftest import DGX
from podman import IMAGE, made_with
from test_podman import (
    UUIDS,
    Host,
    alice_store,  # noqa: F401  fixtures
    differences,
    gpus,  # noqa: F401
    root_store,  # noqa: F401
    rootful,  # noqa: F401
    rootless,  # noqa: F401
)
from test_users import accounts, alice, root  # noqa: F401  fixtures

from gpulaunch.containers.command import read_command
from gpulaunch.containers.podman.flags import PODMAN

_FOLDERS = ("/home/user/data/DALOS", "/home/user", "/opt/lorax/data", "tom/container/")
_DEVICES = "kfd dri/card0 input/event19 tty2 nvidiactl nvidia-modeset nvidia0"
_WITH_DEVICES = f"""
    set -e
    mount -t tmpfs none /mnt
    mkdir /mnt/dri /mnt/input /mnt/pts /mnt/shm
    for name in null zero full random urandom tty ptmx; do cp -a /dev/$name /mnt; done
    for name in {_DEVICES}; do mknod /mnt/$name c 1 3; done
    mount --bind /mnt /dev
    exec "$@"
"""
"""A script that runs a command where the devices are that lines name; /dev is its own."""


def without_gpus_flag(words: Sequence[str]) -> list[str]:
    """Return a line without --gpus, which not every version of podman knows."""
    return [word for word in words if not word.startswith("--gpus=")]


def as_create(line: CommandLine) -> list[str]:
    """Return a line that makes the container and does not start it."""
    command = read_command(line.words, PODMAN)
    flags, operands = line.words[: command.flags_end], line.words[command.flags_end + 1 :]
    flags[flags.index("run")] = "create"
    for folder in _FOLDERS:
        flags = [word.replace(folder, "/tmp") for word in flags]
    return [
        *(word for word in flags if word not in ("-d", "--detach")),
        *(f"localhost/{IMAGE}", *operands),
    ]


def run(host: Host, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command of podman's or gpulaunch's to its end."""
    if not host.store.identity:
        words = ["unshare", "--mount", "sh", "-c", _WITH_DEVICES, "sh", *words]
    return subprocess.run(
        words,
        **host.store.identity,
        cwd="/tmp",
        env=host.launcher.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("line", command_lines.for_clients("podman"), ids=lambda line: line.source)
def test_line(line: CommandLine, request: pytest.FixtureRequest) -> None:
    """A line with gpulaunch before it makes the same container, with the GPUs that it asks for."""
    host = request.getfixturevalue("rootless" if "--userns=keep-id" in line.words else "rootful")
    words = as_create(line)
    alone = run(host, without_gpus_flag(words))
    plain = made_with(host.store, alone.stdout.strip()) if alone.returncode == 0 else None
    host.store.remove_all()
    prefix = [host.launcher.script, *getattr(host.launcher, "first", ()), *DGX]
    done = run(host, [*prefix, *words])
    leases = len(host.launcher.records())
    if plain is None:  # a flag of another version
        assert "unknown flag" in done.stderr
        assert (done.returncode, done.stderr, leases) == (alone.returncode, alone.stderr, 0)
        return
    if line.gpus == ["0", "1:0"]:  # a part of a GPU, which the described machine has not
        assert (done.returncode, leases) == (2, 0)
        return
    ours = made_with(host.store, done.stdout.strip())
    assert differences(plain.rest, ours.rest) == {}
    if line.gpus == "other maker":
        assert (ours.gpus, ours.visible, leases) == ([], None, 0)
        return
    got: object = [UUIDS.index(uuid) for uuid in ours.gpus]
    want: object = list(range(8)) if line.gpus == "all" else line.gpus
    if isinstance(want, int):
        got = len(ours.gpus)
    assert (got, ours.visible, leases) == (want, "void", 1)
