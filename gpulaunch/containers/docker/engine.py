"""Docker behind the protocol of container engines, for the programs docker and nvidia-docker."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpulaunch.containers.docker import ADDRESS_VARIABLE, TITLE, flags, gpu_flags

if TYPE_CHECKING:  # few of docker's commands need the engine
    from gpulaunch.containers.command import ContainerCommand
    from gpulaunch.containers.engine import EngineClient, Info
    from gpulaunch.containers.ways import Offer
    from gpulaunch.machine.topology import Topology


class Docker:
    """The Docker Engine and its client; ContainerEngine documents the methods."""

    title = TITLE
    grammar = flags.DOCKER
    id_prefix = ""
    containers_descend = False
    cannot_share = None
    address_variable = ADDRESS_VARIABLE
    asked_gpus = staticmethod(gpu_flags.asked_gpus)
    asked_by_image = staticmethod(gpu_flags.asked_by_image)
    is_gpu_flag = staticmethod(gpu_flags.is_gpu_flag)
    flags_for = staticmethod(gpu_flags.flags_for)
    allowed_ways = staticmethod(gpu_flags.allowed_ways)

    def offer_of(self, info: "Info", topology: "Topology") -> "Offer":
        """Return the ways by which an engine can give GPUs to its containers."""
        from gpulaunch.containers.docker.ways import offer_of

        return offer_of(info, topology)

    def client_of(
        self, command: "ContainerCommand", environment: Mapping[str, str]
    ) -> "EngineClient":
        """Return a client of the engine that a docker command would talk to."""
        from gpulaunch.containers.docker.socket import client_of

        return client_of(command, environment)

    def known_clients(self, user_id: int) -> "list[EngineClient]":
        """Return clients of the engines that may have a user's containers."""
        from gpulaunch.containers.docker.socket import known_clients

        return known_clients(user_id)
