"""Figures of the two scheduling papers, repeated with gpulaunch's simulator.

python examples/papers/reproduce.py mapa-fig13            print a figure as Markdown
python examples/papers/reproduce.py mapa-fig13 --json     print it as JSON
python examples/papers/reproduce.py --all > docs/results/reproductions.md
"""

import argparse
import json
from collections.abc import Callable

import mapa
import mapa_scores
import topo_aware
from reproduction import Reproduction, document, markdown

FIGURES: dict[str, Callable[[], Reproduction]] = {
    "mapa-table3": mapa.table_3,
    "mapa-fig4": mapa.figure_4,
    "mapa-fig11": mapa_scores.figure_11,
    "mapa-fig12": mapa_scores.figure_12,
    "mapa-fig13": mapa.figure_13,
    "mapa-fig16": mapa_scores.figure_16,
    "mapa-fig18": mapa.figure_18,
    "mapa-fig19": mapa_scores.figure_19,
    "topo-fig8": topo_aware.figure_8,
    "topo-fig10": topo_aware.figure_10,
    "topo-fig11": topo_aware.figure_11,
}
"""Name on the command line -> function that computes the figure."""

INTRODUCTION = """\
# The papers' figures, and ours

Do the published results behind gpulaunch's placement come out again in its simulator? Those of the
papers' own simulators mostly do, once their faults are copied or mended; those that the authors
measured on hardware do roughly, because not all of their inputs are public.

The papers are MAPA (mapa-sc21: Ranganath et al., SC'21) and topology-aware scheduling
(topo-aware-sc17: Amaral et al., SC'17). Each section repeats a figure that needs none of their
machines, by the command at its head, and ends with what differs. Nothing here was run on a GPU.
An input that a paper does not give is estimated and marked so. An empty cell is a number that
nobody gives; *ratio* is ours divided by theirs.

[Policies and scores](../explanation/placement.md) have a page of their own. `preserve-paper` is
MAPA's Algorithm 1 as printed, `preserve` is gpulaunch's version of it. *Eq. 2* is the formula that
MAPA fitted for the effective bandwidth of a ring on a DGX-1 V100, the *cut* is gpulaunch's
[bandwidth model](../explanation/bandwidth.md), *AggBW* is aggregate bandwidth. *Sensitive* jobs are
those that faster links make faster.

`python examples/papers/reproduce.py --all` writes this page, and a test compares it with what the
commands print. The programs use gpulaunch's [Python API](../reference/python.md) alone.
"""


def main() -> None:
    """Print what the command line asks for."""
    parser = argparse.ArgumentParser(description="Repeat figures of mapa-sc21 and topo-aware-sc17.")
    parser.add_argument("name", nargs="?", choices=FIGURES, metavar="NAME", help=", ".join(FIGURES))
    parser.add_argument(
        "--json", action="store_true", help="print the figure as JSON instead of Markdown"
    )
    parser.add_argument(
        "--all", action="store_true", help="print the page with all figures instead (minutes)"
    )
    options = parser.parse_args()
    if options.all == bool(options.name) or (options.all and options.json):
        parser.error("either NAME, with --json or without, or --all")
    if options.all:
        print(f"{INTRODUCTION}\n{markdown(compute() for compute in FIGURES.values())}", end="")
        return
    found = FIGURES[options.name]()
    print(json.dumps(document(found), indent=2) if options.json else markdown([found]))


if __name__ == "__main__":
    main()
