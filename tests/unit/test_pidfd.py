"""The number of a process that has ended may be that of a thread, and of no process, by now."""

import os
import threading
from collections.abc import Iterator

import pytest

from gpulaunch.process import Process
from gpulaunch.process.ending import wait_for_one
from gpulaunch.process.system import open_pid, open_process


@pytest.fixture
def thread_id() -> Iterator[int]:
    """Return the number of a live thread, which is not its process's."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    yield thread.native_id
    over.set()
    thread.join()


def test_what_is_no_process(thread_id: int) -> None:
    """A number that is a live thread's, or nobody's, counts as that of one that has ended."""
    assert [open_pid(pid) for pid in (thread_id, 0, -1, 1 << 40)] == [None] * 4
    assert open_process(Process(thread_id, 1)) is None
    wait_for_one([os.getpid(), thread_id], float("inf"))
