"""`gpulaunch topo --measure`: measure the links, keep the figures, compare them with the models."""

import os
import signal
import sys

from gpulaunch.cli.output import print_json, say, warn
from gpulaunch.errors import UsageError
from gpulaunch.files.data_files import make_own
from gpulaunch.files.document import read_document
from gpulaunch.files.write import check_writable, document_text, write_text
from gpulaunch.machine.catalog import own_machine_file
from gpulaunch.measure.link_fit import compare
from gpulaunch.measure.links import measure, measured_document


def measure_and_print(path: str | None, *, as_json: bool) -> int:
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
    from gpulaunch.show.measurement import measurement_document, measurement_table

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
