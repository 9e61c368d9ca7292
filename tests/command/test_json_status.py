"""-o json_status_fd: what a launching program is told; no child inherits the descriptor."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import pytest
from conftest import DGX, VGG, Launcher, complaint, held

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@contextmanager
def pipe() -> Iterator[tuple[IO[str], int]]:
    """Yield a pipe's end to read and the number of the other, closed here once a launch has it."""
    read_end, write_end = os.pipe()
    with os.fdopen(read_end) as said:
        try:
            yield said, write_end
        finally:
            os.close(write_end)


def told(
    launcher: Launcher, *arguments: str, **more: Any
) -> tuple[subprocess.CompletedProcess[str], list[dict]]:
    """Run a launch; how it ended, and the lines that it told."""
    with pipe() as (said, fd):
        done = launcher.run(f"-ojson_status_fd={fd}", *arguments, pass_fds=(fd,), **more)
        os.set_blocking(said.fileno(), False)
        return done, [json.loads(line) for line in said]


def test_start_and_end(launcher: Launcher) -> None:
    """One line at the start tells lease, GPUs in rank order and pid, and another tells the end."""
    done, (started, ended) = told(
        launcher, *VGG, "--", "sh", "-c", "echo $GPULAUNCH_LEASE $$; exit 3"
    )
    lease, pid = done.stdout.split()
    assert (done.returncode, done.stderr) == (3, "")
    assert TIME.fullmatch(started["started_at"])
    assert TIME.fullmatch(ended["ended_at"])
    assert started == {
        "event": "started",
        "lease": lease,
        "gpus": [0, 2, 3],
        "uuids": ["GPU-dgx1-v100-0", "GPU-dgx1-v100-2", "GPU-dgx1-v100-3"],
        "job_pid": int(pid),
        "started_at": started["started_at"],
        "shared": False,
        "batch": None,
    }
    assert ended == started | {"event": "ended", "exit_status": 3, "ended_at": ended["ended_at"]}
    assert started["started_at"] <= ended["ended_at"]


def test_other_ends(launcher: Launcher) -> None:
    """The exit status that is told is what a shell sees; of a launch without GPUs why it waits.

    Without a reader the job runs all the same.
    """
    for options, script, want, seen in (
        ((), "exec ./no", 127, 127),
        ((), "kill -INT $$", 130, -signal.SIGINT),
        (("--time-limit", "0.1s"), "sleep 60", 124, 124),
    ):
        done, (_, ended) = told(launcher, *DGX, *options, "--", "sh", "-c", script)
        assert (ended["exit_status"], done.returncode) == (want, seen)
    with held(launcher, *DGX, "-n", "6"):
        done, lines = told(launcher, *DGX, "-n", "3", "--", "true")
        assert (done.returncode, lines) == (75, [])
        done, (waiting,) = told(launcher, *DGX, "-n", "3", "--wait-timeout", "0.1s", "--", "true")
        reason = "3 GPUs requested: 2 of 8 are free, 6 are leased"
        assert waiting == {"event": "waiting", "reason": reason}
        error = complaint(f"waited 0.1 s: {reason}")
        assert (done.returncode, done.stderr) == (124, error), "the reason for the wait is not here"
    with pipe() as (said, fd):
        said.close()
        words = (f"-ojson_status_fd={fd}", "--", "sh", "-c", "exit 5")
        done = launcher.run(*DGX, *words, pass_fds=(fd,))
    assert (done.returncode, done.stderr) == (5, "")


def test_the_job_does_not_have_it(launcher: Launcher) -> None:
    """The job has the descriptors that it would have had, and not this one."""
    with pipe() as (_, fd), pipe() as (_, other):
        show = ("--", "ls", "-l", "/proc/self/fd")
        done = launcher.run(*DGX, f"-ojson_status_fd={fd}", *show, pass_fds=(fd, other))
        inodes = [os.fstat(one).st_ino for one in (fd, other)]
    assert [f"pipe:[{inode}]" in done.stdout for inode in inodes] == [False, True]


@pytest.mark.parametrize("guarded", ["", "true"])
def test_nobody_else_has_it(launcher: Launcher, guarded: str) -> None:
    """When the launcher dies the reader sees the end of the pipe, whatever else lives on."""
    environment = launcher.environment | {"CI": guarded, "GPULAUNCH_GRACE": "1h"}
    read_end, fd = os.pipe()
    with os.fdopen(read_end) as said:
        job = ("--", "sh", "-c", "trap '' TERM; echo up; read line")
        options = {"pass_fds": (fd,), "env": environment, "stdin": subprocess.PIPE}
        launch = launcher.start(*DGX, f"-ojson_status_fd={fd}", *job, **options)
        os.close(fd)
        pid = json.loads(said.readline())["job_pid"]
        assert launch.stdout.readline() == "up\n"
        launch.kill()
        assert said.read() == ""
        os.kill(pid, signal.SIGKILL)
        launch.communicate()


def test_the_next_descriptor_stays_open_as_a_lock_does(launcher: Launcher, tmp_path) -> None:
    """Events go to the first of several descriptors; the others get none, even if it is closed."""
    with open(tmp_path / "lock", "a") as lock, pipe() as (said, fd):
        fds = (fd, lock.fileno())
        words = (f"-ojson_status_fd={fds[0]},{fds[1]}", "--", "cat")
        launch = launcher.start(*DGX, *words, pass_fds=fds, stdin=subprocess.PIPE)
        assert json.loads(said.readline())["event"] == "started"
        said.close()
        launch.communicate("")
    assert (launch.returncode, (tmp_path / "lock").read_text()) == (0, "")


def test_no_descriptor(launcher: Launcher) -> None:
    """What is no descriptor, or the job's own, or only to read, is refused before it is taken."""
    with open(os.devnull) as file:
        fd = file.fileno()
        for text, want in {
            "99999999": "'99999999' is no number of a descriptor",
            "77": "descriptor 77 is not open",
            "0,2": "descriptor 0 is the job's own",
            str(fd): f"descriptor {fd} is not open to write",
        }.items():
            words = (f"-ojson_status_fd={text}", "--", "echo", "ran")
            done = launcher.run(*DGX, *words, pass_fds=(fd,))
            assert (done.returncode, done.stdout) == (2, "")
            assert done.stderr.startswith(f"gpulaunch: error: -o json_status_fd: {want}")
