"""A door in a lease: containers that a job's scripts make get GPUs of the lease only."""

import os
from collections.abc import Mapping

from gpulaunch.containers.docker import ADDRESS_VARIABLE
from gpulaunch.containers.docker.client import DockerClient
from gpulaunch.containers.docker.line import TLS_VARIABLES
from gpulaunch.containers.door import Door
from gpulaunch.errors import GpulaunchError
from gpulaunch.launch.docker_porter import DockerPorter
from gpulaunch.launch.launch import Events
from gpulaunch.launch.options import Options
from gpulaunch.leases.record_file import is_alive
from gpulaunch.leases.wake import wait_until_dead
from gpulaunch.process.companion import Companion
from gpulaunch.process.system import this_process


def door_of_lease(path: str, environment: Mapping[str, str]) -> dict[str, str | None]:
    """Open a door that lives as long as a lease; return the variables that lead a job there.

    A companion serves it, so that it outlives the launcher as the lease may.

    Args:
        path: path of the lease's record.
        environment: variables that the job gets besides.

    Returns:
        No variables where there is no engine on this machine.

    Raises:
        FailedError: no socket can be made.
        OSError: no process can be made.
    """
    try:
        engine = DockerClient.usual()
    except GpulaunchError:  # another machine's
        return {}
    if not engine.exists():
        return {}
    door, porters = Door(engine.address), []

    def serve() -> None:
        os.environ.update(environment)
        options, process = Options({}, os.environ), this_process()
        # A container of a job's waits without a word, and its client with it.
        porters.append(
            DockerPorter(
                *(options, engine, "docker run", None, process, Events()), fills=False, follows=True
            )
        )
        door.serve(porters[0])

    def stay(_: bytes) -> None:
        while is_alive(path):
            wait_until_dead([path])
        door.close()
        porters[0].release()

    Companion(stay, door.fileno(), serve)
    door.leave()
    return {**dict.fromkeys(TLS_VARIABLES), ADDRESS_VARIABLE: door.address}
