"""The launches that another one comes after: `--after NAME[:ok|:any]`."""

from collections.abc import Callable, Sequence

from gpulaunch.errors import FailedError, UsageError, printable, quoted
from gpulaunch.history.find import find_past
from gpulaunch.history.past_launch import PastLaunch
from gpulaunch.history.read import read_history
from gpulaunch.launch.past_end import unknown_end, wait_for_end
from gpulaunch.records import Record

_ENDS = {"ok": False, "any": True}


class Predecessor(Record):
    """A launch that has to end before another one begins.

    Attributes:
        name: what the user calls it, printable.
        launch: the launch as the history has it.
        any_end: whether it may end as it likes; otherwise it has to end with 0.
    """

    name: str
    launch: PastLaunch
    any_end: bool


def split_after(text: str) -> list[tuple[str, bool]]:
    """Return the names in the value of an option --after, each with whether any end will do.

    Raises:
        UsageError: a name is missing.
    """
    found = []
    for word in text.split(","):
        name, colon, end = word.rpartition(":")
        if not colon or end not in _ENDS:
            name, end = word, "ok"
        if not name:
            raise UsageError(f"{quoted(text)}: a name is missing")
        found.append((name, _ENDS[end]))
    return found


def find_predecessors(texts: Sequence[str]) -> list[Predecessor]:
    """Return the launches that options --after name.

    Raises:
        UsageError: one of them does not exist.
    """
    history = read_history()
    found = []
    for text in texts:
        try:
            for name, any_end in split_after(text):
                launch = find_past(name, history)
                found.append(Predecessor(printable(name), launch, any_end))
        except UsageError as problem:
            raise UsageError(f"--after: {problem.message}", problem.hint) from None
    return found


def wait_for_predecessors(
    before: Sequence[Predecessor],
    warn: Callable[[str], None],
    waiting: Callable[[str], None],
) -> None:
    """Sleep until launches have ended.

    Args:
        before: the launches.
        warn: called with each warning.
        waiting: called with the name of each that has not ended yet.

    Raises:
        FailedError: one has not ended as it should; nothing runs after it.
    """
    for one in before:
        if one.launch.exit_status is None:
            waiting(one.name)
        ended = wait_for_end(one.launch, warn)
        if one.any_end or ended.exit_status == 0:
            continue
        hint = f"--after {one.name}:any runs a job however {one.name} ends"
        if ended.exit_status is None:
            raise FailedError(f"not run: {unknown_end(ended, one.name).message}", hint)
        raise FailedError(f"not run: {one.name} has ended with {ended.exit_status}", hint)
