"""The sizes of the jobs that ran on a machine, as what it can expect."""

from gpulaunch.decide.placement.expected import DEFAULT_SIZES, JobSizes
from gpulaunch.history.read import RECENT_S, read_history
from gpulaunch.machine.topology import Topology

_LEAST_LAUNCHES = 50
_MOST_LAUNCHES = 1000


def job_sizes_of_history(topology: Topology) -> JobSizes:
    """Return the sizes of the last _MOST_LAUNCHES launches that had GPUs of a machine.

    It reads what this user may read of the last RECENT_S of the history. With fewer than
    _LEAST_LAUNCHES there it returns the default. Shares are whole percents, so that a machine's
    tables stay valid for a while.
    """
    machine = (topology.name, topology.digest is not None)
    past = [
        len(one.gpus)
        for one in read_history(everyone=True, within_s=RECENT_S)
        if one.gpus and (one.topology, one.described) == machine
    ][-_MOST_LAUNCHES:]
    if len(past) < _LEAST_LAUNCHES:
        return DEFAULT_SIZES
    percents = {gpus: round(100 * past.count(gpus) / len(past)) for gpus in sorted(set(past))}
    total = sum(percents.values())
    shares = ((gpus, percent / total) for gpus, percent in percents.items() if percent)
    return JobSizes(f"of the last {len(past)} launches", tuple(shares))
