"""`gpulaunch simulate --report DIR`: what came of replays, as a page and its pictures."""

import logging
import os
from collections.abc import Sequence
from shutil import rmtree

from gpulaunch.errors import FailedError
from gpulaunch.files.write import make_directory, write_bytes
from gpulaunch.simulate.measures import Replay


def prepare_report(directory: str) -> None:
    """Make the directory, and check before a long run that its report can be drawn and written.

    Raises:
        FailedError: it could not.
    """
    _load_matplotlib()
    make_directory(directory)


def _load_matplotlib() -> None:
    """Import it with what draws.

    Where it may not keep its list of fonts it makes a directory for that, which would stay: our
    commands end too quickly for what modules do at the end. So that goes as soon as it has been
    read.
    """
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # else it tells of that directory
    before = os.environ.get("MPLCONFIGDIR")
    try:
        from gpulaunch.show.report import page  # noqa: F401
    except ImportError as problem:
        if (problem.name or "").partition(".")[0] == "gpulaunch":
            raise
        raise FailedError(
            f"a report needs matplotlib: {problem}", "pip install 'gpulaunch[report]'"
        ) from None
    except ValueError as problem:  # it does not know MPLBACKEND
        raise FailedError(f"matplotlib: {problem}") from None
    made = os.environ.get("MPLCONFIGDIR")
    if made and made != before:
        rmtree(made, ignore_errors=True)


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
