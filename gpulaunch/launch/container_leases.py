"""The leases of containers, which an engine runs and no process of ours holds."""

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from gpulaunch.containers.followed import Followed
from gpulaunch.errors import FailedError, UsageError, WouldWaitError
from gpulaunch.files.units import format_duration
from gpulaunch.launch.acquire import acquire
from gpulaunch.launch.gpu_watch import GpuWatch, over_limit
from gpulaunch.launch.launch import Acquired, Events, Launch, ThisProcess
from gpulaunch.launch.options import Options
from gpulaunch.launch.surroundings import open_table_of
from gpulaunch.leases.record_file import Draft, is_alive, record_name
from gpulaunch.leases.table import Table, release
from gpulaunch.leases.wake import wait_until_dead
from gpulaunch.process.companion import DISMISSED, Companion
from gpulaunch.process.ending import KILL_S, end_all, reached_by
from gpulaunch.process.identity import Process
from gpulaunch.process.job import Job
from gpulaunch.process.system import is_cancelled_by_kill, leads_namespace, state_of, this_process
from gpulaunch.records import replace

if TYPE_CHECKING:  # few containers share
    from threading import Event, Thread

    from gpulaunch.leases.lease import Share
    from gpulaunch.sharing.membership import Membership

_TAKE_OVER = b"w"
_MARGIN_S = 1.0  # engines date their events by their own reading of the clock
_LOOK_S = 0.2
_ENDING_S = 3.0  # a companion takes up to 2 s to be sure that a container has ended

AcquiredContainer = Acquired["ContainerHolder"]


class ContainerHolder:
    """The holder of a container's lease: the client that makes it, and a companion.

    The companion is a process that takes the lease over when the launcher goes, and holds it until
    the client and the containers have ended.

    Args:
        launch: a container's launch.
        table: table in which the lease will be.
        record: record of the lease; still a draft.
        process: the client; None to fork it.
        membership: in a share group; None for GPUs of its own.
        beside_others: whether the client makes other leases' containers, too.
        forks: whether there is a companion at all.

    Attributes:
        process: the client.
        job: the client, if it was forked here.
        followed: the containers.
        is_freed: whether the lease has been released here.
        is_handed_over: whether the companion has the lease.
        stopped_s: seconds for which it was stopped; unknown, and so 0.
    """

    stopped_s = 0.0

    def __init__(
        self,
        launch: Launch,
        table: Table,
        record: Draft,
        process: Process | None,
        membership: "Membership | None",
        *,
        beside_others: bool,
        forks: bool,
    ) -> None:
        container, limit_s = launch.container, launch.time_limit_s
        assert container  # noqa: S101  for the type checker
        self.membership = membership
        self.is_freed = self.is_handed_over = False
        self._table, self._record, self._grace_s = table, record, launch.grace_s
        self._ends_when_killed = is_cancelled_by_kill()
        self._overdue_s = None if limit_s is None else time.monotonic() + limit_s
        self._before_signal = membership.take_off if membership else None
        self.followed = Followed(
            container.client,
            container.engine_id,
            record.id,
            container.container_id,
            time.time() - _MARGIN_S,
            beside_others=beside_others,
        )
        self._companion = Companion(self._act, record.fd) if forks else None
        self.job = None if process else Job(keep=record.fd)
        self.process = self.job.process if self.job else process or this_process()

    def dismiss(self) -> None:
        """End the companions, and a client that was forked: the GPUs went to another launch."""
        self.end_companion()
        if self.membership:
            self.membership.dismiss()
        if self.job:
            self.job.dismiss()

    def end_companion(self) -> None:
        """End the companion, since nothing is left to watch."""
        if self._companion:
            self._companion.tell(DISMISSED)

    def hand_over(self, *, ends: bool) -> None:
        """Hand the lease to the companion, since the launcher goes now.

        If that has been killed meanwhile, another one is started for it.

        Args:
            ends: whether it is to end the containers, as if the launcher was killed.
        """
        word = b"" if ends else _TAKE_OVER
        if self._companion and not self._companion.tell(word):
            Companion(self._act, self._record.fd).tell(word)
        self._record.close()
        self.is_handed_over = True

    def end(self, client: Process, grace_s: float) -> bool:
        """End the containers and the client, in whatever order they depend on each other.

        Args:
            client: the client.
            grace_s: seconds between TERM and KILL for the containers.

        Returns:
            Whether there was a container to end.

        Raises:
            FailedError: the engine refuses.
        """
        found = self.followed.end(grace_s, self._before_signal)
        # It tells the containers' status, and ends by itself a moment after them.
        patience_s = max(grace_s, KILL_S)
        end_all(lambda: {client.pid} if state_of(client) else set(), patience_s)
        # It may have made another container before it ended.
        return self.followed.end(grace_s, self._before_signal) or found

    def _act(self, word: bytes) -> None:
        if word == DISMISSED:
            return
        lease = next(
            (lease for lease in self._table.own_leases() if lease.id == self._record.id), None
        )
        if lease is None:  # the launcher was killed before it had a lease
            return
        client = lease.job
        cancelled = not word and self._ends_when_killed
        overdue_s = time.monotonic() if cancelled else self._overdue_s
        self.followed.wait(
            client,
            overdue_s,
            end=lambda: self.end(client, self._grace_s),
            is_pointless=lambda: self._record.is_removed,
        )
        release(self._table, self._record, lease)


class ContainerLeases:
    """Takes, hands over and releases the leases of containers.

    Args:
        process: the process that makes the containers; None to fork it with the first lease.
        events: who hears of each launch that begins.
        follows: whether companions have leases as soon as a container runs, so that a lease ends
            with its container, and not with the client.
        forks: whether this process may fork a companion for each lease, which one with threads of
            others may not; without one, who looks at the table asks the engine.
        watches: whether the GPUs of the last lease are watched, and whether a container that shares
            them does so by MPS.

    Attributes:
        process: the process that makes the containers, or None.
        held: the leases taken so far.
        watch: what is seen of the GPUs, or None.
    """

    def __init__(
        self,
        process: Process | None,
        events: Events,
        *,
        follows: bool = False,
        forks: bool = True,
        watches: bool = False,
    ) -> None:
        self.process = process
        self.events, self._said = events, set[str]()
        self._follows, self._forks, self._watches = follows, forks, watches
        self._table: Table | None = None
        self._reserve: Acquired[ThisProcess] | None = None
        self.held: list[tuple[Launch, AcquiredContainer]] = []
        self._granted_s: float | None = None
        self.watch: GpuWatch | None = None
        self._sharing: tuple[Event, Thread] | None = None
        self._status = 0

    def warn(self, text: str) -> None:
        """Warn once of each thing: docker asks again once it has an image."""
        if text not in self._said:
            self._said.add(text)
            self.events.warn(text)

    def table_of(self, launch: Launch) -> Table:
        """Return the allocation table, which is that of the first launch."""
        if self._table is None:
            self._table = open_table_of(launch, self.warn)
        return self._table

    def reserve(self, launch: Launch) -> None:
        """Wait for the GPUs of all containers that are to be made, so that none waits alone."""
        events = self.events.begins(launch)
        self._reserve = acquire(launch, self.table_of(launch), events, lambda *_: ThisProcess())

    def end_reserve(self) -> None:
        """Free what is reserved; the containers have leases of their own by now."""
        taken, self._reserve = self._reserve, None
        if taken and self._table:
            release(self._table, taken.record, taken.lease)

    def take(self, launch: Launch, gone: int | None = None) -> AcquiredContainer:
        """Take the lease of a container, out of what is reserved if that is enough.

        Args:
            launch: its launch.
            gone: descriptor that is readable once nobody waits for it any more, or None.

        Raises:
            GpulaunchError: it does not get its GPUs.
            GivenUpError: nobody waits any more.
        """
        self._await_ended()
        events = self.events.begins(launch)
        acquired = None
        if self._reserve:
            inside = replace(launch, within=self._reserve.lease, wait=False)
            with suppress(UsageError, WouldWaitError):
                acquired = self._acquire(inside, Events(), gone)
        acquired = acquired or self._acquire(launch, events, gone)
        self.held.append((launch, acquired))
        events.granted(acquired)
        self._granted_s = self._granted_s or time.monotonic()
        if self._watches:
            self.watch = GpuWatch(launch, self.table_of(launch), acquired, events)
            self._watch_sharing(launch, acquired)
        return acquired

    def _watch_sharing(self, launch: Launch, acquired: AcquiredContainer) -> None:
        """Watch in another thread whether a container that shares its GPUs does so by MPS."""
        membership = acquired.holder.membership
        if membership is None:
            return
        from threading import Event, Thread  # late: few containers share

        ended, pids = Event(), acquired.holder.followed.pids

        def wait(limit_s: float | None) -> int | None:
            return self._status if ended.wait(limit_s) else None

        rest = (wait, None, launch.machine, acquired.lease.uuids, self.warn, pids)
        self._sharing = ended, Thread(target=membership.wait, args=rest, daemon=True)
        self._sharing[1].start()

    def run_to_end(self, job: Job, options: Options) -> tuple[int, bool]:
        """Wait for an engine's client, end it if it takes too long, and tell of its end.

        Returns:
            Its wait status, and whether it was ended for its time.
        """
        status, was_late = self._wait_for(job, options), False
        if status is None:
            was_late = self._is_over(options)
            grace_s = options.grace_s if was_late else 0.0
            for _, acquired in self.held:
                self._end_containers(acquired, grace_s)
            status = job.end(grace_s)
        self._status = status
        if self._sharing:
            ended, watcher = self._sharing
            ended.set()
            watcher.join()
        self.events.over(status)
        if self.watch:
            self.watch.tell(status)
        return status, was_late

    def _wait_for(self, job: Job, options: Options) -> int | None:
        """Wait for the client; None if it is to be ended: it is over its limit, or CI's."""
        grace_s = options.grace_s if is_cancelled_by_kill() else None
        # A limit counts from the lease, of which nobody tells this thread.
        look_s = None if options.time_limit is None else _LOOK_S
        while True:
            status = job.wait(look_s, grace_s)
            if status is not None:
                return status
            if self._is_over(options):
                return None
            since_s = job.first_term_s
            if grace_s is not None and since_s and time.monotonic() - since_s >= grace_s:
                grace = format_duration(grace_s)
                self.warn(f"the job goes on {grace} after TERM: it is killed, as CI=true")
                return None

    def _is_over(self, options: Options) -> bool:
        """Return whether the containers have had their GPUs for as long as they may."""
        limit_s, since_s = options.time_limit, self._granted_s
        return bool(limit_s and since_s) and time.monotonic() - (since_s or 0) >= (limit_s or 0)

    def raise_if_ended(self, options: Options, *, was_late: bool) -> None:
        """Raise the error of a client that was ended for its time, or for idle GPUs."""
        if self.watch:
            self.watch.raise_if_idle()
        if was_late:
            raise over_limit(options.time_limit or 0)

    def _await_ended(self) -> None:
        """Wait for the companions of containers that have ended to say so, as a script expects."""
        for launch, acquired in [*self.held] if self._forks else []:
            holder = acquired.holder
            if holder.is_freed or not holder.is_handed_over:
                continue
            if holder.followed.has_ended():
                _await_release(self.table_of(launch).path_of(acquired.lease))
                holder.is_freed = True

    def _acquire(self, launch: Launch, events: Events, gone: int | None) -> AcquiredContainer:
        table = self.table_of(launch)

        def prepare(record: Draft, share: "Share | None") -> ContainerHolder:
            membership = None
            if share and share.pipe_directory:  # a described machine has no MPS
                from gpulaunch.sharing.membership import Membership  # late: few share

                membership = Membership(table, record, share)
            return ContainerHolder(
                launch,
                table,
                record,
                self.process,
                membership,
                beside_others=self._follows,
                forks=self._forks,
            )

        return acquire(launch, table, events, prepare, gone)

    def begins_to_run(self, acquired: AcquiredContainer) -> None:
        """Leave the lease of a container that begins to run to its companion, if it is to follow.

        In CI it stays here: the containers are to end with this process.
        """
        if self._follows and not is_cancelled_by_kill():
            acquired.holder.hand_over(ends=False)

    def before_signal(self, number: int) -> None:
        """Detach from MPS what the client is about to pass a signal on to."""
        for launch, acquired in self.held:
            holder = acquired.holder
            if holder.membership and launch.container and launch.container.passes_signals:
                pids = holder.followed.pids()
                first = set(filter(leads_namespace, pids))
                for problem in holder.membership.take_off(reached_by(number, first, pids), number):
                    self.warn(problem)

    def release(self, *, in_order: bool = True) -> None:
        """Free the GPUs of all that has ended, now that the client has; companions keep the rest.

        Args:
            in_order: whether the client has ended by itself. One that was killed may have asked the
                engine for a start that is under way: that is left to the companion.
        """
        self.end_reserve()
        for launch, acquired in self.held:
            if not acquired.holder.is_freed:
                self._release(launch, acquired, in_order=in_order)

    def _release(self, launch: Launch, acquired: AcquiredContainer, *, in_order: bool) -> None:
        holder, lease, table = acquired.holder, acquired.lease, self.table_of(launch)
        followed = holder.followed
        over = followed.has_ended() or (in_order and followed.has_only_been_made())
        ends = False
        if not over and not holder.is_handed_over and lease.ends_with_launcher:
            # A runner may have killed the client before this process.
            ends = self._end_containers(acquired, launch.grace_s)
            if ends:
                program = launch.command[0].rpartition("/")[2]
                self.warn(f"{program} has ended before its container: that ends, too, as CI=true")
            over = followed.has_ended()
        if not holder.is_handed_over:
            if over:
                self.free(launch, acquired)
            else:
                holder.hand_over(ends=ends)
        elif over and self._forks:
            _await_release(table.path_of(lease))
        elif over:
            table.know_ended(lease)
            with table.locked() as locked:
                locked.sweep(record_name(lease))

    def _end_containers(self, acquired: AcquiredContainer, grace_s: float) -> bool:
        """End the containers of a lease; return whether there was one, or perhaps still is."""
        try:
            return acquired.holder.end(acquired.holder.process, grace_s)
        except FailedError as problem:
            self.warn(problem.message)
            return True

    def free(self, launch: Launch, acquired: AcquiredContainer) -> None:
        """Release a lease."""
        release(self.table_of(launch), acquired.record, acquired.lease)
        holder = acquired.holder
        holder.is_freed = True
        holder.end_companion()
        if holder.membership:
            holder.membership.leave()


def _await_release(path: str) -> None:
    """Wait until a companion has released a lease; it is about to."""
    deadline = time.monotonic() + _ENDING_S
    while is_alive(path) and time.monotonic() < deadline:
        wait_until_dead([path])
