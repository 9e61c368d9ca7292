"""Acquire -> launch -> release: where decision and effect meet."""

import os
from collections.abc import Callable
from typing import NamedTuple

from gpulaunch.core.decide import Decision, Grant, Wait, decide
from gpulaunch.core.environment import job_environment
from gpulaunch.core.hardware.topology import Gpu
from gpulaunch.core.leases.lease import Lease
from gpulaunch.core.request import Request
from gpulaunch.host.machine import Machine, look_again
from gpulaunch.host.process import Job, Started, cpus_near, hold_signals, this_process
from gpulaunch.host.system import boot_id, now
from gpulaunch.host.table import Draft, LockedTable, Table, release

Warn = Callable[[str], None]


class Launch(NamedTuple):
    """One command to be run on GPUs.

    Attributes:
        command: argv.
        request: which GPUs.
        machine: where.
        within: the live lease that this runs inside of, or None.
        by_uuid: name the GPUs by UUID in CUDA_VISIBLE_DEVICES.
        bind_cpu: run on the CPUs of the GPUs' NUMA node, if they share one.
        name: that the user gave the job, or None.
    """

    command: tuple[str, ...]
    request: Request
    machine: Machine
    within: Lease | None
    by_uuid: bool
    bind_cpu: bool
    name: str | None


class Ended(NamedTuple):
    """A job that has run; its GPUs are free again.

    Attributes:
        status: its wait status.
    """

    status: int


def preview(launch: Launch, warn: Warn) -> Decision:
    """What would be decided now; nothing is taken."""
    table = Table(described=launch.machine.key is not None, warn=warn)
    return _decide(launch, table, lambda _grant, _locked: None)


def run(launch: Launch, warn: Warn, granted: Callable[[Grant, str], None]) -> Ended | Decision:
    """Run the command on GPUs that are its own until it ends.

    Args:
        launch: what and where.
        warn: where to say what is odd but no failure.
        granted: told the grant and the id of its lease before the job starts; must not raise.

    Returns:
        How the job ended, or the decision if that was no Grant.

    Raises:
        FailedError: the table cannot be used; nothing is held and nothing has run.
    """
    table = Table(described=launch.machine.key is not None, warn=warn)
    entry = hold_signals()
    record = table.draft()
    job = Job(launch.command, entry, keep=record.fd)
    decision = None
    try:
        decision = _decide(
            launch, table, lambda grant, locked: locked.publish(record, _lease(launch, grant, record, job))
        )
    finally:
        if not isinstance(decision, Grant):
            job.dismiss()
            record.close()
    if not isinstance(decision, Grant):
        return decision

    granted(decision, record.id)
    gpus = granted_gpus(launch, decision)
    job.start(Started(job_environment(gpus, by_uuid=launch.by_uuid, lease_id=record.id), _cpus(launch, gpus)))
    status = job.wait()
    release(table, record)
    return Ended(status)


def granted_gpus(launch: Launch, grant: Grant) -> list[Gpu]:
    """The GPUs of a grant, in rank order."""
    by_index = {gpu.index: gpu for gpu in launch.machine.topology.gpus}
    return [by_index[index] for index in grant.placement.gpus]


def _decide(launch: Launch, table: Table, commit: Callable[[Grant, LockedTable], None]) -> Decision:
    """Decide, and commit a grant, under one lock; a Wait that outside use explains is checked once more."""
    machine = launch.machine
    while True:
        with table.locked() as locked:
            leases = locked.leases(machine.key)
            within = launch.within if launch.within in leases else None
            decision = decide(launch.request, machine.topology, leases, machine.outside, within)
            if isinstance(decision, Grant):
                commit(decision, locked)
        if not (isinstance(decision, Wait) and machine.outside and machine is launch.machine):
            return decision
        machine = look_again(machine)


def _lease(launch: Launch, grant: Grant, record: Draft, job: Job) -> Lease:
    return Lease(
        id=record.id,
        user_id=os.geteuid(),
        table=launch.machine.key,
        uuids=tuple(gpu.uuid for gpu in granted_gpus(launch, grant)),
        launcher=this_process(),
        job=job.process,
        command=launch.command,
        profile=launch.request.profile,
        assumed=launch.request.assumed,
        name=launch.name,
        started_at=now(),
        ancestors=(launch.within.id, *launch.within.ancestors) if launch.within else (),
        boot_id=boot_id(),
    )


def _cpus(launch: Launch, gpus: list[Gpu]) -> frozenset[int]:
    """CPUs to run on: those next to the GPUs, if all GPUs share a NUMA node."""
    nodes = {gpu.numa_node for gpu in gpus}
    if not launch.bind_cpu or len(nodes) != 1 or None in nodes:
        return frozenset()
    return cpus_near(gpus[0].cpuset)
