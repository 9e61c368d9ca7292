"""Use of a GPU that no lease explains."""
# pure: decides on plain values

from typing import NamedTuple


class OutsideUse(NamedTuple):
    """A GPU at work for someone who holds no lease.

    Attributes:
        uuid: the GPU.
        who: such as "pid 4123, alice", or what else shows the use.
        pids: the processes, as far as they are visible.
        lost: whether it is none, but the GPU does not answer.
    """

    uuid: str
    who: str
    pids: tuple[int, ...] = ()
    lost: bool = False
