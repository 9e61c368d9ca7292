"""The functions of a program that run over and over."""
# pure: decides on plain values

from collections.abc import Iterable

from gpulaunch.typing import TypeVar

T = TypeVar("T")


def repeating(
    functions: Iterable[T], calls: Iterable[tuple[T, T, bool]], once: Iterable[T]
) -> dict[T, bool | None]:
    """Return for each function whether it runs over and over.

    Args:
        functions: all functions.
        calls: caller, callee, and whether the call is in a loop. Callers that are not among the
            functions run once.
        once: functions that are called once from outside, such as main.

    Returns:
        True if it is called in a loop or by a function that runs over and over; False if it is only
        called otherwise; None if nothing here calls it.

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
