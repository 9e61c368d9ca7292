"""The run of docker's client, to the end of its containers' part in it."""

import os

from gpulaunch.containers.asked import HOST_VARIABLES
from gpulaunch.containers.docker import ADDRESS_VARIABLE
from gpulaunch.containers.docker.client import DockerClient
from gpulaunch.containers.docker.line import TLS_VARIABLES, DockerLine, socket_of
from gpulaunch.containers.door import Door
from gpulaunch.containers.flags import without_secrets
from gpulaunch.errors import GpulaunchError, UsageError, call_failed, printable
from gpulaunch.launch.docker_porter import DockerPorter
from gpulaunch.launch.launch import Events, Launch
from gpulaunch.launch.options import Options
from gpulaunch.process.job import Job
from gpulaunch.process.system import this_process


def run_docker(
    options: Options, line: DockerLine, events: Events
) -> tuple[int, GpulaunchError | None]:
    """Run docker's client at a door of this process, where its containers get their leases.

    Args:
        options: gpulaunch's own options.
        line: docker's command line.
        events: who hears of each launch that begins.

    Returns:
        Its wait status, and why the last container got no GPUs, if it did not.

    Raises:
        TimedOutError: it ran longer than its limit, or its GPUs were idle for too long.
    """
    porter = _porter_of(options, line, events)
    if line.is_compose and options.wait:
        from gpulaunch.launch.read_compose import read_project_launch  # late: few projects wait

        name, launch = read_project_launch(options, line, porter.warn)
        if launch and launch.wait and not porter.client.of_project(name):
            porter.reserve(launch)
    door = Door(porter.client.address)
    status, was_late = 0, False
    try:
        job = Job(keep=None, before_signal=porter.before_signal)
        porter.process = job.process
        door.serve(porter)
        hidden = dict.fromkeys((*HOST_VARIABLES, *TLS_VARIABLES))
        job.start(line.argv_at_door, {**hidden, ADDRESS_VARIABLE: door.address})
        status, was_late = porter.run_to_end(job, options)
    finally:
        door.close()
        porter.release(in_order=os.WIFEXITED(status))
    porter.raise_if_ended(options, was_late=was_late)
    return status, porter.problem


def _porter_of(
    options: Options, line: DockerLine, events: Events, *, only_looks: bool = False
) -> DockerPorter:
    client = DockerClient(socket_of(line))
    return DockerPorter(
        options,
        client,
        line.title,
        without_secrets(line.argv),
        this_process(),
        events,
        fills=not line.is_compose,
        follows=line.is_compose,
        watches=not line.is_compose,
        alias=line.alias,
        info=client.info(),  # without an engine nothing is started
        only_looks=only_looks,
    )


def first_launch(options: Options, line: DockerLine, events: Events) -> Launch:
    """Return the launch of the first container that docker's client asks for; none is made.

    Raises:
        SystemExit: docker has refused the command line, and has said so.
        UsageError: it asks for none that gets GPUs.
    """
    import subprocess  # late: few launches are only looked at

    porter = _porter_of(options, line, events, only_looks=True)
    door = Door(porter.client.address)
    door.serve(porter)
    hidden = (*HOST_VARIABLES, *TLS_VARIABLES)
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    try:
        done = subprocess.run(  # noqa: S603  the user's own command line
            line.argv_at_door,
            env={**environment, ADDRESS_VARIABLE: door.address},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
    except OSError as problem:
        raise call_failed(line.argv[0], problem) from None
    finally:
        door.close()
    if porter.launch:
        return porter.launch
    if porter.problem:
        raise porter.problem
    if done.returncode:
        os.write(2, done.stderr)
        raise SystemExit(done.returncode)
    shown = printable(" ".join(line.argv[:3]))
    raise UsageError(f"'{shown}' takes no GPUs here, so there is nothing to decide")
