"""Containers with GPUs of their own, from Python by the Docker SDK."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

from gpulaunch.api.allocate import attempt_to_allocate
from gpulaunch.api.docker_sdk import DockerClient, info_of
from gpulaunch.api.lease_of_container import ContainerFor, LeaseOfContainer
from gpulaunch.containers.command import read_command
from gpulaunch.containers.docker.engine import Docker
from gpulaunch.containers.engine import EngineClient, Info
from gpulaunch.containers.life import PROFILE_LABEL
from gpulaunch.errors import FailedError, UsageError
from gpulaunch.profiles.catalog import Label

_DOCKER = Docker()


def run_container(
    client: DockerClient,
    image: str,
    command: str | Sequence[str] | None = None,
    *,
    gpus: int | str | None = None,
    profile: str | None = None,
    wait: bool | None = None,
    wait_timeout: float | str | None = None,
    settings: Mapping[str, object] | None = None,
    **options: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    """Run a container with GPUs of its own, as client.containers.run() does without.

    The lease follows the container: after detach=True it stays while the container is created,
    running, paused or restarting, also when this process has ended.

    Args:
        client: client of an engine on this machine, such as docker.from_env().
        image: name of the image.
        command: what to run in it.
        gpus: number of GPUs, or "all"; None for that of the profile or the settings, else 1.
        profile: name or file of the job's profile; None for the one that the image's label names.
        wait: whether to queue for GPUs that are busy.
        wait_timeout: longest time to queue, in seconds or as text such as "10m".
        settings: any other argument of allocate(), by name.
        options: the other arguments of client.containers.run().

    Returns:
        What client.containers.run() returns: the container with detach=True, else its output.

    Raises:
        UsageError: the request can never be granted, the engine is on another machine, or
            device_requests is given.
        WouldWaitError: the GPUs are busy, and waiting was not asked for.
        TimedOutError: the GPUs were busy until wait_timeout.
        FailedError: the engine, the machine or the table cannot be read.
        docker.errors.DockerException: as of client.containers.run(); the GPUs are free then.

    Example:
        >>> client = docker.from_env()  # doctest: +SKIP
        >>> gpulaunch.run_container(  # doctest: +SKIP
        ...     client, "pytorch/pytorch", "python train.py", gpus=2, detach=True
        ... )
        <Container: 4c8a0ff3a2f1>
    """
    if options.get("device_requests"):
        raise UsageError("device_requests: run_container() gives the container its GPUs: say gpus=")
    wanted = {
        **(settings or {}),
        "gpus": gpus,
        "profile": profile,
        "wait": wait,
        "wait_timeout": wait_timeout,
        "share": False,
    }
    attempt = attempt_to_allocate(wanted, container=_container_for(client, image, options))
    try:
        attempt.start()
        lease = cast("LeaseOfContainer", attempt.wait())
    except BaseException:
        attempt.give_up()
        raise
    try:
        return client.containers.run(image, command, **lease.arguments(options))
    finally:
        lease.release()


def _container_for(client: DockerClient, image: str, options: Mapping[str, Any]) -> ContainerFor:
    info = info_of(client)
    own = next(filter(lambda known: _is_of(known, info), _DOCKER.known_clients(os.geteuid())), None)
    if own is None:
        raise UsageError(
            f"{client.api.base_url}: that engine has none of this machine's sockets, so its GPUs "
            "may not be this one's",
            "set DOCKER_HOST to the socket of an engine on this machine",
        )
    argv = ["docker", "run"]
    if options.get("detach"):
        argv.append("--detach")
    if options.get("runtime"):
        argv += ["--runtime", str(options["runtime"])]
    policy = (options.get("restart_policy") or {}).get("Name")
    if policy:
        argv += ["--restart", str(policy)]
    found = own.image(image)
    text = found.labels.get(PROFILE_LABEL) if found else None
    return ContainerFor(
        own,
        info,
        read_command([*argv, image], _DOCKER.grammar),
        Label(image, PROFILE_LABEL, text) if text else None,
    )


def _is_of(client: EngineClient, info: Info) -> bool:
    try:
        return client.info().id == info.id
    except FailedError:
        return False
