"""What a Ctrl-C leaves behind in a Python program that takes leases (ctrl_c.py): nothing.

To run longer, or under another interpreter:
python tests/slow/ctrl_c.py --interrupts 100000 --python PATH.
"""

import ctrl_c
import pytest


@pytest.mark.parametrize("interrupts", [200, pytest.param(20_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("threads", ctrl_c.THREADS)
def test_nothing_is_left_of_an_interrupt(threads: int, interrupts: int) -> None:
    """A Ctrl-C while a lease is taken or released, in a program with more threads or none, never
    leaves the host-wide lock held, signals blocked, a lease without an owner or a descriptor open.
    """
    counts = ctrl_c.interrupt(interrupts, threads)
    assert {what: counts[what] for what in ctrl_c.WRONG} == dict.fromkeys(ctrl_c.WRONG, 0)
