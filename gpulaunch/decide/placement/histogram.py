"""The number of links of each kind in a set of GPUs: quick to count, and a bound of all scores.

The counts of a set are packed into one number, some bits for each kind, so that adding numbers adds
all counts. On a machine of few kinds of links thousands of sets have but hundreds of different
histograms, and what follows from one is computed once.
"""
# pure: decides on plain values

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import combinations
from operator import getitem, mul

from gpulaunch.typing import TypeVar

MOST_IN_TABLE = 16
"""Number of GPUs up to which the histograms of all sets are tabulated: 65,536 in 6 ms."""

_CHUNK = 8
_LOW = (1 << _CHUNK) - 1

T = TypeVar("T")


class Histogram:
    """Histograms of the sets of some GPUs; a mask has bit n-1-i for the i-th of n.

    Args:
        kind: kind of the link of each two GPUs.
        kinds: number of kinds.
        table: whether to tabulate all sets at once, if they are not too many.
    """

    def __init__(self, kind: Sequence[Sequence[int]], kinds: int, *, table: bool) -> None:
        self._size = len(kind)
        self._kinds = kinds
        self._bits = (self._size * self._size).bit_length()
        one = [1 << self._bits * number for number in range(kinds)]
        self._kind = [row[::-1] for row in kind[::-1]]  # of a mask's bit i
        self._rows = [[one[number] for number in row] for row in self._kind]
        self._full = (1 << self._size) - 1
        self._packed: dict[int, int] | list[int] = (
            _tabulate(self._rows) if table and self._size <= MOST_IN_TABLE else {}
        )
        self._known: dict[tuple[str, int], object] = {}
        self._unpacked: dict[int, list[int]] = {}
        self._from_each = [sum(row) - row[i] for i, row in enumerate(self._rows)]
        self._all = sum(self._from_each)  # twice: each link has two ends

    def packed(self, mask: int) -> int:
        """Return the histogram of a set's links."""
        if isinstance(self._packed, list):
            return self._packed[mask]
        if mask not in self._packed:
            bits = _bits(mask)
            self._packed[mask] = sum(self._rows[a][b] for a, b in combinations(bits, 2))
        return self._packed[mask]

    def for_each(self, mask: int) -> list[int]:
        """Return for each GPU of a set the histogram of its own links to the others."""
        if not isinstance(self._packed, list):
            bits = _bits(mask)
            return [sum([self._rows[i][other] for other in bits if other != i]) for i in bits]
        tables = self._tables
        if len(tables[0]) == 1:
            return [tables[i][0][mask] for i in _bits(mask)]
        parts = [mask >> start & _LOW for start in range(0, self._size, _CHUNK)]
        return [sum(map(getitem, tables[i], parts)) for i in _bits(mask)]

    @cached_property
    def _tables(self) -> list[list[list[int]]]:
        """Return for each GPU and each few bits of a mask the histogram of its links to those."""
        return [
            [_subset_sums(row[start : start + _CHUNK]) for start in range(0, self._size, _CHUNK)]
            for row in ([*row[:i], 0, *row[i + 1 :]] for i, row in enumerate(self._rows))
        ]

    def derived(self, name: str, packed: int, make: Callable[[list[int]], T]) -> T:
        """Return what follows from a histogram, made once.

        Args:
            name: name of what is made.
            packed: the histogram.
            make: makes it from the number of links of each kind.
        """
        key = (name, packed)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = make(self._counts(packed))
        return found  # type: ignore[return-value]  # what was made under this name

    def _packed_rest(self, mask: int) -> int:
        """Return the histogram of the links among all GPUs that are not in the set."""
        return self._all // 2 - sum(self._from_each[i] for i in _bits(mask)) + self.packed(mask)

    def _counts(self, packed: int) -> list[int]:
        counts = self._unpacked.get(packed)
        if counts is None:
            low, bits = (1 << self._bits) - 1, self._bits
            counts = self._unpacked[packed] = [
                packed >> bits * number & low for number in range(self._kinds)
            ]
        return counts

    def sums(self, figures: Sequence[int]) -> tuple[Callable[[int], int], Callable[[int], int]]:
        """Return two functions of a mask that add up figures of links.

        Args:
            figures: a figure for each kind of link.

        Returns:
            The sum over the links of the set, and the sum over those of all other GPUs.
        """
        full = self._full
        if isinstance(self._packed, list):
            table = _tabulate([[figures[number] for number in row] for row in self._kind])
            return table.__getitem__, lambda mask: table[full ^ mask]
        name = f"sum of {figures}"

        def total(counts: Sequence[int]) -> int:
            return sum(map(mul, counts, figures))

        return (
            lambda mask: self.derived(name, self.packed(mask), total),
            lambda mask: self.derived(name, self._packed_rest(mask), total),
        )

    @property
    def every(self) -> int:
        """The mask of all GPUs."""
        return self._full


def _tabulate(rows: Sequence[Sequence[int]]) -> list[int]:
    """Return for each mask the sum over its pairs.

    By doubling: with GPU i come its links to every set of the ones before.
    """
    table = [0]
    for i, row in enumerate(rows):
        table += [known + more for known, more in zip(table, _subset_sums(row[:i]), strict=True)]
    return table


def _subset_sums(values: Sequence[int]) -> list[int]:
    """Return for each mask the sum of its values."""
    sums = [0]
    for value in values:
        sums += [known + value for known in sums]
    return sums


def _bits(mask: int) -> list[int]:
    return [i for i in range(mask.bit_length()) if mask >> i & 1]
