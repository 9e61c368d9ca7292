"""Containers with GPUs of their own, from Python by the Docker SDK.

Importing that costs more than a whole launch, so only programs that have it come here.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from docker import DockerClient

from gpulaunch.api.allocate import LogEvents, given_of
from gpulaunch.api.held_lease import environment_around
from gpulaunch.containers.docker import client as own
from gpulaunch.containers.door import Door
from gpulaunch.launch.docker_run import DockerPorter
from gpulaunch.launch.options import Options


@contextmanager
def docker(gpus: int | str | None = None, **settings: object) -> Iterator[DockerClient]:
    """Yield a client of the Docker SDK for Python whose containers get GPUs of their own.

    It is an ordinary client of the engine that docker itself would talk to. A container that asks
    for GPUs, as by device_requests, gets a lease when it is made; it ends with the container, also
    if this process has ended before. One that asks for none gets some if gpus is given. If it
    cannot have them, an APIError says why.

    Args:
        gpus: number of GPUs of each container, or "all"; None for what containers ask for.
        settings: any other argument of allocate(), by name.

    Raises:
        UsageError: the engine is on another machine.
        FailedError: the engine does not answer.

    Example:
        >>> with gpulaunch.docker(gpus=2) as client:  # doctest: +SKIP
        ...     client.containers.run("pytorch/pytorch", "python train.py")
    """
    given, name = given_of({**settings, "gpus": gpus}, "docker")
    engine = own.DockerClient.usual()
    engine.info()
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
