"""Reader of Nsight Compute's CSV: the counters of a job for the off-SM bandwidth model.

`ncu --csv --metrics ...` prints a row for each metric of each kernel. Before and after the table
are the job's own output and lines of ncu (==PROF==). Figures are read as in English: 1,234.5.

Source: Nsight Compute CLI, "Output Pages" and "Metrics and Units".
"""
# pure: decides on plain values

import csv
import re
from collections.abc import Iterator

from gpulaunch.errors import UsageError, quoted
from gpulaunch.records import Record

SECTOR_BYTES = 32
"""Size of a sector, which ncu counts as one access to L2, the last level of a GPU's caches."""

METRICS = ("lts__t_sectors.sum", "lts__t_sector_hit_rate.pct", "smsp__inst_executed.sum")
"""Metrics to ask ncu for."""

HINT = f"ncu --csv --metrics {','.join(METRICS)} COMMAND counts what is needed"

_SECTORS, _HIT, _INSTRUCTIONS = METRICS
_UNIT = re.compile(r"(?P<factor>[kKMGT]?)(?:(?:sector|inst(?:ruction)?)s?)?|%|pct")
_FACTORS = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d*)?(?:[eE][+-]?\d{1,2})?")
_MOST_PERCENT = 110.0  # ncu counts hits and accesses in different replays of the kernel

_COLUMNS = {"ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value"}

Cells = dict[str, tuple[int, str, str]]  # of one kernel: line, figure and unit by metric


class NcuCounters(Record):
    """A job's counters over all kernels that ncu profiled; keys of a profile's [counters].

    Attributes:
        llc_accesses_per_kilo_instruction: accesses to L2, in sectors, per 1,000 warp instructions.
        llc_hit_rate_percentage: share of the sectors that were hits, 0-100.
        bytes_per_access: size of a sector.
        kernels: number of kernel launches.
    """

    llc_accesses_per_kilo_instruction: float
    llc_hit_rate_percentage: float
    bytes_per_access: int
    kernels: int


def read_ncu(text: str, origin: str) -> NcuCounters:
    """Return the counters in a CSV of Nsight Compute.

    Sectors and instructions are added up over all launches; the hit rate is the mean weighted by
    sectors.

    Args:
        text: what `ncu --csv` printed.
        origin: name of the file, for messages.

    Raises:
        UsageError: it is no such text, or lacks a metric; the message has line and metric.

    Source: cd-search-ics18 4.1.2 and Eq. 1, which counts accesses per kilo instruction of the
        last-level cache. Today's profilers count sectors of 32 bytes; the paper has whole lines of
        128.
    """
    kernels = _read_kernels(text, origin)
    sectors = instructions = hits = 0.0
    for (_, _, number), cells in kernels.items():
        missing = [metric for metric in METRICS if metric not in cells]
        if missing:
            raise UsageError(f"{origin}: the kernel of ID {number} has no {missing[0]}", HINT)
        count = _read_figure(cells, _SECTORS, origin)
        sectors += count
        instructions += _read_figure(cells, _INSTRUCTIONS, origin)
        if count:  # a kernel that does not use L2 has no hit rate
            hits += count * min(_read_figure(cells, _HIT, origin), 100.0)
    if not instructions:
        raise UsageError(f"{origin}: {len(kernels)} kernels executed 0 warp instructions", HINT)
    rate = hits / sectors if sectors else 0.0
    return NcuCounters(1000 * sectors / instructions, rate, SECTOR_BYTES, len(kernels))


def _read_kernels(text: str, origin: str) -> dict[tuple[int, str, str], Cells]:
    """Return the cells of each kernel launch, by table, process and ID."""
    kernels: dict[tuple[int, str, str], Cells] = {}
    columns: dict[str, int] = {}
    tables = 0
    for line, row in _read_rows(text, origin):
        if _is_header(row):
            columns = {name: at for at, name in enumerate(row)}
            tables += 1
            continue
        if len(row) != len(columns):
            count = len(columns)
            raise UsageError(f"{origin}:{line}: a row of {len(row)} cells under {count} columns")
        number = row[0]
        if not number.isdecimal():
            raise UsageError(f"{origin}:{line}: ID {quoted(number)} is not a number")
        process = row[columns["Process ID"]] if "Process ID" in columns else ""
        cells = kernels.setdefault((tables, process, number), {})
        value, unit = row[columns["Metric Value"]], row[columns["Metric Unit"]]
        cells[row[columns["Metric Name"]]] = (line, value, unit)
    if not kernels:
        raise UsageError(f"{origin}: no table of Nsight Compute with the metrics of a kernel", HINT)
    return kernels


def _read_rows(text: str, origin: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of the tables, each with the number of its line."""
    inside = False
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        if not line.strip() or line.startswith("==") or not (inside or line.strip('"')[:2] == "ID"):
            continue
        try:
            row = next(csv.reader([line.rstrip("\r")]))
        except csv.Error as problem:
            raise UsageError(f"{origin}:{number}: {problem}") from None
        inside = inside or _is_header(row)
        if inside:
            yield number, row


def _is_header(row: list[str]) -> bool:
    return row[:1] == ["ID"] and {*row} >= _COLUMNS


def _read_figure(cells: Cells, metric: str, origin: str) -> float:
    """Return a figure in sectors, instructions or percent."""
    line, text, unit = cells[metric]
    known = _UNIT.fullmatch(unit.strip())
    if not known or (metric == _HIT) is not (unit.strip() in ("%", "pct")):
        raise UsageError(f"{origin}:{line}: {metric} has the unit {quoted(unit)}, not a known one")
    if not _NUMBER.fullmatch(text.strip()):
        found = f"{metric} is {quoted(text)}, not a number as in English"
        raise UsageError(f"{origin}:{line}: {found}", "run ncu with LC_ALL=C")
    number = float(text.strip().replace(",", "")) * _FACTORS.get(known["factor"] or "", 1.0)
    if metric == _HIT and number > _MOST_PERCENT:
        raise UsageError(f"{origin}:{line}: {metric} is {quoted(text)}, not 0 to 100 %")
    return number
