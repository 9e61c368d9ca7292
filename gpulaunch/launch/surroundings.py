"""The machine, table and lease of a launch or a view, and the use of its GPUs outside gpulaunch.

What only shows something needs no more of a launch than this.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from gpulaunch.containers.engines import clients_at_hand
from gpulaunch.errors import printable
from gpulaunch.launch.options import Options, Source
from gpulaunch.leases.environment import COUNT_VARIABLE, LEASE_VARIABLE, MPS_SERVER, MPS_VARIABLES
from gpulaunch.leases.holders import name_job
from gpulaunch.leases.lease import Lease
from gpulaunch.leases.table import Table
from gpulaunch.machine.driver import DRIVERS, OutsideUse
from gpulaunch.machine.find import Machine, find_machine
from gpulaunch.machine.topology import Topology, same_table
from gpulaunch.process import Process
from gpulaunch.process.system import (
    program_of,
    stat_fields,
    this_process,
    user_name,
    user_of,
    variable_of,
)
from gpulaunch.records import Record, replace

if TYPE_CHECKING:  # few launches need these
    from gpulaunch.containers.in_use import RunningContainer
    from gpulaunch.launch.read_engine import EngineTerms


def open_table(*, private: bool, warn: Callable[[str], None]) -> Table:
    """Open the allocation table on which all launchers of this machine agree.

    Args:
        private: whether a container's own table will do, as it does for described machines.

    Raises:
        FailedError: no directory can hold the table.
    """
    return Table(private=private, warn=warn, ended_containers=ended_containers)


def ended_containers(leases: Iterable[Lease]) -> set[str]:
    """Return the ids of the leases whose containers have certainly all ended."""
    from gpulaunch.containers.held_leases import ended_leases  # late: few leases are containers'

    return ended_leases(leases)


class Surroundings(Record):
    """The machine of a launch, and what restricts the choice of GPUs there.

    Attributes:
        within: the live lease on that machine that the launch runs inside of, or None.
        visible: value of CUDA_VISIBLE_DEVICES, or of the driver's variable like it, that restricts
            the launch; None if it does not.
        containers: running containers that were given GPUs of the machine, if use was read.
        engine: what the cluster engine around a launch says of it; None outside of any.
    """

    machine: Machine
    within: Lease | None
    visible: str | None
    containers: "Sequence[RunningContainer]" = ()
    engine: "EngineTerms | None" = None


def shown_machine(topology: str | None, warn: Callable[[str], None]) -> Machine:
    """Return the machine that a command is to show.

    It is the machine of a launch, except that a setting may put a described one in place of real
    GPUs.
    """
    return read_surroundings(shown_settings(topology), warn, may_hide=True, use=False).machine


def read_shown(
    topology: str | None, warn: Callable[[str], None], *, use: bool = True
) -> tuple[Surroundings, Table]:
    """Return the machine that a command is to show, and its table; see shown_machine."""
    options = shown_settings(topology)
    around = read_surroundings(options, warn, may_hide=True, use=use)
    private = options.table == "private" or around.machine.key is not None
    return around, open_table(private=private, warn=warn)


def shown_settings(topology: str | None) -> Options:
    """Return the settings of a command that has --topology and no other option of a launch."""
    given = {} if topology is None else {"topology": ("--topology", topology)}
    return Options(given, os.environ)


def read_surroundings(
    options: Options, warn: Callable[[str], None], *, may_hide: bool = False, use: bool = True
) -> Surroundings:
    """Find the machine that the settings name, and the lease that this process runs inside of.

    Args:
        may_hide: let a setting put a described machine in place of real GPUs.
        use: find the processes at work on its GPUs, and the containers that were given them.
    """
    within, warning = _enclosing_lease(options, warn)
    topology, origin = options.topology, options.origin("topology")
    if topology is None and within and within.table:
        topology = within.table.file
    if may_hide or options.source("topology") == Source.COMMAND:
        origin = ""  # who types it means it
    machine = find_machine(topology, warn, origin, options.ignore_programs or (), use=use)
    containers = read_containers(machine, warn) if use else ()
    machine = with_containers(machine, containers)
    same = within is not None and same_table(machine.key, within.table)
    set_by_lease = _set_by_lease(options, machine, within if same else None)
    if warning:
        warn(f"{warning}, so it is ignored: unset {' '.join(set_by_lease)}")
    variable = DRIVERS[machine.topology.driver].visible_variable
    # Inside a lease on another machine the variable is about the GPUs of that one.
    is_wish = variable not in set_by_lease and (same or within is None)
    visible = options.environment.get(variable) if is_wish else None
    return Surroundings(machine, within if same else None, visible, containers)


def _enclosing_lease(options: Options, warn: Callable[[str], None]) -> tuple[Lease | None, str]:
    """Return this user's live lease, on any machine, that the launch runs inside of, or None.

    A lease that this very process holds is not around it, but the one that it was taken from. If
    the environment names one that does not count, a warning is returned with None.
    """
    lease_id = options.environment.get(LEASE_VARIABLE)
    if not lease_id:
        return None, ""
    table = open_table(private=True, warn=warn)
    # Who decides reads the table again, and fails for what cannot be read.
    leases = {lease.id: lease for lease in table.peek(problems=[]).leases}
    lease = leases.get(lease_id)
    if not lease:
        return None, f"{LEASE_VARIABLE}={printable(lease_id)} is not a live lease"
    if os.geteuid() not in (lease.user_id, 0):  # a user's container may run as root
        return None, f"lease {lease.id} belongs to {user_name(lease.user_id)}"
    while lease and lease.launcher == lease.job == this_process():
        lease = next((leases[outer] for outer in lease.ancestors if outer in leases), None)
    return lease, ""


def _set_by_lease(options: Options, machine: Machine, within: Lease | None) -> list[str]:
    """Return the variables in the environment that are as a lease, live or dead, has set them.

    The visible GPUs are if their UUIDs, which it set with them, are in the same order: a user who
    chooses the very GPUs of a dead lease cannot be told from it.
    """
    variables, driver = options.environment, DRIVERS[machine.topology.driver]
    names = [LEASE_VARIABLE, COUNT_VARIABLE]
    visible = variables.get(driver.visible_variable)
    if visible and LEASE_VARIABLE in variables:
        from gpulaunch.decide.decision import admit_visible  # late: few launches are inside a lease

        uuids = admit_visible(machine.topology, visible).order
        written = variables.get(driver.uuids_variable or "", "").split(",")
        if uuids and list(uuids) in (written, list(within.uuids) if within else ()):
            names += [driver.visible_variable, driver.uuids_variable or ""]
    return [name for name in names if name in variables]


def read_containers(
    machine: Machine, warn: Callable[[str], None] | None = None
) -> "Sequence[RunningContainer]":
    """Return the running containers that were given GPUs of a machine, as far as engines tell.

    Args:
        warn: called with what keeps an engine from telling.
    """
    clients = clients_at_hand()
    if not clients:
        return ()
    from gpulaunch.containers.in_use import running_containers  # late: see above

    containers, problems = running_containers(
        clients, machine.topology, numbered=machine.key is None
    )
    if warn:
        for problem in problems:
            warn(f"{problem}: GPUs of containers count only where they are seen in use")
    return containers


def with_containers(machine: Machine, containers: "Sequence[RunningContainer]") -> Machine:
    """Return the machine with the use of its GPUs by containers beside the use that is known."""
    uses = [use for container in containers for use in container.uses]
    return replace(machine, outside=(*machine.outside, *uses)) if uses else machine


def inherited_variables(environment: Mapping[str, str] = os.environ) -> dict[str, None]:
    """Return variables that a job which shares has left in an environment, to be removed.

    The user's own MPS is left alone.
    """
    directory = environment.get(MPS_VARIABLES[0])
    if directory is None:
        return {}
    from gpulaunch.sharing.mps_daemon import is_of_a_group  # late: few launches are inside such

    named_so = re.fullmatch(r".*/gpulaunch\.mps\.\d+/[0-9a-f]{8}", directory)
    return dict.fromkeys(MPS_VARIABLES) if named_so or is_of_a_group(directory) else {}


def find_strays(
    topology: Topology, uses: Iterable[OutsideUse], leases: Sequence[Lease]
) -> list[OutsideUse]:
    """Return the use of GPUs by processes of live leases that do not have them, one by one."""
    cards = {gpu.uuid: gpu.mig.card_uuid for gpu in topology.gpus if gpu.mig}
    by_id = {lease.id: lease for lease in leases}
    strays = []
    for use in uses:
        for pid in use.pids:
            own = _leases_of(pid, by_id)
            had = {uuid for lease in own for uuid in lease.held_from(None)}
            if own and had.isdisjoint((use.uuid, cards.get(use.uuid, ""))):
                job = f"job {name_job(own[0])} (lease {own[0].id[:4]})"
                who = f"{job} of {user_name(own[0].user_id)}, which does not have it"
                strays.append(OutsideUse(use.uuid, who, (pid,), stray=own[0].id))
    return strays


def _leases_of(pid: int, by_id: Mapping[str, Lease]) -> list[Lease]:
    """Return the leases that a process belongs to, the innermost first.

    They are the one that its environment names, those whose job it is or descends from, and those
    that these were taken from. What another user wrote does not count: the process with the
    variable has to be of the lease's owner, and so has the job or, as under sudo, its parent.
    """
    if program_of(pid) == MPS_SERVER:  # it computes for MPS clients, whosever they are
        return []
    marked = by_id.get(variable_of(pid, LEASE_VARIABLE) or "")
    found = [marked] if marked and marked.user_id == user_of(pid) else []
    while len(fields := stat_fields(pid)) > 19:  # else it has ended, or is not visible here
        process, users = Process(pid, int(fields[19])), (user_of(pid), user_of(int(fields[1])))
        found += [one for one in by_id.values() if one.job == process and one.user_id in users]
        pid = int(fields[1])
    return found + [by_id[one] for lease in found for one in lease.ancestors if one in by_id]


def name_strays(
    topology: Topology, uses: Sequence[OutsideUse], leases: Sequence[Lease]
) -> list[OutsideUse]:
    """Return uses of GPUs, of those that nobody has with the job of a stray in place of its pid."""
    held = {uuid for lease in leases for uuid in lease.held_from(None)}
    strays = find_strays(topology, (use for use in uses if use.uuid not in held), leases)
    by_gpu = {stray.uuid: stray for stray in strays}
    return [
        replace(use, who=by_gpu[use.uuid].who, stray=by_gpu[use.uuid].stray)
        if use.uuid in by_gpu and use.state == "used" and not use.lost
        else use
        for use in uses
    ]
