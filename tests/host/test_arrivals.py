"""The caps that jobs find which come one after the other are those that were decided."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from arrivals import Arrivals, arrivals, foretold
from corun import BENCHMARKS, Machine

MODEL = Machine()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Arrivals]:
    with arrivals(MODEL, tmp_path) as site:
        yield site


@pytest.mark.parametrize("names", ["LAVAMD_DXTC", "DXTC_LAVAMD", "LBM_DXTC"])
def test_caps_by_the_rule(site: Arrivals, names: str) -> None:
    """A pair gets the caps decided, in either order; one that the rule refuses does not share."""
    jobs = [BENCHMARKS[name] for name in names.split("_")]
    caps = site.caps(jobs)
    assert caps == foretold(MODEL, jobs)
    assert len(caps) == (2 if "LAVAMD" in names else 1)
