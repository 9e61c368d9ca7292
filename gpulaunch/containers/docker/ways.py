"""The ways by which a Docker Engine can give GPUs to its containers."""

import os

from gpulaunch.containers.engine import Info
from gpulaunch.containers.ways import Offer
from gpulaunch.machine.drivers import DRIVERS
from gpulaunch.machine.topology import Topology

_HOOK = "nvidia-container-runtime-hook"
_USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MOST_CHARACTERS = 16 << 20


def offer_of(info: Info, topology: Topology) -> Offer:
    """Return the ways by which an engine can give GPUs to its containers.

    Args:
        info: the engine's description of itself.
        topology: the machine.
    """
    entry = DRIVERS[topology.driver]
    names = {gpu.uuid for gpu in topology.gpus}
    if info.cdi_devices is None:
        known = _find_named(info.cdi_directories, entry.cdi_kind, names)
    else:
        known = {uuid for uuid in names if f"{entry.cdi_kind}={uuid}" in info.cdi_devices}
    path = f"{os.environ.get('PATH', '')}:{_USUAL_PATH}"
    hook = any(os.access(os.path.join(directory, _HOOK), os.X_OK) for directory in path.split(":"))
    return Offer(
        frozenset(known),
        runtime="runtime" in entry.container_ways and "nvidia" in info.runtimes,
        gpus="gpus" in entry.container_ways and hook,
    )


def _find_named(directories: tuple[str, ...], kind: str, uuids: set[str]) -> set[str]:
    """Return the UUIDs that CDI specifications name, for engines that do not list them."""
    found: set[str] = set()
    for directory in directories:
        try:
            names = os.listdir(directory)
        except OSError:
            continue
        for name in names:
            path = os.path.join(directory, name)
            if not name.endswith((".json", ".yaml")) or not os.path.isfile(path):
                continue
            try:
                with open(path, errors="replace") as file:
                    text = file.read(_MOST_CHARACTERS)
            except OSError:
                continue
            if kind in text:
                found |= {uuid for uuid in uuids if uuid in text}
    return found
