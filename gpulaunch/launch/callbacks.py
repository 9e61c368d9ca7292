"""What a launch tells on its way to its GPUs."""

from collections.abc import Callable

from gpulaunch.leases.table import Snapshot
from gpulaunch.records import Record


def _nothing(_: float) -> None:
    """Tell nobody."""


class Callbacks(Record):
    """Functions that a launch calls on its way; none may raise.

    Attributes:
        warn: called with each warning.
        waiting: called with the reason why the launch joins the queue, and with the live leases
            and earlier tickets.
        first: called when it becomes the first in the queue, with the reason to go on waiting and
            the seconds of waiting.
        minute: called once a minute with the seconds of waiting, and a function that returns the
            launch's place in the queue.
        idle: called from another thread with the seconds for which its GPUs have done nothing, once
            each time that this is long enough to be told.
        given_up: descriptor that is readable once the launch is not wanted any more, or None.
    """

    warn: Callable[[str], None]
    waiting: Callable[[str, Snapshot], None]
    first: Callable[[str, float], None]
    minute: Callable[[float, Callable[[], int]], None]
    idle: Callable[[float], None] = _nothing
    given_up: int | None = None
