"""The run of an engine's client, docker's or podman's, to the end of its containers' part in it."""

import os
import time
from typing import TYPE_CHECKING

from gpulaunch.containers.asked import HOST_VARIABLES, container_variables
from gpulaunch.containers.docker import ADDRESS_VARIABLE
from gpulaunch.containers.docker.client import DockerClient
from gpulaunch.containers.docker.line import TLS_VARIABLES, DockerLine, socket_of
from gpulaunch.containers.door import Door
from gpulaunch.containers.engine import NO_WAY
from gpulaunch.containers.life import container_labels
from gpulaunch.errors import GpulaunchError, UsageError, call_failed, printable
from gpulaunch.files.units import format_duration
from gpulaunch.launch.container_leases import ContainerLeases
from gpulaunch.launch.docker_porter import DockerPorter
from gpulaunch.launch.gpu_watch import over_limit
from gpulaunch.launch.launch import Events, Launch
from gpulaunch.launch.options import Options
from gpulaunch.leases.environment import LEASE_VARIABLE
from gpulaunch.process.job import Job
from gpulaunch.process.system import is_cancelled_by_kill, this_process

if TYPE_CHECKING:
    from gpulaunch.containers.podman.command import PodmanCommand

_LOOK_S = 0.2


def _run_to_end(options: Options, job: Job, leases: ContainerLeases) -> tuple[int, bool]:
    """Wait for an engine's client, end it if it takes too long, and tell of its end.

    Returns:
        Its wait status, and whether it was ended for its time.
    """
    status, was_late = _wait_for(options, job, leases), False
    if status is None:
        was_late = _is_over(options, leases)
        grace_s = options.grace_s if was_late else 0.0
        leases.end(grace_s)
        status = job.end(grace_s)
    leases.end_watch(status)
    return status, was_late


def _wait_for(options: Options, job: Job, leases: ContainerLeases) -> int | None:
    """Wait for the client; None if it is to be ended: it is over its limit, or CI's."""
    grace_s = options.grace_s if is_cancelled_by_kill() else None
    # A limit counts from the lease, of which nobody tells this thread.
    look_s = None if options.time_limit is None else _LOOK_S
    while True:
        status = job.wait(look_s, grace_s)
        if status is not None:
            return status
        if _is_over(options, leases):
            return None
        since_s = job.first_term_s
        if grace_s is not None and since_s and time.monotonic() - since_s >= grace_s:
            grace = format_duration(grace_s)
            leases.warn(f"the job goes on {grace} after TERM: it is killed, as CI=true")
            return None


def _is_over(options: Options, leases: ContainerLeases) -> bool:
    """Return whether the containers have had their GPUs for as long as they may."""
    limit_s, since_s = options.time_limit, leases.granted_s
    return bool(limit_s and since_s) and time.monotonic() - (since_s or 0) >= (limit_s or 0)


def _raise_if_ended(options: Options, leases: ContainerLeases, *, was_late: bool) -> None:
    """Raise the error of a client that was ended for its time, or for idle GPUs."""
    if leases.watch:
        leases.watch.raise_if_idle()
    if was_late:
        raise over_limit(options.time_limit or 0)


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
        status, was_late = _run_to_end(options, job, porter)
    finally:
        door.close()
        porter.release(in_order=os.WIFEXITED(status))
    _raise_if_ended(options, porter, was_late=was_late)
    return status, porter.problem


def _porter_of(
    options: Options, line: DockerLine, events: Events, *, only_looks: bool = False
) -> DockerPorter:
    client = DockerClient(socket_of(line))
    return DockerPorter(
        options,
        client,
        line.title,
        line.without_secrets,
        this_process(),
        events,
        fills=not line.is_compose,
        follows=line.is_compose,
        watches=not line.is_compose,
        alias=line.alias,
        info=client.info(),  # without an engine nothing is started
        only_looks=only_looks,
    )


def run_podman(options: Options, command: "PodmanCommand", launch: Launch, events: Events) -> int:
    """Run podman, which makes or starts a container, with the GPUs of its lease in rank order.

    The container outlives podman as an orphan that this process adopts, and then its companion
    follows it.

    Args:
        options: gpulaunch's own options.
        command: podman's command line.
        launch: its launch.
        events: who hears how it goes.

    Returns:
        Its wait status.

    Raises:
        TimedOutError: it ran longer than its limit, or its GPUs were idle for too long.
    """
    from gpulaunch.containers.podman.command import asked_container, with_gpus  # not docker's

    container = launch.container
    assert container  # noqa: S101  for the type checker
    driver = launch.machine.topology.driver
    leases = ContainerLeases(None, events, watches=True)
    try:
        acquired = leases.take(launch)
        lease_id, argv = acquired.lease.id, command.argv
        if not command.starts:
            gpus = acquired.grant.gpus
            variables = container_variables(asked_container(command), gpus, driver, lease_id)
            uuids = [gpu.uuid for gpu in gpus]
            if container.way == NO_WAY:
                name = launch.machine.topology.name
                leases.warn(f"{name} is only described: its GPUs get into no container")
                uuids = []
            labels = container_labels(gpus, lease_id)
            argv = with_gpus(command, uuids, driver, variables, labels)
        assert leases.job  # noqa: S101  it came with the lease
        leases.job.start(argv, {**dict.fromkeys(HOST_VARIABLES), LEASE_VARIABLE: lease_id})
        status, was_late = _run_to_end(options, leases.job, leases)
    finally:
        leases.release()
    _raise_if_ended(options, leases, was_late=was_late)
    return status


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
