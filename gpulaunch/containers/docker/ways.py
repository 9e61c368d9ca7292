"""The ways by which a Docker Engine can give GPUs to its containers."""

import os

from gpulaunch.containers.cdi import find_cdi_devices
from gpulaunch.containers.engine import Info
from gpulaunch.containers.ways import Offer
from gpulaunch.machine.drivers import DRIVERS
from gpulaunch.machine.topology import Topology

_HOOK = "nvidia-container-runtime-hook"
_USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_CDI_RETURNS = (28, 2)
"""The first version that starts containers with CDI devices again (moby 49989)."""


def offer_of(info: Info, topology: Topology) -> Offer:
    """Return the ways by which an engine can give GPUs to its containers.

    Args:
        info: the engine's description of itself.
        topology: the machine.
    """
    entry = DRIVERS[topology.driver]
    names = {gpu.uuid for gpu in topology.gpus}
    if info.cdi_devices is None:
        known = find_cdi_devices(info.cdi_directories, entry.cdi_kind, names)
    else:
        known = {uuid for uuid in names if f"{entry.cdi_kind}={uuid}" in info.cdi_devices}
    path = f"{os.environ.get('PATH', '')}:{_USUAL_PATH}"
    hook = any(os.access(os.path.join(directory, _HOOK), os.X_OK) for directory in path.split(":"))
    return Offer(
        frozenset(known),
        runtime="runtime" in entry.container_ways and "nvidia" in info.runtimes,
        gpus="gpus" in entry.container_ways and hook,
        cdi_returns=_version(info) >= _CDI_RETURNS,
    )


def _version(info: Info) -> tuple[int, ...]:
    """Return the first two numbers of an engine's version; () for one without."""
    first_two = info.version.split(".")[:2]
    return tuple(map(int, first_two)) if all(map(str.isdecimal, first_two)) else ()
