"""Scores, held against the papers' numbers and searches written a second time."""

import random
from collections.abc import Iterable
from itertools import combinations

import pytest
from values import V100, cards, cases, machine, posed, wired_up, wiring

from gpulaunch.placement import mapping
from gpulaunch.placement.fabric import Fabric, mapa_equation
from gpulaunch.placement.mapping import EXACT_RANKS, Mapper
from gpulaunch.placement.problem import Scores
from gpulaunch.profiles.pattern import PATTERNS, Edge

DGX1 = machine("dgx1-v100")
# mapa-sc21 Figure 1c, with its own numbers: it counts GPUs from 1.
DOUBLE = ((1, 4), (1, 5), (2, 3), (2, 6), (3, 4), (5, 8), (6, 7), (7, 8))
SINGLE = ((1, 2), (1, 3), (2, 4), (3, 7), (4, 8), (5, 6), (5, 7), (6, 8))


def scores(gpus: Iterable[int], pattern: str = "ring") -> Scores:
    """Return the scores of a set of a DGX-1, whose GPUs count from 1, with its best mapping."""
    gpus = sorted(gpu - 1 for gpu in gpus)
    problem = posed(DGX1, len(gpus), pattern)
    return problem.scores(problem.mapper.best(gpus))


# -------------------------------------------------------------- the paper's machine and its numbers


def test_dgx1_links_are_the_papers() -> None:
    """The shipped DGX-1 V100 has the links of mapa-sc21 Figure 1c, with Table 1's bandwidths."""
    paper = dict.fromkeys(combinations(range(1, 9), 2), 12.0)
    paper |= dict.fromkeys(DOUBLE, 50.0) | dict.fromkeys(SINGLE, 25.0)
    links = {(link.a + 1, link.b + 1): link.bandwidth_gb_per_s for link in DGX1.links}
    assert links == paper


AGGREGATES = {
    "all 28 pairs, which is what an idle machine preserves": ("all_to_all", range(1, 9), 744),
    "a baseline's three of mapa-sc21 2.2": ("ring", (1, 2, 5), 87),
    "the match of its Figure 10": ("ring", (1, 2, 4), 100),
    "a double NVLink is one edge of a ring of two": ("ring", (1, 4), 50),
    "a ring of four uses four of the six pairs": ("ring", (1, 2, 3, 4), 25 + 50 + 50 + 50),
    "a star has its centre on the GPU with the best links": ("star", (1, 2, 5), 75),
    "no pattern, no edges, no figure": ("none", (1, 2, 5), None),
    "one GPU has no edge": ("ring", (1,), None),
}


@cases(AGGREGATES, "pattern", "gpus", "want")
def test_aggregate_bandwidth_on_dgx1(
    pattern: str, gpus: tuple[int, ...], want: float | None
) -> None:
    """Eq. 1 on the DGX-1 V100 comes out as in the paper, whose GPUs count from 1."""
    assert scores(gpus, pattern).aggregate_bandwidth == want


def test_four_best_triples() -> None:
    """No three GPUs of the DGX-1 V100 beat 125 GB/s, and four sets reach it."""
    figures = {gpus: scores(gpus).aggregate_bandwidth for gpus in combinations(range(1, 9), 3)}
    best = [gpus for gpus, figure in figures.items() if figure >= 125]
    assert best == [(1, 3, 4), (2, 3, 4), (5, 7, 8), (6, 7, 8)]
    assert max(figures.values()) == 125


def test_preserved_bandwidth_of_figure_10() -> None:
    """Taking GPUs 1, 2 and 4 of an idle DGX-1 V100 preserves 286 GB/s."""
    assert scores((1, 2, 4)).preserved_bandwidth == 286


def test_mapa_equation() -> None:
    """Eq. 2 with Table 2 gives the paper's values for x double, y single NVLinks, z PCIe edges."""
    got = [round(mapa_equation(*xyz), 2) for xyz in ((2, 1, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))]
    assert got == [57.86, 39.08, 21.61, 10.09]


# -------------------------------------------------------------------------- larger than sets tried


def drawn_edges(rng: random.Random, ranks: int) -> list[Edge]:
    """Draw edges of random weight that join all ranks."""
    joined = {(rng.randrange(b), b) for b in range(1, ranks)}
    joined |= {tuple(sorted(rng.sample(range(ranks), 2))) for _ in range(rng.randrange(ranks))}
    return [(a, b, rng.choice((1.0, 3.0, 10.0))) for a, b in sorted(joined)]


@pytest.mark.parametrize("slowest_first", [True, False])
@pytest.mark.parametrize("pattern", ["ring", "given"])
def test_mapping_of_many_ranks(
    pattern: str, monkeypatch: pytest.MonkeyPatch, *, slowest_first: bool
) -> None:
    """Beyond eight ranks the order is no worse than by index, nor far from a long search's."""
    for seed in range(2):
        rng = random.Random(f"{pattern} {seed}")
        ranks = rng.randrange(EXACT_RANKS + 1, 15)
        pairs = list(combinations(range(ranks), 2))
        nvlinks = {pair: rng.choice((0, 0, 0, 1, 2)) for pair in pairs}
        if seed % 2:  # a wiring that suits the index order
            nvlinks |= {(gpu, gpu + 1): 2 for gpu in range(ranks - 1)} | {(0, ranks - 1): 2}
        wires = {pair: wiring("SYS", nvlinks[pair], float(rng.randrange(3, 13))) for pair in pairs}
        fabric = Fabric(wired_up(cards(ranks, **V100), lambda a, b, wires=wires: wires[a, b]))
        edges = drawn_edges(rng, ranks) if pattern == "given" else PATTERNS[pattern].edges(ranks)
        weights = fabric.kind_weight
        mapper = Mapper(fabric.kind, edges, weights, fabric.kind_hop)
        got = mapper.best(range(ranks), slowest_first=slowest_first)
        monkeypatch.setattr(mapping, "MOST_KICKS", 40)
        longer = Mapper(fabric.kind, edges, weights, fabric.kind_hop)
        best = longer.best(range(ranks), slowest_first=slowest_first)
        monkeypatch.undo()
        by_index = mapper.figures(range(ranks))
        assert sorted(got.gpus) == list(range(ranks))
        if slowest_first:
            assert got.slowest >= 0.5 * best.slowest  # MOST_KICKS tells the mean
            assert (got.slowest, got.total) >= (by_index.slowest, by_index.total)
        assert got.total >= max(0.8 * best.total, 0 if slowest_first else by_index.total)
