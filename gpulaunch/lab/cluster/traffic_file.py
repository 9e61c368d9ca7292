"""Traffic between ranks from files: a matrix or an edge list."""

from collections.abc import Iterator, Sequence
from math import isfinite

from gpulaunch.errors import UsageError, printable
from gpulaunch.files.document import read_text
from gpulaunch.lab.cluster.traffic import MOST_WEIGHT, RankTraffic, summed
from gpulaunch.profiles.pattern import Edge
from gpulaunch.profiles.pattern_file import read_edges

MOST_BYTES = 1 << 28
"""Largest file: a matrix of 4,096 ranks with up to 16 characters a figure."""


def read_traffic_file(path: str, ranks: int) -> RankTraffic:
    """Read the traffic of this many ranks from a file.

    A line of more than three figures is one of a matrix: what a rank sends to each rank. Anything
    else is an edge list as of docs/reference/patterns.md. Here the graph need not be connected.

    Raises:
        UsageError: the file cannot be read, or is wrong; with path and line.
    """
    text = read_text(path, MOST_BYTES).removeprefix("\ufeff")
    rows = [
        (number, fields)
        for number, line in enumerate(text.split("\n"), 1)
        if (fields := line.partition("#")[0].replace(",", " ").split())
    ]
    if not rows:
        raise UsageError(f"{path}: no traffic is in it")
    if len(rows[0][1]) > 3:
        return summed(ranks, _read_matrix(path, rows, ranks))
    edges = read_edges(path, text)
    for number, (a, b, weight) in edges:
        where = f"{path}:{number}"
        if max(a, b) >= ranks:
            raise UsageError(f"{where}: rank {max(a, b)}: {ranks} ranks are 0 to {ranks - 1}")
        if a == b:
            raise UsageError(f"{where}: edge {a}-{b}: it joins a rank to itself")
        if not isfinite(weight) or not 1e-9 <= weight <= MOST_WEIGHT:
            raise UsageError(
                f"{where}: edge {a}-{b}: {weight:g} is no traffic above 0, 1e18 at most"
            )
    return summed(ranks, [edge for _, edge in edges])


def _read_matrix(path: str, rows: Sequence[tuple[int, list[str]]], ranks: int) -> Iterator[Edge]:
    """Yield what each rank sends to each other one; what it sends to itself goes nowhere."""
    wanted = f"a matrix of {ranks} ranks has {ranks} rows and columns"
    for row, (number, fields) in enumerate(rows):
        if row == ranks or len(fields) != ranks:
            found = f"{len(fields)} figures" if row < ranks else f"more than {ranks} rows"
            raise UsageError(f"{path}:{number}: {found}: {wanted}")
        for column, field in enumerate(fields):
            weight = 0.0 if field == "0" else _read_figure(path, number, field)
            if weight and column != row:
                yield row, column, weight
    if len(rows) < ranks:
        raise UsageError(f"{path}: {len(rows)} rows: {wanted}")


def _read_figure(path: str, number: int, field: str) -> float:
    try:
        weight = float(field)
    except ValueError:
        weight = float("nan")
    if not isfinite(weight) or not 0 <= weight <= MOST_WEIGHT:
        shown = printable(field[:40])
        raise UsageError(f"{path}:{number}: '{shown}' is no traffic: a number from 0 to 1e18")
    return weight
