"""Processes: the job, signals, endings, companions, and what identifies a process."""
# pure: decides on plain values

from gpulaunch.records import Record


class Process(Record):
    """A process that cannot be mistaken for a later one with the same number.

    Attributes:
        pid: as seen where the record was written.
        start_time: in clock ticks since boot; 0 if unknown.
    """

    pid: int
    start_time: int
