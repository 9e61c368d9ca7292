"""Reader of what DCGM has sampled: the share of the SMs and of the memory in use.

NVML tells before Hopper only in how much of the time a kernel ran, and what sharing goes by is how
many SMs it used. Read is the table of `dcgmi dmon -e 203,1002,1005`; what it has no figure of is
N/A there.

Source: field identifiers of DCGM (203 GPUTL, 1002 SMACT, 1005 DRAMA).
"""
# pure: decides on plain values

from math import fsum, isnan

from gpulaunch.errors import UsageError
from gpulaunch.records import Record

HINT = "dcgmi dmon -i 0 -e 203,1002,1005 -d 100 samples GPU 0, while the job runs there alone"

_BUSY, _SM, _DRAM = "GPUTL", "SMACT", "DRAMA"
_MOST = {_BUSY: 100, _SM: 1, _DRAM: 1}  # of the figures of each column
_IDLE = 0.5  # % of the SMs at most that a GPU without a job uses


class Activity(Record):
    """What a job alone on a GPU used of it, in the mean over all samples.

    Attributes:
        sm_percentage: share of the SMs that had a warp, 0-100.
        dram_percentage: share of the time in which memory moved data, 0-100.
        busy_percentage: share of the time in which anything ran, 0-100; None if not sampled.
    """

    sm_percentage: float
    dram_percentage: float
    busy_percentage: float | None
    samples: int


def read_activity(text: str, origin: str) -> Activity:
    """Return the means of all samples of a table.

    Raises:
        UsageError: it is no such table, or a figure is out of range.
    """
    columns: list[str] = []
    gpus: dict[str, dict[str, list[float]]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#"):
            columns = line.lstrip("# ").split()  # the first, Entity, has two words: GPU 0
            continue
        kind, *words = line.split() or [""]
        if not words or len(words) != len(columns):
            continue  # units under the columns, or a blank line
        percentages = gpus.setdefault(f"{kind} {words[0]}", {name: [] for name in _MOST})
        for name, cell in zip(columns, words, strict=True):
            value = _percentage(name, cell, f"{origin}:{number}")
            if value is not None:
                percentages[name].append(value)
    found = []
    for percentages in gpus.values():
        sm, dram, busy = percentages[_SM], percentages[_DRAM], percentages[_BUSY]
        if sm and dram:
            found.append(Activity(_mean(sm), _mean(dram), _mean(busy) if busy else None, len(sm)))
    if not found:
        raise UsageError(f"{origin}: no samples of SM and DRAM activity under their names", HINT)
    at_work = [one for one in found if one.sm_percentage > _IDLE] or found[:1]
    if len(at_work) > 1:
        raise UsageError(f"{origin}: {len(at_work)} GPUs were at work in it, not 1", HINT)
    return at_work[0]


def _percentage(name: str, cell: str, where: str) -> float | None:
    """Return a figure in percent; None for one that is not there, or not wanted."""
    try:
        value = float(cell)
    except ValueError:
        return None
    if name not in _MOST or isnan(value):
        return None
    most = _MOST[name]
    if not 0 <= value <= 1.1 * most:  # sampled over a little more than the time between two samples
        raise UsageError(f"{where}: {name} is {cell}, not 0 to {most}")
    return 100 * value / most


def _mean(percentages: list[float]) -> float:
    return min(100.0, fsum(percentages) / len(percentages))
