"""State directories on disks that are full, read-only or immutable."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from conftest import DGX, SHOW, VGG, Launcher, complaint
from test_batch import Site
from test_crashes import (  # noqa: F401  fixtures
    ALL_FREE,
    LEASE,
    WAIT,
    all_free,
    documents,
    ends,
    launcher_in,
    lease,
    queue_up,
    start,
)
from test_table import put


@contextmanager
def small_disk(directory: Path, size: int) -> Iterator[None]:
    """Mount a file system of that many bytes on a directory."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", directory]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("may not mount here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)


PAGE = os.sysconf("SC_PAGE_SIZE")  # the room that one record takes
NO_SPACE = "cannot write a record: no space left on device"


def test_a_full_disk_takes_no_ticket(tmp_path: Path, lease: dict) -> None:  # noqa: F811
    """When a ticket cannot be written, the launch ends with 125; nothing runs, nothing is left."""
    launcher = launcher_in(tmp_path)
    with small_disk(launcher.state, PAGE):
        holder = put(launcher, LEASE, json.dumps(lease).encode(), live=True)
        done = launcher.run(*VGG, *WAIT, *SHOW)
        assert (done.returncode, done.stdout, done.stderr) == (
            125,
            "",
            f"gpulaunch: error: {launcher.state}: {NO_SPACE}\n",
        )
        assert os.listdir(launcher.state) == [LEASE]
        os.close(holder)
        assert all_free(launcher) == ALL_FREE


def test_a_read_only_disk_takes_no_ticket(tmp_path: Path, lease: dict) -> None:  # noqa: F811
    """The same where the state directory is read-only."""
    launcher = launcher_in(tmp_path)
    with small_disk(launcher.state, 2 * PAGE):
        holder = put(launcher, LEASE, json.dumps(lease).encode(), live=True)
        subprocess.run(["mount", "--bind", launcher.state, launcher.state], check=True)
        try:  # seen through a second mount, since the file system itself has a writer
            subprocess.run(["mount", "-o", "remount,bind,ro", launcher.state], check=True)
            done = launcher.run(*VGG, *WAIT, *SHOW)
        finally:
            subprocess.run(["umount", "--lazy", launcher.state], check=True)
        error = (
            f"gpulaunch: error: {launcher.state}: cannot write a record: read-only file system\n"
        )
        assert (done.returncode, done.stdout, done.stderr) == (125, "", error)
        assert os.listdir(launcher.state) == [LEASE]
        os.close(holder)
        assert all_free(launcher) == ALL_FREE


def test_a_disk_that_fills_up_while_a_launch_waits(tmp_path: Path, lease: dict) -> None:  # noqa: F811
    """A waiter whose lease cannot be written ends with 125, and the one behind it has its turn."""
    launcher = launcher_in(tmp_path)
    with small_disk(launcher.state, 4 * PAGE):
        holder = put(launcher, LEASE, json.dumps(lease).encode(), live=True)
        with start(launcher, *VGG, *WAIT, *SHOW) as waiter:
            queue_up(waiter, 1)
            kept = os.open(launcher.state / LEASE, os.O_RDONLY)  # else its page is free again
            with suppress(OSError), open(launcher.state / "filler", "wb", buffering=0) as filler:
                while filler.write(b"x" * 4096):
                    pass
            os.close(holder)
            status, stdout, stderr = ends(waiter)
            assert (status, stdout) == (125, "")
            assert stderr.splitlines()[-1] == f"gpulaunch: error: {launcher.state}: {NO_SPACE}"
            assert launcher.records() == []
            os.close(kept)
        os.unlink(launcher.state / "filler")
        assert all_free(launcher) == ALL_FREE


def test_a_full_disk_allocates_nothing(launcher: Launcher) -> None:
    """When the record cannot be written the launch ends with 125; nothing runs, nothing is left."""
    full = launcher.state.with_name("full")
    full.mkdir()
    with small_disk(full, PAGE):
        (full / "filler").write_bytes(b"x" * 4096)
        done = launcher.run(
            *VGG, *SHOW, env=launcher.environment | {"GPULAUNCH_STATE_DIR": str(full)}
        )
        assert (done.returncode, done.stdout) == (125, "")
        assert (
            done.stderr
            == f"gpulaunch: error: {full}: cannot write a record: no space left on device\n"
        )
        assert os.listdir(full) == ["filler"]
        subprocess.run(["mount", "-o", "remount,ro", str(full)], check=True)
        done = launcher.run(
            *VGG, *SHOW, env=launcher.environment | {"GPULAUNCH_STATE_DIR": str(full)}
        )
        assert (done.returncode, done.stderr) == (
            125,
            f"gpulaunch: error: {full}: cannot write a record: read-only file system\n",
        )


def test_a_release_that_fails_keeps_the_jobs_status(launcher: Launcher) -> None:
    """When the record cannot be removed, the lease ends and the job's status is returned still."""
    if os.geteuid() != 0:
        pytest.skip("needs root to make a directory immutable")
    if subprocess.run(
        ["chattr", "+i", str(launcher.state)], capture_output=True, check=False
    ).returncode:
        pytest.skip("this file system has no immutable directories")
    subprocess.run(["chattr", "-i", str(launcher.state)], check=True)
    try:
        done = launcher.run(*VGG, "--", "sh", "-c", "chattr +i $GPULAUNCH_STATE_DIR; exit 3")
        assert done.returncode == 3
        assert done.stderr.startswith(
            f"gpulaunch: warning: {launcher.state}: cannot remove gpulaunch.lease."
        )
        subprocess.run(["chattr", "-i", str(launcher.state)], check=True)
        assert launcher.run(*VGG, *SHOW).stdout == "0,2,3\n"
    finally:
        subprocess.run(["chattr", "-i", str(launcher.state)], check=True)


def test_a_full_disk(launcher: Launcher, tmp_path: Path) -> None:
    """When a result cannot be written, no job starts, running ones go on, lines stay whole: 125.

    With room again --resume runs the rest, and once more the job whose result was lost.
    """
    site = Site(launcher, tmp_path)
    small = site.home / "small"
    small.mkdir()
    with small_disk(small, PAGE)(120):
        site.write(
            [
                {"name": f"n{n}", "gpus": 8, "command": ["sh", "-c", f"echo {n} >>ran"]}
                for n in range(20)
            ]
        )
        options = ("--results", "small/r")
        done = site.run(*options)
        wrote = [json.loads(line) for line in (small / "r").read_text().splitlines()]
        last = wrote[-1]["id"]
        assert [line["id"] for line in wrote[1:]] == list(range(last + 1))
        assert 3 <= last < 19
        ran = [int(line) for line in (site.home / "ran").read_text().split()]
        assert ran[: last + 2] == list(range(last + 2))
        assert len(ran) <= last + 3
        error, summary, problem, hint = done.stderr.splitlines()
        assert (error, problem) == (
            "gpulaunch: error: small/r: no space left on device: no more jobs are started",
            "gpulaunch: error: small/r: no space left on device",
        )
        assert hint == "gpulaunch: hint: once that is put right, --resume runs what has no result"
        assert (done.returncode, "have not run" in summary) == (125, True)
        subprocess.run(["mount", "-o", "remount,size=64k", small], check=True)
        assert site.run(*options, "--resume").returncode == 0
        assert [
            json.loads(line)["id"] for line in (small / "r").read_text().splitlines()[1:]
        ] == list(range(20))
        again = [int(line) for line in (site.home / "ran").read_text().split()][len(ran) :]
        assert again == list(range(last + 1, 20))


def test_a_detached_job_that_fills_the_disk_of_its_log(tmp_path: Path) -> None:
    """It gets the error for its own writes; what was written stays, and its exit status is kept."""
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
    assert launcher.records() == []


def test_nothing_is_detached_on_a_full_disk(tmp_path: Path) -> None:
    """Where the history cannot be written the launch says so, and nothing runs or is left."""
    launcher = Launcher(tmp_path)
    directory = tmp_path / ".local/state/gpulaunch"
    directory.mkdir(parents=True)
    with small_disk(directory, 16 * PAGE):
        for name in ("logs", "history"):
            (directory / name).mkdir(mode=0o700)
        with suppress(OSError), (directory / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(PAGE))
        done = launcher.run("-qd", *DGX, "--", "touch", "ran", cwd=tmp_path)
        reason = "the history cannot be written, so nobody could find the job"
        error = complaint(f"{directory / 'history'}: {reason}: no space left on device")
        assert (done.returncode, done.stdout, done.stderr) == (125, "", error)
        assert os.listdir(directory / "logs") == []
    assert not (tmp_path / "ran").exists()
    assert launcher.records() == []


def test_machine_without_proc(launcher: Launcher) -> None:
    """Without /proc a launch is refused in one sentence, and leaves no lease."""
    if os.geteuid() != 0:
        pytest.skip("needs root to unmount /proc")
    script = 'umount -l /proc && exec "$0" "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, launcher.script, *DGX, "--", "true"],
        env=launcher.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    error = "/proc is not mounted: no process can be looked after without it"
    assert (done.returncode, done.stderr, launcher.records()) == (125, complaint(error), [])
