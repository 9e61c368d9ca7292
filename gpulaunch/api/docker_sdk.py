"""Containers with GPUs of their own, from Python by the Docker SDK.

Importing that costs more than a whole launch, so only programs that have it come here.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from docker import DockerClient
from docker.errors import DockerException

from gpulaunch.api.allocate import LogEvents, given_of
from gpulaunch.api.held_lease import environment_around
from gpulaunch.containers.docker import client as own
from gpulaunch.containers.door import Door
from gpulaunch.errors import FailedError, UsageError
from gpulaunch.launch.docker_run import DockerPorter
from gpulaunch.launch.options import Options


@contextmanager
def docker(
    gpus: int | str | None = None,
    *,
    client: DockerClient | None = None,
    **settings: object,
) -> Iterator[DockerClient]:
    """Yield a client of the Docker SDK for Python whose containers get GPUs of their own.

    It is an ordinary client. A container that asks for GPUs, as by device_requests, gets a lease
    when it is made; it ends with the container, also if this process has ended before. One that
    asks for none gets some if gpus is given.

    Args:
        gpus: number of GPUs of each container, or "all"; None for what containers ask for.
        client: client of the engine, which has to be on this machine; None for docker's own choice.

    Raises:
        UsageError: the engine is on another machine.
        FailedError: the engine does not answer.

    Example:
        >>> with gpulaunch.docker(gpus=2) as client:  # doctest: +SKIP
        ...     client.containers.run("pytorch/pytorch", "python train.py")
    """
    with _at_door(client, {**settings, "gpus": gpus}, fills=gpus is not None) as (found, _):
        yield found


@contextmanager
def _at_door(
    client: DockerClient | None, wanted: Mapping[str, object], *, fills: bool
) -> Iterator[tuple[DockerClient, DockerPorter]]:
    given, name = given_of(wanted, "docker")
    engine = _own_client(client)
    if name:
        given["name"] = ("name", name)
    options = Options(given, environment_around())
    leases = DockerPorter(options, engine, LogEvents(), fills=fills, forks=False)
    door = Door(engine.address)
    door.serve(leases)
    inside = DockerClient(base_url=door.address, timeout=None)
    try:
        yield inside, leases
    finally:
        inside.close()
        door.close()
        leases.release()


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
        gpus: number of GPUs, or "all"; None for that of the profile or the settings, else 1.
        profile: name or file of the job's profile; None for the one that the image's label names.
        wait_timeout: longest time to queue, in seconds or as text such as "10m".

    Returns:
        What client.containers.run() returns: the container with detach=True, else its output.

    Raises:
        GpulaunchError: as of allocate(), or the engine is on another machine, or does not answer.
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
    with _at_door(client, wanted, fills=True) as (inside, leases):
        try:
            found = inside.containers.run(image, command, **options)
        except DockerException:
            if leases.problem:  # which the client was told, and words as its own
                raise leases.problem from None
            raise
    return client.containers.get(found.id) if options.get("detach") else found


def _own_client(client: DockerClient | None) -> own.DockerClient:
    """Return our client of the engine that a client of the SDK talks to."""
    if client is None:
        usual = own.DockerClient.usual()
        usual.info()
        return usual
    try:
        wanted = client.info()["ID"]
    except (DockerException, OSError) as problem:  # OSError: requests cannot reach it
        raise FailedError(f"{own.DockerClient.title}: {problem}") from None
    for known in own.DockerClient.known(os.geteuid()):
        with suppress(FailedError):
            if known.info().id == wanted:
                return known
    raise UsageError(
        f"{client.api.base_url}: that engine has none of this machine's sockets, so its GPUs "
        "may not be this one's",
        "set DOCKER_HOST to the socket of an engine on this machine",
    )
