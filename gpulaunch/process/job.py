"""The job's process: forked first, started later, waited for, with all signals passed on.

The job runs as if gpulaunch were not there. It stays in gpulaunch's process group, so the terminal
reaches both; a signal that a process sends to gpulaunch alone is passed on; when the job stops,
gpulaunch stops. docs/decisions/signals.md has the reasons.
"""

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from gpulaunch.errors import FAILED, call_failed
from gpulaunch.process.ending import WITNESS, close_all_but, hide_arguments
from gpulaunch.process.libc import (
    ENDING_SIGNALS,
    adopt_orphans,
    end_with_parent,
    out_of_the_way,
    set_process_name,
)
from gpulaunch.process.system import (
    PYTHON_IGNORES,
    clean_environment,
    complain,
    execute,
    identify,
    pending_signals,
    stat_fields,
)

_ANSWER_MS = 1000  # one on a busy machine answers, one that is stopped does not
_LOOK_AGAIN_S = 0.005  # systemd and Slurm send a signal to one process after the other


class Witness:
    """A process in the job's process group that shows which signals the whole group got.

    A signal to the group, as timeout, dumb-init and killpg send it, has reached the job when the
    launcher reads it; one to the launcher alone has not. siginfo_t says who sent it, not to whom.
    The witness blocks every signal, as the launcher does when it forks it: what the group got is
    pending. `pkill` by the name of gpulaunch or of the job does not find it, and it ends with the
    launcher.

    Raises:
        OSError: no process or no descriptor is left.
    """

    def __init__(self) -> None:
        end_with_launcher = end_with_parent(os.getpid())
        pipes: list[int] = []
        try:
            for _ in range(2):
                pipes.extend(map(out_of_the_way, os.pipe()))
            question, self._ask, self._hear, answer = pipes
            self.pid = os.fork()
            if self.pid == 0:
                try:
                    end_with_launcher()
                    set_process_name(WITNESS)
                    hide_arguments(WITNESS)
                    close_all_but(question, answer)
                    while asked := os.read(question, 1):
                        signal.sigtimedwait(asked, 0)
                        os.write(answer, asked)
                finally:
                    os._exit(0)
        except OSError:
            for fd in pipes:
                os.close(fd)
            raise
        os.close(question)
        os.close(answer)

    def saw(self, number: int) -> bool | None:
        """Return whether the group got a signal that the launcher has read; forget it here.

        None is yes from a witness that does not answer, because somebody has stopped or killed it:
        it cannot forget, and must be replaced.
        """
        if number not in pending_signals(self.pid):
            time.sleep(_LOOK_AGAIN_S)
            if number not in pending_signals(self.pid):
                return False
        if not self._has_forgotten(number):
            return None
        # Another one that came meanwhile was for the group, too, or as good as the same one.
        if signal.sigtimedwait({number}, 0) and number in pending_signals(self.pid):
            return True if self._has_forgotten(number) else None
        return True

    def _has_forgotten(self, number: int) -> bool:
        """Let it take a signal that is pending there; return whether it has answered in time."""
        with suppress(BrokenPipeError):
            os.write(self._ask, bytes([number]))
        answer = select.poll()
        answer.register(self._hear, select.POLLIN)
        return bool(answer.poll(_ANSWER_MS) and os.read(self._hear, 1))

    def end(self) -> None:
        """End the process."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.close()

    def close(self) -> None:
        """Give the descriptors back; the process has ended."""
        os.close(self._ask)
        os.close(self._hear)


# asm-generic/siginfo.h: sent by kill(2); below it: by sigqueue(3), tgkill(2) and timers
_SI_USER = 0
_TERMINAL_SIGNALS = frozenset(
    {
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGTSTP,
        signal.SIGTTIN,
        signal.SIGTTOU,
        signal.SIGHUP,
        signal.SIGWINCH,
    }
)
_UNMANAGED = frozenset(
    {
        # cannot be caught
        signal.SIGKILL,
        signal.SIGSTOP,
        # faults of our own
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGTRAP,
        signal.SIGSYS,
    }
)
_CONTINUE_S = 0.02
_DAY_S = 86400.0  # the kernel does not take centuries


class Job:
    """A child that waits to become the job; from here on this process adopts its orphans.

    Args:
        keep: descriptor that the job inherits; None for none.
        tied: kill it if this process dies.
        before_signal: called with the number of each signal that the job is about to get from here.

    Attributes:
        ignored: signals that were ignored when gpulaunch was started, and stay so.
        interrupted: INT, QUIT, TERM or HUP has come.
        asked_to_end_s: when the last of them but HUP came, on the monotonic clock, or None.
        first_term_s: when the first TERM came, on the same clock, or None.
        stopped_s: seconds for which it and this process were stopped, as by Ctrl-Z.
    """

    def __init__(
        self,
        keep: int | None,
        *,
        tied: bool = False,
        before_signal: Callable[[int], object] | None = None,
    ) -> None:
        self._before_signal = before_signal
        self._witness: Witness | None = None
        self._witnesses_left = 10
        self._had_before_witness: set[int] = set()
        self.interrupted = False
        self.asked_to_end_s: float | None = None
        self.first_term_s: float | None = None
        self.stopped_s = 0.0
        tie = end_with_parent(os.getpid()) if tied else None
        self._hold_signals()
        try:
            adopt_orphans()
            read_end, self._word = (out_of_the_way(fd) for fd in os.pipe())
            self.pid = os.fork()
        except OSError as problem:
            raise call_failed("cannot make a process for the job", problem) from None
        if self.pid == 0:
            try:
                os.close(self._word)
                if tie:
                    tie()
                self._become(keep, read_end)
            except OSError as problem:
                complain(call_failed("cannot become the job", problem).message)
            finally:
                os._exit(FAILED)
        os.close(read_end)
        self.process = identify(self.pid)

    def _hold_signals(self) -> None:
        """Block all signals, so that wait() reads each and passes it on."""
        for number in PYTHON_IGNORES:  # Python did that to itself at start
            signal.signal(number, signal.SIG_DFL)
        every = signal.valid_signals()
        self.ignored = frozenset(n for n in every if signal.getsignal(n) == signal.SIG_IGN)
        # Were it ignored, the job's end could not be waited for.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # Ignored ones are read, too: the job may want them nevertheless.
        self._managed = every - _UNMANAGED
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._managed)

    def forget(self) -> None:
        """Give signals back to this process: what came meanwhile acts now."""
        for number in PYTHON_IGNORES:
            signal.signal(number, signal.SIG_IGN)
        if signal.SIGCHLD in self.ignored:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _become(self, keep: int | None, read_end: int) -> None:
        """Wait for the word in the child, then turn into the job."""
        with open(read_end, "rb") as pipe:
            word = pipe.read()
        if not word:
            os._exit(FAILED)
        command, environment, cpus = json.loads(word)
        variables = clean_environment()
        for name, value in environment.items():
            variables.pop(os.fsencode(name), None)
            if value is not None:
                variables[os.fsencode(name)] = os.fsencode(value)
        if cpus:
            # The cpuset may have changed since: then the job runs where it may.
            with suppress(OSError):
                os.sched_setaffinity(0, cpus)
        if keep is not None:
            os.set_inheritable(keep, True)
        for number in (signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_IGN if number in self.ignored else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        os._exit(execute(command, variables))

    def dismiss(self) -> None:
        """End the child without ever having been the job."""
        os.close(self._word)
        os.kill(self.pid, signal.SIGKILL)  # somebody may have stopped it
        os.waitpid(self.pid, 0)
        self.forget()

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str | None],
        cpus: frozenset[int] = frozenset(),
        *,
        last: bool = True,
    ) -> None:
        """Let it run.

        Args:
            command: argv; undecodable bytes are surrogates and arrive as they were.
            environment: variables to add to what gpulaunch was given; None removes one.
            last: no other job comes after it, so stdin and stdout are its own.
        """
        self._call_witness()
        if self._witness:
            # Until it starts the job blocks all signals, and is a witness itself.
            already = pending_signals(self.pid) - pending_signals(self._witness.pid)
            self._had_before_witness = already & signal.sigpending()
        word = json.dumps([command, dict(environment), sorted(cpus)]).encode()
        try:
            with suppress(BrokenPipeError):  # it was killed, which wait() will tell
                while word:
                    word = word[os.write(self._word, word) :]
            os.close(self._word)
        except OSError as problem:
            os.kill(self.pid, signal.SIGKILL)  # a job that never starts keeps no lease
            raise call_failed("cannot tell the job its command, by a pipe", problem) from None
        if last:
            _let_go()

    def _call_witness(self) -> None:
        """Let a new witness show from here on which signals the group gets."""
        self._witness = None
        self._witnesses_left -= 1  # what ends each of them, as an OOM killer may, must not go on
        if self._witnesses_left >= 0:
            with suppress(OSError):  # without one the job gets the group's signals twice
                self._witness = Witness()

    def wait(self, limit_s: float | None = None, after_term_s: float | None = None) -> int | None:
        """Pass signals on until the job ends.

        Args:
            limit_s: the longest wait, or None for no limit.
            after_term_s: the longest wait after the first TERM, or None for no limit.

        Returns:
            Its wait status, as os.waitpid gives it; None if it runs longer than one of the limits.
        """
        deadline = float("inf") if limit_s is None else time.monotonic() + limit_s
        while True:
            status = self._reap()
            if status is not None:
                return status
            if after_term_s is not None and self.first_term_s is not None:
                deadline = min(deadline, self.first_term_s + after_term_s)
            left_s = deadline - time.monotonic()
            info = signal.sigtimedwait(self._managed, min(max(0.0, left_s), _DAY_S))
            if info:
                self._react(info)
            elif left_s <= _DAY_S:
                return None

    def end(self, grace_s: float) -> int:
        """End the job: TERM, and KILL after the grace, in seconds. Return its wait status."""
        self._send(signal.SIGTERM)
        os.kill(self.pid, signal.SIGCONT)  # a stopped job would not hear it
        status = self.wait(grace_s)
        if status is None:
            self._send(signal.SIGKILL)
            status = self.wait()
        return status or 0

    def _send(self, number: int) -> None:
        if self._before_signal:
            self._before_signal(number)
        os.kill(self.pid, number)

    def _reap(self) -> int | None:
        """Reap the job and adopted descendants; return the job's wait status once it has ended."""
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                return None
            if pid == self.pid and not os.WIFSTOPPED(status):
                if self._witness:
                    self._witness.end()
                return status
            if self._witness and pid == self._witness.pid:  # somebody has stopped or killed it
                if os.WIFSTOPPED(status):
                    self._witness.end()
                else:
                    self._witness.close()
                self._call_witness()
            if pid == self.pid and self._stops_us(os.WSTOPSIG(status)):
                since_s = time.monotonic()
                self._stop_by(os.WSTOPSIG(status))
                self.stopped_s += time.monotonic() - since_s

    def _stop_by(self, number: int) -> None:
        """Stop as the job did, so that the shell sees the same; returns when somebody wakes us."""
        if number in self.ignored:
            number = signal.SIGSTOP
        os.kill(os.getpid(), number)
        if number != signal.SIGSTOP:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
            signal.pthread_sigmask(signal.SIG_BLOCK, {number})

    def _stops_us(self, number: int) -> bool:
        """Return whether a shell should see that the job has stopped.

        Not if we were stopped along with it and have been woken since. Nor, without a terminal, by
        STOP sent to the job alone, as cpulimit does: no shell waits for it, and cpulimit will wake
        the job alone, not us.
        """
        return signal.SIGCONT not in signal.sigpending() and (
            number != signal.SIGSTOP or _has_terminal()
        )

    def _react(self, info: signal.struct_siginfo) -> None:
        sent_by_process = info.si_code <= _SI_USER
        if info.si_signo in ENDING_SIGNALS:
            self.interrupted = True
            # What has been started to survive a hang-up, as by nohup, is not asked to end by one.
            if info.si_signo != signal.SIGHUP:
                self.asked_to_end_s = time.monotonic()
            if info.si_signo == signal.SIGTERM and self.first_term_s is None:
                self.first_term_s = self.asked_to_end_s
        if info.si_signo == signal.SIGCONT:
            self._continue()
        elif info.si_signo == signal.SIGCHLD and not sent_by_process:
            pass
        elif info.si_signo in PYTHON_IGNORES and info.si_pid == os.getpid():
            pass  # our own, from writing a message that nobody reads, or beyond the limit of a file
        elif not self._has_reached_job(info.si_signo) and (
            sent_by_process or info.si_signo not in _TERMINAL_SIGNALS
        ):
            self._send(info.si_signo)

    def _has_reached_job(self, number: int) -> bool:
        """Return whether the process group got a signal that was read here, and the job with it."""
        if number in self._had_before_witness:
            self._had_before_witness.remove(number)
            return True
        seen = self._witness.saw(number) if self._witness else False
        if self._witness and seen is None:
            self._witness.end()
            self._call_witness()
        # A job may have moved to a group of its own, as an interactive shell does.
        return seen is not False and os.getpgid(self.pid) == os.getpgrp()

    def _continue(self) -> None:
        """Wake the job, unless whoever woke us woke it too, as a shell's fg does."""
        if self._still_stopped():
            signal.sigtimedwait({signal.SIGCHLD}, _CONTINUE_S)
        if self._still_stopped():
            os.kill(self.pid, signal.SIGCONT)

    def _still_stopped(self) -> bool:
        """Return whether the job is in the stop that wait() already reported."""
        if stat_fields(self.pid)[:1] != ["T"]:
            return False
        return (
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT)
            is None
        )


def exit_status(status: int) -> int:
    """Return the exit status that tells how a job ended: its own, or 128 + the signal's number."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def exit_like(status: int) -> int:
    """Return the exit status that tells how the job ended, or end by the same signal.

    After INT and QUIT this process ends by the signal, so that a shell loop around it stops.
    """
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGINT, signal.SIGQUIT):
        end_by(os.WTERMSIG(status))
    return exit_status(status)


def end_by(number: int) -> None:
    """End this process by a signal, leaving no core file of our own."""
    import resource

    if sys.stdout:
        sys.stdout.flush()
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})


def _has_terminal() -> bool:
    """Return whether this session has a terminal, so that a shell may do job control."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _let_go() -> None:
    """Leave stdin and stdout to the job, so that a reader sees when it closes them."""
    with suppress(OSError):  # no descriptor left, no /dev: then they stay as they are
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for fd in (0, 1):
            os.dup2(null, fd, inheritable=False)
        if null > 1:  # else one of them had been closed
            os.close(null)
