"""A job of a trace: what it asks, when it comes, and how long it runs."""
# pure: decides on plain values

from gpulaunch.decide.request import Request
from gpulaunch.records import Record


class Job(Record):
    """One job.

    Attributes:
        id: its place in the trace, from 0.
        name: what it is called, not necessarily unique.
        request: what it asks of a machine.
        arrival_s: when it comes, from the beginning of the trace.
        duration_s: how long it runs alone on the best GPUs of the idle machine.
        communication_share: share of that time in which it waits for its links, 0 to 1; None if
            nobody knows.
        split_slowdown: how much longer it was measured to take with its GPUs on several sockets,
            0.25 is 25 %; None if nobody measured that.
    """

    id: int
    name: str
    request: Request
    arrival_s: float
    duration_s: float
    communication_share: float | None = None
    split_slowdown: float | None = None
