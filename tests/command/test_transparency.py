"""Transparency: command lines typed at a terminal look the same with gpulaunch and without it.

Each case is a dialogue with a real interactive bash under a pseudo-terminal, most of them in
tests/dialogues.toml. It is held twice, with CMD replaced by gpulaunch or by nothing, and what the
terminal showed is compared, with the exit status of the last command.

Different by design, and therefore not compared:
- After a death by a signal, gpulaunch exits with 128+n, and only after INT and QUIT dies of it too.
  So bash says "Terminated" of the bare command alone (test_death_by_signal).
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
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pexpect
import pytest
from conftest import Launcher

from gpulaunch.files.toml import tomllib

PREFIX = "gpulaunch --topology dgx1-v100 -n 1 -- "
JOBS = Path(__file__).parents[1] / "jobs"
PROMPT = "ok> "
TIMEOUT_S = 30
ROWS, COLUMNS = 24, 1000  # wide enough for readline to write each command on one line

SAYS_ITS_VERSION = ["bash", "-c", "echo ${BASH_VERSINFO[*]:0:2}"]
BASH_VERSION = tuple(map(int, subprocess.check_output(SAYS_ITS_VERSION).split()))

KEYS = {"^C": "\x03", "^\\": "\x1c", "^Z": "\x1a", "^D": "\x04"}
END = signal.SIGRTMAX  # ends tests/jobs/signals
OWN_VARIABLES = (
    "-u CUDA_DEVICE_ORDER -u CUDA_VISIBLE_DEVICES -u NVIDIA_VISIBLE_DEVICES -u GPULAUNCH_LEASE "
    "-u GPULAUNCH_GPU_COUNT -u _ -u PS1"
)


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
            except (pexpect.TIMEOUT, pexpect.EOF):
                pytest.fail(
                    f"with {prefix!r}, at {step!r} the terminal showed:\n"
                    f"{bash.logfile_read.getvalue()}"
                )
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
            timeout=TIMEOUT_S,
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
            _until(lambda: not bash.isalive(), "the end of bash")
            bash.close()

    def same(self, *steps: str) -> Held:
        """Hold a dialogue with and without gpulaunch; both must come out the same."""
        bare, launched = self.hold(steps, ""), self.hold(steps, PREFIX)
        assert launched.transcript == bare.transcript
        assert launched.status == bare.status
        return bare


def _take(bash: pexpect.spawn, step: str, prefix: str) -> None:
    """Take one step of a dialogue."""
    verb, _, rest = step.partition(" ")
    if verb == "$":
        line = rest.replace("CMD ", prefix)
        bash.expect_exact(PROMPT)
        # What Ctrl-Z stops takes a key that is typed before it has got the signal.
        _until(lambda: not any(_other_readers(bash.pid)), "none but bash reads the terminal")
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
    asleep_since = None
    while asleep_since is None or time.monotonic() < asleep_since + 0.05:
        state = _state(pid)
        if (
            Path(f"/proc/{pid}/wchan")
            .read_text()
            .startswith(("poll_schedule", "do_select", "n_tty_read"))
        ):
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


def _await(path: Path, text: str = "") -> None:
    """Wait until a file exists and holds this."""
    _until(lambda: path.exists() and path.read_text() == text, f"{text!r} in {path}")


def _await_end(group: int) -> None:
    """Wait until nothing runs in a process group."""
    _until(lambda: not any(_running(os.getpgid, group)), f"the end of {group}")


def _until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.01)


def _comparable(shown: str) -> str:
    shown = shown.replace(PREFIX, "")
    shown = re.sub(
        r"\^[CZ\\]", "", shown
    )  # echoed after the signal is sent, so perhaps amid what the job says to it
    shown = re.sub(r"^(\[\d+\][+-]?) +\d+\b", r"\1 PID", shown, flags=re.MULTILINE)
    return re.sub(r"^(\w*sh: line \d+:) +\d+ ", r"\1 PID ", shown, flags=re.MULTILINE)


@pytest.fixture
def terminal(launcher: Launcher, tmp_path: Path) -> Terminal:
    try:
        for end in os.openpty():
            os.close(end)
    except OSError as problem:
        pytest.skip(f"needs a pseudo-terminal: {problem}")
    return Terminal(launcher, tmp_path)


DIALOGUES = tomllib.loads((Path(__file__).parents[1] / "dialogues.toml").read_text())
WORDS = {
    "PROMPT": PROMPT,
    "COUNTING": "CMD signals CONT >log & await_text log ready",
    "COUNTED": "await_text log CONT; kill -RTMAX $!; wait $!; echo $?; cat log",
    "LIST": "CMD sh -c 'for f in /proc/$$/fd/*; do echo ${f##*/}; done' | awk '$1 < 100'",
    "LISTED": f"CMD env {OWN_VARIABLES} env",
    "SHOW": 'python3 -ISc \'print(open("/proc/self/cmdline", "rb").read())\'',
    "ARGUMENTS": (
        r""""" " " 'a b' "it's" '"' '\' '\n' $'line 1\nline 2' $'tab\there' """
        r"""'*' '?' '$HOME' '`date`' '%s' ';' '&' '|' """
        r"""-- -n --gpus --help -1 '--topology=x' '{}' '~' '!' '#' """
        r"""$'\xff\xfe' $'caf\xe9' $'\u00e9' $'\e[31m' $'\x7f' """
    ),
}
"""What words in the steps stand for, besides CMD."""


def dialogues(table: str) -> pytest.MarkDecorator:
    """Parametrise with the dialogues of a table, each named by a sentence."""
    words = re.compile(rf"\b({'|'.join(WORDS)})\b")
    rows = []
    for sentence, steps in DIALOGUES[table].items():
        spelled = [words.sub(lambda found: WORDS[found[0]], step) for step in steps]
        rows.append(pytest.param(spelled, id=sentence))
    return pytest.mark.parametrize("steps", rows)


@dialogues("output")
def test_output(terminal: Terminal, steps: Sequence[str]) -> None:
    """What a job says, and to whom, is the same with gpulaunch in front."""
    terminal.same(*steps)


@pytest.mark.parametrize("status", [0, 1, 2, 3, 75, 77, 124, 125, 126, 127, 128, 130, 143, 255])
def test_exit_status(terminal: Terminal, status: int) -> None:
    """A job's exit status passes through, even where gpulaunch has a meaning of its own for it."""
    assert terminal.same(f"$ CMD sh -c 'exit {status}'").status == status


@dialogues("keys")
def test_keys(terminal: Terminal, steps: Sequence[str]) -> None:
    """A key that sends a signal does to the job, and to its shell, as without gpulaunch."""
    terminal.same(*steps)


@dialogues("job_control")
def test_job_control(terminal: Terminal, steps: Sequence[str]) -> None:
    """A job stops, continues and ends under the shell's job control as without gpulaunch."""
    terminal.same(*steps)


OUTSIDE = ("HUP", "INT", "QUIT", "USR1", "USR2", "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "TSTP",
           "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "RTMIN",
           "RTMIN+1", "RTMAX-1")  # fmt: skip


@pytest.mark.parametrize("name", OUTSIDE)
def test_signal_from_outside(terminal: Terminal, name: str) -> None:
    """A signal that another process sends to the shell's child reaches the job once each time."""
    terminal.same(
        f"$ CMD signals {name} >log & await_text log ready; "
        f"kill -{name} $!; await_text log {name}; "
        f"kill -{name} $!; kill -RTMAX $!; wait $!; echo $?; cat log"
    )


FATAL = ("HUP", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM",
         "TERM", "XCPU", "SYS", "RTMIN+1")  # fmt: skip
SAID_BY_BASH = re.compile(
    r"^(\[\d\][+-]? .*|(bash: line \d+: PID )?"
    r"(Terminated|Killed|Hangup|Aborted|Bus error|Segmentation fault|Alarm clock"
    r"|Illegal instruction|Trace/\w+ trap|Floating point exception|User defined signal \d"
    r"|CPU time limit exceeded|Bad system call|Real-time signal \d)"
    r"( +.*)?)\r\n",
    re.MULTILINE,
)


def _same_death(terminal: Terminal, *steps: str) -> Held:
    """Hold a dialogue with and without gpulaunch; compare all but bash's words on a death."""
    bare, launched = terminal.hold(steps, ""), terminal.hold(steps, PREFIX)
    assert SAID_BY_BASH.sub("", launched.transcript) == SAID_BY_BASH.sub("", bare.transcript)
    assert launched.status == bare.status
    return bare


@pytest.mark.parametrize("name", FATAL)
def test_death_by_signal(terminal: Terminal, name: str) -> None:
    """The shell sees 128+n of a job that a signal killed."""
    number = signal.SIGRTMIN + 1 if name == "RTMIN+1" else signal.Signals[f"SIG{name}"]
    assert (
        _same_death(terminal, f"$ CMD bash -c 'echo words; kill -{name} $$'").status == 128 + number
    )


@dialogues("death_from_outside")
def test_death_from_outside(terminal: Terminal, steps: Sequence[str]) -> None:
    """A job that is killed from outside ends, and with the same status."""
    _same_death(terminal, *steps)


@dialogues("signals_on_entry")
def test_signals_on_entry(terminal: Terminal, steps: Sequence[str]) -> None:
    """A job finds signals ignored and blocked as gpulaunch found them."""
    terminal.same(*steps)


@dialogues("descriptors")
def test_descriptors(terminal: Terminal, steps: Sequence[str]) -> None:
    """A job has the descriptors below 100 that it would have, and no others."""
    terminal.same(*steps)


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
def test_make_job_server(terminal: Terminal) -> None:
    """A make under gpulaunch shares the job slots of the make around it, without a warning."""
    held = terminal.same(
        r"$ mkdir sub; "
        r"printf 'all: a b\na b:; +@CMD $(MAKE) --no-print-directory -C sub $@1 $@2\n' >Makefile",
        r"$ printf '%%:; @echo $@ >$@\n' >sub/Makefile; make -j2; cat sub/??",
    )
    assert "a1\r\na2\r\nb1\r\nb2\r\n" in held.transcript
    assert "jobserver" not in held.transcript


@dialogues("terminal")
def test_terminal(terminal: Terminal, steps: Sequence[str]) -> None:
    """A job meets the terminal as it would."""
    terminal.same(*steps)


@dialogues("shell_as_job")
def test_shell_as_job(terminal: Terminal, steps: Sequence[str]) -> None:
    """An interactive shell works as a job, with job control of its own."""
    terminal.same(*steps)


@dialogues("arguments")
def test_arguments(terminal: Terminal, steps: Sequence[str]) -> None:
    """Arguments arrive byte for byte."""
    terminal.same(*steps)


@dialogues("environment")
def test_environment(terminal: Terminal, steps: Sequence[str]) -> None:
    """The environment is the one that gpulaunch was given, and the documented variables."""
    terminal.same(*steps)


@dialogues("process")
def test_process(terminal: Terminal, steps: Sequence[str]) -> None:
    """A job is the process that it would be."""
    terminal.same(*steps)


@dialogues("start")
def test_start(terminal: Terminal, steps: Sequence[str]) -> None:
    """Whatever can be executed is."""
    terminal.same(*steps)


@pytest.mark.parametrize(
    ("preparation", "command", "status"),
    [
        pytest.param("", "no-such-command", 127, id="a command that does not exist"),
        pytest.param("", "./no-such-file", 127, id="a path that does not exist"),
        pytest.param("", "''", 127, id="an empty name"),
        pytest.param("touch f", "./f", 126, id="a file that may not be executed"),
        pytest.param(
            "touch f; PATH=$PATH:$PWD", "f", 126, id="a file in the path that may not be executed"
        ),
        pytest.param("touch f", "./f/g", 126, id="a path through a file"),
        pytest.param("", "/", 126, id="a directory"),
        pytest.param(
            r"printf '#!/no/such\n' >f; chmod +x f",
            "./f",
            127,
            id="a script whose interpreter is missing",
            marks=pytest.mark.skipif(
                BASH_VERSION < (5, 2), reason="before 5.2 bash exits with 126"
            ),
        ),
        pytest.param(
            r"printf '#!/etc\n' >f; chmod +x f",
            "./f",
            126,
            id="a script whose interpreter is a directory",
        ),
        pytest.param("ln -s f f", "./f", 126, id="a symbolic link to itself"),
        pytest.param("", "./$(printf %05000d 0)", 126, id="a name that is too long"),
    ],
)
def test_failed_start(terminal: Terminal, preparation: str, command: str, status: int) -> None:
    """What cannot be executed gives the shell's exit status and one line on stderr alone."""
    line = (
        f"$ {preparation or ':'}; CMD {command} >out 2>err; "
        "echo $?, $(wc -c <out) bytes, $(grep -c ^ err) line"
    )
    held = terminal.same(line)
    assert f"{status}, 0 bytes, 1 line" in held.transcript


@pytest.mark.parametrize(
    "prefix", [pytest.param("", id="bare"), pytest.param(PREFIX, id="with gpulaunch")]
)
@pytest.mark.parametrize(
    ("nohup", "survives"),
    [
        pytest.param("", False, id="a job ends"),
        pytest.param("nohup ", True, id="a job under nohup goes on"),
    ],
)
def test_hang_up(
    terminal: Terminal, launcher: Launcher, prefix: str, nohup: str, *, survives: bool
) -> None:
    """When the terminal goes away so does a job; one under nohup goes on and keeps its status."""
    job = 'sh -c "echo >log; until [ -e go ]; do sleep 0.01; done; exit 3"'
    with terminal.bash() as bash:
        _take(bash, f"$ {nohup}sh -c 'CMD {job}; echo $? >status'", prefix)
        _await(terminal.folder / "log", "\n")
        group = os.tcgetpgrp(bash.child_fd)
        with contextlib.suppress(pexpect.ExceptionPexpect):  # bash may take longer to end
            bash.close(force=True)
        if survives:
            (terminal.folder / "go").touch()
            _await(terminal.folder / "status", "3\n")
        _await_end(group)
    assert launcher.records() == []
