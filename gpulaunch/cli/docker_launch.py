"""The launches of docker's client: each container that it makes or starts gets a lease."""

import os
from collections.abc import Callable

from gpulaunch.cli.launch import Reporter, carry_out, explain_refusal, refusal, tell_of
from gpulaunch.cli.output import say
from gpulaunch.containers.docker.line import DockerLine
from gpulaunch.decide.decision import Refuse, Wait
from gpulaunch.errors import GpulaunchError, UsageError
from gpulaunch.launch.container_leases import Granted, Refusal
from gpulaunch.launch.container_run import first_launch, run_docker
from gpulaunch.launch.launch import Callbacks, Launch
from gpulaunch.launch.options import Given, Options
from gpulaunch.process.job import exit_like, exit_status

_NOT_OF_COMPOSE = ("share", "record", "record_to")


def main(given: Given, line: DockerLine) -> int:
    """Run docker's client, which makes or starts containers.

    Args:
        given: gpulaunch's options, by name.
        line: docker's command line.
    """
    options = Options(given, os.environ)
    if line.is_compose:
        options = _without_sharing(options, line)

    def refuse(launch: Launch, decision: Wait | Refuse) -> GpulaunchError:
        explain_refusal(launch, options)
        return refusal(launch, decision, options)

    if options.dry_run or options.when or options.detach or options.after is not None:
        return _carry_out(options, line, refuse)
    if options.json:
        raise UsageError("--json needs --dry-run, since stdout belongs to the job")
    return _run(options, line, refuse)


def _carry_out(options: Options, line: DockerLine, refuse: Refusal) -> int:
    """Carry out what has to know the launch before docker's client asks for its container."""
    from gpulaunch.launch.read_compose import read_project_launch  # late: few are compose's

    tell = tell_of(options)
    launch = read_project_launch(options, line, tell)[1] if line.is_compose else None
    launch = launch or first_launch(options, line, tell)

    def run_job(
        launch: Launch, callbacks: Callbacks, granted: Granted, over: Callable[[int], None]
    ) -> int:
        if launch.wait:
            options.given = {"wait": ("--wait", "true"), **options.given}
        told = callbacks, granted
        return _outcome(*run_docker(options, line, lambda _: told, refuse, tell, over))

    return carry_out(options, launch, run_job)


def _run(options: Options, line: DockerLine, refuse: Refusal) -> int:
    """Run docker's client, and report the course of each lease."""
    tell, first = tell_of(options), Reporter(options)
    reporters: list[Reporter] = []

    def begins(launch: Launch) -> tuple[Callbacks, Granted]:
        reporter = Reporter(options, is_first=False) if reporters else first
        reporter.concerns(launch)
        reporters.append(reporter)
        told = reporter.waiting, reporter.first, reporter.minute
        return Callbacks(tell, *told, idle=reporter.idle), reporter.granted

    def over(status: int) -> None:
        for reporter in reporters:
            reporter.over(status)

    try:
        status = _outcome(*run_docker(options, line, begins, refuse, tell, over))
    except GpulaunchError as failure:
        for reporter in reporters:
            reporter.ended(failure.exit_status)
        raise
    for reporter in reporters:
        reporter.ended(exit_status(status))
    return exit_like(status)


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
