"""How GPUs get into a container."""
# pure: decides on plain values

from collections.abc import Sequence
from typing import NamedTuple

CDI_KIND = "nvidia.com/gpu="
"""What the name of a GPU begins with in the Container Device Interface."""

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
"""Variable by which NVIDIA's container runtime is told the GPUs of a container."""

WAYS = {
    "cdi": "CDI devices nvidia.com/gpu=UUID",
    "runtime": "runtime nvidia with NVIDIA_VISIBLE_DEVICES",
    "gpus": "--gpus with a device list",
}
"""How GPUs can get into a container, the preferred way first."""

NO_WAY = "none"
"""GPUs that do not exist get into no container; only the environment names them."""


class Offer(NamedTuple):
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
