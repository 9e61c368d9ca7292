"""The launch that a user means: by name, by lease, or by key."""
# pure: decides on plain values

from collections.abc import Callable, Iterable

from gpulaunch.errors import UsageError, quoted
from gpulaunch.history.past_launch import PastLaunch

LEAST_CHARACTERS = 4
"""A shorter text is not the beginning of an id: it would often fit by chance."""


def find_past(
    text: str,
    launches: Iterable[PastLaunch],
    is_running: Callable[[PastLaunch], bool] = lambda _: False,
) -> PastLaunch:
    """Return the newest launch of a name; else the one whose lease or key begins so.

    A launch in the foreground may have the name of a detached one. As long as that one runs, it is
    the one that is meant.

    Args:
        text: a name; or the id of a lease or a key, or its first 4 characters or more.
        launches: the history, in the order of its beginning.
        is_running: returns whether a launch without an end runs.

    Raises:
        UsageError: there is none, or the beginning of an id fits several.
    """
    launches = list(launches)
    named = [launch for launch in launches if launch.name == text]
    if named:
        detached = [one for one in named if one.log is not None and one.exit_status is None]
        return next((one for one in reversed(detached) if is_running(one)), named[-1])
    fitting = []
    if len(text) >= LEAST_CHARACTERS:
        fitting = [one for one in launches if one.id.startswith(text) or one.key.startswith(text)]
    if not fitting:
        raise UsageError(
            f"no job of yours is called {quoted(text)}", "'gpulaunch history' lists them"
        )
    if len(fitting) > 1:
        ids = ", ".join(one.id or one.key for one in fitting)
        raise UsageError(f"{quoted(text)} may be any of {ids}", "give more of its id")
    return fitting[0]
