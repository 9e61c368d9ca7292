"""The run of an engine's client, docker's or podman's, to the end of its containers' part in it."""

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from gpulaunch.containers.asked import HOST_VARIABLES, container_variables
from gpulaunch.containers.docker import ADDRESS_VARIABLE
from gpulaunch.containers.docker.client import DockerClient
from gpulaunch.containers.docker.line import TLS_VARIABLES, DockerLine, socket_of
from gpulaunch.containers.door import Door
from gpulaunch.containers.engine import NO_WAY
from gpulaunch.containers.life import container_labels
from gpulaunch.errors import GpulaunchError, UsageError, call_failed, printable
from gpulaunch.files.units import format_duration
from gpulaunch.launch.assess import granted_gpus
from gpulaunch.launch.container_leases import (
    AcquiredContainer,
    Begins,
    ContainerLeases,
    Granted,
    Refusal,
)
from gpulaunch.launch.docker_porter import DockerPorter
from gpulaunch.launch.launch import Callbacks, Launch
from gpulaunch.launch.open_table import open_table_of
from gpulaunch.launch.options import Options
from gpulaunch.launch.run import GpuWatch, over_limit
from gpulaunch.leases.environment import LEASE_VARIABLE
from gpulaunch.process.job import Job
from gpulaunch.process.system import is_cancelled_by_kill, this_process

if TYPE_CHECKING:
    from threading import Event, Thread

    from gpulaunch.containers.podman.command import PodmanCommand

_LOOK_S = 0.2


class _Watch:
    """What is watched while a client runs: its time, and the GPUs of its lease if it has but one.

    Args:
        options: gpulaunch's own options.
        begins: see Begins.
        warn: called with each warning.
        over: called with the client's wait status as soon as it has ended.
    """

    def __init__(
        self,
        options: Options,
        begins: Begins,
        warn: Callable[[str], None],
        over: Callable[[int], None],
        *,
        is_single: bool,
    ) -> None:
        self._options, self._begins = options, begins
        self._warn, self._over, self._is_single = warn, over, is_single
        self._granted_s: float | None = None
        self._gpus: GpuWatch | None = None
        self._status, self._was_late = 0, False
        self._sharing: tuple[Event, Thread] | None = None

    def begins(self, launch: Launch) -> tuple[Callbacks, Granted]:
        """See Begins; from here on what it gets is watched."""
        callbacks, granted = self._begins(launch)

        def granted_and_watched(acquired: AcquiredContainer) -> None:
            granted(acquired)
            self._granted_s = self._granted_s or time.monotonic()
            if self._is_single:
                table = open_table_of(launch, self._warn)
                self._gpus = GpuWatch(launch, table, acquired, callbacks)
                self._watch_sharing(launch, acquired)

        return callbacks, granted_and_watched

    def _watch_sharing(self, launch: Launch, acquired: AcquiredContainer) -> None:
        """Watch in another thread whether a container that shares its GPUs does so by MPS."""
        membership = acquired.holder.membership
        if membership is None:
            return
        from threading import Event, Thread  # late: few containers share

        ended, pids = Event(), acquired.holder.companion.followed.pids

        def wait(limit_s: float | None) -> int | None:
            return self._status if ended.wait(limit_s) else None

        rest = (wait, None, launch.machine, acquired.lease.uuids, self._warn, pids)
        self._sharing = ended, Thread(target=membership.wait, args=rest, daemon=True)
        self._sharing[1].start()

    def run_to_end(self, job: Job, leases: ContainerLeases) -> int:
        """Wait for the client, end it if it takes too long, and tell of its end.

        Returns:
            Its wait status.
        """
        status = self._wait_for(job)
        if status is None:
            self._was_late = self._is_over
            grace_s = self._options.grace_s if self._was_late else 0.0
            leases.end(grace_s)
            status = job.end(grace_s)
        self._status = status
        if self._sharing:
            ended, watcher = self._sharing
            ended.set()
            watcher.join()
        self._over(status)
        if self._gpus:
            self._gpus.tell(status)
        return status

    def _wait_for(self, job: Job) -> int | None:
        """Wait for the client; None if it is to be ended: it is over its limit, or CI's."""
        grace_s = self._options.grace_s if is_cancelled_by_kill() else None
        # A limit counts from the lease, of which nobody tells this thread.
        look_s = None if self._options.time_limit is None else _LOOK_S
        while True:
            status = job.wait(look_s, grace_s)
            if status is not None:
                return status
            if self._is_over:
                return None
            since_s = job.first_term_s
            if grace_s is not None and since_s and time.monotonic() - since_s >= grace_s:
                grace = format_duration(grace_s)
                self._warn(f"the job goes on {grace} after TERM: it is killed, as CI=true")
                return None

    @property
    def _is_over(self) -> bool:
        """Whether the containers have had their GPUs for as long as they may."""
        limit_s, since_s = self._options.time_limit, self._granted_s
        return bool(limit_s and since_s) and time.monotonic() - (since_s or 0) >= (limit_s or 0)

    def raise_if_over(self) -> None:
        """Raise the error of a client that was ended for its time; see GpuWatch."""
        if self._gpus:
            self._gpus.raise_if_idle()
        if self._was_late:
            raise over_limit(self._options.time_limit or 0)


def run_docker(
    options: Options,
    line: DockerLine,
    begins: Begins,
    refusal: Refusal,
    warn: Callable[[str], None],
    over: Callable[[int], None],
) -> tuple[int, GpulaunchError | None]:
    """Run docker's client at a door of this process, where its containers get their leases.

    Args:
        options: gpulaunch's own options.
        line: docker's command line.
        begins: see Begins.
        refusal: see Refusal.
        warn: called with each warning.
        over: called with the client's wait status as soon as it has ended.

    Returns:
        Its wait status, and why the last container got no GPUs, if it did not.

    Raises:
        TimedOutError: it ran longer than its limit, or its GPUs were idle for too long.
    """
    watch = _Watch(options, begins, warn, over, is_single=not line.is_compose)
    porter = _porter_of(options, line, watch.begins, refusal, warn)
    if line.is_compose and options.wait:
        from gpulaunch.launch.read_compose import read_project_launch  # late: few projects wait

        name, launch = read_project_launch(options, line, warn)
        if launch and launch.wait and not porter.client.of_project(name):
            porter.reserve(launch)
    door = Door(porter.client.address)
    status = 0
    try:
        job = Job(keep=None, before_signal=porter.before_signal)
        porter.process = job.process
        door.serve(porter)
        hidden = dict.fromkeys((*HOST_VARIABLES, *TLS_VARIABLES))
        job.start(line.argv_at_door, {**hidden, ADDRESS_VARIABLE: door.address})
        status = watch.run_to_end(job, porter)
    finally:
        door.close()
        porter.release(in_order=os.WIFEXITED(status))
    watch.raise_if_over()
    return status, porter.problem


def _porter_of(
    options: Options,
    line: DockerLine,
    begins: Begins,
    refusal: Refusal,
    warn: Callable[[str], None],
    *,
    only_looks: bool = False,
) -> DockerPorter:
    client = DockerClient(socket_of(line))
    return DockerPorter(
        options,
        client,
        line.title,
        line.without_secrets,
        this_process(),
        begins,
        refusal,
        warn,
        fills=not line.is_compose,
        follows=line.is_compose,
        alias=line.alias,
        info=client.info(),  # without an engine nothing is started
        only_looks=only_looks,
    )


def run_podman(
    options: Options,
    command: "PodmanCommand",
    launch: Launch,
    begins: Begins,
    refusal: Refusal,
    warn: Callable[[str], None],
    over: Callable[[int], None],
) -> int:
    """Run podman, which makes or starts a container, with the GPUs of its lease in rank order.

    The container outlives podman as an orphan that this process adopts, and then its companion
    follows it.

    Args:
        options: gpulaunch's own options.
        command: podman's command line.
        launch: its launch.
        begins: see Begins.
        refusal: see Refusal.
        warn: called with each warning.
        over: called with podman's wait status as soon as it has ended.

    Returns:
        Its wait status.

    Raises:
        TimedOutError: it ran longer than its limit, or its GPUs were idle for too long.
    """
    from gpulaunch.containers.podman.command import asked_container, with_gpus  # not docker's

    container = launch.container
    assert container  # noqa: S101  for the type checker
    driver = launch.machine.topology.driver
    watch = _Watch(options, begins, warn, over, is_single=True)
    leases = ContainerLeases(None, watch.begins, refusal, warn)
    try:
        acquired = leases.take(launch)
        lease_id, argv = acquired.lease.id, command.argv
        if not command.starts:
            gpus = granted_gpus(launch, acquired.grant)
            variables = container_variables(asked_container(command), gpus, driver, lease_id)
            uuids = [gpu.uuid for gpu in gpus]
            if container.way == NO_WAY:
                name = launch.machine.topology.name
                warn(f"{name} is only described: its GPUs get into no container")
                uuids = []
            labels = container_labels(gpus, lease_id)
            argv = with_gpus(command, uuids, driver, variables, labels)
        assert leases.job  # noqa: S101  it came with the lease
        leases.job.start(argv, {**dict.fromkeys(HOST_VARIABLES), LEASE_VARIABLE: lease_id})
        status = watch.run_to_end(leases.job, leases)
    finally:
        leases.release()
    watch.raise_if_over()
    return status


def first_launch(options: Options, line: DockerLine, warn: Callable[[str], None]) -> Launch:
    """Return the launch of the first container that docker's client asks for; none is made.

    Raises:
        SystemExit: docker has refused the command line, and has said so.
        UsageError: it asks for none that gets GPUs.
    """
    import subprocess  # late: few launches are only looked at

    nobody = cast("Begins", None), cast("Refusal", None)  # is told
    porter = _porter_of(options, line, *nobody, warn, only_looks=True)
    door = Door(porter.client.address)
    door.serve(porter)
    hidden = (*HOST_VARIABLES, *TLS_VARIABLES)
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    try:
        done = subprocess.run(  # noqa: S603  the user's own command line
            line.argv_at_door,
            env={**environment, ADDRESS_VARIABLE: door.address},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
    except OSError as problem:
        raise call_failed(line.argv[0], problem) from None
    finally:
        door.close()
    if porter.launch:
        return porter.launch
    if porter.problem:
        raise porter.problem
    if done.returncode:
        os.write(2, done.stderr)
        raise SystemExit(done.returncode)
    shown = printable(" ".join(line.argv[:3]))
    raise UsageError(f"'{shown}' takes no GPUs here, so there is nothing to decide")
