"""Recording of a launch: what its job uses of its GPUs from start to end."""

import os
import time
from contextlib import suppress

from gpulaunch.errors import GpulaunchError, UsageError
from gpulaunch.launch.acquire import Acquired
from gpulaunch.launch.assess import granted_gpus
from gpulaunch.launch.keepers import Keeper
from gpulaunch.launch.launch import Launch
from gpulaunch.launch.open_table import open_table_of
from gpulaunch.machine.find import load_driver
from gpulaunch.measure.run import Run
from gpulaunch.measure.sampler import Sampler
from gpulaunch.process.job import exit_status
from gpulaunch.process.system import now
from gpulaunch.sharing.mps_directories import last_join_ns

MOMENT_S = 0.05
STOPPED = "it was stopped"
SHARED = "its GPUs are shared: their counters are those of all jobs on them together"


class Recording:
    """The measurement of one launch; its failures never stop the launch.

    Args:
        launch: the launch to record.

    Raises:
        UsageError: the launch cannot be measured.
    """

    def __init__(self, launch: Launch) -> None:
        _refuse_unmeasurable(launch)
        self._launch = launch
        self._sampler: Sampler | None = None
        self._problems: list[str] = []
        self._driver: str | None = None
        self._lease_id = ""
        self._keeper: Keeper | None = None
        self._group: tuple[str, ...] = ()
        self._directory = ""
        self._mates: dict[str, str] = {}
        self._joined_ns: int | None = None
        self._promised: float | None = None
        self._date, self._began_s = now(), time.monotonic()

    def begin(self, acquired: Acquired[Keeper]) -> None:
        """Begin to measure; call it when the job has its GPUs and is about to start."""
        if acquired.lease.share:
            self._problems = [SHARED]
            self._group = acquired.lease.share.group
            self._directory = acquired.lease.share.pipe_directory or ""
            self._joined_ns = last_join_ns(self._directory)
            self._mates = self._find_mates(acquired.lease.id)
            if pace := acquired.lease.share.promised_pace:
                self._promised = 1 / pace - 1
        self._lease_id = acquired.lease.id
        self._keeper = acquired.holder
        self._sampler = Sampler(granted_gpus(self._launch, acquired.grant))
        with suppress(GpulaunchError):
            self._driver = load_driver(self._launch.machine.topology.driver).version()
        self._sampler.start()
        self._date, self._began_s = now(), time.monotonic()

    def end(self, status: int) -> Run:
        """Stop measuring and return the run; call it when the job has just ended.

        Args:
            status: the job's wait status.
        """
        duration_s = time.monotonic() - self._began_s
        stopped_s = self._keeper.stopped_s if self._keeper else 0.0
        if stopped_s > MOMENT_S:
            self._problems.append(f"{STOPPED} for {stopped_s:.1f} s")
        gpus = self._sampler.stop() if self._sampler else ()
        found = self._sampler.problems if self._sampler else ()
        beside = self._find_constant_mate()
        return Run(
            command=self._launch.command,
            exit_status=exit_status(status),
            duration_s=duration_s,
            gpus=gpus,
            driver=self._driver,
            date=self._date,
            problems=(*self._problems, *found),
            sampling_cpu_percentage=100 * self._sampler.cost if self._sampler else 0.0,
            beside=beside,
            promised_slowdown=self._promised if beside else None,
        )

    def _find_constant_mate(self) -> str | None:
        """Return what the one other job on the GPUs uses, if nobody else was there meanwhile."""
        if len(self._mates) != 1 or self._find_mates(self._lease_id) != self._mates:
            return None
        # A third job may have come and gone between the two looks.
        if last_join_ns(self._directory) != self._joined_ns:
            return None
        return next(iter(self._mates.values()))

    def _find_mates(self, own_id: str) -> dict[str, str]:
        """Return the jobs that share the GPUs now: id of the lease -> name of what it uses."""
        seen = open_table_of(self._launch, lambda _: None).peek().of(self._launch.machine)
        return {
            lease.id: lease.share.client.demand.name
            for lease in seen.leases
            if lease.share and lease.share.group == self._group and lease.id != own_id
        }


def _refuse_unmeasurable(launch: Launch) -> None:
    refuse_described(launch)
    if launch.container:
        command = launch.container.command
        if command.starts or not command.is_attached:
            shown = " ".join(command.argv[:2])
            raise UsageError(
                f"'{shown}' does not stay until its container ends, so nothing can be measured",
                "run it in the foreground, without -d",
            )


def refuse_described(launch: Launch) -> None:
    """Refuse to measure on a machine that is only described.

    Raises:
        UsageError: the launch's machine is only described.
    """
    if launch.machine.key:
        name = launch.machine.topology.name
        is_set = _named(os.environ.get("GPULAUNCH_TOPOLOGY", "")) == _named(launch.machine.key.file)
        raise UsageError(
            f"{name} is only described: there is nothing to measure",
            "unset GPULAUNCH_TOPOLOGY" if is_set else "leave out --topology",
        )


def _named(path: str) -> str:
    """Return the name in the name or path of a machine file."""
    return os.path.basename(path).removesuffix(".toml")
