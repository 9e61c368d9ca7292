"""Measured links as a document."""

from collections.abc import Sequence

from gpulaunch.machine.topology import Topology
from gpulaunch.measure.link_fit import Comparison, model_errors
from gpulaunch.show import Document


def measurement_document(
    topology: Topology, tool: str, comparisons: Sequence[Comparison]
) -> Document:
    """Return what `gpulaunch topo --measure --json` prints."""
    return {
        "name": topology.name,
        "tool": tool,
        "measured": [
            {
                "gpus": list(entry.figure.sample.gpus),
                "links": list(entry.figure.sample.ring),
                "all_reduce_gb_per_s": entry.figure.all_reduce_gb_per_s,
                "cut_gb_per_s": round(entry.cut, 6),
                "mapa_gb_per_s": round(entry.mapa, 6),
                "refit_gb_per_s": None if entry.refit is None else round(entry.refit, 6),
                "sizes": [
                    {"bytes": size, "gb_per_s": bandwidth} for size, bandwidth in entry.figure.sizes
                ],
            }
            for entry in comparisons
        ],
        "root_mean_square_error_gb_per_s": model_errors(comparisons),
    }
