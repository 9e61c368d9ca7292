"""The Python interface: GPUs for the calling process, by the rules and the table of launches."""

import logging
import os
import sys
from collections.abc import Iterable
from types import TracebackType

from gpulaunch.decide.decide import Wait
from gpulaunch.errors import FailedError, UsageError, WouldWaitError
from gpulaunch.launch.acquire import Acquired, Callbacks, acquire
from gpulaunch.launch.assess import granted_gpus
from gpulaunch.launch.given import Given
from gpulaunch.launch.launch import Launch
from gpulaunch.launch.open_table import open_table_of
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
    from gpulaunch.launch.group_companion import GroupCompanion
    from gpulaunch.machine.graph import Graph

_log = logging.getLogger("gpulaunch")


class HeldLease:
    """GPUs that this process holds until it releases them or ends, however it ends.

    Attributes:
        id: id of the lease, as `gpulaunch status` shows it.
        gpus: indices of the GPUs, in rank order.
        uuids: UUIDs of the GPUs, in rank order.
        env: environment variables that tell a job its GPUs.
        reason: why these GPUs were chosen.
        sm_percentage: its share of their SMs, 1-100, if it shares them; None if they are its own.
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
        self._companion = _start_companion(held)

    def apply(self) -> None:
        """Set the variables of `env` in this process's environment until the release.

        CUDA reads them when it starts: call this before anything that starts it, such as torch.cuda
        or jax.

        Raises:
            FailedError: the lease has been released.
        """
        if self._held is None:
            raise FailedError(f"lease {self.id} has been released")
        variables: dict[str, str | None] = {**inherited_variables(), **self.env}
        for name, value in variables.items():
            self._replaced.setdefault(name, os.environ.get(name))
            _set_variable(name, value)

    def release(self) -> None:
        """Free the GPUs; a second call does nothing.

        In a forked child it only closes the child's copy of the lease, which stays the parent's.
        """
        held, self._held = self._held, None
        if held is None:
            return
        for name, value in self._replaced.items():
            # A variable that has changed since is another lease's by now.
            if os.environ.get(name) == self.env.get(name):
                _set_variable(name, value)
        if os.getpid() == self._owner:
            release(self._table, held.record, held.lease)
            if self._companion:
                self._leave_group(held.lease, self._companion)
        else:
            held.record.close()

    def _leave_group(self, lease: Lease, companion: "GroupCompanion") -> None:
        from gpulaunch.sharing.share_group import group_of  # late: few programs share

        group = group_of(self._table, lease)
        if group:
            group.leave()
        companion.dismiss()

    def fileno(self) -> int:
        """Return the lease's descriptor; a child process that inherits it holds the GPUs, too.

        With subprocess, pass it in pass_fds.

        Raises:
            FailedError: the lease has been released.
        """
        if self._held is None:
            raise FailedError(f"lease {self.id} has been released")
        return self._held.record.fd

    def __enter__(self) -> Self:
        """Return the lease itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Free the GPUs, also after an exception."""
        self.release()

    def __repr__(self) -> str:
        """Return a text such as <lease c3d9528f5152: GPUs 0,3>."""
        return f"<lease {self.id}: GPUs {','.join(map(str, self.gpus))}>"


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _start_companion(held: Acquired["_ThisProcess"]) -> "GroupCompanion | None":
    """Start a companion that leaves the share group if this process is killed; None if none."""
    share = held.lease.share
    if share is None or share.pipe_directory is None:
        return None
    from gpulaunch.launch.group_companion import GroupCompanion  # late: few programs share

    return GroupCompanion(held.lease, held.record.fd)


class _ThisProcess:
    """The holder of a lease that this process itself holds."""

    def __init__(self) -> None:
        self.process = this_process()

    def dismiss(self) -> None:
        """Do nothing: no process was started."""


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
    """Take a lease of GPUs for this process, by the rules and settings of a launch.

    Args:
        gpus: number of GPUs, or "all"; None for that of the profile or the settings, else 1.
        profile: name or file of the job's profile.
        policy: policy such as "preserve" or "topo-aware"; docs/placement.md lists them.
        pattern: communication pattern: a name such as "ring" or "all-to-all", a file, or a networkx
            graph of the ranks with `weight` at its edges.
        sensitive: whether faster links make the job faster.
        bandwidth_model: "cut", "mapa" or "measured".
        memory: least memory of each GPU, in bytes or as text such as "16GiB".
        gpu_model: text that the product names of the GPUs must contain.
        only: indices or UUIDs of the GPUs to choose among.
        exclude: indices or UUIDs of GPUs that must not be chosen.
        require: indices or UUIDs of GPUs that must be chosen.
        nvlink: whether NVLink must join the GPUs.
        min_bandwidth: least effective bandwidth, GB/s.
        numa: "strict" for GPUs of one NUMA node, or "any".
        single_node: whether the GPUs must be in one machine, if the topology has several.
        one_per_node: whether each GPU must be in a machine of its own.
        apart_from: names or profiles of jobs whose sockets must not be used.
        host_bandwidth: traffic of each GPU's process in its socket's memory, GB/s.
        min_utility: least utility, 0 to 1, with which the policy topo-aware-p does not wait.
        utility_weights: weights of communication, interference and fragmentation.
        share: whether to share GPUs through CUDA MPS with other jobs of this user, where the
            interference rule allows it.
        sm: average SM utilization, 0-100, in place of the profile's.
        memory_bandwidth: average memory-bandwidth utilization, 0-100, in place of the profile's.
        sm_percentage: share of the SMs of shared GPUs, 1-100.
        share_with: profiles of later jobs for which to leave room on shared GPUs.
        objective: purpose of sharing: "throughput", "energy" or "product".
        uuid: whether CUDA_VISIBLE_DEVICES names GPUs by UUID.
        topology: name or file of a described machine to use in place of this one.
        name: name of the lease in `gpulaunch status`.
        wait: whether to queue for GPUs that are busy.
        wait_timeout: longest time to queue, in seconds or as text such as "10m".

    Returns:
        The lease, to be used in a `with` statement.

    Raises:
        WouldWaitError: the GPUs are busy, and waiting was not asked for.
        TimedOutError: the GPUs were busy until wait_timeout.
        UsageError: the request can never be granted.
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
        "bandwidth_sensitive" if key == "sensitive" else key: Given(key, _to_text(value))
        for key, value in asked.items()
        if value is not None
    }
    own_name = None if name is None else str(name)
    graph = None
    if pattern is not None and not isinstance(pattern, str | os.PathLike):
        graph = graph_pattern(pattern, "graph")
    launch = read_launch(
        Settings(given, os.environ), sys.orig_argv, name=own_name, warn=_log.warning, pattern=graph
    )
    if launch.mps:
        launch = replace(launch, mps=replace(launch.mps, may_fork=False))
    table = open_table_of(launch, _log.warning)
    held = acquire(launch, table, Callbacks(_log.warning, _log_waiting), lambda *_: _ThisProcess())
    if isinstance(held, Acquired):
        if held.grant.exclusive_reason:
            _log.warning("not shared: %s", held.grant.exclusive_reason)
        return HeldLease(launch, table, held)
    if isinstance(held, Wait):
        raise WouldWaitError(held.reason, "give wait=True to queue")
    raise UsageError(held.reason)


def _log_waiting(reason: str, seen: Snapshot) -> None:
    _log.info("waiting as number %d in the queue: %s", len(seen.tickets) + 1, reason)


def _to_text(value: object) -> str:
    """Return a value as text of the command line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ",".join(map(str, value))
    return f"{value:f}" if isinstance(value, float) else str(value)
