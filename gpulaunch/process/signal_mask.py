"""The signals that a thread blocks, without the enumerations of Python's signal module.

signal.pthread_sigmask makes a member of an enumeration of each number that it returns: 60 us for
all of them, where the system call takes one. Taking and releasing a lease are eight such calls.
"""

import _signal  # type: ignore[import-not-found]  # what the signal module is made of
from collections.abc import Iterable

ALL_SIGNALS: frozenset[int] = frozenset(_signal.valid_signals())


def change_mask(how: int, signals: Iterable[int]) -> frozenset[int]:
    """Change which signals this thread blocks; return those that it blocked before.

    Args:
        how: signal.SIG_BLOCK, signal.SIG_UNBLOCK or signal.SIG_SETMASK.
        signals: numbers of signals.
    """
    return frozenset(_signal.pthread_sigmask(how, signals))
