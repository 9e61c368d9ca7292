"""The fake libnvidia-ml plays a test's script of GPU use over time to the real nvidia-ml-py."""

import json
import os
import random
import subprocess
import sys
import time
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fake_nvml import FakeNvml

pytest_plugins = ("fake_nvml",)

NOT_SUPPORTED, INVALID_ARGUMENT, GPU_IS_LOST, VERSION_MISMATCH = 3, 2, 15, 25  # nvmlReturn_t
GB = 10**9

PRELUDE = """
import ctypes, json, os, threading, time
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

def gpm(first, second, *ids, version=NVML_GPM_METRICS_GET_VERSION):
    asked = c_nvmlGpmMetricsGet_t(version=version, numMetrics=len(ids), \
sample1=first, sample2=second)
    for metric, id in zip(asked.metrics, ids):
        metric.metricId = id
    nvmlGpmMetricsGet(asked)
    return [metric.value if metric.nvmlReturn == 0 else -metric.nvmlReturn \
for metric in asked.metrics[:len(ids)]]
"""


@pytest.fixture
def two(nvml: "FakeNvml") -> "FakeNvml":
    """Describe two GPUs with GPM."""
    keys = {"memory_mib": 80000, "used_mib": 7, "gpm": 1}
    nvml.describe([keys | {"uuid": "GPU-a"}, keys | {"uuid": "GPU-b"}], [])
    return nvml


def said(nvml: "FakeNvml", *code: str):
    """Return the last of these lines of Python, run where nvidia-ml-py meets the fake."""
    *before, last = code
    lines = "\n".join([PRELUDE, *before, f"print(json.dumps({last}), flush=True)", "os._exit(0)"])
    run = subprocess.run(
        [sys.executable, "-c", lines],
        env=os.environ | nvml.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    return json.loads(run.stdout)


def exactly(values) -> object:
    """Match these numbers but for the last digits of floating point."""
    return pytest.approx(values, rel=1e-9, abs=1e-9)


# ------------------------------------------------------------------------------------------- values


def test_value_of_the_moment(two: "FakeNvml") -> None:
    """Power and memory are those of the moment: 0 before the first value, each until the next."""
    two.script(0, "power", "1:70,1.5:300")
    two.script(0, "used_mib", {0.25: 70, 0.75: 0}, period=1)
    got = said(
        two,
        "moment = lambda: [nvmlDeviceGetPowerUsage(a), nvmlDeviceGetMemoryInfo(a).used >> 20]",
        "[at(t, moment) for t in (0, 0.99, 1, 1.25, 1.5, 1000.5)]",
    )
    assert got == [[0, 0], [0, 0], [70_000, 0], [70_000, 70], [300_000, 70], [300_000, 70]]


def test_utilization(two: "FakeNvml") -> None:
    """Utilization is the last sixth of a second's mean, floored percent; memory untold is 0."""
    two.script(0, "active", {0: 100, 1: 0, 2: 59.9})
    two.script(0, "memactive", {0: 33, 1: 8})
    two.script(1, "active", 7)
    rates = said(
        two,
        "u = lambda t, gpu: (lambda rates: [rates.gpu, rates.memory])(at(t, "
        "nvmlDeviceGetUtilizationRates, gpu))",
        "[u(t, a) for t in (0, 1, 1 + 1/12, 1 + 1/6, 2.5)] + [u(1, b)]",
    )
    assert rates == [[100, 33], [100, 33], [50, 20], [0, 8], [59, 8], [7, 0]]


# ----------------------------------------------------------------------------------------- counters


def test_energy_is_the_integral(two: "FakeNvml") -> None:
    """Energy is the integral of power in mJ; field and `integral` agree, for any script."""
    chance = random.Random(9)
    two.script(
        1,
        "power",
        {x / 8: chance.randint(50, 700) for x in sorted(chance.sample(range(16), 6))},
        period=2.5,
    )
    two.script(0, "power", "0:100,1.5:300")
    times = (0, 0.1, 1.5, 2, 2.5, 7.625, 5000.25)
    energy = (
        f"[[at(t, nvmlDeviceGetTotalEnergyConsumption, gpu) for t in {times}] for gpu in (a, b)]"
    )
    got = [[later - earlier for earlier, later in pairwise(row)] for row in said(two, energy)]
    want = [
        [round(two.integral(gpu, "power", *window) * 1000) for window in pairwise(times)]
        for gpu in (0, 1)
    ]
    assert want[0][:3] == [10_000, 140_000, 150_000]
    assert [abs(x - y) <= 1 for x, y in zip(got[0] + got[1], want[0] + want[1], strict=True)] == [
        True
    ] * 12


def test_byte_counters(two: "FakeNvml") -> None:
    """NVLink counters grow by each link's traffic, in KiB or bytes; a field may be missing."""
    two.script(0, "link:0:tx", 8)
    two.script(0, "link:35:tx", {1: 2.048})
    two.script(0, "link:35:rx", 1)
    ids = [(138, 0), (138, 35), (202, 35), (139, 35), (204, 35)]
    first, second = said(two, f"[at(t, fields, a, *{ids}) for t in (1, 3)]")
    grown = [b - a for a, b in zip(first, second, strict=True)]
    assert grown == [16 * GB // 1024, 4_000_000, 4.096 * GB, 2 * GB // 1024, 2 * GB]
    assert min(first) > GB  # they have counted before
    assert said(two, "fields(a, (138, 3), (139, 0), (9999, 0))") == [-NOT_SUPPORTED] * 3
    types = "[value.valueType for value in nvmlDeviceGetFieldValues(a, [(138, 0)])]"
    assert said(two, types) == [3]  # NVML_VALUE_TYPE_UNSIGNED_LONG_LONG


# ---------------------------------------------------------------------------------------------- GPM


def test_gpm_is_the_mean_between_samples(two: "FakeNvml") -> None:
    """A metric is the exact mean between samples, in percent."""
    chance = random.Random(4)
    keys = {2: "sm", 3: "occupancy", 10: "dram"}
    for key in keys.values():
        values = {x / 4: chance.randint(0, 100) for x in range(8)}
        two.script(1, key, values, period=chance.choice([None, 2]))
    windows = [(0, 0.1), (0.3, 1.45), (2, 20.125)]
    got = said(two, f"[gpm(sample(s, b), sample(t, b), *{[*keys]}) for s, t in {windows}]")
    want = [[two.mean(1, key, *window) for key in keys.values()] for window in windows]
    assert got == [exactly(row) for row in want]
    two.script(0, "sm", {0.5: 80, 0.75: 40}, period=1)
    assert two.mean(0, "sm", 0, 1) == two.mean(0, "sm", 7, 9) == 30


def test_gpm_metric_that_fails(two: "FakeNvml") -> None:
    """A metric that is unscripted, absent or told to fail fails alone, and the error can end."""
    two.script(0, "sm", 30)
    two.script(0, "dram", 20)
    two.answer("gpm:10", 21, gpu=0, since=1, until=2)
    got = said(
        two, "[gpm(sample(t, a), sample(t + 0.5, a), 10, 3, 5, 40, 60, 62, 2) for t in (0, 1, 2)]"
    )
    missing = [-NOT_SUPPORTED] * 5
    assert got == [[20, *missing, 30], [-21, *missing, 30], [20, *missing, 30]]


def test_gpm_refuses(two: "FakeNvml") -> None:
    """GPM refuses samples of two GPUs, out of order or within 0.1 s, and a GPU without it."""
    two.script(0, "sm", 30)
    two.change(1, gpm=None)
    assert said(two, "[nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice for gpu in (a, b)]") == [
        1,
        0,
    ]
    assert said(two, "code(sample, 0, b)") == NOT_SUPPORTED
    two.change(1, gpm=1)
    pairs = (
        "[(sample(0, a), sample(1, b)), (sample(1, a), sample(0, a)), (sample(1, a), sample(1.09, "
        "a))]"
    )
    assert said(two, f"[code(gpm, *pair, 2) for pair in {pairs}]") == [INVALID_ARGUMENT] * 3
    assert (
        said(two, "code(lambda: gpm(sample(0, a), sample(1, a), 2, version=2))") == VERSION_MISMATCH
    )
    assert said(two, "[gpm(sample(0, a), sample(1, a), 2), nvmlGpmSampleFree(sample(1, a))]") == [
        [30],
        None,
    ]


def test_mig_instance(two: "FakeNvml") -> None:
    """A MIG instance has only memory and, through its card, GPM; its card has no utilization."""
    two.change(0, mig=1)
    two.add("gpu 1000 uuid=MIG-a memory_mib=9728 used_mib=5 gi=9", "gpu 1001 uuid=MIG-b gi=1")
    for key in ("active", "power", "sm"):
        two.script(1000, key, 40)
        two.script(0, key, 50)
    instance = "instance = nvmlDeviceGetMigDeviceHandleByIndex(a, 0)"
    calls = "nvmlDeviceGetUtilizationRates, nvmlDeviceGetPowerUsage"
    refused = f"[code(call, instance) for call in ({calls})]"
    got = said(two, instance, f"[nvmlDeviceGetMemoryInfo(instance).used >> 20, *{refused}]")
    assert got == [5, NOT_SUPPORTED, NOT_SUPPORTED]
    card = "[code(nvmlDeviceGetUtilizationRates, a), nvmlDeviceGetPowerUsage(a)]"
    assert said(two, card) == [NOT_SUPPORTED, 50000]
    both = "gpm(sample(0, a, 9), sample(1, a, 9), 2) + gpm(sample(0, a), sample(1, a), 2)"
    assert said(two, both) == [40, 50]
    wrong = "[code(sample, 0, a, 3), code(sample, 0, instance)]"
    assert said(two, instance, wrong) == [INVALID_ARGUMENT] * 2
    uuid = "nvmlDeviceGetUUID(nvmlDeviceGetDeviceHandleFromMigDeviceHandle(instance))"
    assert said(two, instance, f"[{uuid}, nvmlDeviceGetGpuInstanceId(instance)]") == ["GPU-a", 9]


# -------------------------------------------------------------------------------- what is not there


def test_error_in_a_window(two: "FakeNvml") -> None:
    """A call, a field or all calls about a GPU fail for a time; other GPUs' calls do not."""
    two.script(0, "power", 50)
    two.script(1, "power", 60)
    two.script(0, "link:0:tx", 1)
    two.answer("nvmlDeviceGetPowerUsage", 999, gpu=0, since=1, until=1.5)
    two.answer("field:202", 4, gpu=0, since=1.25)
    two.answer("*", GPU_IS_LOST, gpu=0, since=2, until=3)
    times = (0, 1, 1.49, 1.5, 2, 2.99, 3)
    power = f"[[at(t, code, nvmlDeviceGetPowerUsage, gpu) for t in {times}] for gpu in (a, b)]"
    assert said(two, power) == [[0, 999, 999, 0, GPU_IS_LOST, GPU_IS_LOST, 0], [0] * 7]
    assert [x[0] > 0 for x in said(two, "[at(t, fields, a, (202, 0)) for t in (1, 1.3)]")] == [
        True,
        False,
    ]
    assert said(two, "at(2.5, code, nvmlDeviceGetUUID, a)") == GPU_IS_LOST


def test_call_that_lingers(two: "FakeNvml") -> None:
    """A slow call sleeps and a costly one uses CPU, each in its window; other threads go on."""
    for gpu in (0, 1):
        two.script(gpu, "power", 50)
        two.script(gpu, "active", 50)
    two.slow("nvmlDeviceGetPowerUsage", 1000, gpu=0, since=1)
    two.slow("nvmlDeviceGetUUID", 0.2, gpu=0)
    two.cost("nvmlDeviceGetUtilizationRates", 20_000, gpu=1, until=5)
    assert said(two, "t = time.monotonic()", "nvmlDeviceGetUUID(a)", "time.monotonic() - t") >= 0.2
    assert (
        said(
            two,
            "t = time.thread_time()",
            "nvmlDeviceGetUtilizationRates(b)",
            "time.thread_time() - t",
        )
        >= 0.02
    )
    hang = "threading.Thread(target=at, args=(1, nvmlDeviceGetPowerUsage, a), daemon=True).start()"
    assert said(
        two,
        "before = at(0.5, nvmlDeviceGetPowerUsage, a)",
        hang,
        "[before, nvmlDeviceGetPowerUsage(b)]",
    ) == [
        50_000,
        50_000,
    ]


# -------------------------------------------------------------------------------------------- clock


def test_clock(two: "FakeNvml") -> None:
    """The script runs by time.monotonic(); before it begins and without a clock it is second 0."""
    two.script(0, "power", {0: 10, 1: 20})
    assert said(two, "nvmlDeviceGetPowerUsage(a)") == 10_000
    two.freeze(1)
    assert said(two, "nvmlDeviceGetPowerUsage(a)") == 20_000
    two.begin_script(time.monotonic() + 1000)
    energy = said(two, "nvmlDeviceGetTotalEnergyConsumption(a)")
    began = two.begin_script(time.monotonic() - 100)
    earliest, got, latest = said(
        two, "[time.monotonic(), nvmlDeviceGetTotalEnergyConsumption(a), time.monotonic()]"
    )
    window = [two.integral(0, "power", 0, now - began) * 1000 for now in (earliest, latest)]
    assert window[0] - 1 <= got - energy <= window[1] + 1
    assert window[0] > 1_900_000
    assert two.begin_script() <= time.monotonic()


def test_script_that_changes(two: "FakeNvml") -> None:
    """A changed script counts from a process's next call on, however soon it changes again."""
    lines = "for line in sys.stdin: print(nvmlDeviceGetPowerUsage(a), flush=True)"
    reader = subprocess.Popen(
        [sys.executable, "-c", f"{PRELUDE}\nimport sys\n{lines}"],
        env=os.environ | two.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    for watts in range(1, 100):
        two.script(0, "power", 999)
        two.script(0, "power", watts)
        reader.stdin.write("\n")
        reader.stdin.flush()
        assert int(reader.stdout.readline()) == watts * 1000
    reader.communicate()
    assert reader.returncode == 0
