"""A job of a trace: its request, arrival and run time."""
# pure: decides on plain values

from gpulaunch.decide.request import Request
from gpulaunch.records import Record


class SimulatedJob(Record):
    """One job.

    Attributes:
        id: place in the trace, from 0.
        name: name of the job, not necessarily unique.
        request: request to a machine.
        arrival_s: arrival, in seconds from the beginning of the trace.
        duration_s: run time in seconds, alone on the best GPUs of the idle machine.
        communication_share: share of that time spent waiting for links, 0 to 1; None if unknown.
        split_slowdown: measured slowdown with its GPUs on several sockets, as a fraction (0.25 is
            25 %); None if not measured.
    """

    id: int
    name: str
    request: Request
    arrival_s: float
    duration_s: float
    communication_share: float | None = None
    split_slowdown: float | None = None
