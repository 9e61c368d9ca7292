"""A fake libcuda.so.1, compiled from cuda.c, which takes the driver's place for synthetic loads.

A test module that writes pytest_plugins = ("fake_cuda",) has these fixtures.

PYTEST_DONT_REWRITE: a module that imports from here does so before pytest hears of the plugin.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from compiled import compiled

_SOURCE = Path(__file__).with_name("cuda.c")


class Call(NamedTuple):
    """A call of the library, as cuda.c writes it down."""

    name: str
    code: int
    amount: int


class FakeCuda:
    """The fake driver of the processes that get its environment.

    Args:
        library: directory of libcuda.so.1.
        log: file of the calls.

    Attributes:
        settings: variables that cuda.c tells of; a test adds its own.
    """

    def __init__(self, library: Path, log: Path) -> None:
        self._library = library
        self._log = log
        self.settings = {"FAKE_CUDA_LOG": str(log)}

    def environment(self, others: Mapping[str, str]) -> dict[str, str]:
        """Add to these variables those that make a process load this and any other fake library."""
        paths = [str(self._library), *filter(None, [others.get("LD_LIBRARY_PATH")])]
        return {**others, **self.settings, "LD_LIBRARY_PATH": ":".join(paths)}

    def calls(self, name: str | None = None) -> list[Call]:
        """Return what was called so far, in order: everything, or one function."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        calls = [Call(words[0], int(words[1]), int(words[2])) for words in map(str.split, lines)]
        return [call for call in calls if name in (None, call.name)]


@pytest.fixture(scope="session")
def fake_cuda_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a libcuda.so.1 that has just been compiled."""
    return compiled(_SOURCE, tmp_path_factory.mktemp("cuda") / "libcuda.so.1").parent


@pytest.fixture
def cuda(fake_cuda_library: Path, tmp_path: Path) -> FakeCuda:
    """Return a driver with one GPU of 8 GiB, unless the test says otherwise."""
    return FakeCuda(fake_cuda_library, tmp_path / "cuda.log")
