"""`gpulaunch simulate --report DIR`: write a page about replays, with its pictures."""

import os
from collections.abc import Sequence

from gpulaunch.files.write import make_directory, write_bytes
from gpulaunch.simulate.measures import Replay


def prepare_report(directory: str) -> None:
    """Make the directory of a report, and check before a long run that it can be drawn and written.

    Raises:
        FailedError: It cannot.
    """
    from gpulaunch.show.canvas import load_matplotlib

    load_matplotlib("a report")
    make_directory(directory)


def write_report(directory: str, replays: Sequence[Replay]) -> str:
    """Draw a report and write it, the page last.

    Args:
        directory: The directory, from prepare_report.
        replays: The replays, in the order in which they are to be shown.

    Returns:
        The page's path.

    Raises:
        FailedError: A file cannot be written.
    """
    from gpulaunch.show.report.page import INDEX, report_files

    files = report_files(replays)
    for name in sorted(files, key=lambda name: name == INDEX):
        write_bytes(os.path.join(directory, name), files[name])
    return os.path.join(directory, INDEX)
