"""Writes reproductions.md: every figure, computed anew. Run: python tests/bench/reproductions.py"""

from pathlib import Path

from gpulaunch.papers.catalog import PAPERS
from gpulaunch.papers.document import reproduction_document
from gpulaunch.show.reproduction import markdown

INTRODUCTION = """\
# The papers' figures, and ours

gpulaunch's placement rests on two papers: MAPA (mapa-sc21: Ranganath et al., SC'21) and topology-aware scheduling
(topo-aware-sc17: Amaral et al., SC'17). Below is every figure of theirs that can be repeated without their machines:
what they got, what the simulator gets with the launcher's own decisions, and what differs. Each is a command. Nothing
here was run on a GPU. Where a paper does not give an input, ours is estimated, and the notes say so. `-` is a number
that nobody gives.

This page is written by `python tests/bench/reproductions.py`; a test compares it with what the commands print.
"""


def main() -> None:
    """Compute and write."""
    documents = [reproduction_document(compute()) for compute in PAPERS.values()]
    (Path(__file__).parents[2] / "docs" / "reproductions.md").write_text(
        INTRODUCTION + "\n" + markdown(documents)
    )


if __name__ == "__main__":
    main()
