"""The Docker SDK for Python: what a program's own client says, and how it gets GPUs.

Importing it costs more than a whole launch, so only programs that have it come here.
"""

import os
from collections.abc import Sequence

from docker import DockerClient
from docker.errors import DockerException
from docker.types import DeviceRequest

from gpulaunch.containers.command import read_command
from gpulaunch.containers.docker import TITLE
from gpulaunch.containers.docker.answers import parse_info
from gpulaunch.containers.docker.engine import Docker
from gpulaunch.containers.engine import Info, NoAnswerError
from gpulaunch.containers.ways import NO_WAY
from gpulaunch.launch.options import Options
from gpulaunch.launch.read_container import choose_way
from gpulaunch.machine.drivers import DRIVERS
from gpulaunch.machine.find import Machine

__all__ = ["DeviceRequest", "DockerClient", "device_requests", "device_requests_by", "info_of"]


def info_of(client: DockerClient) -> Info:
    """Return the engine's description of itself.

    Raises:
        NoAnswerError: the engine does not answer, or not as an engine.
    """
    try:
        return parse_info(client.info())
    except (DockerException, OSError) as problem:  # OSError: requests cannot reach it
        raise NoAnswerError(f"{TITLE}: {problem}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise NoAnswerError(f"{TITLE}: what answers is no Docker Engine") from None


def device_requests_by(way: str, driver: str, uuids: Sequence[str]) -> list[DeviceRequest]:
    """Return what gives a container these GPUs and no others.

    Args:
        way: one of WAYS; the SDK has `gpus` in place of `runtime`. NO_WAY for no GPUs.
        driver: name of the GPUs' driver in the registry.
        uuids: UUIDs of the GPUs, in rank order.
    """
    if way == NO_WAY:
        return []
    if way == "cdi":
        kind = DRIVERS[driver].cdi_kind
        return [DeviceRequest(driver="cdi", device_ids=[f"{kind}={uuid}" for uuid in uuids])]
    return [DeviceRequest(device_ids=list(uuids), capabilities=[["gpu"]])]


def device_requests(
    client: DockerClient, machine: Machine, uuids: Sequence[str]
) -> list[DeviceRequest]:
    """Return what gives a container GPUs; see HeldLease.device_requests."""
    engine, info = Docker(), info_of(client)
    command = read_command(["docker", "run", "image"], engine.grammar)
    offer = engine.offer_of(info, machine.topology)
    way = choose_way(engine, offer, info, machine, Options({}, os.environ), command)
    return device_requests_by(way, machine.topology.driver, uuids)
