"""The ways by which GPUs get into a container."""
# pure: decides on plain values

from collections.abc import Sequence

from gpulaunch.machine.drivers import DRIVERS
from gpulaunch.records import Record

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
"""Variable with the GPUs of a container, for NVIDIA's container runtime."""

WAYS = {
    "cdi": "CDI devices {kind}=UUID",
    "runtime": "runtime nvidia with NVIDIA_VISIBLE_DEVICES",
    "gpus": "--gpus with a device list",
}
"""Ways by which GPUs get into a container, the preferred one first; `kind` is their driver's."""

NO_WAY = "none"
"""The way of GPUs that do not exist: only the environment names them."""


def describe_way(way: str, driver: str) -> str:
    """Return the words for a way by which the GPUs of a driver get into a container."""
    return WAYS[way].format(kind=DRIVERS[driver].cdi_kind)


def cdi_prefixes() -> tuple[str, ...]:
    """Return the prefixes of GPU names in the Container Device Interface.

    Example:
        >>> "nvidia.com/gpu=" in cdi_prefixes()
        True
    """
    return tuple(f"{entry.cdi_kind}=" for entry in DRIVERS.values())


class Offer(Record):
    """The ways into a container that an engine offers.

    Attributes:
        cdi: UUIDs that it knows as CDI devices.
        runtime: whether it has a runtime called nvidia.
        gpus: whether it accepts --gpus.
        cdi_returns: whether it can start a container with CDI devices again after it has been
            restarted itself.
    """

    cdi: frozenset[str]
    runtime: bool
    gpus: bool
    cdi_returns: bool = True

    def ways(self, uuids: Sequence[str], *, restarts: bool = False) -> list[str]:
        """Return the members of WAYS by which these GPUs can get in, the preferred one first.

        Args:
            uuids: the GPUs.
            restarts: whether the container has a restart policy.
        """
        there = {"cdi": self.cdi.issuperset(uuids), "runtime": self.runtime, "gpus": self.gpus}
        found = [way for way in WAYS if there[way]]
        return sorted(found, key="cdi".__eq__) if restarts and not self.cdi_returns else found
