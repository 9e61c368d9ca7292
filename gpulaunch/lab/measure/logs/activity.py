"""Reader of what DCGM or Nsight Systems has sampled: the share of the SMs and of the memory in use.

NVML tells before Hopper only in how much of the time a kernel ran, and what sharing goes by is how
many SMs it used. Read are the table of `dcgmi dmon -e 203,1002,1005`, and CSV with a column for
each metric, one row a sample; names of columns are DCGM's or those of Nsight Systems. Rows that
have no figure, as DCGM writes N/A, are passed over.

Source: field identifiers of DCGM (203 GPUTL, 1002 SMACT, 1005 DRAMA); metrics of Nsight Systems'
GPU metrics sampling.
"""
# pure: decides on plain values

import csv
import re
from math import fsum, isnan

from gpulaunch.errors import UsageError
from gpulaunch.records import Record

HINT = "dcgmi dmon -i 0 -e 203,1002,1005 -d 100 samples GPU 0, while the job runs there alone"

_SM = re.compile(r"SMACT|(?:DCGM_FI_PROF_)?SM_ACTIVE|SMs? Active.*", re.IGNORECASE)
_DRAM = re.compile(
    r"DRAMA|(?:DCGM_FI_PROF_)?DRAM_ACTIVE|DRAM (?:Active|(?:Read|Write) Bandwidth).*", re.IGNORECASE
)
_BUSY = re.compile(r"GPUTL|(?:DCGM_FI_DEV_)?GPU_UTIL|GR Active.*", re.IGNORECASE)
_PERCENT = re.compile(r".*%.*|GPUTL|.*GPU_UTIL", re.IGNORECASE)  # DCGM's other figures are 0 to 1
_GPU = re.compile(r"#?Entity|GPU(?: ID)?|GPU-I ID|Device(?: ID)?", re.IGNORECASE)
_BLANK_IN_ENTITY = re.compile(r"(?<=GPU|U-I) (?=\d)")
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
    gpus: dict[str, dict[re.Pattern[str], list[float]]] = {}
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        row = _cells(line)
        if any(map(_SM.fullmatch, row)):
            columns = row
            continue
        if len(row) != len(columns):
            continue  # units under the columns, or a blank line
        cells = list(zip(columns, row, strict=True))
        gpu = " ".join(cell for name, cell in cells if _GPU.fullmatch(name))
        sums = gpus.setdefault(gpu, {_SM: [], _DRAM: [], _BUSY: []})
        for pattern, values in sums.items():
            figures = [
                _figure(cell, name, f"{origin}:{number}")
                for name, cell in cells
                if pattern.fullmatch(name)
            ]
            known = [figure for figure in figures if figure is not None]
            if known and len(known) == len(figures):
                values.append(fsum(known))  # reads and writes are columns of their own
    found = [_means_of(sums) for sums in gpus.values() if sums[_SM] and sums[_DRAM]]
    if not found:
        raise UsageError(f"{origin}: no samples of SM and DRAM activity under their names", HINT)
    at_work = [one for one in found if one.sm_percentage > _IDLE] or found[:1]
    if len(at_work) > 1:
        raise UsageError(f"{origin}: {len(at_work)} GPUs were at work in it, not 1", HINT)
    return at_work[0]


def _means_of(sums: dict[re.Pattern[str], list[float]]) -> Activity:
    sm, dram, busy = (
        min(100.0, fsum(some) / len(some)) if some else None for some in sums.values()
    )
    return Activity(sm or 0.0, dram or 0.0, busy, len(sums[_SM]))


def _cells(line: str) -> list[str]:
    """Return the cells of a row: by commas where there are any, else by blanks."""
    if "," in line:
        return [cell.strip() for cell in next(csv.reader([line]))]
    return _BLANK_IN_ENTITY.sub("-", line).removeprefix("#").split()


def _figure(cell: str, name: str, where: str) -> float | None:
    """Return a figure in percent; None for one that is not there."""
    try:
        value = float(cell) * (1 if _PERCENT.fullmatch(name) else 100)
    except ValueError:
        return None
    if isnan(value):
        return None
    if not 0 <= value <= 110:  # sampled over a little more than the time between two samples
        raise UsageError(f"{where}: {name} is {cell}, not 0 to {100 if '%' in name else 1}")
    return value
