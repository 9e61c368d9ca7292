"""The launches of docker's client: each container that it makes or starts gets a lease."""

import os

from gpulaunch.cli.launch import Reporter, carry_out, tell_of
from gpulaunch.cli.output import say
from gpulaunch.containers.docker.line import DockerLine
from gpulaunch.decide.decision import Refuse, Wait
from gpulaunch.errors import GpulaunchError, UsageError
from gpulaunch.launch.docker_run import first_launch, read_project_launch, run_docker
from gpulaunch.launch.launch import Events, Launch
from gpulaunch.launch.options import Given, Options
from gpulaunch.process.job import exit_like, exit_status

_NOT_OF_COMPOSE = ("share", "record", "record_to")


def main(given: Given, line: DockerLine) -> int:
    """Run docker's client, which makes or starts containers."""
    options = Options(given, os.environ)
    if line.is_compose:
        options = _without_sharing(options, line)
    if options.dry_run or options.when or options.detach or options.after is not None:
        return _carry_out(options, line)
    if options.json:
        raise UsageError("--json needs --dry-run, since stdout belongs to the job")
    reporters = _Reporters(options)
    try:
        status = _outcome(*run_docker(options, line, reporters))
    except GpulaunchError as failure:
        reporters.ended(failure.exit_status)
        raise
    reporters.ended(exit_status(status))
    return exit_like(status)


def _carry_out(options: Options, line: DockerLine) -> int:
    """Carry out what has to know the launch before docker's client asks for its container."""
    launch = None
    if line.is_compose:
        _, launch = read_project_launch(options, line, tell_of(options))
    launch = launch or first_launch(options, line, Reporter(options, is_first=False))

    def run_job(launch: Launch, events: Events) -> int:
        if launch.wait:
            options.given = {"wait": ("--wait", "true"), **options.given}
        return _outcome(*run_docker(options, line, events))

    return carry_out(options, launch, run_job)


class _Reporters(Events):
    """The reporters of the containers that docker's client makes, one for each launch."""

    def __init__(self, options: Options) -> None:
        self._options, self._first = options, Reporter(options)
        self._all: list[Reporter] = []

    def warn(self, text: str) -> None:
        """Print a warning."""
        self._first.warn(text)

    def begins(self, launch: Launch) -> Reporter:
        """Report of one more launch."""
        reporter = Reporter(self._options, is_first=False) if self._all else self._first
        reporter.concerns(launch)
        self._all.append(reporter)
        return reporter

    def over(self, status: int) -> None:
        """Report that the client has ended."""
        for reporter in self._all:
            reporter.over(status)

    def ended(self, exit_status: int) -> None:
        """Report that all is over."""
        for reporter in self._all:
            reporter.ended(exit_status)

    def refusal(self, launch: Launch, decision: Wait | Refuse) -> GpulaunchError:
        """Return the error of a launch that does not get its GPUs."""
        return self._first.refusal(launch, decision)


def _outcome(status: int, problem: GpulaunchError | None) -> int:
    """Return the client's wait status, or ours in its place if a container got no GPUs.

    The client has printed our message.
    """
    if problem is None or status == 0:
        return status
    for note in getattr(problem, "__notes__", ()):
        say("info", note)
    if problem.hint:
        say("hint", problem.hint)
    return problem.exit_status << 8


def _without_sharing(options: Options, line: DockerLine) -> Options:
    for name in _NOT_OF_COMPOSE:
        if name in options.given and options.given[name][1] != "false":
            flag = options.flag(name)
            raise UsageError(
                f"{flag}: not for {line.title}",
                f"'gpulaunch {flag} docker run' does it for one container",
            )
    return options.but(share=(line.title, "false"))
