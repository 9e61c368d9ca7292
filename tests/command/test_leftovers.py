"""A lease follows the work: what a job leaves running keeps its GPUs, and is not ended."""

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from conftest import DGX, SHOW, VGG, Launcher, companion_of, until, wait_for_end
from fake_nvml import FakeNvml
from test_ending import ALL, DAEMON, FAMILY, alive, started, table

from gpulaunch.process.system import parse_time

pytest_plugins = ("fake_nvml",)

HOLD = "echo $$; exec sleep 600"


@pytest.fixture(autouse=True)
def _short_grace(launcher: Launcher) -> None:
    launcher.environment["GPULAUNCH_GRACE"] = "0.2s"


@contextmanager
def left(launcher: Launcher, script: str, pids: int) -> Iterator[tuple[list[int], str]]:
    """Run a job to its end that leaves processes; give their pids, and what gpulaunch said."""
    with started(launcher, *VGG, "--", "sh", "-c", f"{script}\nread line; exit 7", pids=pids) as (
        process,
        found,
    ):
        process.stdin.close()
        assert process.wait() == 7
        yield found, process.stderr.readline()  # what is left has stderr open, too


@pytest.mark.parametrize(("script", "pids"), [(DAEMON, 1), (FAMILY, 3)], ids=["daemon", "family"])
def test_what_a_job_leaves_keeps_its_gpus(launcher: Launcher, script: str, pids: int) -> None:
    """What a job leaves goes on and keeps the lease, in one line; its end frees the GPUs."""
    with left(launcher, script, pids) as (found, said):
        assert alive(found) == found
        (lease,) = table(launcher)["leases"]
        assert set(found) <= set(lease["left_over_pids"])
        assert said.startswith("gpulaunch: warning: the job has ended, but ")
        ends = "ends it\n" if len(lease["left_over_pids"]) == 1 else "ends them\n"
        assert said.endswith(f"GPUs 0,2,3: 'gpulaunch free {lease['id']}' {ends}")
        assert launcher.run(*VGG, *SHOW).stdout == "4,6,7\n"
        with launcher.start(*ALL, "--wait", *SHOW) as waiter:
            assert "waiting as number 1" in waiter.stderr.readline()
            for pid in found:
                os.kill(pid, signal.SIGKILL)
            assert waiter.communicate()[0] == "0,1,2,3,4,5,6,7\n"
    assert launcher.records() == []


def test_nothing_is_said_of_what_ends_with_the_job(launcher: Launcher) -> None:
    """Processes that end a moment after the job neither keep the lease nor make a line."""
    done = launcher.run(*VGG, "--", "sh", "-c", "sleep 0.1 & exit 7")
    assert (done.returncode, done.stderr, launcher.records()) == (7, "", [])


def test_children_of_the_shell_before_are_not_the_jobs(launcher: Launcher) -> None:
    """What a shell started before it execs gpulaunch goes on, and keeps no GPU."""
    script = "sleep 600 >/dev/null 2>&1 & echo $!; exec gpulaunch --topology dgx1-v100"
    script += " --leftovers end -- true"
    done = launcher.run("-c", script, executable="/bin/sh")
    earlier = int(done.stdout)
    assert (done.returncode, done.stderr, launcher.records()) == (0, "", [])
    assert alive([earlier]) == [earlier]
    os.kill(earlier, signal.SIGKILL)


def test_end_means_end_after_a_killed_launcher(launcher: Launcher) -> None:
    """With --leftovers end a killed launcher's job goes on, and what it leaves ends with it."""
    launcher.environment["GPULAUNCH_LEFTOVERS"] = "end"
    with started(launcher, *ALL, "--", "sh", "-c", f"{FAMILY}; read line", pids=3) as (
        process,
        workers,
    ):
        (lease,) = table(launcher)["leases"]
        process.kill()
        assert process.wait() == -signal.SIGKILL
        assert launcher.run(*DGX, "-n", "1", *SHOW).returncode == 75
        assert alive([lease["job_pid"], *workers]) == [lease["job_pid"], *workers]
        os.kill(lease["job_pid"], signal.SIGKILL)
        until(lambda: launcher.records() == [])
        assert alive(workers) == []


def test_left_overs_end_under_ci_unless_kept(launcher: Launcher) -> None:
    """With CI=true what a job leaves is ended, in one line; --leftovers keep goes on."""
    launcher.environment["CI"] = "true"
    with left(launcher, "sleep 600 & echo $!", 1) as (found, said):
        end = f"the job has ended, and pid {found[0]} (sleep 600) with it"
        assert said == f"gpulaunch: warning: {end}\n"
        assert (alive(found), launcher.records()) == ([], [])
    launcher.environment["GPULAUNCH_LEFTOVERS"] = "keep"
    with left(launcher, "sleep 600 & echo $!", 1) as (found, _):
        assert alive(found) == found
        assert len(launcher.records()) == 1


def test_terminated_launcher_ends_what_the_job_left(launcher: Launcher) -> None:
    """TERM to the launcher asks for the end of all that its job has started."""
    script = "sleep 600 & echo $!; read line"
    with started(launcher, *VGG, "--", "sh", "-c", script) as (process, found):
        process.terminate()
        assert (process.wait(), process.stderr.read()) == (143, "")
        assert (alive(found), launcher.records()) == ([], [])


def test_time_limit_counts_for_what_is_left(launcher: Launcher) -> None:
    """At the time limit left-overs are ended, and a job whose launcher was killed, too."""
    limited = (*VGG, "--time-limit", "1s", "--", "sh", "-c")
    with (
        started(launcher, *limited, "sleep 600 & echo $!; exit 7") as (process, (left_over,)),
        started(launcher, *limited, HOLD) as (killed, (job,)),
    ):
        killed.kill()
        assert process.wait() == 7
        wait_for_end(left_over)
        wait_for_end(job)
        until(lambda: launcher.records() == [])


def test_companion_goes_with_the_state_directory(launcher: Launcher) -> None:
    """Where the directory has been removed, no companion looks for left-overs for ever."""
    with started(launcher, *VGG, "--", "sh", "-c", HOLD) as (process, found):
        companion = companion_of(launcher, process.pid)
        process.kill()
        shutil.rmtree(launcher.state)
        os.kill(found[0], signal.SIGKILL)
        wait_for_end(companion)
        launcher.state.mkdir()


def test_killed_companion_is_replaced(launcher: Launcher) -> None:
    """A companion that is killed costs nothing: at the job's end another one keeps the lease."""
    script = "sleep 600 & echo $!; read line; exit 7"
    with started(launcher, *VGG, "--", "sh", "-c", script) as (process, found):
        companion = companion_of(launcher, process.pid)
        os.kill(companion, signal.SIGKILL)
        process.stdin.close()
        assert process.wait() == 7
        assert launcher.run(*VGG, *SHOW).stdout == "4,6,7\n"
        os.kill(found[0], signal.SIGKILL)
        until(lambda: launcher.records() == [])


def test_idle_daemon_keeps_no_gpus_for_ever(launcher: Launcher, dgx1_v100: FakeNvml) -> None:
    """On real GPUs a daemon that has not used them for leftover_timeout frees them, unharmed."""
    launcher.environment["GPULAUNCH_LEFTOVER_TIMEOUT"] = "0.2s"
    daemons = "for i in 1 2; do setsid -f sh -c 'echo $$; exec sleep 600'; done; read line; exit 7"
    with started(launcher, "--only", "0", "--", "sh", "-c", daemons, pids=2) as (process, found):
        at_work, idle = found
        dgx1_v100.add(f"process 0 {at_work} 300")
        process.stdin.close()
        assert process.wait() == 7
        done = launcher.run("--only", "0", "--wait", "--wait-timeout", "1s", "--", "true")
        assert (done.returncode, len(launcher.records())) == (124, 1)
        dgx1_v100.drop("process ")
        assert launcher.run("--only", "0", "--wait", "--", "true").returncode == 0
        assert alive([at_work, idle]) == [at_work, idle]


def test_status_says_since_when_and_to_what_use(launcher: Launcher, dgx1_v100: FakeNvml) -> None:
    """`status` says since when left-overs hold a lease, and whether its GPUs are in use.

    A record that its owner dates to no year that there is does not stop it.
    """
    script = "setsid -f sh -c 'echo $$; exec sleep 600'; read line"
    with TemporaryDirectory(dir="/dev/shm") as state:  # a tmpfs bounds no dates
        launcher.state = Path(state)
        launcher.environment["GPULAUNCH_STATE_DIR"] = state
        with started(launcher, "--only", "0", "--", "sh", "-c", script) as (process, (daemon,)):
            assert since_and_use(launcher) == (None, None)
            record = launcher.state / launcher.records()[0]
            os.utime(record, (0, 0))  # as of a job that has run for long
            process.stdin.close()
            assert process.wait() == 1
            until(lambda: record.stat().st_mtime > 0)
            for use, words in ((True, "using its GPUs"), (False, "without using its GPUs")):
                if use:
                    dgx1_v100.add(f"process 0 {daemon} 300")
                since, told = since_and_use(launcher)
                past_s = time.time() - parse_time(since).timestamp()
                assert (abs(past_s) < 60, told) == (True, use)
                shown = " ".join(launcher.run("status").stdout.split())
                assert re.search(rf"\(pid {daemon}, for \d+ s, {words}\)", shown)
                dgx1_v100.drop("process ")
            os.utime(record, (0, 1 << 62))
            assert since_and_use(launcher) == (None, False)
        until(lambda: launcher.records() == [])


def since_and_use(launcher: Launcher) -> tuple[str | None, bool | None]:
    """Return since when left-overs hold the only lease, and whether they use its GPUs."""
    (lease,) = json.loads(launcher.run("status", "--json").stdout)["leases"]
    return lease["left_over_since"], lease["left_over_uses_gpus"]


@pytest.mark.usefixtures("dgx1_v100")
def test_job_in_the_background_of_its_session_counts_while_idle(launcher: Launcher) -> None:
    """What goes on in the job's session keeps its GPUs, also while it does not use them."""
    launcher.environment["GPULAUNCH_LEFTOVER_TIMEOUT"] = "0.2s"
    script = "sleep 600 & echo $!; read line"
    with started(launcher, "--only", "0", "--", "sh", "-c", script) as (process, _):
        process.stdin.close()
        assert process.wait() == 1
        done = launcher.run("--only", "0", "--wait", "--wait-timeout", "1s", "--", "true")
        assert done.returncode == 124
