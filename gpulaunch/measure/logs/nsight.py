"""Reader of Nsight Compute's CSV: the counters of a job for the off-SM bandwidth model.

`ncu --csv` prints a row for each metric of each kernel; with `--page raw`, a row for each kernel
and a column for each metric, the units in a row of their own. Before the table are the job's own
output and lines of ncu (==PROF==), which also follow it. Figures depend on the user's locale:
1,234.5 or 1.234,5.

Source: Nsight Compute CLI, "Output Pages" and "Metrics and Units"; tables that people publish, of
    2019 to 2026.
"""
# pure: decides on plain values

import csv
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from gpulaunch.errors import UsageError, quoted
from gpulaunch.records import Record

SECTOR_BYTES = 32
"""Size of a sector, which ncu counts as one access to L2, the last level of a GPU's caches."""

METRICS = (
    "lts__t_sectors.sum",
    "lts__t_sector_hit_rate.pct",
    "smsp__inst_executed.sum",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "sm__maximum_warps_per_active_cycle_pct",
    "gpu__time_duration.sum",
)
"""Metrics to ask ncu for."""

HINT = f"ncu --csv --metrics {','.join(METRICS)} COMMAND counts what is needed"

_SECTORS, _HIT, _INSTRUCTIONS, _ACHIEVED, _THEORETICAL, _DURATION = METRICS
# Names of the metrics in the table: their own, those of counters that serve as well, and those of
# the details page.
_NAMES = {
    **{name: name for name in METRICS},
    "L2 Hit Rate": _HIT,
    "sm__inst_executed.sum": _INSTRUCTIONS,
    "Executed Instructions": _INSTRUCTIONS,
    "Achieved Occupancy": _ACHIEVED,
    "Theoretical Occupancy": _THEORETICAL,
    "Duration": _DURATION,
    "gpu__time_duration.avg": _DURATION,
}
_PERCENTAGES = {_HIT, _ACHIEVED, _THEORETICAL}
# Where ncu has not counted all sectors, it may have counted them by operation: each sector belongs
# to one of these four.
_OPERATIONS = {
    f"lts__t_sectors_op_{operation}.sum" for operation in ("read", "write", "atom", "red")
}

_COUNT_UNIT = re.compile(r"(?P<factor>[kKMGT]?)(?:sector|inst(?:ruction)?)s?")
_TIME_UNIT = re.compile(r"(?P<factor>[num\u00b5]?)s(?:ec(?:ond)?s?)?")
_FACTORS = {
    "": 1.0,
    "k": 1e3,
    "K": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "n": 1e-9,
    "u": 1e-6,
    "\u00b5": 1e-6,
    "m": 1e-3,
}
_ABSENT = {"", "n/a", "nan", "-nan", "(nan)"}
_NOISE_PERCENTAGE = 10.0
"""Largest excess of a rate over 100 %: ncu counts hits and accesses in different replays of the
kernel.
"""

_NUMBER = re.compile(r"[+-]?\d[\d.,]*(?:[eE][+-]?\d+)?")
_SPACES = str.maketrans("", "", " '\u2019\u00a0\u202f")  # between thousands


class NcuCounters(Record):
    """A job's counters over all kernels that ncu profiled.

    The counters are keys of a profile's [counters].

    Attributes:
        llc_accesses_per_kilo_instruction: accesses to L2, in sectors, per 1,000 warp instructions.
        llc_hit_rate_percentage: share of the sectors that were hits, 0-100.
        bytes_per_access: size of a sector.
        warp_occupancy_percentage: achieved occupancy, 0-100, the mean over the kernels' time; None
            if ncu did not count it.
        theoretical_warp_occupancy_percentage: occupancy that registers, shared memory and block
            size allow, 0-100, the mean over the kernels' time; None if ncu did not count it.
        kernels: number of kernel launches.
        missing: metrics without which an occupancy is None.
    """

    llc_accesses_per_kilo_instruction: float
    llc_hit_rate_percentage: float
    bytes_per_access: int
    warp_occupancy_percentage: float | None
    theoretical_warp_occupancy_percentage: float | None
    kernels: int
    missing: tuple[str, ...] = ()


class _Cell(Record):
    """A figure as it is in the table."""

    line: int
    text: str
    unit: str


class _Launch(Record):
    """A kernel launch, with its cells by metric; names in METRICS are used where they apply."""

    line: int
    name: str
    cells: dict[str, _Cell]


_Value = Callable[[_Launch, str], float | None]


def read_ncu(text: str, origin: str) -> NcuCounters:
    """Return the counters in a CSV of Nsight Compute.

    Sectors and instructions are added up over all launches; the hit rate is the mean weighted by
    sectors, an occupancy the mean weighted by duration.

    Args:
        text: what `ncu --csv` printed.
        origin: name of the file, for messages.

    Raises:
        UsageError: it is no such text, or lacks a metric for accesses or hit rate; the message has
            line and metric.

    Source: cd-search-ics18 4.1.2 and Eq. 1, which counts accesses per kilo instruction of the
        last-level cache. Today's profilers count sectors of 32 bytes; the paper has whole lines of
        128.
    """
    launches = _read_launches(text, origin)
    if not launches:
        raise UsageError(f"{origin}: a table of Nsight Compute without any kernel", HINT)
    comma = _has_decimal_comma(launches, origin)

    def value(launch: _Launch, metric: str) -> float | None:
        cell = launch.cells.get(metric)
        return None if cell is None else _parse_figure(cell, metric, comma=comma, origin=origin)

    _require(launches, origin)
    sectors = [
        _require_value(launch, _count_sectors(launch, value), _SECTORS, origin)
        for launch in launches
    ]
    instructions = sum(
        _require_value(launch, value(launch, _INSTRUCTIONS), _INSTRUCTIONS, origin)
        for launch in launches
    )
    if not instructions:
        raise UsageError(
            f"{origin}: {len(launches)} kernels executed 0 warp instructions: there is nothing to "
            "count by"
        )
    hits = sum(
        count * _require_value(launch, value(launch, _HIT), _HIT, origin)
        for launch, count in zip(launches, sectors, strict=True)
        if count  # a kernel that does not use L2 has no hit rate
    )
    occupancies = {
        metric: _mean_by_time(launches, metric, value) for metric in (_ACHIEVED, _THEORETICAL)
    }
    return NcuCounters(
        1000 * sum(sectors) / instructions,
        hits / sum(sectors) if sum(sectors) else 0.0,
        SECTOR_BYTES,
        occupancies[_ACHIEVED],
        occupancies[_THEORETICAL],
        len(launches),
        _missing_metrics(launches, occupancies),
    )


def _missing_metrics(
    launches: Sequence[_Launch], occupancies: Mapping[str, float | None]
) -> tuple[str, ...]:
    """Return the metrics that another run of ncu must count, so that both occupancies are known."""
    absent = [metric for metric, mean in occupancies.items() if mean is None]
    timed = all(_DURATION in launch.cells for launch in launches) or len(launches) == 1
    return (*absent, *([] if timed or not absent else [_DURATION]))


# The table


def _read_launches(text: str, origin: str) -> list[_Launch]:
    launches: dict[tuple[str, ...], _Launch] = {}
    columns: dict[str, int] = {}
    units: list[str] | None = None
    tables = 0
    for line, row in _read_rows(text, origin):
        if _is_header(row):
            columns, units, tables = (
                {name: place for place, name in reversed(list(enumerate(row)))},
                None,
                tables + 1,
            )
            continue
        if len(row) != len(columns):
            raise UsageError(
                f"{origin}:{line}: a row of {len(row)} cells under {len(columns)} columns"
            )
        number = row[columns["ID"]]
        if not number and "Metric Name" not in columns and units is None:
            units = row
            continue
        if not number.isdecimal():
            raise UsageError(f"{origin}:{line}: ID {quoted(number)} is no number")
        process = row[columns["Process ID"]] if "Process ID" in columns else ""
        launch = _Launch(line, row[columns["Kernel Name"]], {})
        launch = launches.setdefault((str(tables), process, number), launch)
        for name, cell in _read_cells(line, row, columns, units or []):
            metric = _NAMES.get(name, name)
            if metric == name:  # a metric's own name takes precedence over its other names
                launch.cells[metric] = cell
            else:
                launch.cells.setdefault(metric, cell)
    if not tables:
        if '"Invocations"' in text and '"Metric Name"' in text:
            found = "a summary of Nsight Compute (--print-summary), which has no single kernels"
        else:
            found = "no table of Nsight Compute: no row with ID and Kernel Name"
        raise UsageError(f"{origin}: {found}", HINT)
    return list(launches.values())


def _read_rows(text: str, origin: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the tables' rows from the first header on, each with the number of its last line."""
    at = 0

    def lines() -> Iterator[str]:
        nonlocal at
        inside = False
        for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
            at = number
            inside = inside or (
                line.lstrip('"').startswith("ID")
                and _is_header(next(csv.reader([line.rstrip("\r")])))
            )
            if inside and line.strip() and not line.startswith("=="):
                yield line.rstrip("\r") + "\n"

    try:
        for row in csv.reader(lines()):
            yield at, row
    except csv.Error as problem:
        raise UsageError(f"{origin}:{at}: {problem}") from None


def _is_header(row: Sequence[str]) -> bool:
    return "ID" in row[:1] and "Kernel Name" in row


def _read_cells(
    line: int, row: list[str], columns: Mapping[str, int], units: list[str]
) -> Iterable[tuple[str, _Cell]]:
    """Yield the figures of a row by name: one on the details page, one a column on the raw page."""
    if "Metric Name" in columns and "Metric Value" in columns:
        unit = row[columns["Metric Unit"]] if "Metric Unit" in columns else ""
        yield row[columns["Metric Name"]], _Cell(line, row[columns["Metric Value"]], unit)
        return
    for name, place in columns.items():
        if name in _NAMES or name in _OPERATIONS:
            yield name, _Cell(line, row[place], units[place] if units else "")


# The figures of the table


def _has_decimal_comma(launches: Iterable[_Launch], origin: str) -> bool:
    """Return whether the table has decimal commas; False if no figure shows it.

    Raises:
        UsageError: some figures have decimal commas, others decimal points.
    """
    seen: dict[bool, _Cell] = {}
    wanted = {*METRICS, *_OPERATIONS}
    for name, cell in chain.from_iterable(launch.cells.items() for launch in launches):
        told = _detect_decimal_comma(cell.text) if name in wanted else None
        if told is not None:
            seen.setdefault(told, cell)
    if len(seen) == 2:
        point, comma = seen[False], seen[True]
        other = f"{quoted(point.text)} in line {point.line} is written as in English"
        raise UsageError(
            f"{origin}:{comma.line}: {quoted(comma.text)} has a decimal comma, {other}"
        )
    return True in seen


def _detect_decimal_comma(text: str) -> bool | None:
    """Return True for a figure with a decimal comma, False for a point, None if it is ambiguous."""
    point, comma = text.rfind("."), text.rfind(",")
    if point >= 0 and comma >= 0:
        return comma > point
    mark, at = (",", comma) if comma >= 0 else (".", point)
    if at < 0:
        return None
    if text.count(mark) > 1:  # it separates thousands, so the other one is the decimal mark
        return mark == "."
    digits = re.match(r"\d*", text[at + 1 :])
    if digits and len(digits[0]) == 3 and 0 < at <= 3 and not text.startswith("0"):
        return None
    return mark == ","


def _parse_figure(cell: _Cell, metric: str, *, comma: bool, origin: str) -> float | None:
    """Return a figure in sectors, instructions, seconds or percent; None if it was not counted."""
    text = cell.text.strip()
    if text.lower() in _ABSENT:
        return None
    plain = text.translate(_SPACES)
    plain = plain.replace(".", "").replace(",", ".") if comma else plain.replace(",", "")
    try:
        number = float(plain) if _NUMBER.fullmatch(plain) else math.nan
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise UsageError(f"{origin}:{cell.line}: {metric} is {quoted(text)}, not a number from 0")
    if metric in _PERCENTAGES:
        return _parse_percentage(number, cell, metric, origin)
    match = (_TIME_UNIT if metric == _DURATION else _COUNT_UNIT).fullmatch(cell.unit.strip())
    if cell.unit.strip() and not match:
        raise UsageError(
            f"{origin}:{cell.line}: {metric} has the unit {quoted(cell.unit)}, which is not known"
        )
    return number * (_FACTORS[match["factor"]] if match else 1.0)


def _parse_percentage(number: float, cell: _Cell, metric: str, origin: str) -> float:
    if number > 100 + _NOISE_PERCENTAGE or cell.unit.strip() not in {"%", "", "pct"}:
        raise UsageError(
            f"{origin}:{cell.line}: {metric} is {quoted(f'{cell.text} {cell.unit}')}, not 0 to 100 "
            "%"
        )
    return min(number, 100.0)


# Sums over all kernels


def _require(launches: Sequence[_Launch], origin: str) -> None:
    """Check that all metrics for accesses and hit rate were counted for some kernel.

    Raises:
        UsageError: one of them was not.
    """
    counted = set(chain.from_iterable(launch.cells for launch in launches))
    if counted >= _OPERATIONS:
        counted.add(_SECTORS)
    missing = [metric for metric in (_SECTORS, _HIT, _INSTRUCTIONS) if metric not in counted]
    if missing:
        raise UsageError(f"{origin}: {len(launches)} kernels without {' and '.join(missing)}", HINT)


def _require_value(launch: _Launch, value: float | None, metric: str, origin: str) -> float:
    if value is None:
        raise UsageError(
            f"{origin}:{launch.line}: kernel {quoted(launch.name)} has no {metric}", HINT
        )
    return value


def _count_sectors(launch: _Launch, value: _Value) -> float | None:
    """Return the count of all sectors, or the sum over all operations; None if unknown."""
    if _SECTORS in launch.cells:
        return value(launch, _SECTORS)
    counts = [value(launch, operation) for operation in sorted(_OPERATIONS)]
    return None if None in counts else sum(count for count in counts if count is not None)


def _mean_by_time(launches: Sequence[_Launch], metric: str, value: _Value) -> float | None:
    """Return the mean weighted by duration; None if a launch lacks the figure.

    With more than one launch, it is also None if one lacks its duration.
    """
    figures = [value(launch, metric) for launch in launches]
    times = [value(launch, _DURATION) for launch in launches] if len(launches) > 1 else [1.0]
    pairs = [
        (figure, time)
        for figure, time in zip(figures, times, strict=True)
        if figure is not None and time
    ]
    if len(pairs) < len(launches):
        return None
    return sum(figure * time for figure, time in pairs) / sum(time for _, time in pairs)
