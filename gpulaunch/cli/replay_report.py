"""`gpulaunch simulate --report DIR`: what came of replays, as a page and its pictures."""

import os
from collections.abc import Sequence

from gpulaunch.cli.drawing import load_matplotlib
from gpulaunch.files.write import make_directory, write_bytes
from gpulaunch.simulate.measures import Replay


def prepare_report(directory: str) -> None:
    """Make the directory, and check before a long run that its report can be drawn and written.

    Raises:
        FailedError: it could not.
    """
    load_matplotlib("a report")
    make_directory(directory)


def write_report(directory: str, replays: Sequence[Replay]) -> str:
    """Draw and write it, the page last.

    Args:
        directory: from prepare_report.
        replays: in the order in which they are to be shown.

    Returns:
        The page's path.

    Raises:
        FailedError: a file cannot be written.
    """
    from gpulaunch.show.report.page import INDEX, report_files

    files = report_files(replays)
    for name in sorted(files, key=lambda name: name == INDEX):
        write_bytes(os.path.join(directory, name), files[name])
    return os.path.join(directory, INDEX)
