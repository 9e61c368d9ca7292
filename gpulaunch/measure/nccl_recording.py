"""NCCL's log of a launch that is measured, and what it shows."""

import os
from collections.abc import Iterator, Mapping, Sequence
from glob import escape, glob

from gpulaunch.errors import UsageError
from gpulaunch.files.log_file import log_lines
from gpulaunch.launch.acquire import Acquired
from gpulaunch.launch.assess import granted_gpus
from gpulaunch.launch.keepers import Keeper
from gpulaunch.launch.launch import Launch
from gpulaunch.machine.gpu import Gpu
from gpulaunch.profiles.confidence import Confidence
from gpulaunch.records import Record

_VARIABLES = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,GRAPH"}


class NcclFindings(Record):
    """What NCCL's log tells of a launch.

    Attributes:
        pattern: name of the pattern; None if the log has nothing of it.
        confidence: confidence of the pattern.
        shortfall: a line on what is worse than promised; None if nothing is.
    """

    pattern: str | None
    confidence: Confidence | None
    shortfall: str | None


class NcclRecording:
    """The log of NCCL that a job leaves: in a folder of ours, or in the user's NCCL_DEBUG_FILE.

    If the user sets NCCL_DEBUG or NCCL_DEBUG_SUBSYS but no file, nothing is recorded.

    Args:
        environment: variables that the job will get anyway.

    Attributes:
        variables: further variables for the job, which ask for the log.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        from tempfile import TemporaryDirectory  # late: slow, and few launches are measured

        self._folder: TemporaryDirectory[str] | None = None
        self.variables: Mapping[str, str] = {}
        path = environment.get("NCCL_DEBUG_FILE", "")
        if not path and not environment.keys() & _VARIABLES.keys():
            self._folder = TemporaryDirectory(prefix="gpulaunch-nccl-", ignore_cleanup_errors=True)
            path = os.path.join(self._folder.name, "%h.%p")
            self.variables = {**_VARIABLES, "NCCL_DEBUG_FILE": path}
        # NCCL takes the host's name up to its first dot.
        host = "*" if self._folder else escape(os.uname().nodename.partition(".")[0])
        self._pattern = escape(path).replace("%h", host).replace("%p", "*")
        self._before = {one: os.stat(one).st_mtime_ns for one in glob(self._pattern)}

    def read(self, launch: Launch, acquired: Acquired[Keeper]) -> NcclFindings | None:
        """Read what the job left; None if there is nothing.

        Args:
            launch: the launch.
            acquired: what it was granted.
        """
        # Late: the job has ended, and need not wait for these.
        from gpulaunch.measure.logs.nccl_log import read_nccl_log
        from gpulaunch.measure.logs.nccl_shortfall import describe_shortfall
        from gpulaunch.measure.logs.nccl_traffic import communication

        gpus = granted_gpus(launch, acquired.grant)
        log = read_nccl_log(self._lines(gpus))
        if not log.lines:
            return None
        grant, topology = acquired.grant, launch.machine.topology
        problem = grant.problem
        promised = (
            grant.placement.scores.effective_bandwidth
            if problem.pattern.collective and grant.own is None
            else None
        )
        shortfall = describe_shortfall(log, gpus, topology.links, promised)
        try:
            found = communication(log, "NCCL's log")
        except UsageError:  # neither calls nor what was set up for them
            return NcclFindings(None, None, shortfall)
        return NcclFindings(found.pattern, found.pattern_confidence, shortfall)

    def close(self) -> None:
        """Remove the log if it is in our folder."""
        if self._folder:
            self._folder.cleanup()

    def _lines(self, gpus: Sequence[Gpu]) -> Iterator[bytes]:
        """Yield the lines of all files that the job wrote, whose GPUs tell them from others'."""
        for path in sorted(glob(self._pattern)):
            if not os.path.isfile(path) or self._before.get(path) == os.stat(path).st_mtime_ns:
                continue
            if self._folder or _is_of(path, gpus):
                yield from log_lines(path)


def _is_of(path: str, gpus: Sequence[Gpu]) -> bool:
    """Return whether a log names GPUs, and none but these."""
    from gpulaunch.measure.logs.nccl_log import read_nccl_log
    from gpulaunch.measure.logs.nccl_shortfall import gpus_by_bus

    named = read_nccl_log(line for line in log_lines(path) if b"busId" in line).buses
    return bool(named) and named <= gpus_by_bus(gpus).keys()


def record_nccl(launch: Launch) -> NcclRecording | None:
    """Begin to record NCCL's log of a launch; None if it has one GPU, or is a container's.

    Call it when the job has its GPUs and is about to start, and close what it returns.
    """
    if launch.container or launch.compose or launch.request.gpus == 1:
        return None
    try:
        return NcclRecording(os.environ)
    except OSError:  # no room for a folder: the launch goes on without
        return None
