"""Tests in child processes of pytest's, or of pytest-xdist's worker: CUDA ends with each test."""

import os
import pickle
import signal
import sys
import tempfile
import warnings
from contextlib import suppress
from typing import IO, TYPE_CHECKING, NoReturn

import pytest
from _pytest.runner import runtestprotocol

from gpulaunch.process.libc import end_with_parent
from gpulaunch.pytest_plugin.leases import take_lease  # noqa: F401  else each child imports it

if TYPE_CHECKING:
    from collections.abc import Generator

_REPORTS = pytest.StashKey[list[pytest.TestReport]]()


class _RunInChildError(pytest.skip.Exception):  # type: ignore[misc, name-defined]
    """In place of what the child has done; pytest starts no debugger for a skip."""


class ForkedTests:
    """Hooks that run a test with the mark in a child, and give the child's reports for one's own.

    The phases of the test stay hooks of this process, so that plugins that repeat tests or bound
    their time work as with any test.
    """

    def __init__(self) -> None:
        self._in_child = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Run all of the test in a child."""
        if self._in_child or item.get_closest_marker("gpus") is None:
            return
        with tempfile.TemporaryFile() as file:
            pid = _fork()
            if pid == 0:
                self._in_child = True
                _run_and_exit(item, file)
            item.stash[_REPORTS] = _wait_for_reports(item, pid, file)
        raise _RunInChildError

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """Do not run it here, too."""
        if item.stash.get(_REPORTS, []):
            raise _RunInChildError

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> "Generator[None, pytest.TestReport, pytest.TestReport]":
        """Give the child's report in place of this process's, if there is one."""
        report = yield
        reports = item.stash.get(_REPORTS, [])
        if call.when == "teardown":
            item.stash[_REPORTS] = []
            if report.failed:  # what earlier tests had set up could not be torn down
                return report
        return next((one for one in reports if one.when == call.when), report)


def _fork() -> int:
    # What is buffered here would be written by both processes.
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        if stream:
            stream.flush()
    parent = os.getpid()
    with warnings.catch_warnings():
        # Python 3.12 warns of threads, which pytest-xdist has; the child needs none of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        end_with_parent(parent)()
    return pid


def _run_and_exit(item: pytest.Item, file: IO[bytes]) -> NoReturn:
    try:
        # What the parent has set up is the parent's to tear down.
        for finalizers, _ in item.session._setupstate.stack.values():  # noqa: SLF001
            finalizers.clear()
        reports = runtestprotocol(item, log=False, nextitem=None)
        to_data = item.config.hook.pytest_report_to_serializable
        data = [to_data(config=item.config, report=report) for report in reports]
        pickle.dump(data, file)
        file.flush()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    finally:
        os._exit(1)


def _wait_for_reports(item: pytest.Item, pid: int, file: IO[bytes]) -> list[pytest.TestReport]:
    """Wait for the end of the child; return its reports, or a failure if it left none."""
    try:
        _, status = os.waitpid(pid, 0)
    except BaseException:  # Ctrl-C, or a time limit
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
        raise
    file.seek(0)
    data = file.read()
    if not data:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        how = f"was ended by {signal.Signals(number).name}" if number else "left no reports"
        pytest.fail(f"the process of this test {how}", pytrace=False)
    from_data = item.config.hook.pytest_report_from_serializable
    reports = pickle.loads(data)  # noqa: S301  it is from our own child
    return [from_data(config=item.config, data=report) for report in reports]
