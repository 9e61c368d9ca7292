"""Progress of a long run: one line on stderr, if that is a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from gpulaunch.files.duration import format_duration
from gpulaunch.simulate.event_loop import Moment
from gpulaunch.typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpulaunch.show.terminal import ProgressLine

_QUIET_S = 1.0  # a shorter run is over before it could be read
_PAUSE_S = 0.1  # between two drawings


class Progress:
    """The reporter of the progress of several replays, one after the other.

    Args:
        line: the line to draw; None reports nothing.
        runs: number of replays.
        jobs: number of jobs in each.
    """

    def __init__(self, line: "ProgressLine | None", runs: int, jobs: int) -> None:
        self._line = line
        self._runs, self._jobs = runs, jobs
        self._begun = 0
        self._next_s = monotonic() + _QUIET_S

    def watch(self, name: str) -> Callable[[Moment], None]:
        """Return the function that watches the next replay.

        Args:
            name: name of the replay.
        """
        before, began_s = self._begun * self._jobs, monotonic()
        self._begun += 1

        def tell(moment: Moment) -> None:
            now_s = monotonic()
            if now_s >= self._next_s:
                self._next_s = now_s + _PAUSE_S
                self._draw(name, before, moment.ended, now_s - began_s)

        return tell if self._line else lambda _: None

    def _draw(self, name: str, before: int, ended: int, took_s: float) -> None:
        """Draw the line; the time left assumes the pace of the replay that runs."""
        done, jobs = before + ended, self._runs * self._jobs
        parts = [f"{name}: {ended:,} of {self._jobs:,} jobs"]
        if ended:
            parts.append(f"about {format_duration(round(took_s / ended * (jobs - done)))} left")
        if self._line:
            self._line.draw(done / jobs, ", ".join(parts))

    def note(self, text: str) -> None:
        """Draw what follows all replays, if these took long.

        Args:
            text: the text.
        """
        if self._line and monotonic() >= self._next_s - _PAUSE_S:
            self._line.draw(1.0, text)


@contextmanager
def telling(runs: int, jobs: int) -> Iterator[Progress]:
    """Report progress on stderr, if that is a terminal; its line is cleared at the end in any case.

    Args:
        runs: number of replays.
        jobs: number of jobs in each.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield Progress(None, runs, jobs)
        return
    from gpulaunch.show.terminal import ProgressLine

    line = ProgressLine(sys.stderr)
    try:
        yield Progress(line if line.possible else None, runs, jobs)
    finally:
        line.clear()
