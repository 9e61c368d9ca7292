"""How GPUs get into a container."""
# pure: decides on plain values

from collections.abc import Sequence

from gpulaunch.machine.drivers import DRIVERS
from gpulaunch.records import Record

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
"""Variable by which NVIDIA's container runtime is told the GPUs of a container."""

WAYS = {
    "cdi": "CDI devices {kind}=UUID",
    "runtime": "runtime nvidia with NVIDIA_VISIBLE_DEVICES",
    "gpus": "--gpus with a device list",
}
"""How GPUs can get into a container, the preferred way first; `kind` is their driver's."""

NO_WAY = "none"
"""GPUs that do not exist get into no container; only the environment names them."""


def describe_way(way: str, driver: str) -> str:
    """Return the words for a way by which the GPUs of a driver get into a container."""
    return WAYS[way].format(kind=DRIVERS[driver].cdi_kind)


def cdi_prefixes() -> tuple[str, ...]:
    """Return what the names of GPUs begin with in the Container Device Interface.

    Example:
        >>> "nvidia.com/gpu=" in cdi_prefixes()
        True
    """
    return tuple(f"{entry.cdi_kind}=" for entry in DRIVERS.values())


class Offer(Record):
    """The ways into a container that an engine has.

    Attributes:
        cdi: UUIDs that it knows as CDI devices.
        runtime: it has a runtime called nvidia.
        gpus: it takes --gpus.
    """

    cdi: frozenset[str]
    runtime: bool
    gpus: bool

    def ways(self, uuids: Sequence[str]) -> list[str]:
        """Those of WAYS by which these GPUs can get in, the preferred one first."""
        there = {"cdi": self.cdi.issuperset(uuids), "runtime": self.runtime, "gpus": self.gpus}
        return [way for way in WAYS if there[way]]
