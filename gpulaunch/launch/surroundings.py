"""The machine, table and lease that settings and the environment name.

What only shows something needs no more of a launch than this.
"""

import os
from collections.abc import Callable

from gpulaunch.errors import printable
from gpulaunch.launch.given import Given
from gpulaunch.launch.open_table import open_table
from gpulaunch.launch.settings import Setting, Settings
from gpulaunch.leases.environment import LEASE_VARIABLE
from gpulaunch.leases.lease import Lease
from gpulaunch.leases.table import Table
from gpulaunch.machine.drivers import DRIVERS
from gpulaunch.machine.find import Machine, find_machine
from gpulaunch.machine.table_key import same_table
from gpulaunch.process.system import user_name
from gpulaunch.records import Record


class Surroundings(Record):
    """Where a command runs.

    Attributes:
        machine: the machine whose GPUs it is about.
        within: the live lease on that machine that the command runs inside of, or None.
        visible: the value of CUDA_VISIBLE_DEVICES, or of what the driver calls it, that restricts
            the choice of GPUs, or None.
    """

    machine: Machine
    within: Lease | None
    visible: str | None


def shown_machine(
    topology: str | None, warn: Callable[[str], None], *, use: bool = False
) -> Machine:
    """Return the machine to show: the one of a launch, except that a setting may hide real GPUs.

    Args:
        topology: what --topology says, or None.
        warn: where to say what is odd but no failure.
        use: whether to look who is at work on its GPUs.
    """
    return read_surroundings(shown_settings(topology), warn, may_hide=True, use=use).machine


class Shown(Record):
    """Where a command runs that looks at the table and launches nothing.

    Attributes:
        machine: the machine whose GPUs it shows.
        table: where its leases stand.
        within: the live lease on that machine that the command runs inside of, or None.
        visible: the value of CUDA_VISIBLE_DEVICES that restricts a launch, or None.
    """

    machine: Machine
    table: Table
    within: Lease | None
    visible: str | None


def read_shown(topology: str | None, warn: Callable[[str], None]) -> Shown:
    """Return the machine to show and its table; see shown_machine."""
    settings = shown_settings(topology)
    around = read_surroundings(settings, warn, may_hide=True)
    table = shown_table(settings, described=around.machine.key is not None, warn=warn)
    return Shown(around.machine, table, around.within, around.visible)


def shown_settings(topology: str | None) -> Settings:
    """Return the settings of a command that has no option of a launch but --topology."""
    return Settings(
        {} if topology is None else {"topology": Given("--topology", topology)}, os.environ
    )


def shown_table(settings: Settings, *, described: bool, warn: Callable[[str], None]) -> Table:
    """Open the table that launches with these settings use."""
    return open_table(described=described, warn=warn, private=is_private(settings))


def is_private(settings: Settings) -> bool:
    """Return whether a container may use a table of its own, where the host's is not mounted."""
    return bool(settings.get("table").value == "private")


def read_surroundings(
    settings: Settings, warn: Callable[[str], None], *, may_hide: bool = False, use: bool = True
) -> Surroundings:
    """Find the machine that the settings name, and the lease that this process runs inside of.

    Args:
        settings: settings of the command.
        warn: told what is odd but no failure.
        may_hide: accept a described machine from a setting, although this one has GPUs.
        use: look which GPUs are at work.
    """
    within = _inherited(settings, warn)
    topology = settings.get("topology")
    if topology.value is None and within and within.table:
        topology = Setting(within.table.file, "")
    ignored = settings.get("ignore_programs").value or ()
    machine = find_machine(
        topology.value, warn, "" if may_hide else topology.origin, ignored, use=use
    )
    same = within is not None and same_table(machine.key, within.table)
    variable = DRIVERS[machine.topology.driver].visible_variable
    # Inside a lease on another machine the variable is about the GPUs of that one.
    visible = os.environ.get(variable) if same or within is None else None
    return Surroundings(machine, within if same else None, visible)


def _inherited(settings: Settings, warn: Callable[[str], None]) -> Lease | None:
    """Return the live lease of this user, on whatever machine, that this process runs inside of."""
    lease_id = os.environ.get(LEASE_VARIABLE)
    if not lease_id:
        return None
    leases = open_table(described=True, warn=warn, private=is_private(settings)).peek().leases
    lease = next((lease for lease in leases if lease.id == lease_id), None)
    if not lease:
        warn(
            f"{LEASE_VARIABLE}={printable(lease_id)} is no live lease, so this is a launch of its "
            "own"
        )
        return None
    if os.geteuid() not in (lease.user_id, 0):  # containers run as root for whoever launched them
        warn(
            f"lease {lease.id} belongs to {user_name(lease.user_id)}, so this is a launch of its "
            "own"
        )
        return None
    return lease
