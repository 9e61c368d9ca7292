"""Acquire -> launch -> release: where decision and effect meet."""

import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gpulaunch.core.decide import Decision, Grant, OutsideUse, Wait, decide
from gpulaunch.core.environment import job_environment
from gpulaunch.core.hardware.topology import Gpu
from gpulaunch.core.leases.lease import Lease, same_table
from gpulaunch.core.request import Request
from gpulaunch.host.machine import Machine, look_again
from gpulaunch.host.process import Job, Started, cpus_near, hold_signals, this_process
from gpulaunch.host.system import boot_id, now
from gpulaunch.host.table import Draft, Table, release

Warn = Callable[[str], None]

QUICK_S = 0.005
"""What may be decided under the host-wide lock, for which everybody waits."""


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


class Decided(NamedTuple):
    """A decision with what it rests on.

    Attributes:
        decision: the answer.
        leases: live ones of the machine, as they were.
        outside: use that no lease explains, as it was.
        quick: it took so little time that it may be repeated while everybody waits for the lock.
    """

    decision: Decision
    leases: list[Lease]
    outside: Sequence[OutsideUse]
    quick: bool


def preview(launch: Launch, warn: Warn) -> Decision:
    """What would be decided now; nothing is taken."""
    return _look(launch, Table(described=launch.machine.key is not None, warn=warn)).decision


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
    decided = _look(launch, table)
    if not isinstance(decided.decision, Grant):
        return decided.decision

    entry = hold_signals()
    record = table.draft()
    job = Job(launch.command, entry, keep=record.fd)
    decision = None
    try:
        decision = _acquire(launch, table, decided, record, job)
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


def _look(launch: Launch, table: Table) -> Decided:
    """Decide on what is there now, without the lock; a Wait that outside use explains is checked once more."""
    decided = _decide(launch, _own(launch, table.peek()), launch.machine.outside)
    if isinstance(decided.decision, Wait) and decided.outside:
        outside = look_again(launch.machine).outside
        decided = _decide(launch, _own(launch, table.peek()), outside)
    return decided


def _acquire(launch: Launch, table: Table, decided: Decided, record: Draft, job: Job) -> Decision:
    """Take what was decided, if the leases are still the ones that it rests on; else decide again.

    Deciding may take long on a large machine, so it is done under the lock only if it was quick before.
    """
    while True:
        with table.locked() as locked:
            leases = locked.leases(launch.machine.key)
            if leases != decided.leases and decided.quick:
                decided = _decide(launch, leases, decided.outside)
            if leases == decided.leases:
                if isinstance(decided.decision, Grant):
                    locked.publish(record, _lease(launch, decided.decision, record, job))
                return decided.decision
        decided = _decide(launch, leases, decided.outside)


def _decide(launch: Launch, leases: list[Lease], outside: Sequence[OutsideUse]) -> Decided:
    began = time.monotonic()
    within = launch.within if launch.within in leases else None
    decision = decide(launch.request, launch.machine.topology, leases, outside, within)
    return Decided(decision, leases, outside, time.monotonic() - began < QUICK_S)


def _own(launch: Launch, leases: list[Lease]) -> list[Lease]:
    return [lease for lease in leases if same_table(lease.table, launch.machine.key)]


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
