"""The records of a launch: its lease, and its ticket while it waits."""

import os
from typing import TYPE_CHECKING

from gpulaunch.decide.decision import Grant
from gpulaunch.decide.needs import admitted_gpus
from gpulaunch.launch.launch import Launch
from gpulaunch.leases.lease import Lease, Ticket
from gpulaunch.leases.queue import CHOOSY_S
from gpulaunch.leases.record import published
from gpulaunch.process.identity import Process
from gpulaunch.process.system import (
    boot_id,
    is_cancelled_by_kill,
    now,
    seconds_since_boot,
    this_process,
)
from gpulaunch.records import replace

if TYPE_CHECKING:  # few launches are a container engine's
    from gpulaunch.containers.engine import ContainerLaunch
    from gpulaunch.leases.lease import EngineJob


def make_lease(launch: Launch, grant: Grant, lease_id: str, job: Process) -> Lease:
    """Return the lease of a launch that this process makes.

    Args:
        launch: the launch.
        grant: its GPUs.
        lease_id: id of the lease.
        job: the process that it names as the job.
    """
    return Lease(
        id=lease_id,
        user_id=os.geteuid(),
        table=launch.machine.key,
        uuids=tuple(gpu.uuid for gpu in grant.gpus),
        launcher=this_process(),
        job=job,
        command=published(launch.command, launch.publish),
        profile=launch.request.profile,
        assumed=launch.request.assumed,
        name=launch.name,
        started_at=now(),
        ancestors=(launch.within.id, *launch.within.ancestors) if launch.within else (),
        boot_id=boot_id(),
        engine=launch.container.engine_id if launch.container else None,
        container=launch.container.container_id if launch.container else None,
        host_gb_per_s=launch.request.wishes.host_gb_per_s,
        apart_from=launch.request.wishes.apart_from,
        clock_s=seconds_since_boot(),
        time_limit_s=launch.time_limit_s,
        ends_within_s=launch.request.ends_within_s,
        ends_with_launcher=ends_with_launcher(launch.container),
        engine_job=_engine_job_of(launch, grant),
        watches_use=launch.idle_after_s is not None and launch.machine.key is None,
    )


def _engine_job_of(launch: Launch, grant: Grant) -> "EngineJob | None":
    """Return the engine's job of a lease, with the GPUs of all of its ranks if they divide them."""
    job = launch.request.engine_job
    if job is None or grant.own is None:
        return job and replace(job, group=())
    return replace(job, group=tuple(gpu.uuid for gpu in replace(grant, own=None).gpus))


def ends_with_launcher(container: "ContainerLaunch | None") -> bool:
    """Return whether a container has to end with its launcher: in CI, unless it was detached."""
    return container is not None and container.attached and is_cancelled_by_kill()


def make_ticket(launch: Launch, ticket_id: str, number: int) -> Ticket:
    """Return the ticket of a launch that this process makes.

    Args:
        launch: the launch.
        ticket_id: id of the ticket.
        number: its number.
    """
    admitted = admitted_gpus(launch.request, launch.machine.topology, launch.within)
    choosy, job = launch.request.is_choosy, launch.request.engine_job
    return Ticket(
        id=ticket_id,
        number=number,
        user_id=os.geteuid(),
        table=launch.machine.key,
        within=launch.within.id if launch.within else None,
        uuids=tuple(gpu.uuid for gpu in admitted),
        gpus=launch.request.least_gpus or launch.request.gpus or len(admitted),
        passable_until_s=seconds_since_boot() + CHOOSY_S if choosy else 0.0,
        launcher=this_process(),
        command=published(launch.command, launch.publish),
        profile=launch.request.profile,
        name=launch.name,
        since=now(),
        boot_id=boot_id(),
        choosy=choosy,
        ends_within_s=launch.request.ends_within_s,
        in_order=launch.request.in_order,
        may_join=launch.request.sharing is not None,
        step=job.title if job and job.is_divided else "",
    )
