"""The part of the diagnosis about container engines and containers."""

import os

from gpulaunch.containers.command import read_command
from gpulaunch.containers.engine import QUESTION_S, ContainerEngine, Info
from gpulaunch.containers.ways import NO_WAY, Offer, describe_way
from gpulaunch.errors import GpulaunchError
from gpulaunch.launch.free import reason_to_end
from gpulaunch.launch.options import Options
from gpulaunch.launch.outside_use import read_containers
from gpulaunch.launch.read_container import choose_way
from gpulaunch.launch.surroundings import shown_table
from gpulaunch.machine.driver import Finding
from gpulaunch.machine.find import Machine
from gpulaunch.machine.gpu_names import gpus_text
from gpulaunch.process.system import user_name

_WITH_RESTART = "GPUs in containers with --restart"


def ignore_warning(text: str) -> None:
    """Drop a warning that another check reports."""


def is_present(engine: ContainerEngine) -> bool:
    """Return whether there is something at an engine's address, or a problem to tell of."""
    try:
        command = read_command([engine.grammar.program], engine.grammar)
        return engine.client_of(command, os.environ).exists()
    except GpulaunchError:
        return True


def check_engine(
    engine: ContainerEngine, settings: Options, machine: list[Machine]
) -> list[Finding]:
    """Check that an engine answers, and how GPUs get into its containers."""
    program = engine.grammar.program
    command = read_command([program], engine.grammar)
    client = engine.client_of(command, os.environ)
    if not client.exists():
        return [
            Finding(
                engine.title,
                "warning",
                f"none at {client.address}, so 'gpulaunch {program} run' will not work",
                f"start it, or set {engine.address_variable}; other launches do without",
            )
        ]
    info = client.within(QUESTION_S).info()
    found = [Finding(engine.title, "ok", f"{info.version} at {client.address}")]
    if not machine:
        return found
    offer = engine.offer_of(info, machine[0].topology)
    try:
        way = choose_way(engine, offer, info, machine[0], settings, command)
    except GpulaunchError as problem:
        return [*found, Finding("GPUs in containers", "problem", problem.message, problem.hint)]
    found.append(_check_way(offer, machine[0], settings, way))
    if way == "cdi" and not offer.cdi_returns:
        found.append(_check_restarts(engine, offer, info, machine[0], settings))
    return found


def check_containers(
    engine: ContainerEngine, settings: Options, machine: list[Machine]
) -> list[Finding]:
    """Find containers without a lease, which the engine itself started again, as at boot."""
    program = engine.grammar.program
    client = engine.client_of(read_command([program], engine.grammar), os.environ)
    if not client.exists():
        return []
    described = not machine or machine[0].key is not None
    table = shown_table(settings, described=described, warn=ignore_warning)
    leases = table.peek(problems=[]).leases
    leased = {lease.id for lease in leases} | {lease.container for lease in leases}
    findings = []
    for container in client.within(QUESTION_S).launched():
        if not container.holds or not container.uuids:
            continue
        if leased & {container.lease_id, container.id}:
            continue
        name = container.name
        text = f"container {name} has {gpus_text(len(container.uuids))} and no lease"
        hint = f"'{program} stop {name}', then 'gpulaunch {program} start {name}'"
        findings.append(Finding("containers", "problem", text, hint))
    return findings


def check_overlaps(settings: Options, machine: Machine) -> list[Finding]:
    """Find running containers whose GPUs a lease holds that is not theirs."""
    containers = read_containers(machine)
    if not containers:
        return []
    table = shown_table(settings, described=machine.key is not None, warn=ignore_warning)
    leases = table.peek(problems=[]).of(machine).leases
    findings = []
    for container in containers:
        beside = container.leases_beside(leases)
        if not beside:
            continue
        holders = ", ".join(f"{lease.id} ({user_name(lease.user_id)})" for lease in beside)
        findings.append(
            Finding(
                "containers",
                "problem" if container.traits.lease_id else "warning",
                container.beside(machine.topology, holders),
                f"'{container.program} stop {container.name}'",
            )
        )
    return findings


def check_abandoned(settings: Options, machine: Machine) -> list[Finding]:
    """Find leases of containers that no process watches any more."""
    table = shown_table(settings, described=machine.key is not None, warn=ignore_warning)
    seen = table.peek(problems=[]).of(machine)
    findings = []
    for lease in seen.leases:
        if lease.id in seen.unlocked:
            reason = reason_to_end(lease)
            why = reason or "its launcher and companion are gone, and its container goes on"
            findings.append(
                Finding(
                    "containers",
                    "problem" if reason else "warning",
                    f"lease {lease.id} ({user_name(lease.user_id)}): {why}",
                    f"'gpulaunch free {lease.id}' ends it",
                )
            )
    return findings


def _check_restarts(
    engine: ContainerEngine, offer: Offer, info: Info, machine: Machine, settings: Options
) -> Finding:
    """Check how GPUs get into containers that come back with an engine that fails with CDI."""
    topology = machine.topology
    first = offer.ways([gpu.uuid for gpu in topology.gpus], restarts=True)[0]
    if first != "cdi" and not settings.container_gpus:
        text = f"by {describe_way(first, topology.driver)}: "
        text += f"{engine.title} {info.version} would not start them again with CDI devices"
        return Finding(_WITH_RESTART, "ok", text)
    return Finding(
        _WITH_RESTART,
        "warning",
        f"{engine.title} {info.version} does not start containers with CDI devices again when it "
        "has been restarted itself, whatever --restart says (before 28.2: moby issue 49989)",
        "register NVIDIA's runtime, 'sudo nvidia-ctk runtime configure', or update the engine",
    )


def _check_way(offer: Offer, machine: Machine, settings: Options, way: str) -> Finding:
    """Check that the chosen way into containers is one that the engine offers."""
    topology = machine.topology
    offered = offer.ways([gpu.uuid for gpu in topology.gpus])
    if way == NO_WAY:
        text = f"{topology.name} is only described: its GPUs get into no container"
        return Finding("GPUs in containers", "ok", text)
    shown = describe_way(way, topology.driver)
    others = ", ".join(describe_way(one, topology.driver) for one in offered if one != way)
    if way not in offered:
        text = (
            f"{settings.origin('container_gpus')}: this engine does not seem to offer {shown}, but "
            f"{others or 'no way at all'}"
        )
        return Finding("GPUs in containers", "problem", text, "force none, or one that is offered")
    text = f"by {shown}"
    text += f", as {settings.origin('container_gpus')} says" if settings.container_gpus else ""
    text += f"; also offered: {others}" if others else ""
    return Finding("GPUs in containers", "ok", text)
