"""State directories on disks that are full, read-only or immutable."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from conftest import DGX, SHOW, VGG, Launcher, complaint, held


@contextmanager
def small_disk(directory: Path, size: int) -> Iterator[None]:
    """Mount a file system of that many bytes on a directory."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", directory]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("may not mount here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)


pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount")
ALL = (*DGX, "-n", "all")
PAGE = os.sysconf("SC_PAGE_SIZE")  # the room that one record takes


def fill(directory: Path) -> Path:
    """Leave no room on a disk; return the file that takes it."""
    filler = directory / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(PAGE))
    return filler


def test_a_disk_that_takes_no_record(launcher: Launcher) -> None:
    """Where a lease or a ticket cannot be written the launch ends with 125, and nothing is left."""
    state = str(launcher.state)

    def refused(reason: str) -> None:
        for command in (VGG, (*ALL, "--wait")):
            done = launcher.run(*command, *SHOW)
            error = complaint(f"{state}: cannot write a record: {reason}")
            assert (done.returncode, done.stdout, done.stderr) == (125, "", error)
        assert launcher.records() == [record]

    with small_disk(launcher.state, 4 * PAGE), held(launcher, *DGX):
        (record,) = launcher.records()
        filler = fill(launcher.state)
        refused("no space left on device")
        filler.unlink()
        subprocess.run(["mount", "--bind", state, state], check=True)
        try:  # seen through a second mount, since the file system itself has a writer
            subprocess.run(["mount", "-o", "remount,bind,ro", state], check=True)
            refused("read-only file system")
        finally:
            subprocess.run(["umount", "--lazy", state], check=True)


def test_a_release_that_fails_keeps_the_jobs_status(launcher: Launcher) -> None:
    """When the record cannot be removed, the lease ends and the job's status is returned still."""
    mutable = ["chattr", "-i", str(launcher.state)]
    script = "chattr +i $GPULAUNCH_STATE_DIR || exit 1; exit 3"
    try:
        done = launcher.run(*VGG, "--", "sh", "-c", script)
        if done.returncode == 1:
            pytest.skip("may not make a directory immutable here")
        assert done.returncode == 3
        warning = f"gpulaunch: warning: {launcher.state}: cannot remove gpulaunch.lease."
        assert done.stderr.startswith(warning)
        subprocess.run(mutable, check=True)
        assert launcher.run(*VGG, *SHOW).stdout == "0,2,3\n"
    finally:
        subprocess.run(mutable, capture_output=True, check=False)


def test_a_full_disk(launcher: Launcher, tmp_path: Path) -> None:
    """When a result cannot be written, no job starts, running ones go on, lines stay whole: 125.

    With room again --resume runs the rest, and once more the job whose result was lost.
    """
    (small := tmp_path / "small").mkdir()
    jobs = (json.dumps({"gpus": 8, "command": ["sh", "-c", f"echo {n} >>ran"]}) for n in range(20))
    (tmp_path / "jobs").write_text("\n".join(jobs))
    command = ("batch", *DGX, "jobs", "--results", "small/r")

    def wrote() -> list[int]:
        return [json.loads(line)["id"] for line in (small / "r").read_text().splitlines()[1:]]

    def ran() -> list[int]:
        return [*map(int, (tmp_path / "ran").read_text().split())]

    with small_disk(small, PAGE):
        done = launcher.run(*command, cwd=tmp_path)
        # A launch ends after its GPUs are free: the next job's result may be there before.
        written, first = wrote(), ran()
        assert first == list(range(len(first)))
        assert len(set(written) & set(first)) == len(written)
        assert 4 <= len(written) < len(first) <= len(written) + 2
        error, summary, problem, hint = done.stderr.splitlines()
        full = "gpulaunch: error: small/r: no space left on device"
        assert (error, problem) == (f"{full}: no more jobs are started", full)
        assert hint == "gpulaunch: hint: once that is put right, --resume runs what has no result"
        assert (done.returncode, "have not run" in summary) == (125, True)
        subprocess.run(["mount", "-o", "remount,size=64k", small], check=True)
        assert launcher.run(*command, "--resume", cwd=tmp_path).returncode == 0
        assert sorted(wrote()) == list(range(20))
        assert ran()[len(first) :] == sorted({*range(20)} - {*written})


def test_disks_of_detached_jobs(tmp_path: Path) -> None:
    """A job that fills the disk of its log gets the error for its own writes.

    What was written stays, and its exit status is kept. Where the history cannot be written a
    launch says so, and nothing runs or is left.
    """
    launcher = Launcher(tmp_path)
    directory = tmp_path / ".local/state/gpulaunch"
    directory.mkdir(parents=True)
    script = "echo begun; (head -c 1000000 /dev/zero | tr '\\0' x) || true; echo more; exit 3"
    with small_disk(directory, 16 * PAGE):
        done = launcher.run("-qd", *DGX, "--name", "a", "--", "sh", "-c", script)
        assert (done.returncode, done.stdout, done.stderr) == (0, "a\n", "")
        assert launcher.run("wait", "a").returncode == 3
        log = launcher.run("logs", "a").stdout
        assert log.startswith("begun\nxxx")
        assert len(log) > 8 * PAGE
        assert launcher.run("history", *DGX, "--json").returncode == 0
    with small_disk(directory, 16 * PAGE):
        for name in ("logs", "history"):
            (directory / name).mkdir(mode=0o700)
        fill(directory)
        done = launcher.run("-qd", *DGX, "--", "touch", "ran", cwd=tmp_path)
        reason = "the history cannot be written, so nobody could find the job"
        error = complaint(f"{directory / 'history'}: {reason}: no space left on device")
        assert (done.returncode, done.stdout, done.stderr) == (125, "", error)
        assert os.listdir(directory / "logs") == []
    assert not (tmp_path / "ran").exists()
    assert launcher.records() == []


def test_machine_without_proc(launcher: Launcher) -> None:
    """Without /proc a launch is refused in one sentence, and leaves no lease."""
    script = 'umount -l /proc && exec "$0" "$@"'
    command = ["unshare", "--mount", "sh", "-c", script, launcher.script, *DGX, "--", "true"]
    environment = launcher.environment
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    error = "/proc is not mounted: no process can be looked after without it"
    assert (done.returncode, done.stderr, launcher.records()) == (125, complaint(error), [])
