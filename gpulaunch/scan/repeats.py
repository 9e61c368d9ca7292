"""Which functions of a program run over and over."""
# pure: decides on plain values

from collections.abc import Iterable

from gpulaunch.typing import TypeVar

T = TypeVar("T")


def repeating(
    functions: Iterable[T], calls: Iterable[tuple[T, T, bool]], once: Iterable[T]
) -> dict[T, bool | None]:
    """For each function, whether it runs over and over.

    Args:
        functions: all of them.
        calls: caller, callee, and whether the call stands in a loop. Callers that are no functions
            run once.
        once: functions that somebody else calls once, such as main.

    Returns:
        True if it is called in a loop or by one that runs over and over; False if it is called, but
        never so; None if nothing here calls it.

    Example:
        >>> repeating("abc", [("a", "b", True)], "a")
        {'a': False, 'b': True, 'c': None}
    """
    known: dict[T, bool | None] = dict.fromkeys(functions)
    known.update(dict.fromkeys(once, False))
    callees: dict[T, list[T]] = {}
    left = []
    for caller, callee, looped in calls:
        callees.setdefault(caller, []).append(callee)
        known[callee] = known.get(callee) or False
        if looped:
            left.append(callee)
    while left:
        function = left.pop()
        if not known.get(function):
            known[function] = True
            left += callees.get(function, [])
    return known
