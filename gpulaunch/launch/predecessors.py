"""The launches that another one comes after: `--after NAME[:ok|:any]`."""

from collections.abc import Callable, Collection, Sequence

from gpulaunch.errors import FailedError, UsageError, printable, quoted
from gpulaunch.history.past_launch import PastLaunch, find_past
from gpulaunch.history.read import read_history
from gpulaunch.launch.past_end import is_elsewhere, is_running, unknown_end, wait_for_end
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

    @property
    def text(self) -> str:
        """The name, and :any if any end will do, as --after takes it."""
        return f"{self.name}:any" if self.any_end else self.name


def split_after(text: str, known: Collection[str | None]) -> list[tuple[str, bool]]:
    """Return the names in the value of an option --after, each with whether any end will do.

    Args:
        text: names with a comma between them, each with :ok or :any behind it or nothing.
        known: names that there are: one with a comma in it is one name.

    Raises:
        UsageError: a name is missing.
    """
    whole = _split_end(text)
    found = [whole] if whole[0] in known else [_split_end(word) for word in text.split(",")]
    if not all(name for name, _ in found):
        raise UsageError(f"{quoted(text)}: a name is missing")
    return found


def _split_end(word: str) -> tuple[str, bool]:
    name, colon, end = word.rpartition(":")
    return (name, _ENDS[end]) if colon and end in _ENDS else (word, False)


def find_predecessors(texts: Sequence[str]) -> list[Predecessor]:
    """Return the launches that options --after name.

    Raises:
        UsageError: one of them does not exist.
    """
    history = read_history()
    names = {one.name for one in history}
    found = []
    for text in texts:
        try:
            for name, any_end in split_after(text, names):
                launch = find_past(name, history, is_running)
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
        may_run = ended.exit_status is None and is_elsewhere(ended)
        if ended.exit_status == 0 or (one.any_end and not may_run):
            continue
        hint = None if may_run else f"--after {one.name}:any runs a job however {one.name} ends"
        if ended.exit_status is None:
            raise FailedError(f"not run: {unknown_end(ended, one.name).message}", hint)
        raise FailedError(f"not run: {one.name} has ended with {ended.exit_status}", hint)
