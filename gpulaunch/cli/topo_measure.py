"""Measured links, as a document and as a table beside what the models predict."""

import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpulaunch.cli.output import print_json, say, warn
from gpulaunch.errors import UsageError
from gpulaunch.files.data_files import make_own
from gpulaunch.files.document import install_hint, read_document
from gpulaunch.files.write import check_writable, document_text, write_text
from gpulaunch.machine.catalog import own_machine_file
from gpulaunch.machine.topology import Topology
from gpulaunch.measure.link_fit import Comparison, compare, model_errors, ring_text
from gpulaunch.measure.links import measure, measured_document
from gpulaunch.show import Document

if TYPE_CHECKING:
    from gpulaunch.show.terminal import Group


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


def measurement_table(comparisons: Sequence[Comparison]) -> "Group":
    """Return every measured set beside the models' figures, and the models' errors."""
    from gpulaunch.show.terminal import Group, Text, figure, make_table

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


def measure_links(path: str | None, *, as_json: bool) -> int:
    """Measure this machine, write its machine file, and print every figure beside the models.

    Args:
        path: path of the file; None for this user's own file of this machine.
        as_json: whether to print a document instead of a table.
    """
    file = path or own_machine_file(os.uname().nodename)
    if path is None:
        make_own(os.path.dirname(file))
    check_writable(file)
    if path is None and os.path.exists(file) and "measurement" not in read_document(file).data:
        raise UsageError(
            f"{file} describes this machine, and measuring would replace it",
            "-o names another file",
        )
    for number in _ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _raise_interrupted)
    try:
        topology, figures = measure(warn, _tell)
    # By now the benchmark is ended, the lease released, and nothing is written.
    except _Interrupted as interruption:
        signal.signal(interruption.number, signal.SIG_DFL)
        os.kill(os.getpid(), interruption.number)
        raise
    write_text(file, document_text(measured_document(topology, figures)))
    comparisons = compare(topology, figures)
    if as_json:
        print_json(measurement_document(topology, comparisons))
    else:
        from gpulaunch.show.terminal import draw

        draw(measurement_table(comparisons), sys.stdout)
        print(f"written to {file}; -o bandwidth_model=measured goes by it")
    return 0


_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class _Interrupted(BaseException):
    """A signal asks for an end."""

    def __init__(self, number: int) -> None:
        self.number = number


def _raise_interrupted(number: int, _frame: object) -> None:
    for other in _ENDING:  # one is enough, and its handling must not be disturbed
        signal.signal(other, signal.SIG_IGN)
    raise _Interrupted(number)


def _tell(text: str) -> None:
    if sys.stderr is not None and sys.stderr.isatty():
        say("info", text)
