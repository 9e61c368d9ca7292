"""`gpulaunch topo --measure`: what the links carry, measured, kept, and held against the models."""

import os
import signal
import sys

from gpulaunch.cli.output import print_json, say, warn
from gpulaunch.core.placement.measurement import compare, slow_links
from gpulaunch.host.catalog import document_text, own_machine_file, write_text
from gpulaunch.measure import measure, measured_document
from gpulaunch.render.documents import measurement_document


def measure_and_print(path: str | None, *, as_json: bool, every_pair: bool) -> int:
    """Measure this machine, write its machine file, and print every figure beside the models.

    Args:
        path: of the file; None for this user's own file of this machine.
        as_json: print a document instead of a table.
        every_pair: measure all pairs.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        result = measure(None, warn, _tell, every_pair=every_pair)
    except _Interrupted as interruption:  # the benchmark is ended, the lease released, and nothing written
        signal.signal(interruption.number, signal.SIG_DFL)
        os.kill(os.getpid(), interruption.number)
        raise
    path = path or own_machine_file(result.topology.name)
    write_text(path, document_text(measured_document(result)))
    comparisons = compare(result.topology, result.figures)
    if as_json:
        print_json(measurement_document(result.topology, result.tool, comparisons))
    else:
        from gpulaunch.render.tables import draw, measurement_table

        draw(measurement_table(comparisons), sys.stdout)
        print(f"written to {path}; --bandwidth-model measured goes by it")
    for line in slow_links(result.topology, result.figures):
        warn(line)
    return 0


class _Interrupted(BaseException):
    """A signal wants an end."""

    def __init__(self, number: int) -> None:
        self.number = number


def _interrupt(number: int, _frame: object) -> None:
    raise _Interrupted(number)


def _tell(text: str) -> None:
    if sys.stderr.isatty():
        say("info", text)
