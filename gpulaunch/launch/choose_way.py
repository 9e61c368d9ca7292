"""The choice of the way by which GPUs get into a container."""

from gpulaunch.containers.command import ContainerCommand
from gpulaunch.containers.engine import ContainerEngine, Info
from gpulaunch.containers.ways import NO_WAY, Offer, describe_way
from gpulaunch.errors import FailedError, UsageError
from gpulaunch.launch.options import Options
from gpulaunch.machine.drivers import DRIVERS
from gpulaunch.machine.find import Machine


def choose_way(
    engine: ContainerEngine,
    offer: Offer,
    info: Info,
    machine: Machine,
    options: Options,
    command: ContainerCommand,
) -> str:
    """Choose how the GPUs get into the container.

    Args:
        engine: the engine that runs the container.
        offer: the ways that it offers.
        info: what the engine reports of itself.
        machine: the machine of the GPUs.
        options: options, which may force a way.
        command: the client's command line, which may name another runtime.

    Returns:
        One of WAYS; or NO_WAY for GPUs that are only described.

    Raises:
        FailedError: there is no way.
        UsageError: the command excludes the forced way, or the engine does not have it.
    """
    forced = options.container_gpus
    allowed = engine.allowed_ways(command)
    if forced:
        if forced in allowed:
            return forced
        origin = options.origin("container_gpus")
        runtimes = command.values("--runtime")
        if runtimes:
            says = f"{command.program}'s --runtime {runtimes[-1]}"
            raise UsageError(f"{origin} and {says} disagree")
        wanted = describe_way(forced, machine.topology.driver)
        raise UsageError(f"{origin}: {command.program} has no {wanted}")
    topology = machine.topology
    uuids = [gpu.uuid for gpu in topology.gpus]
    ways = offer.ways(uuids, restarts=command.restart_policy is not None)
    ways = [way for way in ways if way in allowed]
    if machine.key:  # no driver knows described GPUs, but a CDI specification may
        return "cdi" if "cdi" in ways else NO_WAY
    if not ways:
        possible = [one for one in DRIVERS[topology.driver].container_ways if one in allowed]
        named = ", ".join(describe_way(way, topology.driver) for way in possible)
        raise FailedError(
            f"{engine.title} {info.version} has no way to give GPUs to containers: none of {named}",
            "install the NVIDIA Container Toolkit, and see 'gpulaunch doctor'",
        )
    return ways[0]
