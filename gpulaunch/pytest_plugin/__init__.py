"""The hooks of the pytest plugin, loaded in every run of pytest in an environment with gpulaunch.

So this file imports what pytest has imported, and the rest once a test has the mark `gpus`.
"""

import os
from contextlib import contextmanager
from functools import partial

import pytest

TYPE_CHECKING = False  # as typing has it, whose door imports more of gpulaunch
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from contextlib import AbstractContextManager

    from gpulaunch.api.held_lease import HeldLease

_MARK = "gpus(gpus=1, **settings): GPUs for this test alone, as gpulaunch.allocate gives them"
_LEASE: "pytest.StashKey[HeldLease]" = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options --gpus-*."""
    group = parser.getgroup("gpulaunch", "GPUs for tests with the mark gpus")
    group.addoption(
        "--gpus-topology",
        metavar="NAME|FILE",
        help="described machine to use in place of this one",
    )
    group.addoption(
        "--gpus-missing",
        choices=("skip", "fail"),
        default="skip",
        help="what to do with a test that cannot have its GPUs (skip)",
    )
    group.addoption(
        "--gpus-wait",
        metavar="TIME",
        help="longest wait for busy GPUs, such as 10m; 0 for none (no limit)",
    )
    group.addoption(
        "--gpus-fork",
        action="store_true",
        help="run each test with the mark in a child process, so that CUDA ends with it",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark, and register what only some runs need."""
    config.addinivalue_line("markers", _MARK)
    if config.getoption("gpus_fork"):
        from gpulaunch.pytest_plugin.leases import ForkedTests

        config.pluginmanager.register(ForkedTests(), "gpulaunch-fork")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Lease the GPUs of a test before its fixtures are set up, unless it is skipped anyway."""
    mark = item.get_closest_marker("gpus")
    if mark is None:
        return
    if len(mark.args) > 1 or (mark.args and "gpus" in mark.kwargs):
        problem = TypeError("it takes one number of GPUs, and the rest by name")
        raise _end_without_gpus(item.config, problem)
    asked = {"gpus": mark.args[0] if mark.args else None, **mark.kwargs}
    item.stash[_LEASE] = _take_lease(item.config, item.nodeid, asked)


def _take_lease(config: pytest.Config, name: str, asked: "dict[str, object]") -> "HeldLease":
    from gpulaunch.pytest_plugin.leases import take_lease

    try:
        return take_lease({**_from_options(config), **asked}, name[-200:])
    except Exception as problem:  # noqa: BLE001  it is raised, if it is none of ours
        raise _end_without_gpus(config, problem) from None  # else it shows as two failures


def _from_options(config: pytest.Config) -> "dict[str, object]":
    wait, topology = config.getoption("gpus_wait"), config.getoption("gpus_topology")
    asked: dict[str, object] = {"wait": wait != "0"}
    if wait not in (None, "0"):
        asked["wait_timeout"] = wait
    if topology:
        asked["topology"] = topology
    return asked


def _end_without_gpus(config: pytest.Config, problem: Exception) -> BaseException:
    """Return what skips a test that cannot have its GPUs, or fails it, as wrong arguments do."""
    from gpulaunch import errors

    if not isinstance(problem, (TypeError, errors.GpulaunchError)):
        return problem
    missing = (
        errors.NoDriverError,
        errors.RefusedError,
        errors.TimedOutError,
        errors.WouldWaitError,
    )
    if isinstance(problem, missing) and config.getoption("gpus_missing") == "skip":
        # Reports name the line of the test, not this one.
        return pytest.skip.Exception(problem.message, _use_item_location=True)
    hint = getattr(problem, "hint", None)
    text = f"@pytest.mark.gpus: {problem}" + (f" ({hint})" if hint else "")
    return pytest.fail.Exception(text, pytrace=False)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)  # pluggy 1.0, of pytest 7, has no other kind
def pytest_runtest_teardown(item: pytest.Item) -> "Generator[None, object, None]":
    """Give the GPUs back after all fixtures of the test are torn down."""
    yield
    if _LEASE in item.stash:
        from gpulaunch.pytest_plugin.leases import give_back

        give_back()
        del item.stash[_LEASE]


@pytest.fixture
def gpus(request: pytest.FixtureRequest) -> "HeldLease":
    """Return this marked test's lease, a gpulaunch.HeldLease; in other scopes use gpus_factory."""
    if _LEASE not in request.node.stash:
        pytest.fail("the fixture gpus is for tests with @pytest.mark.gpus", pytrace=False)
    lease: HeldLease = request.node.stash[_LEASE]
    return lease


@pytest.fixture(scope="session")
def gpus_factory(pytestconfig: pytest.Config) -> "Callable[..., AbstractContextManager[HeldLease]]":
    """Return a context manager's function that leases GPUs as the mark does, for any fixture."""
    return partial(_hold, pytestconfig)


@contextmanager
def _hold(config: pytest.Config, gpus: object = None, **settings: object) -> "Iterator[HeldLease]":
    from gpulaunch.pytest_plugin.leases import give_back

    name = os.environ["PYTEST_CURRENT_TEST"]
    lease = _take_lease(config, name, {"gpus": gpus, **settings})
    try:
        yield lease
    finally:
        give_back()
