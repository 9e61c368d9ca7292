"""Commands that hand their work to a program outside the lease, and those that do not."""

import os
import shlex
import socket
from pathlib import Path

import pytest

from gpulaunch.errors import UsageError
from gpulaunch.launch.handed_over import explain_hand_over, refuse_sudo

TYPED = [
    ("sudo python train.py", "write 'sudo gpulaunch ... -- COMMAND'"),
    ("env --unset=CUDA_VISIBLE_DEVICES train", "write 'env ... gpulaunch ... -- COMMAND'"),
    ("env CUDA_VISIBLE_DEVICES=0,1 train", "write 'gpulaunch -n 2 --only 0,1 -- COMMAND'"),
    ("bash -c 'CUDA_VISIBLE_DEVICES=0 train'", "write 'gpulaunch -n 1 --only 0 -- COMMAND'"),
    (
        "sh -ec 'cd /tmp; export CUDA_VISIBLE_DEVICES=\"0,1\"; train'",
        "write 'gpulaunch -n 2 --only 0,1 -- COMMAND'",
    ),
    ("deepspeed --num_gpus 2 train.py", "'gpulaunch -n N -- deepspeed ... SCRIPT' without it"),
    (
        "accelerate launch --gpu_ids 0,1 train.py",
        "write 'gpulaunch -n N -- accelerate ... SCRIPT' without it",
    ),
]


@pytest.mark.parametrize(("line", "want"), TYPED)
def test_command_that_leaves_the_lease(line: str, want: str) -> None:
    """What to type instead is said for each program whose work leaves the lease."""
    command = shlex.split(line)
    told = explain_hand_over(command, {})
    assert told is not None
    assert told.startswith(os.path.basename(command[0]) + " ")
    assert want in told


def test_docker_through_doas_is_refused() -> None:
    """The line that works is named, before any GPU is taken."""
    with pytest.raises(UsageError) as problem:
        refuse_sudo(["doas", "docker", "--context", "default", "start", "box"])
    want = "'doas docker start': its container would not get the GPUs of this launch"
    assert problem.value.message == want
    assert problem.value.hint.startswith("write 'doas gpulaunch docker start ...', or 'docker st")


@pytest.mark.parametrize(
    "line", ["sudo docker ps", "sudo train", "docker run image", "sudo docker run --help"]
)
def test_sudo_that_makes_no_container_is_not_refused(line: str) -> None:
    """What makes no container may be typed."""
    refuse_sudo(line.split())


@pytest.mark.parametrize(
    "line",
    [
        "sh -c sudo",
        "sudo -E train",
        "tmux -L no-such-server new train",
        "env CUDA_VISIBLE_DEVICES= train",
        "env train -i CUDA_VISIBLE_DEVICES=0",
        "bash -c 'CUDA_VISIBLE_DEVICES=$GPU train'",
        "bash -c 'echo \"CUDA_VISIBLE_DEVICES=0\"'",
        "deepspeed train.py --num_gpus 2",
        "deepspeed --master_port 29501 train.py --include all",
        "accelerate launch --gpu_ids all train.py",
    ],
)
def test_command_that_stays_in_the_lease(line: str) -> None:
    """Nothing is said of a command whose work descends from it."""
    assert explain_hand_over(shlex.split(line), {"TMUX_TMPDIR": "/nonexistent"}) is None


def test_tmux_with_a_server(tmp_path: Path) -> None:
    """A tmux whose server listens hands the command to that, wherever its socket is named."""
    directory = tmp_path / f"tmux-{os.getuid()}"
    directory.mkdir()
    path = str(directory / "old")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        for command, environment in (
            (["tmux", "-S", path, "new", "-d", "train"], {}),
            (["tmux", "-L", "old", "new", "train"], {"TMUX_TMPDIR": str(tmp_path)}),
            (["tmux", "-2", "-Lold", "new"], {"TMUX_TMPDIR": str(tmp_path)}),
            (["tmux", "new-window", "train"], {"TMUX": f"{path},123,0"}),
        ):
            told = explain_hand_over(command, environment)
            assert told == (
                f"tmux hands the command to its server at {path}, which runs already, outside this "
                "lease: write 'tmux ... \"gpulaunch ... -- COMMAND\"'"
            )
    assert explain_hand_over(["tmux", "-S", path, "new", "train"], {}) is None
