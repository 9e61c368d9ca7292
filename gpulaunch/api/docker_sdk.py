"""Containers with GPUs of their own, from Python by the Docker SDK.

Importing that costs more than a whole launch, so only programs that have it come here.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

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
    asks for none gets some if gpus is given. One that cannot have its GPUs is an APIError that says
    why.

    Args:
        gpus: number of GPUs of each container, or "all"; None for what containers ask for.
        client: client of the engine, which has to be on this machine; None for docker's own choice.
        settings: any other argument of allocate(), by name.

    Raises:
        UsageError: the engine is on another machine.
        FailedError: the engine does not answer.

    Example:
        >>> with gpulaunch.docker(gpus=2) as client:  # doctest: +SKIP
        ...     client.containers.run("pytorch/pytorch", "python train.py")
    """
    given, name = given_of({**settings, "gpus": gpus}, "docker")
    engine = _own_client(client)
    if name:
        given["name"] = ("name", name)
    options = Options(given, environment_around())
    leases = DockerPorter(options, engine, LogEvents(), fills=gpus is not None, forks=False)
    door = Door(engine.address)
    door.serve(leases)
    inside = DockerClient(base_url=door.address, timeout=None)
    try:
        yield inside
    finally:
        inside.close()
        door.close()
        leases.release()


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
