"""A map of ranks: the node, core and GPU of each, as `gpulaunch cluster map` writes it."""
# pure: decides on plain values

import json
from collections.abc import Sequence
from typing import Any

from gpulaunch.errors import FieldError, UsageError
from gpulaunch.files.fields import FieldTable, checked
from gpulaunch.records import Record

_MOST = (0, 1 << 31)
_ROW: FieldTable = {"rank": _MOST, "node": str, "core": _MOST, "gpu": _MOST}


class MappedRank(Record):
    """One rank's row.

    Attributes:
        rank: number of the rank.
        node: name of its node.
        core: number of its CPU there, as Linux counts them; None for any.
        gpu: index of its GPU there.
    """

    rank: int
    node: str
    core: int | None
    gpu: int


def parse_rank_map(text: str, path: str) -> tuple[MappedRank, ...]:
    """Return the rows of a map in the order of their ranks.

    Args:
        text: the map as JSON.
        path: path of its file, for messages.

    Raises:
        UsageError: it is no map of ranks, or gives a rank or a GPU twice.
    """
    try:
        ranks = json.loads(text)["ranks"]
        rows = sorted((_parse_row(row, at) for at, row in enumerate(ranks)), key=_number_of)
    except FieldError as problem:
        row = f"{problem.path[0]}: " if len(problem.path) > 1 else ""
        raise UsageError(f"{path}: {row}{problem.message}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UsageError(f"{path}: no map of ranks, which is JSON with a list 'ranks'") from None
    _check_twice(rows, path)
    return tuple(rows)


def _parse_row(row: dict[str, Any], at: int) -> MappedRank:
    """Return one row; keys that are unknown here are ignored."""
    known = {key: row[key] for key in _ROW if row.get(key) is not None}
    checked(known, _ROW, required=("rank", "node", "gpu"), where=(f"row {at}",))
    return MappedRank(known["rank"], known["node"], known.get("core"), known["gpu"])


def _number_of(row: MappedRank) -> int:
    return row.rank


def _check_twice(rows: Sequence[MappedRank], path: str) -> None:
    """Refuse a map that names a rank twice, or gives two ranks one GPU."""
    ranks: set[int] = set()
    holders: dict[tuple[str, int], int] = {}
    for row in rows:
        if row.rank in ranks:
            raise UsageError(f"{path}: rank {row.rank} stands there twice")
        ranks.add(row.rank)
        first = holders.setdefault((row.node, row.gpu), row.rank)
        if first != row.rank:
            raise UsageError(
                f"{path}: ranks {first} and {row.rank} both have GPU {row.gpu} of {row.node}"
            )
