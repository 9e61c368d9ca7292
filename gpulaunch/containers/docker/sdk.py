"""The Docker SDK for Python: what a program's own client says, and what it is given.

Importing it costs more than a whole launch, so only programs that have it come here.
"""

from collections.abc import Sequence

from docker import DockerClient
from docker.errors import DockerException
from docker.types import DeviceRequest

from gpulaunch.containers.docker import TITLE
from gpulaunch.containers.docker.answers import parse_info
from gpulaunch.containers.engine import Info, NoAnswerError
from gpulaunch.containers.ways import NO_WAY
from gpulaunch.machine.drivers import DRIVERS

__all__ = ["DeviceRequest", "DockerClient", "device_requests", "info_of"]


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


def device_requests(uuids: Sequence[str], way: str, driver: str) -> list[DeviceRequest]:
    """Return what gives a container these GPUs and no others.

    Args:
        uuids: UUIDs of the GPUs, in rank order.
        way: one of WAYS; the SDK has `gpus` in place of `runtime`. NO_WAY for no GPUs.
        driver: name of the GPUs' driver in the registry.
    """
    if way == NO_WAY:
        return []
    if way == "cdi":
        kind = DRIVERS[driver].cdi_kind
        return [DeviceRequest(driver="cdi", device_ids=[f"{kind}={uuid}" for uuid in uuids])]
    return [DeviceRequest(device_ids=list(uuids), capabilities=[["gpu"]])]
