"""The settings of a launch meet the machine: what exactly is asked."""

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gpulaunch.cli.options import Given
from gpulaunch.cli.settings import Setting, Settings
from gpulaunch.core import request as requests
from gpulaunch.core.leases.lease import Lease, same_table
from gpulaunch.core.size import format_size
from gpulaunch.core.workload.profile import Profile
from gpulaunch.errors import printable
from gpulaunch.host.catalog import load_profile
from gpulaunch.host.machine import Machine, find_machine, inherited_lease
from gpulaunch.host.system import user_name
from gpulaunch.launch import Launch


class Surroundings(NamedTuple):
    """Where a launch takes place.

    Attributes:
        machine: whose GPUs it is about.
        within: the live lease on that machine that the launch runs inside of, or None.
        visible: the CUDA_VISIBLE_DEVICES that restricts it, or None.
    """

    machine: Machine
    within: Lease | None
    visible: str | None


def read_launch(settings: Settings, command: Sequence[str], *, name: str | None, warn: Callable[[str], None]) -> Launch:
    """Everything that a launch needs to know, read and checked; nothing is taken yet.

    Args:
        settings: of this launch.
        command: argv of the job.
        name: that the user gave the job, or None.
        warn: where to say what is odd but no failure.

    Raises:
        UsageError: something asked for does not exist or cannot be.
        FailedError: the machine cannot be read.
    """
    profile_name = settings.get("profile").value
    profile = load_profile(profile_name) if profile_name else Profile(name="")
    around = _surroundings(settings, warn)
    return Launch(
        command=tuple(command),
        request=_request(settings, profile, around),
        machine=around.machine,
        within=around.within,
        by_uuid=bool(settings.get("uuid").value),
        bind_cpu=settings.get("bind_cpu").value is not False,
        name=name,
    )


def shown_machine(topology: str | None, warn: Callable[[str], None]) -> Machine:
    """The machine that a command is to show: chosen as a launch would, except that a setting may hide real GPUs.

    Args:
        topology: what --topology says, or None.
        warn: where to say what is odd but no failure.
    """
    given = {} if topology is None else {"topology": Given("--topology", topology)}
    return _surroundings(Settings(given, os.environ), warn, may_hide=True).machine


def _surroundings(settings: Settings, warn: Callable[[str], None], *, may_hide: bool = False) -> Surroundings:
    within = _inherited(warn)
    topology = settings.get("topology")
    if topology.value is None and within and within.table:
        topology = Setting(within.table.file, "")
    machine = find_machine(topology.value, warn, "" if may_hide else topology.origin)
    same = within is not None and same_table(machine.key, within.table)
    # inside a lease on another machine CUDA_VISIBLE_DEVICES is about that one
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") if same or within is None else None
    return Surroundings(machine, within if same else None, visible)


def _inherited(warn: Callable[[str], None]) -> Lease | None:
    """The live lease of this user that this launch runs inside of."""
    lease_id = os.environ.get("GPULAUNCH_LEASE")
    if not lease_id:
        return None
    lease = inherited_lease(lease_id, warn)
    if not lease:
        warn(f"GPULAUNCH_LEASE={printable(lease_id)} is no live lease, so this is a launch of its own")
        return None
    if lease.user_id != os.geteuid():
        warn(f"lease {lease.id} belongs to {user_name(lease.user_id)}, so this is a launch of its own")
        return None
    return lease


def _request(settings: Settings, profile: Profile, around: Surroundings) -> requests.Request:
    gpus = settings.get("gpus", profile.gpus).value
    pattern = settings.get("pattern", profile.pattern).value
    sensitive = settings.get("bandwidth_sensitive", profile.bandwidth_sensitive).value
    assumed = [name for name, value in (("pattern", pattern), ("bandwidth_sensitive", sensitive)) if value is None]
    count = 1 if gpus is None else None if gpus == "all" else gpus
    return requests.Request(
        gpus=count,
        pattern=pattern or "all_to_all",
        bandwidth_sensitive=count != 1 if sensitive is None else sensitive,
        policy=settings.get("policy").value or "preserve",
        bandwidth_model=settings.get("bandwidth_model").value or "cut",
        constraints=tuple(_constraints(settings, profile, around)),
        profile=profile.name or None,
        assumed=tuple(assumed),
    )


def _constraints(settings: Settings, profile: Profile, around: Surroundings) -> list[requests.Constraint]:
    topology = around.machine.topology
    found = []
    needed = None if profile.memory_is_reservation else profile.memory_bytes
    memory = settings.get("memory", needed)
    if memory.value:
        text = memory.origin
        if text == "profile":
            text = f"profile {profile.name}'s {format_size(memory.value)} of memory"
        found.append(requests.memory(topology, memory.value, text))
    builders: dict[str, Any] = {"gpu_model": requests.model, "only": requests.only, "exclude": requests.exclude}
    for name, build in builders.items():
        setting = settings.get(name)
        if setting.value:
            found.append(build(topology, setting.value, setting.origin))
    if around.visible is not None:
        found.append(requests.visible(topology, around.visible))
    return found
