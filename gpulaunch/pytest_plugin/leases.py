"""The leases that tests of this process take, one after the other, or each in a child process.

A process that has started CUDA sees the same GPUs, and occupies them, until it ends. So the lease
under which a test has started CUDA stays, and serves the later tests that ask for the same; a test
in a child process ends CUDA with it.
"""

import atexit
import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Generator, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection

import pytest
from _pytest.runner import runtestprotocol

from gpulaunch.api.allocate import attempt_to_allocate
from gpulaunch.api.held_lease import HeldLease
from gpulaunch.errors import FailedError, RefusedError
from gpulaunch.launch.surroundings import open_table
from gpulaunch.process.libc import end_with_parent
from gpulaunch.process.system import parents

_FORK = "run such tests in processes of their own with --gpus-fork"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_LOOK_S = 1.0
"""Time between two looks at what other workers keep, while a test waits."""

_PROCESSES = multiprocessing.get_context("fork")
_REPORTS = pytest.StashKey[list[pytest.TestReport]]()

_taken: list[tuple[Mapping[str, object], HeldLease]] = []
"""What was asked for, and the one lease: once for each test and fixture that has it, or CUDA."""


def take_lease(asked: Mapping[str, object], name: str) -> HeldLease:
    """Take a lease for a test or a fixture, and set its variables in this process's environment.

    Raises:
        FailedError: CUDA was started in this process, or in other workers, so that the test could
            not have GPUs of its own.
        GpulaunchError: as gpulaunch.allocate.
        TypeError: there is no such argument.
    """
    for before, lease in _taken[:1]:
        if before != asked:
            why = "CUDA was started" if cuda_is_started() else "a fixture or test works"
            raise FailedError(f"{why} under {lease}, and sees no other GPUs", _FORK)
        _taken.append((asked, lease))
        return lease
    seen = os.environ.get(_VISIBLE)
    lease = _allocate({"name": name, **asked})
    if cuda_is_started() and lease.env.get(_VISIBLE) != seen:
        lease.release()
        raise FailedError(
            f"CUDA was started before the test, and sees other GPUs than {lease}",
            "start CUDA in no import, and in no test without the mark",
        )
    lease.apply()
    _taken.append((asked, lease))
    return lease


def give_back() -> None:
    """Release the lease if nobody else has it, unless CUDA was started under it."""
    if len(_taken) > 1:
        _taken.pop()
    elif cuda_is_started():
        atexit.register(_taken[0][1].release)
    else:
        _taken.pop()[1].release()


def cuda_is_started(pid: int | str = "self") -> bool:
    """Return whether a process has started CUDA, which opens /dev/nvidia-uvm, as NVML does not."""
    directory = f"/proc/{pid}/fd"
    with suppress(OSError):  # it has ended, or is another user's
        for fd in os.listdir(directory):
            with suppress(OSError):
                if os.readlink(f"{directory}/{fd}").endswith("/nvidia-uvm"):
                    return True
    return False


def _allocate(asked: Mapping[str, object]) -> HeldLease:
    """Allocate as gpulaunch.allocate does, but wait for no GPU that another worker keeps."""
    kept: set[str] = set()
    while True:
        ended = threading.Event()
        excluded = asked.get("exclude") or ()
        others = (excluded,) if isinstance(excluded, int | str) else excluded
        without = {**asked, "exclude": [*others, *sorted(kept)]}  # type: ignore[misc]
        attempt = attempt_to_allocate(without, ended.set)
        attempt.start()
        try:
            while not ended.wait(_LOOK_S):
                now_kept = _kept_by_other_workers()
                if not now_kept <= kept:
                    kept |= now_kept
                    attempt.give_up()
                    ended.wait()  # else the next attempt meets its own ticket
                    break
            else:
                return attempt.result()
        except RefusedError as problem:
            if not kept:
                raise
            raise FailedError(
                f"{problem.message}: CUDA was started in other workers, which keep their GPUs until"
                " the run ends",
                f"use fewer workers, or {_FORK}",
            ) from None
        except BaseException:
            attempt.give_up()
            raise


def _kept_by_other_workers() -> set[str]:
    """Return the UUIDs of GPUs leased by other workers of this run in which CUDA was started.

    Workers of pytest-xdist end together, at the end of the run.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return set()
    parent_of = parents()
    table = open_table(private=True, warn=lambda _: None)
    return {
        uuid
        for lease in table.own_leases()
        if lease.launcher.pid != os.getpid()
        and parent_of.get(lease.launcher.pid) == os.getppid()
        and cuda_is_started(lease.launcher.pid)
        for uuid in lease.uuids
    }


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
        receiver, sender = _PROCESSES.Pipe(duplex=False)
        child = _PROCESSES.Process(target=self._run, args=(item, os.getpid(), sender))
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

    def _run(self, item: pytest.Item, parent: int, sender: Connection) -> None:
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
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Give the child's report in place of this process's, if there is one."""
        report = yield
        reports = item.stash.get(_REPORTS, [])
        if call.when == "teardown":
            item.stash[_REPORTS] = []
            if report.failed:  # what earlier tests had set up could not be torn down
                return report
        return next((one for one in reports if one.when == call.when), report)
