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
from reproduction import SUMMARY_HEAD, Reproduction, document, markdown, summary

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

HEADLINES: dict[str, tuple[tuple[str, str, str], ...]] = {
    "mapa-table3": (
        ("all jobs", "topo-aware throughput", "throughput, topo-aware"),
        ("all jobs", "greedy throughput", "throughput, greedy"),
        ("all jobs", "preserve-paper throughput", "throughput, preserve-paper"),
        ("all jobs", "preserve throughput", "throughput, preserve"),
        ("all jobs", "preserve-paper 75 %", "75th percentile, preserve-paper"),
        ("all jobs", "preserve 75 %", "75th percentile, preserve"),
    ),
    "mapa-fig4": (
        ("", "share of 3-GPU jobs that lose 20 % or more", "3-GPU jobs that lose 20 % or more"),
        ("", "share of 3-GPU jobs that lose 45 % or more", "3-GPU jobs that lose 45 % or more"),
    ),
    "mapa-fig11": (
        ("", "rank correlation of AggBW with Eq. 2", "rank correlation with Eq. 2"),
        ("", "rank correlation of AggBW with the cut", "rank correlation with the cut"),
    ),
    "mapa-fig12": (
        ("over", "root mean square of Eq. 2 less the cut, 2 GPUs, GB/s", "Eq. 2 - cut, 2 GPUs"),
        ("over", "root mean square of Eq. 2 less the cut, 5 GPUs, GB/s", "Eq. 2 - cut, 5 GPUs"),
    ),
    "mapa-fig13": (
        ("all jobs", "greedy 50 %", "median, GB/s, greedy"),
        ("all jobs", "preserve-paper 50 %", "median, GB/s, preserve-paper"),
        ("dgx1-v100, preserve-paper with", "as printed: 25 %", "25 %, GB/s, as printed"),
        ("dgx1-v100, preserve-paper with", "all of these: 25 %", "25 %, with the code's quirks"),
    ),
    "mapa-fig16": (
        ("", "VGG-16, two GPUs: PCIe against double NVLink", "VGG-16: PCIe / double NVLink"),
    ),
    "mapa-fig18": (
        ("torus-2d-16, preserve-paper with", "as printed: 50 %", "torus, median, GB/s, as printed"),
        ("torus-2d-16, preserve-paper with", "all of these: 50 %", "torus, with the code's quirks"),
        ("cube-mesh-16, preserve-paper with", "as printed: 50 %", "cube mesh, as printed"),
        ("cube-mesh-16, preserve-paper with", "all of these: 50 %", "cube mesh, with the quirks"),
    ),
    "mapa-fig19": (
        ("", "dgx1-v100, 5 GPUs", "ms, 5 of 8 GPUs"),
        ("", "torus-2d-16, 5 GPUs", "ms, 5 of 16 GPUs"),
    ),
    "topo-fig8": (
        ("time until", "best-fit", "all done, s, best-fit, on hardware"),
        ("time until", "baseline", "all done, s, baseline, on hardware"),
        ("time until", "topo-aware", "all done, s, topo-aware, on hardware"),
        ("time until", "topo-aware-p", "all done, s, topo-aware-p, on hardware"),
        ("speed-up", "best-fit / topo-aware-p, default profile", "best-fit / topo-aware-p"),
    ),
    "topo-fig10": (
        ("100 jobs on 5 machines; first", "baseline: all done, s", "all done, s, baseline"),
        ("all done", "topo-aware", "all done, s, topo-aware, mended"),
        ("all done", "topo-aware-p", "all done, s, topo-aware-p, mended"),
    ),
    "topo-fig11": (
        ("cost", "baseline: for each job", "s for each job, baseline"),
        ("cost", "topo-aware-p: for each job", "s for each job, topo-aware-p"),
    ),
}
"""Name -> the page's numbers: how their table begins, the row, and the words for it."""

INTRODUCTION = """\
# The papers' figures, and ours

Do the published results behind gpulaunch's placement come out again in its simulator? Those of the
papers' own simulators mostly do, once their faults are copied or mended; those that the authors
measured on hardware do roughly, because not all of their inputs are public.

The papers are MAPA (mapa-sc21: Ranganath et al., SC'21) and topology-aware scheduling
(topo-aware-sc17: Amaral et al., SC'17). `python examples/papers/reproduce.py NAME` prints a figure
whole, with what differs and why; `--all` writes this page. Nothing here was run on a GPU.

`preserve-paper` is MAPA's Algorithm 1 as printed, `preserve` is gpulaunch's version of it
([policies](../explanation/placement.md)). *Theirs* is the paper's number, or that of its published
code; an empty cell is a number that nobody gives.
"""

DIFFERENCES = """
- **mapa-table3** ran on hardware, with run times that are not public; ours are uniform, and all
  sensitive jobs slow down over PCIe as VGG-16 does. The paper has one line for preserve.
- **mapa-fig12**'s 31 measurements are not public: *theirs* is an earlier count by hand.
- **mapa-fig13, mapa-fig18**: the published simulator does more than Algorithm 1. With its quirks
  added, its figures come out.
- **topo-fig8, topo-fig10**: interference is upside down in the paper and in its code; *mended* is
  the code with it corrected. The published job set has other networks than the paper's Table 1.
- **topo-fig11**: jobs keep 1,000 machines 1 % busy, so no job waits, as in the paper's curves some
  do. Times, here and in mapa-fig19, are of one run on the machine that wrote this.
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
        lines = [line for name in FIGURES for line in summary(FIGURES[name](), HEADLINES[name])]
        print("\n".join([INTRODUCTION, *SUMMARY_HEAD, *lines, DIFFERENCES]), end="")
        return
    found = FIGURES[options.name]()
    print(json.dumps(document(found), indent=2) if options.json else markdown([found]))


if __name__ == "__main__":
    main()
