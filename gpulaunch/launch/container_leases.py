"""The leases of containers, which an engine runs and no process of ours holds."""

import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from gpulaunch.containers.engine import NO_WAY
from gpulaunch.containers.held_leases import RELEASE_FOLLOWS_S, Followed
from gpulaunch.errors import FailedError, UsageError, WouldWaitError
from gpulaunch.files.units import format_duration
from gpulaunch.launch.acquire import acquire
from gpulaunch.launch.launch import Events, GpuWatch, Keeper, Launch, over_limit
from gpulaunch.launch.options import Options
from gpulaunch.launch.surroundings import open_table
from gpulaunch.leases.lease import Share
from gpulaunch.leases.record_file import Draft, is_alive, record_name
from gpulaunch.leases.table import Table
from gpulaunch.leases.wake import wait_until_dead
from gpulaunch.process import Process
from gpulaunch.process.ending import DISMISSED, KILL_S, Companion, end_all, reached_by
from gpulaunch.process.job import Job
from gpulaunch.process.system import is_cancelled_by_kill, leads_namespace, state_of
from gpulaunch.records import replace

if TYPE_CHECKING:  # few containers share
    from threading import Event, Thread

    from gpulaunch.sharing.membership import Membership

_TAKE_OVER = b"w"
_LOOK_S = 0.2


class ContainerKeeper(Keeper):
    """Keeps a lease for a container, together with the client that makes it and a companion.

    The companion is a process that takes the lease over when the launcher goes, and keeps it until
    the client and the container have ended.

    Args:
        share: its part of the GPUs, with a pipe directory unless the machine is described; None for
            GPUs of its own.
        process: the client; None to fork it.
        beside_others: whether the client makes other leases' containers, too.
        forks: whether there is a companion at all.

    Attributes:
        job: the client, if it was forked here.
        membership: that in a share group, or None.
        is_freed: whether the lease has been released here, or by its companion.
        is_handed_over: whether the companion has the lease.
    """

    def __init__(
        self,
        launch: Launch,
        table: Table,
        record: Draft,
        share: Share | None = None,
        process: Process | None = None,
        *,
        beside_others: bool = False,
        forks: bool = True,
    ) -> None:
        super().__init__(launch, table, record, share)
        container, limit_s = launch.container, launch.time_limit_s
        assert container  # noqa: S101  for the type checker
        self.membership: Membership | None = None
        if share and share.pipe_directory:
            from gpulaunch.sharing import membership  # late: few containers share

            self.membership = membership.Membership(table, record, share)
        self.is_freed = self.is_handed_over = False
        self._ends_when_killed = is_cancelled_by_kill()
        self._overdue_s = None if limit_s is None else time.monotonic() + limit_s
        self.followed = Followed(container, record.id, beside_others=beside_others)
        self.job = None if process else Job(keep=record.fd)
        self.process = self.job.process if self.job else process or self.process
        self._companion = Companion(self._act, record.fd) if forks else None

    def dismiss(self) -> None:
        """End the companions, and a client that was forked: the GPUs went to another launch."""
        if self._companion:
            self._companion.tell(DISMISSED)
        if self.membership:
            self.membership.dismiss()
        if self.job:
            self.job.dismiss()

    def hand_over(self, *, ends: bool) -> None:
        """Hand the lease to the companion, since the launcher goes now.

        If that has been killed meanwhile, another one is started for it.

        Args:
            ends: whether it is to end the container, as if the launcher was killed.
        """
        word = b"" if ends else _TAKE_OVER
        if self._companion and not self._companion.tell(word):
            Companion(self._act, self.record.fd).tell(word)
        self.record.close()
        self.is_handed_over = True

    def end(self, grace_s: float) -> bool:
        """End the container and the client, in whatever order they depend on each other.

        Args:
            grace_s: seconds between TERM and KILL for the container.

        Returns:
            Whether there was a container to end.

        Raises:
            FailedError: the engine refuses.
        """
        before_signal = self.membership.take_off if self.membership else None
        found = self.followed.end(grace_s, before_signal)
        # The client tells the container's status, and ends by itself a moment after it.
        patience_s = max(grace_s, KILL_S)
        end_all(lambda: {self.process.pid} if state_of(self.process) else set(), patience_s)
        # It may have made another container before it ended.
        return self.followed.end(grace_s, before_signal) or found

    def _act(self, word: bytes) -> None:
        """Keep the lease in the companion, once it is told to or the launcher has been killed."""
        if word == DISMISSED:
            return
        own = [lease for lease in self.table.own_leases() if lease.id == self.record.id]
        if not own:  # the launcher was killed before it had a lease
            return
        self.lease = own[0]
        cancelled = not word and self._ends_when_killed
        self.followed.wait(
            self.process,
            time.monotonic() if cancelled else self._overdue_s,
            end=lambda: self.end(self.launch.grace_s),
            is_pointless=lambda: self.record.is_removed,
        )
        super().release()

    def release(self) -> None:
        """Free the GPUs, and leave the share group."""
        super().release()
        self.is_freed = True
        if self._companion:
            self._companion.tell(DISMISSED)
        if self.membership:
            self.membership.leave()

    def await_release(self) -> None:
        """Wait for the companion, which is about to release the lease; without one, clear up."""
        if self._companion:
            path, deadline = self.table.path_of(self.lease), time.monotonic() + RELEASE_FOLLOWS_S
            while is_alive(path) and time.monotonic() < deadline:
                wait_until_dead([path])
        else:
            self.table.know_ended(self.lease)
            with self.table.locked() as locked:
                locked.sweep(record_name(self.lease))
        self.is_freed = True


class ContainerLeases:
    """Takes, hands over and releases the leases of the containers that one client makes.

    Args:
        process: the client; None to fork it with the first lease.
        follows: whether the client makes several containers, so that a lease ends with its
            container: companions have it as soon as that runs. Otherwise the GPUs are watched, and
            whether a container that shares them does so by MPS.
        forks: whether this process may fork a companion for each lease, which one with threads of
            others may not; without one, who looks at the table asks the engine.
    """

    def __init__(
        self,
        options: Options,
        process: Process | None,
        events: Events,
        *,
        follows: bool = False,
        forks: bool = True,
    ) -> None:
        self.options, self.process, self.events = options, process, events
        self._follows, self._forks = follows, forks
        self._said: set[str] = set()
        self._table: Table | None = None
        self._reserve: Keeper | None = None
        self._held: list[ContainerKeeper] = []
        self._granted_s: float | None = None
        self._watch: GpuWatch | None = None
        self._sharing: tuple[Event, Thread] | None = None
        self._status = 0
        self._was_late = False

    def warn(self, text: str) -> None:
        """Warn once of each thing: docker asks again once it has an image."""
        if text not in self._said:
            self._said.add(text)
            self.events.warn(text)

    def table_of(self, launch: Launch) -> Table:
        """Return the allocation table, which is that of the first launch."""
        if self._table is None:
            self._table = open_table(private=launch.private, warn=self.warn)
        return self._table

    def reserve(self, launch: Launch) -> None:
        """Wait for the GPUs of all containers that are to be made, so that none waits alone."""
        events = self.events.begins(launch)
        self._reserve = acquire(launch, self.table_of(launch), events, Keeper)

    def end_reserve(self) -> None:
        """Free what is reserved; the containers have leases of their own by now."""
        keeper, self._reserve = self._reserve, None
        if keeper:
            keeper.release()

    def take(self, launch: Launch, gone: int | None = None) -> ContainerKeeper:
        """Take the lease of a container, out of what is reserved if that is enough.

        Args:
            gone: descriptor that is readable once nobody waits for it any more, or None.

        Raises:
            GpulaunchError: it does not get its GPUs.
            GivenUpError: nobody waits any more.
        """
        # A script expects the GPUs of a container that it has seen end.
        for keeper in [*self._held] if self._forks else []:
            if keeper.is_handed_over and not keeper.is_freed and keeper.followed.has_ended():
                keeper.await_release()
        events = self.events.begins(launch)
        table = self.table_of(launch)
        make = partial(
            ContainerKeeper,
            process=self.process,
            beside_others=self._follows,
            forks=self._forks,
        )
        taken: ContainerKeeper | None = None
        if self._reserve:
            inside = replace(launch, within=self._reserve.lease, wait=False)
            with suppress(UsageError, WouldWaitError):
                taken = acquire(inside, table, Events(), make, gone)
        taken = taken or acquire(launch, table, events, make, gone)
        self._held.append(taken)
        events.granted(taken)
        self._granted_s = self._granted_s or time.monotonic()
        if not self._follows:
            self._watch = GpuWatch(taken, events)
            self._watch_sharing(taken)
        return taken

    def _watch_sharing(self, keeper: ContainerKeeper) -> None:
        """Watch in another thread whether a container that shares its GPUs does so by MPS."""
        membership = keeper.membership
        if membership is None:
            return
        from threading import Event, Thread  # late: few containers share

        ended, pids = Event(), keeper.followed.pids

        def wait(limit_s: float | None) -> int | None:
            return self._status if ended.wait(limit_s) else None

        machine, uuids = keeper.launch.machine, keeper.lease.uuids
        rest = (wait, None, machine, uuids, self.warn, pids)
        self._sharing = ended, Thread(target=membership.wait, args=rest, daemon=True)
        self._sharing[1].start()

    def run_to_end(self, job: Job) -> int:
        """Wait for the client, end it if it takes too long, and tell of its end.

        Returns:
            Its wait status.
        """
        status = self._wait_for(job)
        if status is None:
            self._was_late = self._is_over()
            grace_s = self.options.grace if self._was_late else 0.0
            for keeper in self._held:
                self._end_containers(keeper, grace_s)
            status = job.end(grace_s)
        self._status = status
        if self._sharing:
            ended, watcher = self._sharing
            ended.set()
            watcher.join()
        self.events.over(status)
        if self._watch:
            self._watch.tell(status)
        return status

    def _wait_for(self, job: Job) -> int | None:
        """Wait for the client; None if it is to be ended: it is over its limit, or CI's."""
        grace_s = self.options.grace if is_cancelled_by_kill() else None
        # A limit counts from the lease, of which nobody tells this thread.
        look_s = None if self.options.time_limit is None else _LOOK_S
        while True:
            status = job.wait(look_s, grace_s)
            if status is not None:
                return status
            if self._is_over():
                return None
            since_s = job.first_term_s
            if grace_s is not None and since_s and time.monotonic() - since_s >= grace_s:
                grace = format_duration(grace_s)
                self.warn(f"the job goes on {grace} after TERM: it is killed, as CI=true")
                return None

    def _is_over(self) -> bool:
        """Return whether the containers have had their GPUs for as long as they may."""
        limit_s, since_s = self.options.time_limit, self._granted_s
        if not limit_s or since_s is None:
            return False
        return time.monotonic() - since_s >= limit_s

    def raise_if_ended(self) -> None:
        """Raise the error of a client that was ended for its time, or for idle GPUs."""
        if self._watch:
            self._watch.raise_if_idle()
        if self._was_late:
            raise over_limit(self.options.time_limit or 0)

    def way_inside(self, keeper: ContainerKeeper) -> tuple[str, list[str]]:
        """Return the way of a lease's GPUs into their container, and the UUIDs of those."""
        container, topology = keeper.launch.container, keeper.launch.machine.topology
        if container is None or container.way == NO_WAY:
            self.warn(f"{topology.name} is only described: its GPUs get into no container")
            return NO_WAY, []
        return container.way, [gpu.uuid for gpu in keeper.grant.gpus]

    def begins_to_run(self, keeper: ContainerKeeper) -> None:
        """Leave the lease of a container that begins to run to its companion, if it is to follow.

        In CI it stays here: the containers are to end with this process.
        """
        if self._follows and not is_cancelled_by_kill():
            keeper.hand_over(ends=False)

    def before_signal(self, number: int) -> None:
        """Detach from MPS what the client is about to pass a signal on to."""
        for keeper in self._held:
            container = keeper.launch.container
            if keeper.membership and container and container.passes_signals:
                pids = keeper.followed.pids()
                first = set(filter(leads_namespace, pids))
                for problem in keeper.membership.take_off(reached_by(number, first, pids), number):
                    self.warn(problem)

    def release(self, *, in_order: bool = True) -> None:
        """Free the GPUs of all that has ended, now that the client has; companions keep the rest.

        Args:
            in_order: whether the client has ended by itself. One that was killed may have asked the
                engine for a start that is under way: that is left to the companion.
        """
        self.end_reserve()
        for keeper in self._held:
            if keeper.is_freed:
                continue
            over = keeper.followed.has_ended(or_only_made=in_order)
            if keeper.is_handed_over:
                if over:
                    keeper.await_release()
                continue
            ends = False
            if not over and keeper.lease.ends_with_launcher:
                # A runner may have killed the client before this process.
                ends = self._end_containers(keeper, keeper.launch.grace_s)
                if ends:
                    program = keeper.launch.command[0].rpartition("/")[2]
                    self.warn(
                        f"{program} has ended before its container: that ends, too, as CI=true"
                    )
                over = keeper.followed.has_ended()
            if over:
                keeper.release()
            else:
                keeper.hand_over(ends=ends)

    def _end_containers(self, keeper: ContainerKeeper, grace_s: float) -> bool:
        """End the container of a lease; return whether there was one, or perhaps still is."""
        try:
            return keeper.end(grace_s)
        except FailedError as problem:
            self.warn(problem.message)
            return True
