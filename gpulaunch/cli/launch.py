"""`gpulaunch [OPTIONS] -- COMMAND [ARG...]`: launch a job."""

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from gpulaunch.cli.output import format_start, say
from gpulaunch.cli.output import warn as warn_on_stderr
from gpulaunch.decide.decision import Refuse, Wait
from gpulaunch.errors import GpulaunchError, UsageError, WouldWaitError
from gpulaunch.files.units import format_duration, format_size
from gpulaunch.history.line import taken
from gpulaunch.launch.handed_over import explain_hand_over, refuse_sudo
from gpulaunch.launch.launch import (
    Events,
    Keeper,
    Launch,
    preview,
    see_again,
    ticket_of,
    would_wait,
)
from gpulaunch.launch.listeners import EVENT_VARIABLE, JsonStatus, LaunchInHistory, Notifier
from gpulaunch.launch.options import Given, Options
from gpulaunch.launch.read_launch import read_launch
from gpulaunch.launch.run import run
from gpulaunch.launch.surroundings import open_table
from gpulaunch.leases.holders import who_has_what
from gpulaunch.leases.table import Snapshot
from gpulaunch.machine.gpu import gpus_called
from gpulaunch.process.job import exit_like, exit_status
from gpulaunch.records import replace

if TYPE_CHECKING:  # few launches need these
    from gpulaunch.launch.detached import Detached, Detachment
    from gpulaunch.launch.past import Predecessor

RunJob = Callable[[Launch, Events], int]
"""A function with the arguments of run(), and its result."""

_EXIT_STATUS = {"grant": 0, "wait": WouldWaitError.exit_status, "refuse": UsageError.exit_status}


def main(given: Given, command: Sequence[str]) -> int:
    """Run a command on GPUs, or print the decision, for which it may be empty."""
    if command:
        refuse_sudo(command)
        warning = explain_hand_over(command, os.environ)
    else:  # --explain alone: nothing can run, so the decision is meant
        given, warning = {"dry_run": ("--dry-run", "true"), **given}, None
    options = Options(given, os.environ)
    if warning:
        tell_of(options)(warning)
    launch = read_launch(options, command, name=options.name, warn=tell_of(options))
    return carry_out(options, launch)


def tell_of(options: Options) -> Callable[[str], None]:
    """Return the function that prints warnings."""
    return _ignore if options.quiet else warn_on_stderr


def carry_out(options: Options, launch: Launch, run_job: "RunJob" = run) -> int:
    """Carry out a launch that has been read: run the command, or print the decision."""
    if options.json and not (options.dry_run or options.when):
        raise UsageError(
            "--json needs --dry-run, since stdout belongs to the job",
            "see 'gpulaunch status --json'",
        )
    tell = tell_of(options)
    if options.record_to and options.dry_run:
        raise UsageError("-o record_to and --dry-run: nothing runs, so nothing is measured")
    if options.when:
        from gpulaunch.cli.explain import print_start  # late: a job that runs does without

        return print_start(launch, options, tell)
    before: Sequence[Predecessor] = ()
    if options.after is not None:
        from gpulaunch.launch.past import find_predecessors  # late: few come after others

        before = find_predecessors(options.after.split("\0"))
        if "wait" not in options.given:  # nobody may be there any more when its turn comes
            launch = replace(launch, wait=True)
    if options.dry_run:
        decision, state = preview(launch, tell)
        from gpulaunch.cli.explain import print_decision  # late: a job that runs does without

        return _EXIT_STATUS[print_decision(launch, decision, state, options)]

    if launch.in_history and (problem := taken()):
        tell(problem)
    if not options.detach:
        return _run(options, launch, before, None, run_job)
    from gpulaunch.launch.detached import detach, what_was_told  # late: few launches are detached

    told = what_was_told()
    if told:
        return _run(options, launch, before, told, run_job)
    return detach(options, launch, tell, _ignore if options.quiet else partial(say, "info"))


def _run(
    options: Options,
    launch: Launch,
    before: "Sequence[Predecessor]",
    told: "Detached | None",
    run_job: "RunJob",
) -> int:
    """Run a launch, detached if it was told so, and return or raise its outcome."""
    reporter = Reporter(options)
    try:
        reporter.concerns(launch, before, is_detached=told is not None)
        if told:
            reporter.announce(told)
        if before:
            from gpulaunch.launch.past import wait_for_predecessors

            wait_for_predecessors(before, reporter.warn, reporter.comes_after)
            launch = see_again(launch)  # that may have taken days
        if run_job is not run:  # docker's client is a job from the start
            reporter.has_job()
        status = run_job(launch, reporter)
    except GpulaunchError as problem:
        reporter.ended(problem.exit_status)
        raise
    reporter.ended(exit_status(status))
    return exit_like(status)


class Reporter(Events):
    """The reporter of a launch's course on stderr, and to whoever else is to hear of it.

    Args:
        is_first: whether it is the first of its command, of whose course a program may be told.
    """

    def __init__(self, options: Options, *, is_first: bool = True) -> None:
        self._options = options
        self._talks = not options.quiet and options.json_status_fd is None
        self._joined_s: float | None = None
        self._listeners: list[Events] = []
        if is_first and options.json_status_fd is not None:
            self._listeners.append(JsonStatus(options.json_status_fd))
        self._history: LaunchInHistory | None = None
        self._detachment: Detachment | None = None

    def warn(self, text: str) -> None:
        """Print a warning."""
        tell_of(self._options)(text)

    def concerns(
        self, launch: Launch, before: "Sequence[Predecessor]" = (), *, is_detached: bool = False
    ) -> None:
        """Say which launch it is; of docker's this is known once its client asks for a container.

        Raises:
            UsageError: it cannot be measured, though the command line asks for that.
            FailedError: what is measured could not be written, though the command line asks for it.
        """
        options, self._launch = self._options, launch
        if launch.in_history:
            self._history = LaunchInHistory(launch, [one.text for one in before])
            self._listeners.append(self._history)
        if launch.notify and EVENT_VARIABLE not in os.environ:  # else such a command has started it
            self._listeners.append(Notifier(launch, launch.notify, is_awaited=is_detached))
        if launch.recorded_in or options.record_to:
            # late: few launches are recorded
            from gpulaunch.lab.measure.recording import recorder_of

            is_asked = bool(options.given.keys() & {"record", "record_to"})
            recorder = recorder_of(launch, options.record_to, self.warn, is_asked=is_asked)
            if recorder:  # first, since what it writes is there for those who hear of the end
                self._listeners.insert(0, recorder)

    def announce(self, told: "Detached") -> None:
        """Answer the process that detached this launch, and report the end whatever comes.

        Raises:
            FailedError: it has been given up, or nobody could find it.
        """
        assert self._history  # noqa: S101  without a history nothing is detached
        from gpulaunch.launch.detached import Detachment

        self._detachment = Detachment(told, self._history, self.ended)

    def _answer(self, standing: str) -> None:
        """Tell the process that detached this launch, if one did, what it does now, once."""
        if self._detachment:
            self._detachment.answer(standing)

    def comes_after(self, name: str) -> None:
        """Report that the launch waits for the end of another one."""
        self._answer(f"waits for the end of {name}")
        if self._talks:
            say("info", f"waiting for the end of {name}")

    def waiting(self, reason: str, seen: Snapshot) -> None:
        """Report that the launch joins the queue."""
        self._joined_s = time.monotonic()
        place, start = f"as number {len(seen.tickets) + 1} in the queue", ""
        for listener in self._listeners:
            listener.waiting(reason, seen)
        if self._talks:
            # Somebody has to read it, since it costs 0.1 s.
            if os.isatty(2) or (self._detachment and self._detachment.pipe is not None):
                from gpulaunch.history.predict import predicted_start

                ticket = ticket_of(self._launch)
                predicted = predicted_start(self._launch.machine, seen, ticket)
                start = format_start(predicted.from_s, predicted.to_s) if predicted else ""
            then = f"; starts probably {start}" if start else ""
            say("info", f"waiting {place}: {reason}{then}")
            for line in who_has_what(self._launch.machine.topology, seen, self._launch.within):
                say("info", line)
        self._answer(f"waits {place}" + (f", probably {start}" if start else ""))
        self._explain(self._launch)

    def first(self, reason: str, waited_s: float) -> None:
        """Report that the launch has become the first in the queue."""
        if self._talks:
            say("info", f"first in the queue after {_duration(waited_s)}: {reason}")

    def minute(self, waited_s: float, number: Callable[[], int]) -> None:
        """Report once a minute that the launch waits, in a log: a terminal still shows it."""
        if self._talks and not os.isatty(2):
            say("info", f"waiting for {_duration(waited_s)} as number {number()} in the queue")

    def has_job(self) -> None:
        """Hear that signals are the job's from now on."""
        if self._detachment:
            self._detachment.has_job()

    def granted(self, keeper: Keeper) -> None:
        """Report that the launch has its GPUs."""
        self._answer(f"is running on {gpus_called(keeper.grant.names.split(','))}")
        self.has_job()
        if self._options.explain:
            from gpulaunch.cli.explain import explain_on_stderr  # late: few launches are explained

            explain_on_stderr(self._launch, keeper.grant, keeper.state)
        if self._talks:
            _say_less_than_all(self._launch, keeper)
        if self._options.verbose:
            _say_granted(self._launch, keeper)
        elif self._joined_s is not None and self._talks:
            waited = _duration(time.monotonic() - self._joined_s)
            say("info", f"started after {waited} on {_gpus_of(self._launch, keeper)}")
        for listener in self._listeners:
            listener.granted(keeper)

    def idle(self, seconds: float) -> None:
        """Tell the owner that the GPUs have done nothing for a while."""
        if self._talks:
            say("warning", f"the GPUs of this job have been idle for {_duration(seconds)}")
        for listener in self._listeners:
            listener.idle(seconds)

    def over(self, status: int) -> None:
        """Record the end of the job, whose GPUs are still leased."""
        if self._detachment and self._history:  # known from now on, even if this is killed
            self._history.ended(exit_status(status))
        for listener in self._listeners:
            listener.over(status)

    def ended(self, exit_status: int) -> None:
        """Report that the launch has ended, and that its GPUs are free."""
        for listener in self._listeners:
            listener.ended(exit_status)

    def refusal(self, launch: Launch, decision: Wait | Refuse) -> GpulaunchError:
        """Return the error of a launch that does not get its GPUs, with a hint what to do."""
        self._explain(launch)
        if isinstance(decision, Refuse):
            return UsageError(decision.reason)
        options = self._options
        where = f" --topology {options.topology}" if "topology" in options.given else ""
        hint = f"add --wait to queue, or see 'gpulaunch status{where}'"
        container = launch.container
        if container and container.asks_for_all and launch.request.gpus is None:
            hint = (
                "add --wait to queue, or -n 1 for one GPU; "
                "the setting all_gpus says what 'all' means"
            )
        if options.quiet:
            return WouldWaitError(decision.reason, hint)
        return would_wait(
            launch, open_table(private=launch.private, warn=_ignore), decision.reason, hint
        )

    def _explain(self, launch: Launch) -> None:
        if self._options.explain:
            from gpulaunch.cli.explain import explain_on_stderr  # late: few launches are explained

            explain_on_stderr(launch, *preview(launch, _ignore))


def _duration(seconds: float) -> str:
    return format_duration(int(seconds))


def _say_granted(launch: Launch, keeper: Keeper) -> None:
    share = ""
    if keeper.lease.share:
        memory = format_size(keeper.lease.share.client.demand.memory_bytes)
        share = f"; to be shared: {keeper.lease.share.sm_percentage} % of the SMs, {memory} on each"
    left = keeper.grant.placement.scores.preserved_bandwidth
    leaves = f"; leaves {left:.4g} GB/s between free GPUs" if left else ""
    say("info", f"{_gpus_of(launch, keeper)}: {keeper.grant.reason}{leaves}{share}")


def _say_less_than_all(launch: Launch, keeper: Keeper) -> None:
    """Say that docker's `all` is here less than what docker alone would give."""
    count, there = len(keeper.lease.uuids), len(launch.machine.topology.gpus)
    if launch.container and launch.container.asks_for_all and count < there:
        say("info", f"all GPUs are asked for: here {count} of {there}")


def _gpus_of(launch: Launch, keeper: Keeper) -> str:
    gpus = keeper.grant.names
    return f"{gpus_called(gpus.split(','))} of {launch.machine.topology.name}"


def _ignore(text: str) -> None:
    """Drop a warning."""
