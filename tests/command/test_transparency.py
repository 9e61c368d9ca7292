"""Transparency: command lines typed at a terminal look the same with gpulaunch and without it.

Each case is a dialogue with a real interactive bash under a pseudo-terminal. It is held twice, with
CMD replaced by gpulaunch or by nothing, and what the terminal showed is compared, with the exit
status of the last command.

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


def _table(*rows: tuple[str, ...]) -> pytest.MarkDecorator:
    """Parametrise with dialogues, each named by a sentence."""
    return pytest.mark.parametrize(
        "steps", [pytest.param(steps, id=sentence) for sentence, *steps in rows]
    )


@_table(
    ("stdout arrives", "$ CMD echo words"),
    ("stderr arrives", "$ CMD sh -c 'echo words >&2'"),
    ("stdout and stderr keep their order", "$ CMD sh -c 'echo 1; echo 2 >&2; echo 3; echo 4 >&2'"),
    ("stdout and stderr stay apart", "$ CMD sh -c 'echo 1; echo 2 >&2' >out 2>err; grep . out err"),
    ("a last line without newline stays so", "$ CMD printf 'no newline'"),
    ("nothing is said where the job says nothing", "$ CMD true"),
    (
        "a megabyte of bytes arrives unchanged",
        "$ head -c 1000000 /dev/urandom >f; CMD cat f | cmp - f && echo same",
    ),
    ("stdin arrives unchanged", "$ seq 100000 >f; CMD cat <f | cmp - f && echo same"),
    ("a here-document", r"$ bash -c $'CMD cat <<E\nline 1\nline 2\nE'"),
    ("a here-string", "$ CMD cat <<<words"),
    ("command substitution", '$ x=$(CMD echo words); echo "[$x] $?"'),
    ("process substitution as argument", "$ CMD cat <(echo 1) <(echo 2)"),
    ("process substitution as job", "$ cat <(CMD echo 1) <(CMD echo 2)"),
    (
        "process substitution as output",
        "$ CMD sh -c 'echo words >$0' >(cat >f); await_text f words; cat f",
    ),
    (
        "a coprocess",
        "$ coproc CMD cat",
        "$ echo words >&${COPROC[1]}; read -r x <&${COPROC[0]}; echo got $x",
        "$ eval 'exec '${COPROC[1]}'>&-'; wait $COPROC_PID",
    ),
    ("a pipe that closes early, before the job", "$ yes | CMD head -1; echo ${PIPESTATUS[@]}"),
    ("a pipe that closes early, after the job", "$ CMD yes | head -1; echo ${PIPESTATUS[@]}"),
    ("both at once", "$ yes | CMD cat | head -1; echo ${PIPESTATUS[@]}"),
    (
        "the status of a job within a pipeline",
        "$ CMD sh -c 'echo words; exit 3' | cat; echo ${PIPESTATUS[@]}",
    ),
    (
        "a job that closes its stdout: the reader sees the end",
        "$ mkfifo f; CMD sh -c 'exec >&-; read x <f' | { cat; echo >f; }",
    ),
    (
        "a job that closes its stdin: the writer is told",
        "$ mkfifo f; { yes; echo end >f; } | CMD sh -c 'exec <&-; read x <f; echo $x'",
    ),
    ("xargs", "$ seq 3 | xargs -n 1 CMD echo"),
    ("timeout", "$ timeout 0.5 CMD sleep 30"),
    ("time", "$ TIMEFORMAT=timed; time CMD sleep 0.1"),
    (
        "time counts what the job used",
        r"$ { time CMD python3 -ISc $'import time\nwhile time.process_time() < 0.3: pass'; } 2>t",
        (
            """$ awk '/user|sys/ { sub("0m", "", $2); used += $2 } """
            """END { print (used > 0.2 ? "much" : "little") }' t"""
        ),
    ),
    ("||", "$ CMD bash -c 'exit 5' || echo failed $?"),
    ("&&", "$ CMD true && echo well"),
    ("!", "$ ! CMD false"),
    ("if and while", "$ while CMD test ! -e f; do if CMD true; then echo body; touch f; fi; done"),
    ("set -e", "$ bash -ec 'CMD false; echo not reached'"),
    ("exec", "$ (exec CMD sh -c 'exit 4')"),
    ("a background job that is waited for", "$ CMD sh -c 'exit 6' & wait $!"),
    (
        "several at once",
        "$ bash -c 'for i in 1 2 3; do CMD sh -c \"exit $i\" & done; wait -n; wait; echo $?'",
    ),
)
def test_output(terminal: Terminal, steps: Sequence[str]) -> None:
    """What a job says, and to whom, is the same with gpulaunch in front."""
    terminal.same(*steps)


@pytest.mark.parametrize("status", [0, 1, 2, 3, 75, 77, 124, 125, 126, 127, 128, 130, 143, 255])
def test_exit_status(terminal: Terminal, status: int) -> None:
    """A job's exit status passes through, even where gpulaunch has a meaning of its own for it."""
    assert terminal.same(f"$ CMD sh -c 'exit {status}'").status == status


@_table(
    ("Ctrl-C at a job that dies of it", "$ CMD ready sleep 30", "< ready", "^C"),
    ("Ctrl-\\ at a job that dies of it", "$ CMD ready sleep 30", "< ready", "^\\"),
    ("Ctrl-C ends a for loop", "$ for i in 1 2 3; do CMD ready sleep 30; done", "< ready", "^C"),
    ("Ctrl-C ends a while loop", "$ while true; do CMD ready sleep 30; done", "< ready", "^C"),
    (
        "Ctrl-C ends a loop whose condition is the job",
        "$ until CMD ready sleep 30; do echo; done",
        "< ready",
        "^C",
    ),
    ("Ctrl-C ends a script", "$ bash -c 'CMD ready sleep 30; echo not reached'", "< ready", "^C"),
    ("Ctrl-C in sh", "$ sh -c 'CMD ready sleep 30; echo not reached'", "< ready", "^C"),
    (
        "Ctrl-C at a job that catches it",
        "$ CMD catches INT",
        "< ready",
        "^C",
    ),
    (
        "a script goes on after a job that caught Ctrl-C",
        "$ bash -c 'CMD catches INT; echo after $?'",
        "< ready",
        "^C",
    ),
    (
        "a script with a trap of its own",
        "$ bash -c 'trap \"echo trapped\" INT; CMD ready sleep 30; echo after $?'",
        "< ready",
        "^C",
        "< after",
    ),
    (
        "a job that ignores Ctrl-C and Ctrl-\\",
        """$ CMD sh -c 'trap "" INT QUIT; echo ready; read x; echo got $x'""",
        "< ready",
        "^C",
        "^\\",
        "> words",
    ),
    (
        "a Python program and Ctrl-C",
        "$ CMD python3 -ISc 'import time; print(\"ready\", flush=True); time.sleep(30)'",
        "< ready",
        "^C",
    ),
    ("each Ctrl-C counts once", "$ CMD signals INT", "< ready", *("^C", "< INT!") * 4, "! end"),
    ("each Ctrl-\\ counts once", "$ CMD signals QUIT", "< ready", *("^\\", "< QUIT!") * 4, "! end"),
    ("each Ctrl-Z counts once", "$ CMD signals TSTP", "< ready", *("^Z", "< TSTP!") * 4, "! end"),
    (
        "a resize counts once",
        "$ CMD signals WINCH",
        "< ready",
        "+ 30 990",
        "< WINCH!",
        "+ 31 999",
        "< WINCH!",
        "! end",
        "$ CMD stty size",
    ),
    (
        "Ctrl-C in a pipeline",
        "$ CMD ready sleep 30 | cat; echo ${PIPESTATUS[@]}",
        "< ready",
        "^C",
        "$ echo ${PIPESTATUS[@]}",
    ),
    ("Ctrl-C in raw mode is a key", "$ CMD one_key", "< ready", "^C"),
    ("Ctrl-D ends the input", "$ CMD sh -c 'echo ready; cat; echo end'", "< ready", "^D"),
    (
        "what a job sends its process group, and itself ignores",
        "$ CMD sh -c 'trap \"\" TERM; kill 0; echo survived'",
    ),
    ("INT that the job sends itself", "$ for i in 1 2; do CMD sh -c 'kill -INT $$'; done"),
    ("QUIT that the job sends itself", "$ CMD sh -c 'kill -QUIT $$'"),
)
def test_keys(terminal: Terminal, steps: Sequence[str]) -> None:
    """A key that sends a signal does to the job, and to its shell, as without gpulaunch."""
    terminal.same(*steps)


COUNTING = "$ CMD signals CONT >log & await_text log ready"
COUNTED = "await_text log CONT; kill -RTMAX $!; wait $!; echo $?; cat log"


@_table(
    (
        "Ctrl-Z, jobs, fg",
        "$ CMD signals CONT",
        "< ready",
        "^Z",
        "$ jobs -l",
        "$ fg",
        "< CONT!",
        "! end",
    ),
    (
        "three times, with one CONT each",
        *(
            "$ CMD signals CONT",
            "< ready",
            "^Z",
            "$ fg",
            "< CONT!",
            "^Z",
            "$ fg",
            "< CONT!",
            "^Z",
            "$ fg",
            "< CONT!",
        ),
        "! end",
    ),
    (
        "Ctrl-C after fg",
        "$ CMD signals CONT INT",
        "< ready",
        "^Z",
        "$ fg",
        "< CONT!",
        "^C",
        "< INT!",
        "! end",
    ),
    (
        "death by Ctrl-C after fg",
        "$ CMD signals CONT",
        *("< ready", "^Z", "$ fg", "< CONT!", "^C"),
    ),
    (
        "bg, then wait",
        "$ mkfifo f; CMD sh -c 'echo ready; read x <f; echo $x >log; exit 3'",
        *("< ready", "^Z", "$ bg", "$ echo words >f; wait $!; echo $?; cat log"),
    ),
    (
        "a job that tidies up before it stops",
        *("$ CMD stops_itself", "< ready", "^Z", "< tidy", "$ jobs", "$ fg", "< back"),
        # the job is back before a launcher that is still to be scheduled, which would stop at once
        *("~", "^Z", "< tidy", "$ fg", "< back", "> words", "< got"),
    ),
    (
        "a background job that reads the terminal",
        "$ CMD sh -c 'read x; echo got $x' & await_stopped $!",
        *("$ jobs -l", "$ fg", "< got $x'", "> words"),
    ),
    (
        "a background job that writes to a terminal with tostop",
        "$ stty tostop; CMD echo words & await_stopped $!",
        *("$ jobs -l", "$ fg"),
    ),
    (
        "STOP that the job sends itself",
        "$ CMD sh -c 'kill -STOP $$; echo back'",
        "$ jobs -l",
        "$ fg",
    ),
    (
        "TSTP that the job sends itself",
        "$ CMD sh -c 'kill -TSTP $$; echo back'",
        "$ jobs -l",
        "$ fg",
    ),
    (
        "TTIN that the job sends itself",
        "$ CMD sh -c 'kill -TTIN $$; echo back'",
        "$ jobs -l",
        "$ fg",
    ),
    ("TSTP where no shell would notice", "$ setsid -w CMD sh -c 'kill -TSTP $$; echo on'"),
    (
        "a pipeline",
        "$ CMD sh -c 'echo ready; read x; echo got $x' | cat",
        *("< ready", "^Z", "$ jobs", "$ fg", "< | cat", "> words"),
    ),
    (
        "a script",
        "$ bash -c 'CMD sh -c \"echo ready; read x; echo got \\$x\"; echo after'",
        *("< ready", "^Z", "$ fg", "< echo after", "> words"),
    ),
    (
        "kill -TSTP %1",
        f"{COUNTING}; kill -TSTP %1; await_stopped $!",
        "$ jobs -l",
        f"$ bg; {COUNTED}",
    ),
    (
        "kill -STOP %1",
        f"{COUNTING}; kill -STOP %1; await_stopped $!",
        "$ jobs -l",
        f"$ kill -CONT %1; {COUNTED}",
    ),
    (
        "STOP to all, CONT to one",
        f"{COUNTING}; kill -STOP %1; await_stopped $!",
        f"$ kill -CONT $!; {COUNTED}",
    ),
    (
        "TSTP and CONT to one",
        f"{COUNTING}; kill -TSTP $!; await_stopped $!",
        "$ jobs -l",
        f"$ kill -CONT $!; {COUNTED}",
    ),
    (
        "TSTP from outside",
        "$ CMD signals CONT",
        "< ready",
        "! TSTP",
        "$ jobs -l",
        "$ fg",
        "< CONT!",
        "! end",
    ),
)
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


@_table(
    ("TERM from outside", "$ CMD ready sleep 30", "< ready", "! TERM"),
    ("HUP from outside", "$ CMD ready sleep 30", "< ready", "! HUP"),
    (
        "a stopped job and kill %1",
        "$ CMD ready sleep 30",
        "< ready",
        "^Z",
        "$ kill %1; await_gone $(jobs -p)",
        "$ jobs",
    ),
    (
        "a background job and kill %1",
        "$ CMD ready sleep 30 >log & await_text log ready; kill %1; wait $!",
    ),
    (
        "an alarm set before",
        (
            "$ python3 -ISc 'import os, signal, sys; signal.alarm(1); "
            "os.execvp(sys.argv[1], sys.argv[1:])' CMD sleep 30"
        ),
    ),
)
def test_death_from_outside(terminal: Terminal, steps: Sequence[str]) -> None:
    """A job that is killed from outside ends, and with the same status."""
    _same_death(terminal, *steps)


@_table(
    (
        "nohup: HUP does not kill",
        "$ nohup CMD sh -c 'echo ready; read x <&3; echo got $x' 3<&0 2>&1 | cat",
        "< ready",
        "! HUP",
        "> words",
    ),
    ("nohup: HUP stays ignored", "$ nohup CMD grep SigIgn /proc/self/status | cat"),
    (
        "INT ignored before stays ignored",
        "$ (trap '' INT; CMD sh -c 'echo ready; read x; echo got $x')",
        "< ready",
        "^C",
        "> words",
    ),
    (
        "TSTP ignored before stays ignored",
        "$ (trap '' TSTP; CMD sh -c 'echo ready; read x; echo got $x')",
        "< ready",
        "^Z",
        "> words",
    ),
    (
        "TSTP ignored before, and the job stops nevertheless",
        "$ (trap '' TSTP; exec CMD sh -c 'kill -STOP $$; echo back')",
        "$ jobs -l",
        "$ fg",
    ),
    (
        "a job that wants a signal that was ignored before",
        "$ (trap '' HUP INT; exec CMD signals HUP INT)",
        "< ready",
        "! HUP",
        "< HUP!",
        "! INT",
        "< INT!",
        "^C",
        "< INT!",
        "! end",
    ),
    (
        "a background job of sh ignores INT and QUIT",
        (
            r"$ printf 'CMD ready sleep 30 >log &\nawait_text log ready; "
            r"kill -INT $!; kill -QUIT $!; kill $!; wait $!' >f"
        ),
        "$ sh f 2>/dev/null",
    ),
    ("CHLD ignored before", "$ started_with CHLD - CMD sh -c 'exit 3'"),
    (
        "CHLD ignored before stays ignored",
        "$ started_with CHLD - CMD grep ^Sig[BIC] /proc/self/status",
    ),
    ("CHLD blocked before", "$ started_with - CHLD CMD sh -c 'exit 3'"),
    (
        "TERM blocked before does not kill",
        "$ started_with - TERM CMD sh -c 'echo ready; read x; echo got $x'",
        "< ready",
        "! TERM",
        "> words",
    ),
    (
        "CONT ignored before",
        "$ started_with CONT - CMD ready sh -c 'kill -STOP $$; echo back'",
        "$ fg",
    ),
    ("signals at their default", "$ CMD grep ^Sig[BIC] /proc/self/status"),
    (
        "signals that were ignored and blocked before",
        (
            "$ started_with INT,HUP,USR1,TTOU,WINCH TERM,USR2,RTMIN,CHLD,CONT "
            "CMD grep ^Sig[BIC] /proc/self/status"
        ),
    ),
)
def test_signals_on_entry(terminal: Terminal, steps: Sequence[str]) -> None:
    """A job finds signals ignored and blocked as gpulaunch found them."""
    terminal.same(*steps)


LIST = "CMD sh -c 'for f in /proc/$$/fd/*; do echo ${f##*/}; done' | awk '$1 < 100'"


@_table(
    ("none but those of the shell", f"$ {LIST}"),
    (
        "numbers 3 and 9",
        (
            "$ echo words >f; CMD sh -c 'cat <&3; echo more >&9' 3<f 9>g; cat g; "
            f"{{ {LIST}; }} 3<f 9>g"
        ),
    ),
    ("stdin closed", "$ CMD sh -c 'cat; ls /proc/$$/fd/0' <&- 2>log; echo $?; grep -c . log"),
    (
        "stdout closed",
        (
            "$ CMD sh -c 'echo words; echo $? >&2; [ -e /proc/$$/fd/1 ] || echo closed >&2' "
            ">&- 2>log; cat log"
        ),
    ),
    ("stderr closed, and the command does not exist", "$ CMD no-such-command 2>&-"),
    (
        "stderr closed",
        "$ CMD sh -c 'echo words >&2; echo $?; [ -e /proc/$$/fd/2 ] || echo closed' 2>&-",
    ),
    (
        "all closed",
        (
            "$ CMD sh -c 'exec >f; for i in 0 1 2 3; do [ -e /proc/$$/fd/$i ] && echo $i; done' "
            "<&- >&- 2>&-"
        ),
        "$ cat f",
    ),
    ("all closed, and the status", "$ CMD sh -c 'exit 3' <&- >&- 2>&-"),
    (
        "stdin closed, and a redirection takes its number",
        "$ CMD sh -c 'ls -l /proc/$$/fd | grep -c gpulaunch' <&-",
    ),
    (
        "the offset of an open file is shared",
        "$ seq 9 >f; { read x; CMD sh -c 'read y; echo $y'; read z; echo $x $z; } <f",
    ),
    (
        "a lock on a descriptor",
        "$ (flock 9; CMD flock -n f true; echo $?; CMD flock -n 9; echo $?) 9>f",
    ),
)
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


@_table(
    ("a line", "$ CMD sh -c 'echo ready; read x; echo got $x'", "< ready", "> words"),
    ("a line without echo", "$ CMD bash -c 'read -sp ready x; echo got $x'", "? ready", "> words"),
    (
        "a line from /dev/tty",
        "$ CMD sh -c 'echo ready; read x </dev/tty; echo got $x' </dev/null",
        "< ready",
        "> words",
    ),
    ("its size", "$ CMD stty size"),
    ("its settings", "$ CMD stty -a"),
    ("its name", "$ tty >f; CMD tty | cmp - f && echo same"),
    ("a key in raw mode", "$ CMD one_key", "< ready", "> x", "$ stty -a"),
    ("settings that a job leaves behind", "$ CMD stty susp ^X; stty -a"),
    ("process group and session", "$ export SHELL_PID=$$; CMD place"),
    ("process group and session in a pipeline", "$ export SHELL_PID=$$; true | CMD place | cat"),
    (
        "process group and session in the background",
        "$ export SHELL_PID=$$; CMD place >f & wait $!; cat f",
    ),
    (
        "the process group is that of the pid which the shell started",
        "$ CMD cut -d' ' -f5 /proc/self/stat >f & wait $!; [ $(cat f) = $! ] && echo same",
    ),
    ("setsid", "$ setsid -w CMD sh -c 'cat /dev/tty; exit 3'"),
)
def test_terminal(terminal: Terminal, steps: Sequence[str]) -> None:
    """A job meets the terminal as it would."""
    terminal.same(*steps)


@_table(
    ("leaving with a status", "$ CMD bash --norc --noprofile -i", "$ echo $((6*7))", "$ exit 5"),
    (
        "job control within it",
        "$ CMD bash --norc --noprofile -i",
        "$ signals CONT INT",
        "< ready",
        "^Z",
        "$ jobs",
        "$ fg",
        "< CONT!",
        "^C",
        "< INT!",
        "! end",
        "$ exit 5",
    ),
    (
        "Ctrl-C at its job",
        "$ CMD bash --norc --noprofile -i",
        "$ ready sleep 30",
        "< ready",
        "^C",
        "$ echo $?",
        "$ exit 6",
    ),
    (
        "Ctrl-C at its prompt",
        "$ CMD bash --norc --noprofile -i",
        "? " + PROMPT,
        "~",
        "^C",
        "$ exit",
    ),
    ("Ctrl-D", "$ CMD bash --norc --noprofile -i", "$ (exit 4)", "? " + PROMPT, "^D"),
    (
        "suspend and fg",
        "$ CMD bash --norc --noprofile -i",
        "$ suspend",
        "$ jobs",
        "$ fg",
        "$ echo back",
        "$ exit 3",
    ),
)
def test_shell_as_job(terminal: Terminal, steps: Sequence[str]) -> None:
    """An interactive shell works as a job, with job control of its own."""
    terminal.same(*steps)


ARGUMENTS = (
    r""""" " " 'a b' "it's" '"' '\' '\n' $'line 1\nline 2' $'tab\there' """
    r"""'*' '?' '$HOME' '`date`' '%s' ';' '&' '|' """
    r"""-- -n --gpus --help -1 '--topology=x' '{}' '~' '!' '#' """
    r"""$'\xff\xfe' $'caf\xe9' $'\u00e9' $'\e[31m' $'\x7f' """
)
SHOW = 'python3 -ISc \'print(open("/proc/self/cmdline", "rb").read())\''


@_table(
    ("as they were given", f"$ CMD {SHOW} {ARGUMENTS}"),
    ("in the C locale", f"$ export LC_ALL=C; CMD {SHOW} {ARGUMENTS}"),
    ("without a locale", f"$ unset LANG LC_ALL LC_CTYPE; CMD {SHOW} {ARGUMENTS}"),
    (
        "with UTF-8 mode off",
        f"$ export LC_ALL=POSIX PYTHONUTF8=0 PYTHONCOERCECLOCALE=0; CMD {SHOW} {ARGUMENTS}",
    ),
    ("argv[0]", '$ CMD sh -c \'tr "\\0" " " </proc/$$/cmdline\''),
    ("argv[0] with a path", "$ CMD /bin/../bin/sh -c 'echo $0'"),
    ("half a megabyte of them", "$ CMD echo $(seq 80000) | cksum"),
    (
        "words that are commands of gpulaunch",
        (
            "$ printf 'echo this one \"$@\"' >status; chmod +x status; "
            "PATH=$PWD:$PATH; CMD status --json"
        ),
    ),
)
def test_arguments(terminal: Terminal, steps: Sequence[str]) -> None:
    """Arguments arrive byte for byte."""
    terminal.same(*steps)


LISTED = f"CMD env {OWN_VARIABLES} env"


@_table(
    ("as it was given", f"$ {LISTED}"),
    ("order and all", f"$ export ZZ=1 AA=2; {LISTED} -0 | cksum"),
    ("in the C locale", f"$ unset LC_ALL LC_CTYPE; export LANG=C; {LISTED} | grep -e ^LC -e ^LANG"),
    ("without a locale", f"$ unset LC_ALL LC_CTYPE LANG; {LISTED} | grep -e ^LC -e ^LANG"),
    (
        "with a locale that does not exist",
        f"$ unset LC_ALL LC_CTYPE; export LANG=xx_XX; {LISTED} | grep -e ^LC -e ^LANG",
    ),
    ("with LC_ALL", f"$ export LC_ALL=C; {LISTED} | grep -e ^LC -e ^LANG"),
    ("with LC_ALL empty", f"$ export LC_ALL= LANG=C; {LISTED} | grep -e ^LC -e ^LANG"),
    ("with LC_CTYPE=C", f"$ export LC_CTYPE=C; {LISTED} | grep -e ^LC -e ^LANG"),
    ("with LC_CTYPE=POSIX", f"$ export LC_CTYPE=POSIX; {LISTED} | grep -e ^LC -e ^LANG"),
    ("with LC_CTYPE empty", f"$ export LC_CTYPE= LANG=C; {LISTED} | grep -e ^LC -e ^LANG"),
    ("with LC_CTYPE=C.UTF-8", f"$ export LC_CTYPE=C.UTF-8; {LISTED} | grep -e ^LC -e ^LANG"),
    (
        "bytes that are no text",
        rf"$ export A=$'\xff\xfe=\n' B=$'caf\xe9'; {LISTED} -0 | grep -az ^[AB] | od -c",
    ),
    (
        "names that no shell knows",
        f"$ env a.b=1 'c d=2' $'\\xe9=3' {LISTED} | grep -a -e a.b -e 'c d' -e =3 | od -c",
    ),
    ("exported functions", "$ f() { echo words; }; export -f f; CMD bash -c f"),
    ("empty values", f"$ export A=; {LISTED} | grep ^A"),
    (
        "PYTHON variables of the job",
        f"$ export PYTHONINSPECT=1 PYTHONOPTIMIZE=2 PYTHONUNBUFFERED=1; {LISTED} | grep ^PYTHON",
    ),
)
def test_environment(terminal: Terminal, steps: Sequence[str]) -> None:
    """The environment is the one that gpulaunch was given, and the documented variables."""
    terminal.same(*steps)


@_table(
    ("umask", "$ umask 027; CMD sh -c 'umask; touch f'; stat -c %a f"),
    ("working directory", "$ mkdir 'a b'; cd 'a b'; CMD sh -c 'pwd; pwd -P'"),
    (
        "a working directory that is gone",
        "$ mkdir d; cd d; rmdir ../d; CMD sh -c 'echo here; exit 3'",
    ),
    ("niceness", "$ nice -n 5 CMD nice; CMD nice"),
    ("limits", "$ ulimit -S -n 256 -s 4096; CMD cat /proc/self/limits"),
    ("few descriptors", "$ (ulimit -n 64; CMD sh -c 'ulimit -n')"),
    (
        "identity and rights",
        (
            "$ CMD grep -e Uid: -e Gid: -e Groups -e Cap -e NoNew -e Seccomp: -e Umask "
            "/proc/self/status"
        ),
    ),
    (
        "resistance to the out-of-memory killer",
        "$ echo 300 >/proc/self/oom_score_adj; CMD cat /proc/self/oom_score_adj",
    ),
    ("timer slack and personality", "$ CMD cat /proc/self/timerslack_ns /proc/self/personality"),
    ("the root", "$ CMD readlink /proc/self/root /proc/self/ns/pid"),
)
def test_process(terminal: Terminal, steps: Sequence[str]) -> None:
    """A job is the process that it would be."""
    terminal.same(*steps)


@_table(
    ("a script without a first line", "$ printf 'echo words; exit 3' >f; chmod +x f; CMD ./f"),
    ("its name and arguments", "$ printf 'echo $0 \"$@\"' >f; chmod +x f; CMD ./f 'a b' ''"),
    ("in the path", "$ printf 'echo words' >f; chmod +x f; PATH=$PATH:$PWD; CMD f"),
    ("an empty script", "$ : >f; chmod +x f; CMD ./f"),
    (
        "a script with arguments in its first line",
        r"$ printf '#!/bin/echo a b\n' >f; chmod +x f; CMD ./f c",
    ),
    (
        "the current directory as an empty part of the path",
        r"$ printf '#!/bin/sh\necho words' >f; chmod +x f; PATH=$PATH:; CMD f",
    ),
    ("no path at all", "$ export -n PATH; CMD uname"),
)
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
