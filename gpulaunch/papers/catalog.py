"""All reproductions by name."""

from collections.abc import Callable

from gpulaunch.papers import mapa, mapa_scores, topo_aware
from gpulaunch.papers.reproduction import Reproduction

PAPERS: dict[str, Callable[[], Reproduction]] = {
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
"""Name on the command line -> what computes it."""
