"""The launch that a user means: by name, by lease, or by key."""
# pure: decides on plain values

from collections.abc import Iterable

from gpulaunch.errors import UsageError, quoted
from gpulaunch.history.past_launch import PastLaunch

_LEAST_CHARACTERS = 4


def find_past(text: str, launches: Iterable[PastLaunch]) -> PastLaunch:
    """Return the newest launch of a name; else the one whose lease or key begins so.

    Args:
        text: a name; or the id of a lease or a key, or its first 4 characters or more.
        launches: the history, in the order of its beginning.

    Raises:
        UsageError: there is none, or the beginning of an id fits several.
    """
    launches = list(launches)
    named = [launch for launch in launches if launch.name == text]
    if named:
        return named[-1]
    fitting = []
    if len(text) >= _LEAST_CHARACTERS:
        fitting = [one for one in launches if one.id.startswith(text) or one.key.startswith(text)]
    if not fitting:
        raise UsageError(
            f"no launch of yours is called {quoted(text)}", "'gpulaunch history' lists them"
        )
    if len(fitting) > 1:
        ids = ", ".join(one.id or one.key for one in fitting)
        raise UsageError(f"{quoted(text)} may be any of {ids}", "give more of its id")
    return fitting[0]
