"""Podman's command line: the launch that it asks for, and its run."""

import os
from collections.abc import Callable

from gpulaunch.containers.container import HOST_VARIABLES, container_labels, container_variables
from gpulaunch.containers.create import asked_container, asked_gpus
from gpulaunch.containers.flags import without_secrets
from gpulaunch.containers.podman import PodmanCommand, client_of, gpu_flags, request_of, with_gpus
from gpulaunch.errors import UsageError, printable
from gpulaunch.launch.container_leases import ContainerLeases
from gpulaunch.launch.launch import Events, Launch
from gpulaunch.launch.options import Options
from gpulaunch.launch.read_container import has_lease, read_container_launch, read_container_start
from gpulaunch.launch.surroundings import open_table
from gpulaunch.leases.environment import LEASE_VARIABLE
from gpulaunch.machine.topology import DEFAULT_DRIVER
from gpulaunch.records import replace


def read_podman_launch(
    options: Options, command: PodmanCommand, warn: Callable[[str], None]
) -> Launch | tuple[str, ...]:
    """Read and check everything that a podman command needs which makes or starts containers.

    Returns:
        The launch; or the command line to run without a lease, because it needs no GPU or has one.

    Raises:
        UsageError: something asked for does not exist or is impossible.
        FailedError: podman or the machine does not answer.
    """
    client, name = client_of(command), options.name
    if command.starts:
        found = [one for name in command.operands if (one := client.container(name))]
        made = [one for one in found if one.lease_id and one.uuids]
        table = open_table(private=True, warn=warn)
        without = [one for one in made if not has_lease(one, client, table)]
        if not without:
            return command.argv
        if len(without) > 1:
            names = ", ".join(printable(one.name) for one in without)
            raise UsageError(
                f"{len(without)} containers need their GPUs back: {names}: start them one at a time"
            )
        return read_container_start(options, client, without[0], command.argv, name=name, warn=warn)
    request = request_of(command, os.environ)
    container = asked_container(request, command.title)
    asked = asked_gpus(request, container, "", None, None)
    if asked and (flags := gpu_flags(command)):
        asked = replace(asked, text=" ".join(f"{flag.name} {flag.value}" for flag in flags))
    launch = read_container_launch(
        options,
        client,
        client.info(),
        container,
        asked,
        client.image(command.operands[0]),
        without_secrets(command.argv),
        name=name,
        warn=warn,
    )
    if launch is None and asked and asked.nothing:
        return with_gpus(command, (), DEFAULT_DRIVER, {}, {})
    return launch or command.argv


def run_podman(options: Options, command: PodmanCommand, launch: Launch, events: Events) -> int:
    """Run podman, which makes or starts a container, with the GPUs of its lease in rank order.

    The container outlives podman as an orphan that this process adopts, and then its companion
    follows it.

    Returns:
        Podman's wait status.

    Raises:
        TimedOutError: it ran longer than its limit, or its GPUs were idle for too long.
    """
    driver = launch.machine.topology.driver
    leases = ContainerLeases(options, None, events)
    try:
        keeper = leases.take(launch)
        lease_id, argv = keeper.lease.id, command.argv
        if not command.starts:
            gpus = keeper.grant.gpus
            container = asked_container(request_of(command, os.environ), command.title)
            variables = container_variables(container.variables, gpus, driver, lease_id)
            _, uuids = leases.way_inside(keeper)
            labels = container_labels(gpus, lease_id, later=not container.runs)
            argv = with_gpus(command, uuids, driver, variables, labels)
        job = keeper.job
        assert job  # noqa: S101  it came with the lease
        job.start(argv, {**dict.fromkeys(HOST_VARIABLES), LEASE_VARIABLE: lease_id})
        status = leases.run_to_end(job)
    finally:
        leases.release()
    leases.raise_if_ended()
    return status
