"""The same from Python: GPUs for the process that asks, in the same table, by the same rules."""

import logging
import os
import sys
from collections.abc import Iterable
from types import TracebackType

from gpulaunch.decide.decide import Wait
from gpulaunch.errors import FailedError, UsageError, WouldWaitError
from gpulaunch.launch.acquire import Acquired, Callbacks, acquire
from gpulaunch.launch.assess import granted_gpus, table_of
from gpulaunch.launch.given import Given
from gpulaunch.launch.launch import Launch
from gpulaunch.launch.read_launch import read_launch
from gpulaunch.launch.settings import Settings
from gpulaunch.leases.environment import job_environment
from gpulaunch.leases.lease import Lease
from gpulaunch.leases.table import Snapshot, Table, release
from gpulaunch.process.system import this_process
from gpulaunch.profiles.pattern import graph_pattern
from gpulaunch.records import replace
from gpulaunch.sharing.mps_directories import inherited_variables
from gpulaunch.typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from gpulaunch.launch.leaver import Leaver
    from gpulaunch.machine.graph import Graph

_log = logging.getLogger("gpulaunch")


class HeldLease:
    """GPUs that this process holds until it releases them or ends, however it ends.

    Attributes:
        id: of the lease, as `gpulaunch status` shows it.
        gpus: indices, in rank order.
        uuids: the same GPUs' identities.
        env: the variables that tell a job its GPUs.
        reason: why these GPUs.
        sm_percentage: its share of their SMs if it shares them; None if they are its own.
    """

    def __init__(self, launch: Launch, table: Table, held: Acquired["_ThisProcess"]) -> None:
        gpus = granted_gpus(launch, held.grant)
        self.id = held.lease.id
        self.gpus = tuple(gpu.index for gpu in gpus)
        self.uuids = held.lease.uuids
        self.env = job_environment(
            gpus,
            driver=launch.machine.topology.driver,
            by_uuid=launch.by_uuid,
            lease_id=self.id,
            share=held.lease.share,
        )
        self.reason = held.grant.reason
        self.sm_percentage = held.lease.share.sm_percentage if held.lease.share else None
        self._table = table
        self._held: Acquired[_ThisProcess] | None = held
        self._owner = os.getpid()
        self._replaced: dict[str, str | None] = {}
        self._leaver = _leaver(held)

    def apply(self) -> None:
        """Set the variables in this process's environment, until the release. CUDA reads them when it starts: call
        this before anything that starts it, such as torch.cuda or jax.

        Raises:
            FailedError: the lease has been released.
        """
        if self._held is None:
            raise FailedError(f"lease {self.id} has been released")
        variables: dict[str, str | None] = {**inherited_variables(), **self.env}
        for name, value in variables.items():
            self._replaced.setdefault(name, os.environ.get(name))
            _set(name, value)

    def release(self) -> None:
        """Free the GPUs; a second call does nothing.

        In a forked child it only lets go: the lease is the parent's.
        """
        held, self._held = self._held, None
        if held is None:
            return
        for name, value in self._replaced.items():
            if os.environ.get(name) == self.env.get(name):  # else it is another lease's by now
                _set(name, value)
        if os.getpid() == self._owner:
            release(self._table, held.record, held.lease)
            if self._leaver:
                self._leave_group(held.lease, self._leaver)
        else:
            held.record.close()

    def _leave_group(self, lease: Lease, leaver: "Leaver") -> None:
        from gpulaunch.sharing.share_group import group_of  # late: few programs share

        group = group_of(self._table, lease)
        if group:
            group.leave()
        leaver.dismiss()

    def fileno(self) -> int:
        """Descriptor of the lease: a child process that has it open holds the GPUs, too (subprocess: pass_fds).

        Raises:
            FailedError: the lease has been released.
        """
        if self._held is None:
            raise FailedError(f"lease {self.id} has been released")
        return self._held.record.fd

    def __enter__(self) -> Self:
        """The lease itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Free the GPUs, whatever happened."""
        self.release()

    def __repr__(self) -> str:
        """Such as <lease c3d9528f5152: GPUs 0,3>."""
        return f"<lease {self.id}: GPUs {','.join(map(str, self.gpus))}>"


def _set(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _leaver(held: Acquired["_ThisProcess"]) -> "Leaver | None":
    """Who sees to the MPS daemon should this process end without releasing."""
    share = held.lease.share
    if share is None or share.pipe_directory is None:
        return None
    from gpulaunch.launch.leaver import Leaver  # late: few programs share

    return Leaver(held.lease, held.record.fd)


class _ThisProcess:
    """This process holds the lease itself."""

    def __init__(self) -> None:
        self.process = this_process()

    def dismiss(self) -> None:
        """Nothing was made."""


def allocate(
    gpus: int | str | None = None,
    *,
    profile: str | None = None,
    policy: str | None = None,
    pattern: "str | os.PathLike[str] | Graph | None" = None,
    sensitive: bool | None = None,
    bandwidth_model: str | None = None,
    memory: int | str | None = None,
    gpu_model: str | None = None,
    only: int | str | Iterable[int | str] | None = None,
    exclude: int | str | Iterable[int | str] | None = None,
    require: int | str | Iterable[int | str] | None = None,
    nvlink: bool | None = None,
    min_bandwidth: float | None = None,
    numa: str | None = None,
    single_node: bool | None = None,
    one_per_node: bool | None = None,
    apart_from: str | Iterable[str] | None = None,
    host_bandwidth: float | None = None,
    min_utility: float | None = None,
    utility_weights: Iterable[float] | None = None,
    share: bool | None = None,
    sm: float | None = None,
    memory_bandwidth: float | None = None,
    sm_percentage: int | None = None,
    share_with: str | Iterable[str] | None = None,
    objective: str | None = None,
    uuid: bool | None = None,
    topology: str | None = None,
    name: str | None = None,
    wait: bool | None = None,
    wait_timeout: float | str | None = None,
) -> HeldLease:
    """Hold GPUs for this process, chosen as `gpulaunch` would for a job. Settings apply as they do there.

    Args:
        gpus: how many, or "all"; None for what the profile or a setting says, else 1.
        profile: name or file.
        policy: such as "preserve" or "topo-aware"; docs/placement.md lists them.
        pattern: such as "ring" or "all-to-all", a file, or a networkx graph of the ranks with
            `weight` at its edges.
        sensitive: whether faster links make the job faster.
        bandwidth_model: "cut", "mapa" or "measured".
        memory: least memory of each GPU, in bytes or such as "16GiB".
        gpu_model: only GPUs whose product name contains this.
        only: choose among these GPUs, by index or UUID.
        exclude: do not choose these.
        require: these must be among the chosen ones.
        nvlink: only GPUs that NVLink joins.
        min_bandwidth: least effective bandwidth, GB/s.
        numa: "strict" for GPUs of one NUMA node.
        single_node: only GPUs of one machine, of a topology that has several.
        one_per_node: each GPU in a machine of its own.
        apart_from: keep off the sockets of jobs with this name or profile.
        host_bandwidth: what each GPU's process moves in its socket's memory, GB/s.
        min_utility: 0 to 1; under this policy topo-aware-p waits.
        utility_weights: of communication, interference and fragmentation.
        share: share them through CUDA MPS with other jobs of this user, if that hurts nobody.
        sm: average SM utilization, 0-100; with `memory` and the next one instead of what the
            profile says.
        memory_bandwidth: average memory-bandwidth utilization, 0-100.
        sm_percentage: share of SMs to have then, 1-100.
        share_with: profiles of jobs that are still to come, for which room is left.
        objective: "throughput", "energy" or "product".
        uuid: whether CUDA_VISIBLE_DEVICES names GPUs by UUID.
        topology: name or file of a described machine, instead of this one.
        name: what `gpulaunch status` calls it.
        wait: queue for GPUs that are busy.
        wait_timeout: queue for so long at most, in seconds or such as "10m".

    Returns:
        The lease, to be used in a `with` statement.

    Raises:
        WouldWaitError: the GPUs are busy, and waiting was not asked for.
        TimedOutError: they were busy for as long as wait_timeout.
        UsageError: what is asked for can never be.
        FailedError: the machine or the table cannot be read.

    Example:
        >>> with gpulaunch.allocate(2, topology="dgx1-v100") as lease:
        ...     lease.gpus
        (0, 3)
    """
    asked: dict[str, object] = {
        "gpus": gpus,
        "profile": profile,
        "policy": policy,
        "pattern": os.fspath(pattern) if isinstance(pattern, str | os.PathLike) else None,
        "sensitive": sensitive,
        "bandwidth_model": bandwidth_model,
        "memory": memory,
        "gpu_model": gpu_model,
        "only": only,
        "exclude": None if exclude in ([], (), set()) else exclude,
        "require": None if require in ([], (), set()) else require,
        "nvlink": nvlink,
        "min_bandwidth": min_bandwidth,
        "numa": numa,
        "single_node": single_node,
        "one_per_node": one_per_node,
        "apart_from": None if apart_from in ([], (), set()) else apart_from,
        "host_bandwidth": host_bandwidth,
        "min_utility": min_utility,
        "utility_weights": utility_weights,
        "share": share,
        "sm": sm,
        "memory_bandwidth": memory_bandwidth,
        "sm_percentage": sm_percentage,
        "share_with": None if share_with in ([], (), set()) else share_with,
        "objective": objective,
        "uuid": uuid,
        "topology": topology,
        "wait": wait,
        "wait_timeout": wait_timeout,
    }
    given = {
        "bandwidth_sensitive" if key == "sensitive" else key: Given(key, _text(value))
        for key, value in asked.items()
        if value is not None
    }
    own_name = None if name is None else str(name)
    graph = (
        None
        if pattern is None or isinstance(pattern, str | os.PathLike)
        else graph_pattern(pattern, "graph")
    )
    launch = read_launch(
        Settings(given, os.environ), sys.orig_argv, name=own_name, warn=_log.warning, pattern=graph
    )
    if launch.mps:
        launch = replace(launch, mps=replace(launch.mps, may_fork=False))
    table = table_of(launch, _log.warning)
    held = acquire(launch, table, Callbacks(_log.warning, _waiting), lambda *_: _ThisProcess())
    if isinstance(held, Acquired):
        if held.grant.exclusive_reason:
            _log.warning("not shared: %s", held.grant.exclusive_reason)
        return HeldLease(launch, table, held)
    if isinstance(held, Wait):
        raise WouldWaitError(held.reason, "give wait=True to queue")
    raise UsageError(held.reason)


def _waiting(reason: str, seen: Snapshot) -> None:
    _log.info("waiting as number %d in the queue: %s", len(seen.tickets) + 1, reason)


def _text(value: object) -> str:
    """A value as it would stand on the command line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ",".join(map(str, value))
    return f"{value:f}" if isinstance(value, float) else str(value)
