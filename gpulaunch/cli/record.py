"""`--record` and `--record-to`: what a launch in passing tells of its job."""

from collections.abc import Callable, Mapping
from typing import Any

from gpulaunch.acquire import Held
from gpulaunch.core.workload.measured.run import Run
from gpulaunch.errors import GpulaunchError, UsageError
from gpulaunch.host.write import check_writable
from gpulaunch.look import Launch
from gpulaunch.profiling.keep import learn
from gpulaunch.profiling.recording import Recording, absolute, write_run
from gpulaunch.settings import Given


class Recorder:
    """Measures one launch, and writes what came of it. What fails is said, and the job goes on.

    Args:
        given: the launch's options.
        launch: which.
        warn: where to say what is odd but no failure.

    Raises:
        UsageError: nothing can be measured of it.
        FailedError: nothing could be written.
    """

    def __init__(self, given: Mapping[str, Given], launch: Launch, warn: Callable[[str], None]) -> None:
        self._recording = Recording(launch)
        self._launch, self._warn = launch, warn
        self._path = absolute(given["record_to"].text) if "record_to" in given else None
        if self._path == "-":
            raise UsageError("--record-to -: stdout belongs to the job")
        if self._path:
            check_writable(self._path)

    def begin(self, held: Held[Any]) -> None:
        """The job has its GPUs, and is about to start."""
        try:
            self._recording.begin(held)
        except Exception as problem:  # noqa: BLE001  likewise
            self._warn(f"nothing can be measured: {problem!r}")

    def end(self, status: int) -> None:
        """The job has just ended."""
        try:
            self._write(self._recording.end(status))
        except GpulaunchError as problem:
            self._warn(f"what was measured is lost: {problem.message}")
        except Exception as problem:  # noqa: BLE001  whatever it is, the job's own end is what counts
            self._warn(f"what was measured is lost: {problem!r}")

    def _write(self, run: Run) -> None:
        if self._path:
            write_run(self._path, run)
        if self._launch.recorded_in:
            for line in learn(self._launch.recorded_in, run):
                self._warn(line)
