"""The fake libnvidia-ml plays a test's script of GPU use over time to the real nvidia-ml-py."""

import json
import subprocess
import time
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from conftest import Launcher

if TYPE_CHECKING:
    from fake_nvml import FakeNvml

pytest_plugins = ("fake_nvml",)

NOT_SUPPORTED, INVALID_ARGUMENT, GPU_IS_LOST = 3, 2, 15  # nvmlReturn_t
GB = 10**9

PRELUDE = """
import json, os, sys, threading, time
from pynvml import *

nvmlInit()
a, b, *_ = [nvmlDeviceGetHandleByIndex(index) for index in range(nvmlDeviceGetCount())]

def at(time, call, *arguments):
    os.environ["FAKE_NVML_TIME"] = str(time)
    return call(*arguments)

def code(call, *arguments):
    try:
        call(*arguments)
    except NVMLError as error:
        return error.value
    return 0

def fields(gpu, *ids):
    return [value.value.ullVal if value.nvmlReturn == 0 else -value.nvmlReturn
            for value in nvmlDeviceGetFieldValues(gpu, ids)]

def sample(time, gpu, *instance):
    take = nvmlGpmMigSampleGet if instance else nvmlGpmSampleGet
    return at(time, take, gpu, *instance, nvmlGpmSampleAlloc())

def gpm(first, second, *ids):
    asked = c_nvmlGpmMetricsGet_t(version=NVML_GPM_METRICS_GET_VERSION, numMetrics=len(ids))
    asked.sample1, asked.sample2 = first, second
    for metric, id in zip(asked.metrics, ids):
        metric.metricId = id
    nvmlGpmMetricsGet(asked)
    return [metric.value if metric.nvmlReturn == 0 else -metric.nvmlReturn
            for metric in asked.metrics[:len(ids)]]
"""


@pytest.fixture
def two(nvml: "FakeNvml") -> "FakeNvml":
    """Describe two GPUs with GPM."""
    keys = {"memory_mib": 80000, "used_mib": 7, "gpm": 1}
    nvml.describe([keys | {"uuid": "GPU-a"}, keys | {"uuid": "GPU-b"}], [])
    return nvml


def runs(launcher: Launcher, *code: str, **options: object) -> "subprocess.Popen[str]":
    """Run lines of Python, in a fork of this process where nvidia-ml-py meets the fake."""

    def run_here() -> int:
        exec("\n".join([PRELUDE, *code]), {})
        return 0

    return launcher.call(run_here, **options)


@pytest.fixture
def said(launcher: Launcher) -> Callable[..., Any]:
    """Return a function that runs lines of Python, and returns what the last of them comes to."""

    def run(*code: str) -> object:
        *before, last = code
        process = runs(launcher, *before, f"print(json.dumps({last}), flush=True)")
        printed, _ = process.communicate()
        assert process.returncode == 0, printed
        return json.loads(printed)

    return run


def test_value_of_the_moment(two: "FakeNvml", said: Callable[..., Any]) -> None:
    """Power and memory are those of the moment: 0 before the first value, each until the next.

    Utilization is the last sixth of a second's mean, floored percent.
    """
    two.script(0, "power", "1:70,1.5:300")
    two.script(0, "used_mib", {0.25: 70, 0.75: 0}, period=1)
    two.script(0, "active", {0: 100, 1: 0, 2: 59.9})
    two.script(0, "memactive", {0: 33, 1: 8})
    two.script(1, "active", 7)
    got = said(
        "moment = lambda: [nvmlDeviceGetPowerUsage(a), nvmlDeviceGetMemoryInfo(a).used >> 20]",
        "[at(t, moment) for t in (0, 0.99, 1, 1.25, 1.5, 1000.5)]",
    )
    assert got == [[0, 0], [0, 0], [70_000, 0], [70_000, 70], [300_000, 70], [300_000, 70]]
    rates = said(
        "def u(t, gpu):",
        "    rates = at(t, nvmlDeviceGetUtilizationRates, gpu)",
        "    return rates.gpu, rates.memory",
        "[u(t, a) for t in (0, 1, 1 + 1/12, 1 + 1/6, 2.5)] + [u(1, b)]",
    )
    assert rates == [[100, 33], [100, 33], [50, 20], [0, 8], [59, 8], [7, 0]]


def test_counters(two: "FakeNvml", said: Callable[..., Any]) -> None:
    """Energy is the integral of power in mJ, and bytes grow by each link's traffic.

    `integral` says the same of any script; a field may be missing.
    """
    two.script(0, "power", "0:100,1.5:300")
    two.script(1, "power", {0.125: 50, 0.5: 700, 1.75: 333}, period=2.5)
    times = (0, 0.1, 1.5, 2, 2.5, 7.625, 5000.25)
    rows = said(
        f"[[at(t, nvmlDeviceGetTotalEnergyConsumption, gpu) for t in {times}] for gpu in (a, b)]"
    )
    got = [[later - earlier for earlier, later in pairwise(row)] for row in rows]
    assert got[0][:3] == [10_000, 140_000, 150_000]
    for gpu in (0, 1):
        want = [two.integral(gpu, "power", *window) * 1000 for window in pairwise(times)]
        assert got[gpu] == pytest.approx(want, abs=1)
    two.script(0, "link:0:tx", 8)
    two.script(0, "link:35:tx", {1: 2.048})
    two.script(0, "link:35:rx", 1)
    ids = [(138, 0), (138, 35), (202, 35), (139, 35), (204, 35)]
    first, second = said(f"[at(t, fields, a, *{ids}) for t in (1, 3)]")
    grown = [b - a for a, b in zip(first, second, strict=True)]
    assert grown == [16 * GB // 1024, 4_000_000, 4.096 * GB, 2 * GB // 1024, 2 * GB]
    assert min(first) > GB  # they have counted before
    assert said("fields(a, (138, 3), (139, 0), (9999, 0))") == [-NOT_SUPPORTED] * 3


def test_gpm(two: "FakeNvml", said: Callable[..., Any]) -> None:
    """A GPM metric is the exact mean between two samples, in percent, and fails alone.

    Samples of two GPUs, out of order or within 0.1 s are refused, and so is a GPU without GPM.
    """
    two.script(1, "sm", {0: 10, 0.25: 90, 1.5: 40})
    two.script(1, "dram", {0.25: 3, 1.75: 80}, period=2)
    windows = [(0, 0.1), (0.3, 1.45), (2, 20.125)]
    got = said(f"[gpm(sample(s, b), sample(t, b), 2, 10) for s, t in {windows}]")
    want = [[two.mean(1, key, *window) for key in ("sm", "dram")] for window in windows]
    assert got == [pytest.approx(row) for row in want]
    two.script(0, "sm", {0.5: 80, 0.75: 40}, period=1)
    assert two.mean(0, "sm", 0, 1) == two.mean(0, "sm", 7, 9) == 30
    two.answer("gpm:10", 21, gpu=1, since=2, until=3)
    missing = [-NOT_SUPPORTED] * 4
    assert said("gpm(sample(2, b), sample(2.5, b), 10, 3, 5, 40, 60, 2)") == [-21, *missing, 40]
    pairs = "(sample(0, a), sample(1, b)), (sample(1, a), sample(0, a)), (sample(1, a),) * 2"
    assert said(f"[code(gpm, *pair, 2) for pair in ({pairs})]") == [INVALID_ARGUMENT] * 3
    two.change(1, gpm=None)
    assert said("code(sample, 0, b)") == NOT_SUPPORTED


def test_mig_instance(two: "FakeNvml", said: Callable[..., Any]) -> None:
    """A MIG instance has only memory and, through its card, GPM; its card has no utilization."""
    two.change(0, mig=1)
    two.add("gpu 1000 uuid=MIG-a memory_mib=9728 used_mib=5 gi=9", "gpu 1001 uuid=MIG-b gi=1")
    for key in ("active", "power", "sm"):
        two.script(1000, key, 40)
        two.script(0, key, 50)
    instance = "instance = nvmlDeviceGetMigDeviceHandleByIndex(a, 0)"
    calls = "nvmlDeviceGetUtilizationRates, nvmlDeviceGetPowerUsage"
    refused = f"[code(call, instance) for call in ({calls})]"
    card = "code(nvmlDeviceGetUtilizationRates, a), nvmlDeviceGetPowerUsage(a)"
    got = said(instance, f"[nvmlDeviceGetMemoryInfo(instance).used >> 20, *{refused}, {card}]")
    assert got == [5, NOT_SUPPORTED, NOT_SUPPORTED, NOT_SUPPORTED, 50000]
    both = "gpm(sample(0, a, 9), sample(1, a, 9), 2) + gpm(sample(0, a), sample(1, a), 2)"
    assert said(both) == [40, 50]
    uuid = "nvmlDeviceGetUUID(nvmlDeviceGetDeviceHandleFromMigDeviceHandle(instance))"
    assert said(instance, f"[{uuid}, nvmlDeviceGetGpuInstanceId(instance)]") == ["GPU-a", 9]


def test_error_in_a_window(two: "FakeNvml", said: Callable[..., Any]) -> None:
    """A call, a field or all calls about a GPU fail for a time; other GPUs' calls do not."""
    two.script(0, "power", 50)
    two.script(1, "power", 60)
    two.script(0, "link:0:tx", 1)
    two.answer("nvmlDeviceGetPowerUsage", 999, gpu=0, since=1, until=1.5)
    two.answer("field:202", 4, gpu=0, since=1.25)
    two.answer("*", GPU_IS_LOST, gpu=0, since=2, until=3)
    times = (0, 1, 1.49, 1.5, 2, 2.99, 3)
    power = f"[[at(t, code, nvmlDeviceGetPowerUsage, gpu) for t in {times}] for gpu in (a, b)]"
    assert said(power) == [[0, 999, 999, 0, GPU_IS_LOST, GPU_IS_LOST, 0], [0] * 7]
    assert said("[at(t, fields, a, (202, 0))[0] > 0 for t in (1, 1.3)]") == [True, False]


def test_call_that_lingers(two: "FakeNvml", said: Callable[..., Any]) -> None:
    """A slow call sleeps and a costly one uses CPU, each in its window; other threads go on."""
    for gpu in (0, 1):
        two.script(gpu, "power", 50)
        two.script(gpu, "active", 50)
    two.slow("nvmlDeviceGetPowerUsage", 1000, gpu=0, since=1)
    two.slow("nvmlDeviceGetUUID", 0.2, gpu=0)
    two.cost("nvmlDeviceGetUtilizationRates", 20_000, gpu=1, until=5)
    hang = "threading.Thread(target=at, args=(1, nvmlDeviceGetPowerUsage, a), daemon=True).start()"
    slept, used, before, other = said(
        "t = time.monotonic(), time.thread_time()",
        "nvmlDeviceGetUUID(a)",
        "slept = time.monotonic() - t[0]",
        "nvmlDeviceGetUtilizationRates(b)",
        "used = time.thread_time() - t[1]",
        "before = at(0.5, nvmlDeviceGetPowerUsage, a)",
        hang,
        "[slept, used, before, nvmlDeviceGetPowerUsage(b)]",
    )
    assert slept >= 0.2
    assert used >= 0.02
    assert (before, other) == (50_000, 50_000)


def test_clock(two: "FakeNvml", said: Callable[..., Any]) -> None:
    """The script runs by time.monotonic(); before it begins and without a clock it is second 0."""
    two.script(0, "power", {0: 10, 1: 20})
    assert said("nvmlDeviceGetPowerUsage(a)") == 10_000
    two.freeze(1)
    assert said("nvmlDeviceGetPowerUsage(a)") == 20_000
    two.begin_script(time.monotonic() + 1000)
    energy = said("nvmlDeviceGetTotalEnergyConsumption(a)")
    began = two.begin_script(time.monotonic() - 100)
    earliest, got, latest = said(
        "[time.monotonic(), nvmlDeviceGetTotalEnergyConsumption(a), time.monotonic()]"
    )
    window = [two.integral(0, "power", 0, now - began) * 1000 for now in (earliest, latest)]
    assert window[0] - 1 <= got - energy <= window[1] + 1
    assert window[0] > 1_900_000


def test_script_that_changes(launcher: Launcher, two: "FakeNvml") -> None:
    """A changed script counts from a process's next call on, however soon it changes again."""
    lines = "for line in sys.stdin: print(nvmlDeviceGetPowerUsage(a), flush=True)"
    reader = runs(launcher, lines, stdin=subprocess.PIPE)
    for watts in range(1, 100):
        two.script(0, "power", 999)
        two.script(0, "power", watts)
        reader.stdin.write("\n")
        reader.stdin.flush()
        assert int(reader.stdout.readline()) == watts * 1000
    reader.communicate()
    assert reader.returncode == 0
