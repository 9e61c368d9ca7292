"""Tests in child processes of pytest's, or of pytest-xdist's worker: CUDA ends with each test."""

import multiprocessing
import os
import signal
import warnings
from typing import TYPE_CHECKING

import pytest
from _pytest.runner import runtestprotocol

from gpulaunch.process.libc import end_with_parent
from gpulaunch.pytest_plugin.leases import take_lease  # noqa: F401  else each child imports it

if TYPE_CHECKING:
    from collections.abc import Generator
    from multiprocessing.connection import Connection

_FORK = multiprocessing.get_context("fork")
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
        item.stash[_REPORTS] = self._reports_of_child(item)
        raise _RunInChildError

    def _reports_of_child(self, item: pytest.Item) -> list[pytest.TestReport]:
        receiver, sender = _FORK.Pipe(duplex=False)
        child = _FORK.Process(target=self._run, args=(item, os.getpid(), sender))
        with warnings.catch_warnings():
            # Python 3.12 warns of threads, which pytest-xdist has; the child needs none of them.
            warnings.simplefilter("ignore", DeprecationWarning)
            child.start()
        sender.close()
        try:
            data = receiver.recv()
        except EOFError:
            child.join()
            number = -(child.exitcode or 0)
            how = f"was ended by {signal.Signals(number).name}" if number > 0 else "left no reports"
            pytest.fail(f"the process of this test {how}", pytrace=False)
        except BaseException:  # Ctrl-C, or a time limit
            child.kill()
            raise
        finally:
            child.join()
        from_data = item.config.hook.pytest_report_from_serializable
        return [from_data(config=item.config, data=report) for report in data]

    def _run(self, item: pytest.Item, parent: int, sender: "Connection") -> None:
        """Run a test, in the child."""
        end_with_parent(parent)()
        self._in_child = True
        # What the parent has set up is the parent's to tear down.
        for finalizers, _ in item.session._setupstate.stack.values():  # noqa: SLF001
            finalizers.clear()
        reports = runtestprotocol(item, log=False, nextitem=None)
        to_data = item.config.hook.pytest_report_to_serializable
        sender.send([to_data(config=item.config, report=report) for report in reports])

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
