"""The Python interface: GPUs for the calling process, by the rules and the table of launches."""

import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from numbers import Real
from typing import cast

from gpulaunch.api.held_lease import HeldLease, environment_around
from gpulaunch.decide.decision import Refuse, Wait
from gpulaunch.errors import GpulaunchError, RefusedError
from gpulaunch.files.fields import unknown
from gpulaunch.files.units import parse_duration
from gpulaunch.launch.acquire import acquire
from gpulaunch.launch.launch import Events, Keeper, Launch, would_wait
from gpulaunch.launch.options import SETTINGS, Given, Options
from gpulaunch.launch.read_launch import read_launch
from gpulaunch.launch.surroundings import open_table
from gpulaunch.leases.table import Snapshot
from gpulaunch.process.apart import Attempt
from gpulaunch.profiles.pattern import Graph, graph_pattern
from gpulaunch.records import replace

_log = logging.getLogger("gpulaunch")


def allocate(
    gpus: int | str | None = None,
    *,
    profile: str | None = None,
    policy: str | None = None,
    pattern: str | os.PathLike[str] | Graph | None = None,
    sensitive: bool | None = None,
    memory: int | str | None = None,
    only: int | str | Iterable[int | str] | None = None,
    exclude: int | str | Iterable[int | str] | None = None,
    share: bool | str | None = None,
    topology: str | None = None,
    name: str | None = None,
    wait: bool | None = None,
    wait_timeout: float | str | None = None,
    **settings: object,
) -> HeldLease:
    """Take a lease of GPUs for this process, by the rules and settings of a launch.

    It may be called in any thread. An exception that interrupts it, such as KeyboardInterrupt,
    leaves no lease and no place in the queue behind.

    Args:
        gpus: number of GPUs, or "all"; None for that of the profile or the settings, else 1.
        profile: name or file of the job's profile.
        policy: policy such as "preserve" or "topo-aware"; docs/explanation/placement.md lists them.
        pattern: communication pattern: a name such as "ring" or "all-to-all", a file, or a networkx
            graph of the ranks with `weight` at its edges.
        sensitive: whether faster links make the job faster.
        memory: least memory of each GPU, in bytes or as text such as "16GiB".
        only: indices or UUIDs of the GPUs to choose among.
        exclude: indices or UUIDs of GPUs that must not be chosen.
        share: whether to share GPUs through CUDA MPS with other jobs of this user, where the
            interference rule allows it; "1/2" or "50%" for this part of a GPU's SMs and memory.
        topology: name or file of a described machine to use in place of this one.
        name: name of the lease in `gpulaunch status`.
        wait: whether to queue for GPUs that are busy.
        wait_timeout: longest time to queue, in seconds or as text such as "10m".
        settings: any other setting of a launch by its name in docs/reference/settings.md, such as
            nvlink=True or min_bandwidth=40.

    Returns:
        The lease, to be used in a `with` statement.

    Raises:
        WouldWaitError: the GPUs are busy, and waiting was not asked for.
        TimedOutError: the GPUs were busy until wait_timeout.
        UsageError: the request can never be granted.
        FailedError: the machine or the table cannot be read.
        TypeError: there is no such setting.

    Example:
        >>> with gpulaunch.allocate(2, topology="dgx1-v100") as lease:
        ...     lease.gpus
        (0, 3)
    """
    attempt = attempt_to_allocate(locals())
    try:
        attempt.start()
        return attempt.wait()
    except BaseException:
        attempt.give_up()
        raise


_UNDO_S = 1.0
"""Longest time that a cancellation waits for the queue to be left; the host-wide lock may be held.
"""


async def aallocate(gpus: int | str | None = None, **settings: object) -> HeldLease:
    """Take a lease of GPUs as `allocate` does, without blocking the event loop of asyncio.

    A cancellation leaves no lease and no place in the queue behind.

    Args:
        gpus: number of GPUs, or "all"; None for that of the profile or the settings, else 1.

    Example:
        >>> async def train():
        ...     with await gpulaunch.aallocate(2, topology="dgx1-v100") as lease:
        ...         return lease.gpus
    """
    import asyncio

    loop = asyncio.get_running_loop()
    over = asyncio.Event()

    def tell() -> None:
        with suppress(RuntimeError):  # the loop is closed, and nobody waits
            loop.call_soon_threadsafe(over.set)

    attempt = attempt_to_allocate({"gpus": gpus, "settings": settings}, tell)
    attempt.start()
    try:
        await over.wait()
    except BaseException as problem:
        attempt.give_up()
        if isinstance(problem, asyncio.CancelledError):
            # Else whoever tries again meets its own ticket. Before Python 3.11 the TimeoutError of
            # asyncio is another one.
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(over.wait(), _UNDO_S)
        raise
    return attempt.result()


_NOT_OF_PROGRAMS = frozenset({"bind_cpu", "time_limit", "grace", "record", "container_gpus"})
"""Settings about the process that a launch starts."""


def attempt_to_allocate(
    asked: Mapping[str, object],
    over: Callable[[], object] = lambda: None,
) -> Attempt[HeldLease]:
    """Return an attempt to allocate what was asked for, which has not been started yet.

    Args:
        over: called in the attempt's thread at its end.

    Raises:
        TypeError: there is no such setting.
    """
    wanted = dict(asked)
    wanted |= cast("Mapping[str, object]", wanted.pop("settings", {}))
    pattern, graph = wanted.get("pattern"), None
    if pattern is not None and not isinstance(pattern, str | os.PathLike):
        graph = cast("Graph", wanted.pop("pattern"))
    given, name = given_of(wanted, "allocate")
    return Attempt(
        lambda given_up: _allocate(given, name, graph, given_up), HeldLease.release, over
    )


def given_of(
    wanted: Mapping[str, object], function: str
) -> tuple[dict[str, tuple[str, str]], str | None]:
    """Return what a program wants as settings of a launch, and the name of the lease.

    Args:
        wanted: settings by name; None and what is empty are left out.

    Raises:
        TypeError: there is no such setting.
    """
    name = wanted.get("name")
    known = {
        "sensitive",
        "guest",
        "utilization",
        "sm_percentage",
        "uuid",
        *SETTINGS,
    } - _NOT_OF_PROGRAMS
    for key in wanted:
        if key not in known and key != "name":
            raise TypeError(f"{function}(): {unknown(key, sorted(known))}")
    given = {
        "bandwidth_sensitive" if key == "sensitive" else key: (key, _to_text(key, value))
        for key, value in wanted.items()
        if key != "name" and value is not None and value not in ([], (), set())
    }
    return given, None if name is None else str(name)


def _allocate(given: Given, name: str | None, graph: Graph | None, given_up: int) -> HeldLease:
    """Take the lease; `given_up` is readable once nobody wants it any more."""
    options = Options(given, environment_around())
    launch = read_launch(
        options,
        sys.orig_argv,
        name=name,
        warn=_log.warning,
        pattern=None if graph is None else graph_pattern(graph, "graph"),
    )
    # Nothing ends a program that runs too long, so its lease promises nothing.
    endless = replace(launch.request, ends_within_s=None)
    launch = replace(launch, time_limit_s=None, request=endless, idle_after_s=None)
    if launch.mps:
        launch = replace(launch, mps=replace(launch.mps, may_fork=False))
    table = open_table(private=launch.private, warn=_log.warning)
    keeper = acquire(launch, table, LogEvents(), Keeper, given_up)
    if keeper.grant.exclusive_reason:
        _log.warning("not shared: %s", keeper.grant.exclusive_reason)
    return HeldLease(keeper)


class LogEvents(Events):
    """Tells the log how a launch goes."""

    def warn(self, text: str) -> None:
        """Log a warning."""
        _log.warning("%s", text)

    def waiting(self, reason: str, seen: Snapshot) -> None:
        """Log that it joins the queue."""
        _log.info("waiting as number %d in the queue: %s", len(seen.tickets) + 1, reason)

    def refusal(self, launch: Launch, decision: Wait | Refuse) -> GpulaunchError:
        """Return the error with a hint for programs."""
        if isinstance(decision, Refuse):
            return RefusedError(decision.reason)
        table = open_table(private=launch.private, warn=self.warn)
        return would_wait(launch, table, decision.reason, "give wait=True to queue")


def _to_text(key: str, value: object) -> str:
    """Return a setting's value as text of the command line; a number is a time in seconds."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ",".join(map(str, value))
    is_time = isinstance(value, Real) and key in SETTINGS and SETTINGS[key].parse is parse_duration
    return (f"{value:f}" if isinstance(value, float) else str(value)) + ("s" if is_time else "")
