"""Transparency: command lines typed at a terminal look the same with gpulaunch and without it.

Each case is a dialogue with a real interactive bash under a pseudo-terminal, most of them in
tests/dialogues.toml. It is held twice, with CMD replaced by gpulaunch or by nothing, and what the
terminal showed is compared, with the exit status of the last command.

Different by design, and therefore not compared:
- After a death by a signal, gpulaunch exits with 128+n, and only after INT and QUIT dies of it too.
  So bash says "Terminated" of the bare command alone (test_death).
- A parent that ignores SIGPIPE or SIGXFSZ: Python hides that at start, so the job finds them at
  their default.
- KILL and STOP sent to gpulaunch alone, which cannot be caught. CONT sent to gpulaunch alone while
  the job runs: `fg` looks the same, and there the job has got its own. STOP and then CONT sent to
  the job alone: at a terminal, gpulaunch stops with it, and waits for `fg`.
- A job that closes its stderr: gpulaunch keeps it open for its own words, so a reader sees the end
  when the job ends.
- The job is not the leader of its process group, so `setsid` as the job need not fork.
- bash's variable $_, and the CPUs to run on, which gpulaunch chooses (-o bind_cpu=false leaves them
  alone).
"""

import contextlib
import io
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pexpect
import pytest
from conftest import Launcher, until
from toml_parser import tomllib

PREFIX = "gpulaunch --topology dgx1-v100 -n 1 -- "
JOBS = Path(__file__).parents[1] / "jobs"
PROMPT = "ok> "
ROWS, COLUMNS = 24, 1000  # wide enough for readline to write each command on one line


KEYS = {"^C": "\x03", "^\\": "\x1c", "^Z": "\x1a", "^D": "\x04"}
END = signal.SIGRTMAX  # ends tests/jobs/signals


class Held(NamedTuple):
    """A dialogue that was held.

    Attributes:
        transcript: what the terminal showed, less the prefix, pids and the terminal's echo of
            control keys.
        status: exit status of the last command.
    """

    transcript: str
    status: int


class Terminal:
    r"""Holds dialogues with bash, each with a fresh one in an empty directory.

    The steps of a dialogue:
        $ LINE      wait for the prompt and type this command, in which CMD stands for gpulaunch or
                    for nothing
        < TEXT      wait until the terminal shows a line with this, and its end
        ? TEXT      wait until the terminal shows this
        > LINE      type this at the job
        ^C ^Z ^\ ^D  press this key
        ~           wait until the process in the foreground sleeps: bash's prompt stands before it
                    reads, and a signal in between is lost to it, with and without gpulaunch
        ! SIGNAL    send this signal from outside to the process that bash started in the foreground
        + R C       give the terminal R rows and C columns
    """

    def __init__(self, launcher: Launcher, home: Path) -> None:
        self.folder = home / "work"
        self._environment = launcher.environment | {
            "PATH": f"{JOBS}{os.pathsep}{launcher.environment['PATH']}",
            "PS1": PROMPT,
            "TERM": "dumb",
        }

    def hold(self, steps: Sequence[str], prefix: str) -> Held:
        """Hold a dialogue."""
        with self.bash() as bash:
            try:
                for step in (*steps, "$ echo status $?"):
                    _take(bash, step, prefix)
                bash.expect(r"status (\d+)\r\n")
                status = int(bash.match[1])
                bash.expect_exact(PROMPT)
            except BaseException:
                print(f"with {prefix!r}, at {step!r} the terminal showed:")
                print(bash.logfile_read.getvalue())
                raise
            return Held(_comparable(bash.logfile_read.getvalue()), status)

    @contextlib.contextmanager
    def bash(self) -> Iterator[pexpect.spawn]:
        """Yield a shell at a new terminal in an empty directory, and end its session."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        bash = pexpect.spawn(
            "bash",
            ["--norc", "--noprofile", "-i"],
            env=self._environment,
            cwd=str(self.folder),
            dimensions=(ROWS, COLUMNS),
            timeout=None,
            encoding="utf-8",
            codec_errors="backslashreplace",
            preexec_fn=_as_a_login_would,
        )
        bash.logfile_read = io.StringIO()
        bash.delaybeforesend = None
        bash.ptyproc.delayafterclose = bash.ptyproc.delayafterterminate = 0.01
        try:
            yield bash
        finally:
            _end_session(bash.pid)
            until(lambda: not bash.isalive())
            bash.close()

    def same(self, *steps: str, but_for: re.Pattern[str] | None = None) -> Held:
        """Hold a dialogue with and without gpulaunch; both must come out the same."""
        bare, launched = self.hold(steps, ""), self.hold(steps, PREFIX)
        shown = [but_for.sub("", one) if but_for else one for one in (launched[0], bare[0])]
        assert shown[0] == shown[1]
        assert launched.status == bare.status
        return bare


def _take(bash: pexpect.spawn, step: str, prefix: str) -> None:
    """Take one step of a dialogue."""
    verb, _, rest = step.partition(" ")
    if verb == "$":
        line = rest.replace("CMD ", prefix)
        bash.expect_exact(PROMPT)
        # What Ctrl-Z stops takes a key that is typed before it has got the signal.
        until(lambda: not any(_other_readers(bash.pid)))
        bash.sendline(line)
        bash.expect_exact(line + "\r\n")
    elif verb == "<":
        bash.expect(re.escape(rest) + r"[^\n]*\n")
    elif verb == "?":
        bash.expect_exact(rest)
    elif verb == ">":
        bash.sendline(rest)
    elif verb == "!":
        os.kill(os.tcgetpgrp(bash.child_fd), END if rest == "end" else signal.Signals[f"SIG{rest}"])
    elif verb == "~":
        _wait_asleep(os.tcgetpgrp(bash.child_fd))
    elif verb == "+":
        bash.setwinsize(*map(int, rest.split()))
    else:
        bash.send(KEYS[step])


def _state(pid: int) -> str:
    """Return the letter of a process's state, or nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _other_readers(shell: int) -> Iterator[bool]:
    """Yield, for each other process of a shell's session, whether it may read the terminal.

    One that Ctrl-Z has woken but that has not run since still takes a key, so what runs may read.
    """
    for pid in _running(os.getsid, shell):
        with contextlib.suppress(OSError):
            waits_in = Path(f"/proc/{pid}/wchan").read_text()
            reads = waits_in.startswith(("n_tty_read", "wait_woken")) or _state(pid) == "R"
            yield pid != shell and reads


def _wait_asleep(pid: int) -> None:
    """Wait until a process waits for input, or sleeps for 50 ms if the kernel hides for what."""
    waits = ("poll_schedule", "do_select", "n_tty_read")
    asleep_since = None
    while asleep_since is None or time.monotonic() < asleep_since + 0.05:
        state = _state(pid)
        if Path(f"/proc/{pid}/wchan").read_text().startswith(waits):
            return
        asleep_since = (asleep_since or time.monotonic()) if state == "S" else None


def _as_a_login_would() -> None:
    """Drop core files, and the signals that Python or nohup ignore or block, in bash's process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _end_session(leader: int) -> None:
    """Kill what a dialogue has left over."""
    for pid in _running(os.getsid, leader):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _running(group_of: Callable[[int], int], group: int) -> Iterator[int]:
    """Yield a session's (os.getsid) or group's (os.getpgid) processes, but for zombies."""
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(ProcessLookupError):
            if group_of(pid) == group and _state(pid) not in ("", "Z", "X"):
                yield pid


def _comparable(shown: str) -> str:
    shown = shown.replace(PREFIX, "")
    # keys are echoed after the signal is sent, so perhaps amid what the job says to it
    shown = re.sub(r"\^[CZ\\]", "", shown)
    shown = re.sub(r"^(\[\d+\][+-]?) +\d+\b", r"\1 PID", shown, flags=re.MULTILINE)
    return re.sub(r"^(\w*sh: line \d+:) +\d+ ", r"\1 PID ", shown, flags=re.MULTILINE)


@pytest.fixture
def terminal(launcher: Launcher, tmp_path: Path) -> Terminal:
    if not os.path.exists("/dev/ptmx"):
        pytest.skip("needs a pseudo-terminal")
    return Terminal(launcher, tmp_path)


DIALOGUES = tomllib.loads((Path(__file__).parents[1] / "dialogues.toml").read_text())
WORDS = {"PROMPT": PROMPT, **DIALOGUES["words"]}
"""What words in the steps stand for, besides CMD."""


def dialogues(*tables: str) -> pytest.MarkDecorator:
    """Parametrise with the dialogues of some tables, each named by a sentence."""
    words = re.compile(rf"\b({'|'.join(WORDS)})\b")
    rows = []
    for table in tables:
        for sentence, steps in DIALOGUES[table].items():
            spelled = [words.sub(lambda found: WORDS[found[0]], step) for step in steps]
            rows.append(pytest.param(spelled, id=sentence))
    return pytest.mark.parametrize("steps", rows)


@dialogues(
    *("output", "start", "keys", "job_control", "signals_on_entry", "signals_from_outside"),
    *("descriptors", "terminal", "process"),
)
def test_same(terminal: Terminal, steps: Sequence[str]) -> None:
    """A job says, meets, finds and does the same with gpulaunch in front."""
    terminal.same(*steps)


SAID_BY_BASH = re.compile(
    r"^(\[\d\][+-]? .*|(bash: line \d+: PID )?"
    r"(Terminated|Killed|Aborted|Alarm clock|Segmentation fault|Illegal instruction"
    r"|User defined signal \d|CPU time limit exceeded|Bad system call|Real-time signal \d)"
    r"( +.*)?)\r\n",
    re.MULTILINE,
)


@dialogues("death")
def test_death(terminal: Terminal, steps: Sequence[str]) -> None:
    """A job that is killed ends, and with the same status; bash's words on a death are its own."""
    terminal.same(*steps, but_for=SAID_BY_BASH)


@pytest.mark.parametrize(("nohup", "survives"), [("", False), ("nohup ", True)])
def test_hang_up(terminal: Terminal, launcher: Launcher, nohup: str, *, survives: bool) -> None:
    """When the terminal goes away so does a job; one under nohup goes on and keeps its status."""
    job = 'sh -c "echo >log; until [ -e go ]; do sleep 0.01; done; exit 3"'
    log, status = terminal.folder / "log", terminal.folder / "status"
    with terminal.bash() as bash:
        _take(bash, f"$ {nohup}sh -c 'CMD {job}; echo $? >status'", PREFIX)
        until(log.exists)
        group = os.tcgetpgrp(bash.child_fd)
        with contextlib.suppress(pexpect.ExceptionPexpect):  # bash may take longer to end
            bash.close(force=True)
        if survives:
            (terminal.folder / "go").touch()
            until(lambda: status.exists() and status.read_text() == "3\n")
        until(lambda: not any(_running(os.getpgid, group)))
    assert launcher.records() == []


def test_who_takes_our_place_ignores_no_signal() -> None:
    """A program that gpulaunch turns into, as srun, does not ignore what Python ignores."""
    turn = "execute(['grep', 'SigIgn', '/proc/self/status'], dict(os.environb))"
    code = f"import os; from gpulaunch.process.system import execute; {turn}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[1], 16) == 0
