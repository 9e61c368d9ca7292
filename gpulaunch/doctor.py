"""What works on this machine, and what does not: each part that a launch stands on, looked at by itself."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple

from gpulaunch.containers.command import read_command
from gpulaunch.containers.engine import ContainerEngine, Info
from gpulaunch.containers.engines import all_engines
from gpulaunch.containers.standings import QUESTION_S
from gpulaunch.containers.ways import NO_WAY, WAYS
from gpulaunch.errors import GpulaunchError
from gpulaunch.launch.read_container import choose_way
from gpulaunch.launch.read_launch import shown_machine, shown_settings, shown_table
from gpulaunch.launch.read_sharing import what_can_be_shared
from gpulaunch.launch.settings import Settings
from gpulaunch.machine.cpuset import format_cpuset
from gpulaunch.machine.find import Machine
from gpulaunch.machine.gpu_names import gpus_named, gpus_text
from gpulaunch.process.system import owner_of, pids_of_program, user_name
from gpulaunch.sharing import mps_daemon as mps

if TYPE_CHECKING:
    from gpulaunch.machine.gpu import Gpu
    from gpulaunch.machine.nvidia.probe import Reading


class Finding(NamedTuple):
    """One part of the machine, as it was found.

    Attributes:
        subject: the part.
        state: a problem keeps launches from working, or from being safe; a warning costs something
            less than that.
        text: what was found.
        hint: one thing to do about it; None if all is well.
    """

    subject: str
    state: Literal["ok", "warning", "problem"]
    text: str
    hint: str | None = None


def diagnose(topology: str | None) -> list[Finding]:
    """Look at everything; nothing is taken or changed.

    Args:
        topology: what --topology says, or None.

    Raises:
        UsageError: the settings are wrong.
    """
    settings = shown_settings(topology)
    machine: list[Machine] = []
    findings = _checked("GPUs", lambda _: _gpus(topology, machine))
    described = bool(machine and machine[0].key)
    if machine and not described:
        findings += _checked("NVML", lambda _: _driver())
        findings += _mps()
    if machine and (described or mps.program()):
        findings += _sharing(machine[0])
    findings += _checked("state directory", lambda warn: _state(settings, described, warn))
    for engine in all_engines():
        findings += _container_engine(engine, settings, machine)
    return findings


_ALWAYS_LINKED = ("SXM", "HBM3", "B200", "B300", "GH200")
"""In the names of cards that come on boards with NVLink."""

_RIGHTS = "'sudo gpulaunch setup' makes a directory that is root's and everybody's"


def _checked(
    subject: str, check: Callable[[Callable[[str], None]], list[Finding]]
) -> list[Finding]:
    """What a check finds; what it warns of, and what makes it fail, are problems."""
    warned: list[Finding] = []
    try:
        found = check(lambda text: warned.append(Finding(subject, "problem", text, _RIGHTS)))
    except GpulaunchError as problem:
        found = [Finding(subject, "problem", problem.message, problem.hint)]
    return found + warned


def _gpus(topology: str | None, machine: list[Machine]) -> list[Finding]:
    found = shown_machine(topology, _silent)
    machine.append(found)
    models = ", ".join(sorted({gpu.model for gpu in found.topology.gpus}))
    text = f"{found.topology.name}: {gpus_text(len(found.topology.gpus))} ({models})"
    return [Finding("GPUs", "ok", text + (", described" if found.key else ", by NVML"))]


def _driver() -> list[Finding]:
    """What NVML tells when everything is asked anew, and what it does not."""
    from gpulaunch.machine.nvidia.probe import probe  # late: described machines do without

    reading = probe()
    found = [Finding("driver", "ok", reading.driver or "its version is unknown")]
    found += [
        Finding("GPUs", "problem", text, "look for it in 'dmesg' (Xid), then reset it or boot")
        for text in reading.problems
    ]
    found += [
        Finding(
            "GPUs",
            "warning",
            f"GPU {card} is in MIG mode and has no instance",
            f"'nvidia-smi mig -i {card} -cgi 19 -C', say, makes one",
        )
        for card in reading.empty
    ]
    instances = [gpu for gpu in reading.topology.gpus if gpu.mig]
    if instances:
        profiles = ", ".join(f"{gpu.name} {gpu.mig.profile}" for gpu in instances if gpu.mig)
        found.append(
            Finding(
                "MIG",
                "ok",
                f"{len(instances)} instance{'' if len(instances) == 1 else 's'}: {profiles}",
            )
        )
    return [*found, *_modes(reading), *_nvlinks(reading), *_unanswered(reading)]


def _modes(reading: "Reading") -> list[Finding]:
    """Compute modes that restrict who may use a card."""
    return [
        Finding(
            "compute mode",
            "warning" if mode == "PROHIBITED" else "ok",
            f"GPU {card}: {mode}",
            f"'nvidia-smi -i {card} -c DEFAULT' lets jobs use it" if mode == "PROHIBITED" else None,
        )
        for card, mode in reading.compute_modes.items()
    ]


def _nvlinks(reading: "Reading") -> list[Finding]:
    """Links that are down.

    Where none is up at all, the cards may just have no bridge, unless they are made for one.
    """
    linked = {card: (up, down) for card, (up, down) in reading.nvlinks.items() if up or down}
    if not linked:
        return []
    if not any(up for up, _ in linked.values()):
        meant = any(word in gpu.model for gpu in reading.topology.gpus for word in _ALWAYS_LINKED)
        hint = (
            "is the fabric manager running? 'systemctl status nvidia-fabricmanager'"
            if meant
            else None
        )
        return [Finding("NVLink", "warning" if meant else "ok", "no link is up", hint)]
    return [
        Finding(
            "NVLink",
            "warning",
            f"GPU {card}: {'link' if len(down) == 1 else 'links'} {', '.join(map(str, down))} down",
            f"'nvidia-smi nvlink -s -i {card}' and 'dmesg' tell more; jobs are placed by the links that are up",
        )
        for card, (_, down) in linked.items()
        if down
    ] or [Finding("NVLink", "ok", "every link is up")]


def _unanswered(reading: "Reading") -> list[Finding]:
    """Calls that told nothing, a line each, with the GPUs that they were about."""
    gpus: dict[tuple[str, str], set[int]] = {}
    for call in reading.unanswered:
        if not call.usual:
            gpus.setdefault((call.call, call.why), set()).add(call.gpu)
    return [
        Finding(
            "NVML",
            "warning",
            f"{call} tells nothing of GPU {format_cpuset(frozenset(about))}: {why}",
            "what it would tell is taken for unknown; a newer driver may know it",
        )
        for (call, why), about in gpus.items()
    ]


def _mps() -> list[Finding]:
    """The control daemons of CUDA MPS."""
    program = mps.program()
    if not program:
        text = f"{mps.CONTROL} is not on PATH, so no GPU can be shared"
        return [
            Finding(
                "MPS",
                "warning",
                text,
                "it comes with the driver: install its package of compute utilities",
            )
        ]
    running = [
        f"pid {pid}, {owner_of(pid)}" for pid in pids_of_program(mps.CONTROL) if mps.is_daemon(pid)
    ]
    return [Finding("MPS", "ok", f"{program}; {'; '.join(running) or 'not running'}")]


def _sharing(machine: Machine) -> list[Finding]:
    """Which GPUs can be shared, and which cannot."""
    offer = what_can_be_shared(machine)
    if isinstance(offer, str):
        return [
            Finding(
                "sharing",
                "warning",
                f"no GPU can be shared: {offer}",
                "launches get GPUs of their own",
            )
        ]
    gpus: dict[str, list[Gpu]] = {}
    for gpu in machine.topology.gpus:
        gpus.setdefault(offer.unfit.get(gpu.uuid, ""), []).append(gpu)
    fit = gpus.pop("", [])
    texts = [f"{gpus_named(some)} cannot be shared: {why}" for why, some in gpus.items()]
    if fit:
        texts.insert(0, f"{gpus_named(fit)} can be shared with --share")
    return [Finding("sharing", "ok" if fit else "warning", "; ".join(texts))]


def _state(settings: Settings, described: bool, warn: Callable[[str], None]) -> list[Finding]:
    table = shown_table(settings, described=described, warn=warn)
    seen = table.peek()
    table.draft().close()
    owner = user_name(os.stat(table.directory + "/").st_uid)
    leases = f"{len(seen.leases)} lease{'' if len(seen.leases) == 1 else 's'}"
    return [
        Finding(
            "state directory",
            "ok",
            f"{table.directory}, of {owner}: {leases}, {len(seen.tickets)} waiting",
        )
    ]


def _container_engine(
    engine: ContainerEngine, settings: Settings, machine: list[Machine]
) -> list[Finding]:
    """Look at an engine and, if it works, at its containers."""
    found = _checked(engine.title, lambda _: _engine(engine, settings, machine))
    if found[-1].state != "problem":
        found += _checked("containers", lambda _: _containers(engine, settings, machine))
    return found


def _engine(engine: ContainerEngine, settings: Settings, machine: list[Machine]) -> list[Finding]:
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
    try:
        way = choose_way(engine, info, machine[0], settings, command)
    except GpulaunchError as problem:
        return [*found, Finding("GPUs in containers", "problem", problem.message, problem.hint)]
    return [*found, _way_in(engine, info, machine[0], settings, way)]


def _containers(
    engine: ContainerEngine, settings: Settings, machine: list[Machine]
) -> list[Finding]:
    """Find containers without a lease, which the engine itself started again, as at boot."""
    program = engine.grammar.program
    client = engine.client_of(read_command([program], engine.grammar), os.environ)
    if not client.exists():
        return []
    described = not machine or machine[0].key is not None
    leases = shown_table(settings, described=described, warn=_silent).peek().leases
    leased = {lease.id for lease in leases} | {lease.container for lease in leases}
    return [
        Finding(
            "containers",
            "problem",
            f"container {container.name} has {gpus_text(len(container.uuids))} and no lease",
            f"'{program} stop {container.name}', then 'gpulaunch {program} start {container.name}'",
        )
        for container in client.within(QUESTION_S).launched()
        if container.holds and container.uuids and not leased & {container.lease_id, container.id}
    ]


def _silent(text: str) -> None:
    """What is odd has been told already."""


def _way_in(
    engine: ContainerEngine, info: Info, machine: Machine, settings: Settings, way: str
) -> Finding:
    gpus = machine.topology.gpus
    offered = engine.offer_of(info, gpus).ways([gpu.uuid for gpu in gpus])
    if way == NO_WAY:
        text = f"{machine.topology.name} is only described: its GPUs get into no container"
        return Finding("GPUs in containers", "ok", text)
    forced = settings.get("container_gpus")
    others = ", ".join(WAYS[other] for other in offered if other != way)
    if way not in offered:
        text = f"{forced.origin}: this engine does not seem to offer {WAYS[way]}, but {others or 'no way at all'}"
        return Finding("GPUs in containers", "problem", text, "force none, or one that is offered")
    text = f"by {WAYS[way]}"
    text += f", as {forced.origin} says" if forced.value else ""
    text += f"; also offered: {others}" if others else ""
    return Finding("GPUs in containers", "ok", text)
