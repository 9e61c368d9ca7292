"""What caps and the search across launches bring in a model: STP and ANTT against even shares.

The jobs and how they compete are those of tests/corun.py: no measurement. The paper's figures are
those of cd-search-ics18 7.1 and 7.4: pairs +10.4 % STP, +22 % ANTT; four jobs +6.2 and +14.2 %.

Run: python tests/bench/search.py
"""

import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from test_search import End, ends

SIZES = {2: 1, 3: 6, 4: 25}
"""Number of jobs, and every which group of them is tried."""


def percent(values: list[float]) -> str:
    """Return the mean and range of gains as text."""
    gains = [100 * (one - 1) for one in values]
    return f"{statistics.mean(gains):.1f} ({min(gains):.1f}..{max(gains):.1f})"


def row(found: list[End]) -> str:
    """Return a row of the table."""
    mixed = [one for one in found if one.is_mixed]
    near = sum(one.part >= 0.95 for one in found) / len(found)
    launches = [one.launches for one in found]
    return (
        f"{len(found):6} {100 * near:9.0f} %   {statistics.median(launches):g}, {max(launches):g}"
        f"      {percent([one.stp for one in mixed]):22} {percent([one.antt for one in mixed])}"
    )


def main() -> None:
    """Print how near to the best groups end, and what mixed ones gain over even shares, in %."""
    print(f"{'jobs, noise, start':24}groups  within 5 %  launches  {'STP':22} ANTT")
    for size, every in SIZES.items():
        for noise in (0.01, 0.04):
            for from_even in (False, True):
                start = "even" if from_even else "predicted"
                found = ends(size, every, noise, from_even=from_even)
                print(f"{f'{size}, {100 * noise:g} %, {start}':22}{row(found)}", flush=True)


if __name__ == "__main__":
    main()
