"""`gpulaunch topo --measure`: measure this machine's links, beside what the models predict."""

import os
import signal
import sys
from collections.abc import Sequence

from gpulaunch.cli.output import print_json, rounded, say, warn
from gpulaunch.cli.screen import Grid, Parts, Text, draw, figure
from gpulaunch.errors import UsageError
from gpulaunch.files.document import make_own, read_document
from gpulaunch.files.write import check_writable, document_text, write_text
from gpulaunch.lab.measure.links import (
    Figure,
    measure,
    measured_document,
    model_errors,
    ring_text,
)
from gpulaunch.machine.catalog import own_machine_file
from gpulaunch.process.job import end_by
from gpulaunch.process.libc import ENDING_SIGNALS


def measure_links(path: str | None, *, as_json: bool) -> int:
    """Measure this machine, write its machine file, and print every figure beside the models.

    Without a path the file is this user's own of this machine.
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
    for number in ENDING_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _interrupt)
    try:
        topology, figures = measure(warn, _tell)
    # By now the benchmark is ended, the lease released, and nothing is written.
    except KeyboardInterrupt as interruption:
        end_by(interruption.args[0])
        raise
    write_text(file, document_text(measured_document(topology, figures)))
    if not as_json:
        _draw(figures)
        print(f"written to {file}; -o bandwidth_model=measured goes by it")
        return 0
    measured = [
        {
            "gpus": list(entry.gpus),
            "links": list(entry.ring),
            "all_reduce_gb_per_s": entry.all_reduce_gb_per_s,
            "cut_gb_per_s": rounded(entry.cut_gb_per_s),
            "mapa_gb_per_s": rounded(entry.mapa_gb_per_s),
        }
        for entry in figures
    ]
    errors = model_errors(figures)
    document = {"name": topology.name, "measured": measured}
    print_json({**document, "root_mean_square_error_gb_per_s": errors})
    return 0


def _interrupt(number: int, _frame: object) -> None:
    for other in ENDING_SIGNALS:  # one is enough, and its handling must not be disturbed
        signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt(number)


def _tell(text: str) -> None:
    if sys.stderr is not None and sys.stderr.isatty():
        say("info", text)


def _draw(measured: Sequence[Figure]) -> None:
    """Draw every measured set beside the models' figures, and the models' errors."""
    columns = ("measured", "cut", "Eq. 2")
    table = Grid("GPUs", *columns, "links of its best ring", right=columns)
    for entry in measured:
        figures = (entry.all_reduce_gb_per_s, entry.cut_gb_per_s, entry.mapa_gb_per_s)
        gpus = ",".join(map(str, entry.gpus))
        table.add_row(gpus, *map(figure, figures), ring_text(entry.ring))
    errors = model_errors(measured)
    difference = f"cut {errors['cut']:.3g}, Eq. 2 as published {errors['mapa']:.3g}"
    line = f"all-reduce bus bandwidth, GB/s; root mean square difference: {difference}"
    draw(Parts(table, Text(line, "dim")), sys.stdout)
