"""Measured links, as a document and as a table beside what the models predict."""

from collections.abc import Sequence

from gpulaunch.cli.screen import Parts as Group
from gpulaunch.cli.screen import Text, figure, make_table
from gpulaunch.files.document import install_hint
from gpulaunch.machine.topology import Topology
from gpulaunch.measure.link_fit import Comparison, model_errors, ring_text
from gpulaunch.show import Document


def measurement_document(topology: Topology, comparisons: Sequence[Comparison]) -> Document:
    """Return what `gpulaunch topo --measure --json` prints."""
    return {
        "name": topology.name,
        "measured": [
            {
                "gpus": list(entry.figure.gpus),
                "links": list(entry.figure.ring),
                "all_reduce_gb_per_s": entry.figure.all_reduce_gb_per_s,
                "cut_gb_per_s": round(entry.cut, 6),
                "mapa_gb_per_s": round(entry.mapa, 6),
                "refit_gb_per_s": None if entry.refit is None else round(entry.refit, 6),
            }
            for entry in comparisons
        ],
        "root_mean_square_error_gb_per_s": model_errors(comparisons),
    }


_MODELS = {"cut": "cut", "mapa": "Eq. 2 as published", "refit": "Eq. 2 refitted"}


def measurement_table(comparisons: Sequence[Comparison]) -> Group:
    """Return every measured set beside the models' figures, and the models' errors."""
    columns = ("measured", "cut", "Eq. 2", "refit")
    table = make_table("GPUs", *columns, "links of its best ring", right=columns)
    for entry in comparisons:
        figures = (entry.figure.all_reduce_gb_per_s, entry.cut, entry.mapa, entry.refit)
        gpus = ",".join(map(str, entry.figure.gpus))
        table.add_row(gpus, *map(figure, figures), ring_text(entry.figure.ring))
    errors = model_errors(comparisons)
    off = ", ".join(
        f"{_MODELS[name]} {error:.3g}" for name, error in errors.items() if error is not None
    )
    lines = [Text(f"all-reduce bus bandwidth, GB/s; root mean square difference: {off}", "dim")]
    if errors["refit"] is None:
        without = "without numpy Eq. 2 is not fitted to this machine"
        lines.append(Text(f"{without}: {install_hint('measure')}", "dim"))
    else:
        sets = "1 set" if len(comparisons) == 1 else f"{len(comparisons)} sets"
        lines.append(
            Text(f"refit: the 14 coefficients of Eq. 2 by least squares over these {sets}", "dim")
        )
    return Group(table, *lines)
