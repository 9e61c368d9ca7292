"""The GPUs of a lease, as the Docker SDK for Python gives them to a container."""

import os
from collections.abc import Sequence

from gpulaunch.containers.command import read_command
from gpulaunch.containers.docker import sdk
from gpulaunch.containers.docker.engine import Docker
from gpulaunch.containers.docker.sdk import DeviceRequest, DockerClient
from gpulaunch.launch.options import Options
from gpulaunch.launch.read_container import choose_way
from gpulaunch.machine.find import Machine


def device_requests(
    client: DockerClient, machine: Machine, uuids: Sequence[str]
) -> list[DeviceRequest]:
    """Return what gives a container GPUs; see HeldLease.device_requests."""
    engine, info = Docker(), sdk.info_of(client)
    command = read_command(["docker", "run", "image"], engine.grammar)
    offer = engine.offer_of(info, machine.topology)
    way = choose_way(engine, offer, info, machine, Options({}, os.environ), command)
    return sdk.device_requests(uuids, way, machine.topology.driver)
