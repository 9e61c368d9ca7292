"""CI jobs that are cancelled leave neither a lease nor a container, whatever the runner sends.

Each runner's signals are repeated in its order, with shorter waits; docs/decisions/cancelled-ci.md
says where they were read.
"""

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from conftest import DGX, Launcher, companion_of, until, wait_for_end
from engine import IMAGE, Engine
from test_docker import DESCRIBED, Host

from gpulaunch.process.ending import marked_by
from gpulaunch.process.system import stat_fields

GRACE_S = 0.5
COOKIES = ("RUNNER_TRACKING_ID", "JENKINS_NODE_COOKIE", "BUILD_ID", "CI_JOB_ID")

# The last command is not the step's own process, as bash would make it: more may come after it.
STEP = "{}; echo the step goes on"
LOCAL = f"gpulaunch {' '.join(DGX)} -n 2 -- sh -c"
DOCKER = f"gpulaunch {' '.join(DGX)} docker run --rm --gpus 2"
IN_IMAGE = f"{IMAGE} sh -c 'echo ready; exec sleep 1000'"
JOBS = {
    "local, deaf to INT and TERM": f"""{LOCAL} 'trap "" INT TERM; echo ready; exec sleep 1000'""",
    "local, with a child in a session of its own": (
        f"{LOCAL} 'setsid sleep 1000 & echo ready; exec sleep 1000'"
    ),
    "docker run": f"{DOCKER} {IN_IMAGE}",  # PID 1 of a container is deaf to TERM
    "docker run --init": f"{DOCKER} --init {IN_IMAGE}",
    "docker run -d": f"{DOCKER} -d {IN_IMAGE} >&2; echo ready; sleep 1000",
}


class Step:
    """A runner's shell with a step in it, in a process group of its own.

    Attributes:
        shell: the shell.
        environment: the runner's variables.
    """

    def __init__(self, host: Host, script: str) -> None:
        self.environment = {name: f"{name} of {host.launcher.state}" for name in COOKIES}
        self.shell = subprocess.Popen(
            ["bash", "-c", STEP.format(script)],
            env={**host.environment, **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.shell.stdout.readline() == "ready\n", self.shell.stderr.read()

    def signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.shell.pid, number)

    def ends_within(self, seconds: float) -> bool:
        """Return whether the shell ends in time."""
        with suppress(subprocess.TimeoutExpired):
            self.shell.wait(seconds)
        return self.shell.returncode is not None

    def processes(self, *cookies: str) -> list[int]:
        """Return the processes with all of these variables, as a runner lists them."""
        found = [marked_by(name).get(self.environment[name], set()) for name in cookies]
        return sorted(set.intersection(*found))


def github(step: Step) -> None:
    """GitHub: INT, TERM, KILL to the step's process alone, then KILL to all with its variable."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if not step.ends_within(0):
            step.shell.send_signal(number)
            step.ends_within(0.2)  # 7.5 s, 2.5 s
    for pid in step.processes("RUNNER_TRACKING_ID"):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def jenkins(step: Step) -> None:
    """Jenkins: TERM to all with its cookies, each after its descendants; at last KILL."""
    found = step.processes("JENKINS_NODE_COOKIE", "BUILD_ID")
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + 0.2  # 5 s
        for pid in reversed(found):  # whatever a process started has a higher pid
            with suppress(ProcessLookupError):
                os.kill(pid, number)
                while stat_fields(pid)[:1] not in ([], ["Z"]) and time.monotonic() < deadline:
                    time.sleep(0.01)


def buildkite(step: Step) -> None:
    """Buildkite: TERM to the group, and KILL to the group 10 s later, as GitLab's."""
    step.signal_group(signal.SIGTERM)
    step.ends_within(0.2)  # 10 s
    step.signal_group(signal.SIGKILL)


def gitlab(step: Step) -> None:
    """GitLab's shell executor ten minutes after TERM: KILL to the group."""
    step.signal_group(signal.SIGKILL)


CANCELLED = [
    (gitlab, "local, with a child in a session of its own"),
    (gitlab, "docker run --init"),
    (github, "local, deaf to INT and TERM"),
    (github, "docker run -d"),
    (jenkins, "local, with a child in a session of its own"),
    (jenkins, "docker run"),
    (buildkite, "docker run"),
]


@pytest.fixture
def host(launcher: Launcher, docker: Engine) -> Iterator[Host]:
    """Yield a described DGX-1 as CI sees it; its GPUs must be free once the containers are gone."""
    host = Host(launcher, docker, DESCRIBED, DGX)
    launcher.environment |= {"CI": "true", "GPULAUNCH_GRACE": f"{GRACE_S}s"}
    yield host
    if launcher.records():
        docker.remove_all()
        until(lambda: host.leases() == [])  # a look, if nobody watches


@contextmanager
def running(host: Host, job: str) -> Iterator[Step]:
    """Yield a step whose job is ready, and end afterwards what is left of it."""
    step = Step(host, JOBS[job])
    try:
        yield step
    finally:
        for pid in step.processes("BUILD_ID"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        step.shell.communicate()


def kill(*pids: int) -> None:
    """Kill processes, and return when they have ended."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        wait_for_end(pid)


@pytest.mark.parametrize(("runner", "job"), CANCELLED)
def test_cancelled(host: Host, runner: Callable[[Step], None], job: str) -> None:
    """A cancelled CI job leaves no lease, no container and no process, but what it detached."""
    with running(host, job) as step:
        (lease,) = host.leases()
        runner(step)
        if job == "docker run -d":
            until(lambda: step.processes("BUILD_ID") == [])
            assert host.do("ps", "--quiet", "--no-trunc") == host.lease()["container"]
            return
        host.await_free()
        # docker removes it (--rm) a moment after its end, which frees the GPUs
        until(lambda: host.do("ps", "--all", "--quiet") == "")
        until(lambda: lease["id"] not in marked_by("GPULAUNCH_LEASE"))
        until(lambda: not step.processes("BUILD_ID"))


@pytest.mark.parametrize("job", ["local, with a child in a session of its own", "docker run"])
def test_only_the_shell_is_killed(host: Host, job: str) -> None:
    """A job whose shell alone is killed runs on, as without gpulaunch, and keeps its GPUs."""
    with running(host, job) as step:
        (lease,) = host.leases()
        step.shell.kill()
        step.shell.wait()
        assert host.leases() == [lease]
        assert host.launcher.run("free", lease["id"]).returncode == 0
        until(host.nothing_has_run)


@pytest.mark.parametrize("ci", ["true", ""])
def test_everybody_is_killed(host: Host, ci: str) -> None:
    """What a cancelled CI job left, its companion killed, too, is ended by the next launch alone.

    Where CI is not set, nothing is.
    """
    host.environment["CI"] = ci
    with running(host, "docker run") as step:
        lease = host.lease()
        kill(companion_of(host.launcher, lease["pid"]), lease["pid"], lease["job_pid"])
        step.signal_group(signal.SIGKILL)
        assert [one["id"] for one in host.leases()] == [lease["id"]]
        done = host.run("-n", "1", "--dry-run", "--", "true")
        assert (done.returncode, host.lease()["id"]) == (0, lease["id"])
        done = host.run("-n", "1", "--", "true")
        warning = f"ended lease {lease['id']}: its CI job is gone, and its container was left"
        said = f"gpulaunch: warning: {warning}\n" if ci else ""
        assert (done.returncode, done.stderr) == (0, said)
        if ci:
            until(host.nothing_has_run)
        else:
            assert host.lease()["id"] == lease["id"]


def test_told_of_kill(host: Host) -> None:
    """One line tells of a job whose docker was killed, with which its container ends."""
    with host.launcher.start(*shlex.split(JOBS["docker run --init"])[1:]) as process:
        assert process.stdout.readline() == "ready\n"
        os.kill(host.lease()["job_pid"], signal.SIGKILL)
        warning = "docker has ended before its container: that ends, too, as CI=true"
        assert process.wait() == 128 + signal.SIGKILL
        assert process.stderr.read() == f"gpulaunch: warning: {warning}\n"
    assert host.launcher.records() == []
    until(host.nothing_has_run)
