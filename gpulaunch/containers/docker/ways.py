"""Find the ways by which a Docker Engine can give GPUs to its containers."""

import os

from gpulaunch.containers.engine import Info
from gpulaunch.containers.ways import CDI_KIND, Offer
from gpulaunch.machine.gpu import Gpu

_HOOK = "nvidia-container-runtime-hook"
_USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MOST_CHARACTERS = 16 << 20


def offer_of(info: Info, gpus: tuple[Gpu, ...]) -> Offer:
    """Return the ways by which an engine can give GPUs to its containers.

    Args:
        info: what the engine says of itself.
        gpus: the machine's.
    """
    names = {gpu.uuid for gpu in gpus}
    if info.cdi_devices is None:
        known = _named_in(info.cdi_directories, names)
    else:
        known = {uuid for uuid in names if CDI_KIND + uuid in info.cdi_devices}
    path = f"{os.environ.get('PATH', '')}:{_USUAL_PATH}"
    hook = any(os.access(os.path.join(directory, _HOOK), os.X_OK) for directory in path.split(":"))
    return Offer(frozenset(known), "nvidia" in info.runtimes, hook)


def _named_in(directories: tuple[str, ...], uuids: set[str]) -> set[str]:
    """Return the UUIDs that CDI specifications name, for engines that do not tell them."""
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
            if CDI_KIND.rstrip("=") in text:
                found |= {uuid for uuid in uuids if uuid in text}
    return found
