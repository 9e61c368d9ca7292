"""With --leftovers end, what a job leaves is ended before its GPUs are free, and nothing else."""

import json
import os
import pwd
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from conftest import DGX, SHOW, VGG, Launcher, children, held, until, wait_for_end
from values import cases

from gpulaunch.process.ending import WITNESS, is_companion
from gpulaunch.process.system import program_of

pytest_plugins = ("fake_nvml",)

JOBS = Path(__file__).parents[1] / "jobs"
ALL = (*DGX, "-n", "8")
PYTHON = (sys.executable, "-SIc")


@pytest.fixture(autouse=True)
def _short_grace(launcher: Launcher) -> None:
    """Keep the grace short; tests in which it must not run out set a longer one."""
    launcher.environment |= {"GPULAUNCH_GRACE": "0.2s", "GPULAUNCH_LEFTOVERS": "end"}


def state(pid: int) -> str:
    """Return a process's state as in /proc, such as S; nothing once it has ended, reaped or not."""
    try:
        found = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
    return "" if found in "ZX" else found


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if state(pid)]


@contextmanager
def started(
    launcher: Launcher, *command: str, pids: int = 1, **options
) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Run a launch whose job prints that many pids; end all of them with the block."""
    options = {"stdin": subprocess.PIPE, "start_new_session": True, **options}
    found: list[int] = []
    identities: list[int] = []
    with launcher.start(*command, **options) as process:
        try:
            for _ in range(pids):
                found.append(int(process.stdout.readline()))
                with suppress(ProcessLookupError):
                    identities.append(os.pidfd_open(found[-1]))
            yield process, found
        finally:
            process.kill()
            for identity in identities:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(identity, signal.SIGKILL)
                os.close(identity)


def processes_of(launcher: Launcher) -> set[int]:
    """Return the live processes that were started with the variables of a launcher."""
    variable = f"GPULAUNCH_STATE_DIR={launcher.state}".encode()
    found = set()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            if variable in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found.add(int(name))
    return found


def table(launcher: Launcher) -> dict:
    """Return the described machine's table."""
    return json.loads(launcher.run("status", *DGX, "--json").stdout)


def free(launcher: Launcher, *ids: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return launcher.run("free", *DGX, *ids, env={**launcher.environment, **environment})


def ended(*leases: dict) -> str:
    """Return what `free` prints about ended jobs, by name or id."""
    return "".join(
        f"ended {lease['name'] or lease['id']} "
        f"(GPU{'s' if lease['gpus'][1:] else ''} {','.join(map(str, lease['gpus']))})\n"
        for lease in leases
    )


PHOENIX = """
import os, signal, time
def again(*_):
    if os.fork():
        os._exit(0)
    os.write(1, b"%d\\n" % os.getpid())
signal.signal(signal.SIGTERM, again)
os.write(1, b"%d\\n" % os.getpid())
time.sleep(600)
"""

CLOSES_ALL = """
import os, time
os.close(0)
os.closerange(2, 4096)
os.write(1, b"%d\\n" % os.getpid())
os.close(1)
time.sleep(600)
"""

SAYS_TERM = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"told\\n"))
print(os.getpid(), flush=True)
time.sleep(600)
"""
DAEMON = f"setsid -f '{sys.executable}' -SIc '{CLOSES_ALL}'"
FAMILY = "family() { ( [ $1 -gt 1 ] && family $(($1 - 1)); exec sleep 600 ) & echo $!; }; family 3"
STRAGGLERS = {
    "a daemon without descriptors and variables": (1, f"env -i {DAEMON}"),
    "one that ignores TERM": (1, "sh -c 'trap \"\" TERM; echo $$; exec sleep 600' &"),
    "three generations": (3, FAMILY),
    "one that forks again on TERM": (1, f"setsid -f '{sys.executable}' -SIc '{PHOENIX}'"),
}

LOOK = 'for pid; do cut -d " " -f 3 /proc/$pid/stat; done 2>/dev/null; echo looked'
"""A job that prints the states of those of its arguments that are still processes."""

ALL_DEAD = {"Z", "X", "looked"}
"""What it may print where all have ended, reaped or not."""


@cases(STRAGGLERS, "pids", "start")
def test_what_a_job_leaves_is_ended_before_the_release(
    launcher: Launcher, pids: int, start: str
) -> None:
    """All that a job leaves is dead when the next job on its GPUs starts; its status is kept."""
    with started(launcher, *ALL, "--", "sh", "-c", f"{start}\nread line; exit 7", pids=pids) as (
        process,
        left,
    ):
        look = ("--", "sh", "-c", LOOK, "sh", *map(str, left))
        with started(launcher, *ALL, "--wait", *look, pids=0) as (waiter, _):
            assert "waiting as number 1" in waiter.stderr.readline()
            assert alive(left) == left
            process.stdin.close()  # the job reads the end of its input, and ends
            said = process.stderr.read()
            assert (process.wait(), said.count("\n")) == (7, 1)
            assert said.startswith("gpulaunch: warning: the job has ended, and ")
            assert set(waiter.stdout.read().split()) <= ALL_DEAD
            assert waiter.wait() == 0
        # Nor is there anybody whom they have forked since.
        assert {pid for pid in processes_of(launcher) if not is_companion(pid)} == set()
    assert launcher.records() == []


def test_a_stopped_straggler_gets_its_term(launcher: Launcher) -> None:
    """A stopped straggler is woken, so that it hears TERM and may tidy up in the grace."""
    launcher.environment["GPULAUNCH_GRACE"] = "60s"
    straggler = (
        "import os, signal; t = {signal.SIGTERM}; signal.pthread_sigmask(signal.SIG_BLOCK, t)\n"
    )
    straggler += "os.kill(os.getpid(), signal.SIGSTOP); signal.sigwait(t); print('tidy')"
    script = f"'{sys.executable}' -SIc \"{straggler}\" & '{JOBS}/await_stopped' $!; echo $!; exit 7"
    with started(launcher, *VGG, "--", "sh", "-c", script) as (process, _):
        assert (process.wait(), process.stdout.read()) == (7, "tidy\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["INT", "TERM"])
def test_a_signal_ends_the_grace(launcher: Launcher, number: signal.Signals) -> None:
    """Ctrl-C, or TERM to the launcher, ends the grace: what the job left is killed at once."""
    launcher.environment["GPULAUNCH_GRACE"] = "300s"
    script = f"'{sys.executable}' -SIc '{SAYS_TERM}' & read line; exit 7"
    with started(launcher, *VGG, "--", "sh", "-c", script) as (process, left):
        process.stdin.close()
        assert process.stdout.readline() == "told\n"
        assert (process.poll(), len(launcher.records())) == (None, 1)
        process.send_signal(number)
        assert process.wait() == 7
        assert (alive(left), launcher.records()) == ([], [])


def test_zombies_are_put_away_while_the_job_runs(launcher: Launcher) -> None:
    """Orphans of a running job are adopted by the launcher, which puts them away as they end."""
    orphans = "for i in $(seq 20); do sh -c 'sleep 0.1 & echo $!'; done; read line"
    with started(launcher, *VGG, "--", "sh", "-c", orphans, pids=20) as (process, _):
        job_pid = table(launcher)["leases"][0]["job_pid"]
        until(lambda: [pid for pid in children(process.pid) if not is_companion(pid)] == [job_pid])
        assert process.communicate("\n") == ("", "")


def test_only_what_is_at_work_on_the_gpus_is_ended(launcher: Launcher, dgx1_v100) -> None:
    """After TERM to the launcher a left-over ends if NVML lists it on the GPUs; others keep them.

    Others may be an ssh-agent or a tmux server. A process that is none of the job's is never
    touched.
    """
    launcher.environment["GPULAUNCH_LEFTOVERS"] = "keep"
    daemons = "for i in 1 2 3; do setsid -f sh -c 'echo $$; exec sleep 600'; done; read line"
    job = ("--only", "0", "--", "sh", "-c", daemons)
    with (
        started(launcher, *job, pids=3) as (process, (at_work, *others)),
        subprocess.Popen(["sleep", "600"]) as stranger,
    ):
        dgx1_v100.add(*(f"process 0 {pid} 300" for pid in (at_work, stranger.pid)))
        dgx1_v100.add(f"process 5 {others[0]} 300")
        process.terminate()
        assert process.wait() == 143
        assert alive([at_work, *others, stranger.pid]) == [*others, stranger.pid]
        (lease,) = json.loads(launcher.run("status", "--json").stdout)["leases"]
        assert lease["left_over_pids"] == sorted(others)
        for pid in (*others, stranger.pid):
            os.kill(pid, signal.SIGKILL)
        until(lambda: launcher.records() == [])
        dgx1_v100.drop("process ")
        assert launcher.run("-n", "8", "--", "true").returncode == 0


CHILD_AND_STOP = """
import os, signal
child = os.posix_spawnp("sleep", ["sleep", "600"], {}, setsigmask=(), setsid=True)
print(child, flush=True)
if signal.SIGTERM not in signal.sigpending():
    os.kill(os.getpid(), signal.SIGSTOP)
signal.sigwait({signal.SIGTERM})
print("tidy")
"""


def outcome(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    # Not by communicate(), which loses what a readline() before it has read beyond its line.
    out, error = process.stdout.read(), process.stderr.read()
    return process.wait(), out, error


RAN_LONGER = "gpulaunch: error: the job ran longer than its limit of 0.2 s\n"


LIMITED = (*VGG, "--time-limit", "0.2s", "--")


@pytest.mark.usefixtures("dgx1_v100")
def test_a_job_over_its_limit_that_ignores_term(launcher: Launcher) -> None:
    """A job over its limit that ignores TERM is killed after the grace, busy on its GPUs or not."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as the job inherits it
    done = launcher.run("--time-limit", "0.2s", "--", "sleep", "600")
    signal.signal(signal.SIGTERM, before)
    assert (done.returncode, done.stdout, done.stderr) == (124, "", RAN_LONGER)
    assert launcher.records() == []


def test_a_job_over_its_limit_may_tidy_up(launcher: Launcher) -> None:
    """A stopped job over its limit hears TERM and may end by itself: still 124, children too."""
    launcher.environment |= {"GPULAUNCH_GRACE": "1h", "GPULAUNCH_LEFTOVERS": "keep"}
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # the job inherits it
    process = launcher.start(*LIMITED, *PYTHON, CHILD_AND_STOP)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    with process:
        child = int(process.stdout.readline())
        assert outcome(process) == (124, "tidy\n", RAN_LONGER)
        assert (alive([child]), launcher.records()) == ([], [])


def test_the_limit_counts_from_the_start_of_the_job(launcher: Launcher) -> None:
    """What a launch waits for its GPUs is not taken from its time limit."""
    options = ("--wait", "--time-limit", "0.2s")
    with held(launcher, *ALL) as job, launcher.start(*ALL, *options, "--", "echo", "ran") as waiter:
        assert "waiting as number 1" in waiter.stderr.readline()
        behind = launcher.run(
            *DGX, "--wait-timeout", "0.3s", "--", "true"
        )  # for longer than that limit
        assert (behind.returncode, waiter.poll()) == (124, None)
        job.end()
        assert (waiter.stdout.read(), waiter.wait()) == ("ran\n", 0)


def test_times_may_be_long(launcher: Launcher) -> None:
    """The longest time that is understood is no trouble, neither as time limit nor as grace."""
    launcher.environment["GPULAUNCH_GRACE"] = "9999999999s"
    with held(launcher, *VGG, "--time-limit", "9999999999s") as job:
        (lease,) = table(launcher)["leases"]
        assert (free(launcher, lease["id"]).stdout, job.process.wait()) == (ended(lease), 143)


CI_JOB = """
import os, signal, subprocess, sys
def begin(**options):
    return subprocess.Popen(["sleep", "600"], start_new_session=True, **options).pid
signal.signal(signal.SIGTERM, signal.SIG_IGN)
closes = begin()
signal.signal(signal.SIGTERM, signal.SIG_DFL)
inherits = begin(close_fds=False, env={"PATH": os.environ["PATH"]})
print(os.getpid(), closes, inherits, sep="\\n", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("killed", ["launcher", "process group"])
def test_a_cancelled_ci_job_leaves_nothing(launcher: Launcher, killed: str) -> None:
    """With CI=true no SIGKILL leaves a lease, and the GPUs are free when all of the job has ended.

    One child has not the record, and ignores TERM; one has the record alone.
    """
    launcher.is_executed = True
    launcher.environment["CI"] = "true"
    job = ("--", sys.executable, "-Ic", CI_JOB)
    with started(launcher, *VGG, *job, pids=3) as (process, pids):
        if killed == "process group":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        assert process.wait() == -signal.SIGKILL
        look = ("--", "sh", "-c", LOOK, "sh", *map(str, pids))
        assert set(launcher.run(*ALL, "--wait", *look).stdout.split()) <= ALL_DEAD
        for pid in processes_of(launcher):  # the guard releases the lease, and ends
            wait_for_end(pid)
        assert launcher.records() == []


def test_a_cancelled_ci_job_may_tidy_up(launcher: Launcher) -> None:
    """The job of a launcher that was killed hears TERM first, and has the grace to end."""
    launcher.environment |= {"CI": "true", "GPULAUNCH_GRACE": "10s"}
    with launcher.start(*VGG, "--", str(JOBS / "catches"), "TERM") as process:
        assert process.stdout.readline() == "ready\n"
        process.kill()
        assert process.stdout.read() == "caught\n"


def test_a_ci_job_that_ignores_term(launcher: Launcher) -> None:
    """With CI=true a job that ignores TERM is killed after the grace, in one line."""
    launcher.environment |= {"CI": "true", "GPULAUNCH_GRACE": "0.3s"}
    script = "trap '' TERM; echo $$; exec sleep 600"
    with started(launcher, *VGG, "--", "sh", "-c", script) as (process, (job,)):
        process.terminate()
        assert process.wait() == 128 + signal.SIGKILL
        warning = "the job goes on 0.3 s after TERM: it is killed, as CI=true"
        assert process.stderr.read() == f"gpulaunch: warning: {warning}\n"
        assert (state(job), launcher.records()) == ("", [])


def test_the_companion_holds_the_lease_alone_and_goes(launcher: Launcher) -> None:
    """The companion has a session of its own, only the record, no parent here, and no variables.

    It ends with the job.
    """
    launcher.is_executed = True
    with held(launcher, *VGG) as job:
        companion = job.companion()
        (witness,) = processes_of(launcher) - {job.process.pid, job.job_pid, companion}
        assert program_of(witness) == WITNESS
        # it goes to / when it has let go of the rest
        until(lambda: os.readlink(f"/proc/{companion}/cwd") == "/")
        fds = [Path(entry.path) for entry in os.scandir(f"/proc/{companion}/fd")]
        files = [fd.stat() for fd in fds if os.readlink(fd) != "/dev/null" and not fd.is_fifo()]
        record = (launcher.state / launcher.records()[0]).stat()
        assert [file.st_ino for file in files] == [record.st_ino]
        assert os.getsid(companion) not in (os.getsid(job.process.pid), os.getsid(0))
        # a CI runner kills what has its variables, and the children of that
        variables = Path(f"/proc/{companion}/environ").read_bytes().split(b"\0")
        assert [one for one in variables if one and not one.startswith(b"GPULAUNCH_")] == []
        assert companion not in children(job.process.pid)
        assert job.end() == 7
        wait_for_end(companion)
    assert processes_of(launcher) == set()


def test_a_left_over_holder_is_shown_and_freed(launcher: Launcher) -> None:
    """A lease that only a left-over daemon holds is shown so, blocks its GPUs, and can be freed.

    It is the job's by its variables alone: it has neither the record nor a session of the job.
    """
    launcher.environment["GPULAUNCH_LEFTOVERS"] = "keep"
    script = f"{DAEMON}; read line"
    with started(launcher, *VGG, "--", "sh", "-c", script) as (process, (daemon,)):
        (lease,) = table(launcher)["leases"]
        process.kill()
        process.wait()
        assert table(launcher)["leases"][0]["left_over_pids"] is None  # its job is still there
        os.kill(lease["job_pid"], signal.SIGKILL)
        wait_for_end(lease["job_pid"])
        assert table(launcher)["leases"][0]["left_over_pids"] == [daemon]
        shown = " ".join(launcher.run("status", *DGX).stdout.split())
        want = f"{lease['id'][:4]} has ended, but a left-over process keeps its GPUs"
        assert re.search(rf"{want} \(pid {daemon}, for \d+ s\)", shown)
        assert launcher.run(*ALL, *SHOW).returncode == 75
        done = free(launcher, lease["id"])
        assert (done.returncode, done.stdout, done.stderr) == (0, ended(lease), "")
        assert (alive([daemon]), launcher.records()) == ([], [])


# gpulaunch free

LEAVES_A_DAEMON = "setsid -f sh -c 'trap \"\" TERM; echo $$; exec sleep 600'; echo $$; read line"


@pytest.mark.parametrize(
    ("job", "status"),
    [("trap '' TERM; echo $$; read line", 137), ("echo $$; kill -STOP $$; read line", 143)],
    ids=["ignores TERM", "is stopped"],
)
def test_free_ends_a_job(launcher: Launcher, job: str, status: int) -> None:
    """`free` ends the job, by KILL after the grace, and the launcher says how it ended."""
    with started(launcher, *VGG, "--", "sh", "-c", job) as (process, pids):
        until(lambda: "STOP" not in job or state(pids[0]) == "T")
        (lease,) = table(launcher)["leases"]
        done = free(launcher, lease["id"])
        assert (done.returncode, done.stdout, done.stderr) == (0, ended(lease), "")
        assert (alive(pids), launcher.records()) == ([], [])
        assert (process.wait(), process.stderr.read()) == (status, "")


def test_free_lets_a_job_tidy_up(launcher: Launcher) -> None:
    """A job that traps TERM has the grace, as all that it has started; its status is kept."""
    launcher.environment["GPULAUNCH_GRACE"] = "1h"
    job = ("--", "sh", "-c", '"$0" TERM & exec "$0" TERM', str(JOBS / "catches"))
    with launcher.start(*VGG, *job) as process:
        assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        (lease,) = table(launcher)["leases"]
        assert free(launcher, lease["id"]).stdout == ended(lease)
        assert outcome(process)[:2] == (7, "caught\n" * 2)


def test_free_wakes_a_stopped_launcher(launcher: Launcher) -> None:
    """A stopped launcher is no obstacle, nor is its longer grace: all who hold the lease end."""
    launcher.environment["GPULAUNCH_GRACE"] = "300s"
    with started(launcher, *VGG, "--", "sh", "-c", LEAVES_A_DAEMON, pids=2) as (process, pids):
        process.send_signal(signal.SIGSTOP)
        # The daemon stays for the whole grace, in which even on a busy machine the launcher ends.
        (lease,) = table(launcher)["leases"]
        assert free(launcher, lease["id"], GPULAUNCH_GRACE="3s").stdout == ended(lease)
        assert (alive(pids), launcher.records(), process.wait()) == ([], [], 143)


def test_free_ends_what_descends_from_a_job(launcher: Launcher) -> None:
    """A child of a job is its own without the record, a variable or the session of it."""
    script = f"env -i setsid '{sys.executable}' -SIc '{CLOSES_ALL}' & read line"
    with started(launcher, *VGG, "--", "sh", "-c", script) as (process, child):
        process.kill()
        process.wait()
        (lease,) = table(launcher)["leases"]
        assert free(launcher, lease["id"]).stdout == ended(lease)
        assert (alive(child), launcher.records()) == ([], [])


def test_free_spares_nested_leases(launcher: Launcher) -> None:
    """`free` of a lease leaves those alone that were taken from it: each ends by its own id.

    A nested launch's job keeps its lease though its launcher is gone, too.
    """
    inner = "gpulaunch -n 1 -- sh -c 'echo $PPID; echo $$; read line' <&3"
    script = f"exec 3<&0; {inner} & read line"
    with started(launcher, *VGG, "--", "sh", "-c", script, pids=2) as (process, (launch, job)):
        os.kill(launch, signal.SIGKILL)
        wait_for_end(launch)
        leases = table(launcher)["leases"]
        outer, inner = sorted(leases, key=lambda lease: lease["parent"] is not None)
        assert free(launcher, outer["id"]).stdout == ended(outer)
        assert process.wait() == 143
        assert [lease["id"] for lease in table(launcher)["leases"]] == [inner["id"]]
        assert state(job)
        assert free(launcher, inner["id"]).stdout == ended(inner)
        assert (alive([job]), launcher.records()) == ([], [])


def test_free_of_all_own(launcher: Launcher) -> None:
    """--mine leaves the queue and ends all leases on this machine, also those inside others."""
    script = "gpulaunch -n 1 -- sleep 600 & echo $!; wait"
    with (
        held(launcher, "--topology", "pcie-4gpu-workstation") as elsewhere,
        started(launcher, *VGG, "--", "sh", "-c", script) as (outer, (inner,)),
        held(launcher, *DGX) as alone,
    ):
        until(lambda: len(table(launcher)["leases"]) == 3)
        leases = table(launcher)["leases"]
        waiter = launcher.start(*DGX, "-n", "all", "--wait", "--", "true")
        waiter.stderr.readline()
        (ticket,) = table(launcher)["queue"]
        done = free(launcher, "--mine")
        left = f"{ticket['id']} has left the queue\n"
        assert (done.returncode, done.stdout, done.stderr) == (0, left + ended(*leases), "")
        ends = [process.wait() for process in (outer, alone.process, waiter)]
        assert ends == [143, 143, -signal.SIGTERM]
        waiter.communicate()
        assert alive([inner]) == []
        assert elsewhere.end() == 7


def test_which_job_is_freed(launcher: Launcher) -> None:
    """A job is meant by its name, else by 4 or more characters of its id; in doubt none is."""
    with held(launcher, *DGX, "--name", "job") as first, held(launcher, *DGX, "--name", "job"):
        one, two = table(launcher)["leases"]
        me = pwd.getpwuid(os.geteuid()).pw_name
        nobody = "no job '{}' runs or waits on {}"
        elsewhere = ("--topology", "pcie-4gpu-workstation", one["id"])
        for words, error in (
            (("job",), f"'job' may be any of {one['id']} ({me}), {two['id']} ({me})"),
            ((one["id"][:3],), nobody.format(one["id"][:3], "dgx1-v100")),
            (("../../etc",), nobody.format("../../etc", "dgx1-v100")),
            (("",), nobody.format("", "dgx1-v100")),
            (elsewhere, nobody.format(one["id"], elsewhere[1])),
            ((), "give ids or names of jobs, or --mine"),
        ):
            done = free(launcher, *words)
            assert (done.returncode, done.stdout) == (2, "")
            assert done.stderr.splitlines()[0] == f"gpulaunch: error: {error}"
        with held(launcher, *DGX, "--name", one["id"][:4]) as named:
            assert free(launcher, one["id"][:4]).returncode == 0
            assert named.process.wait() == 143
        waiter = launcher.start(*DGX, "-n", "8", "--wait", "--name", "waiter", "--", "true")
        waiter.stderr.readline()
        done = free(launcher, "waiter", two["id"][:4], two["id"])
        left = "waiter has left the queue\n"
        assert (done.returncode, done.stdout, done.stderr) == (0, left + ended(two), "")
        assert waiter.wait() == -signal.SIGTERM
        waiter.communicate()
        assert first.end() == 7
