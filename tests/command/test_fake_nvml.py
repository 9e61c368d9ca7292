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
MIB_PER_GB = GB / 2**20
ALL_LINKS = 2**32 - 1

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


@pytest.mark.parametrize(
    ("key", "call", "unit"),
    [
        ("power", "nvmlDeviceGetPowerUsage(a)", 1000),
        ("used_mib", "nvmlDeviceGetMemoryInfo(a).used", 2**20),
        ("used_mib", "nvmlDeviceGetMemoryInfo(a, version=nvmlMemory_v2).used", 2**20),
    ],
)
def test_value_of_the_moment(two: "FakeNvml", key: str, call: str, unit: int) -> None:
    """Power and memory are those of the moment: 0 before the first value, each until the next."""
    two.script(0, key, "1:70,1.5:300")
    times = (0, 0.99, 1, 1.499, 1.5, 1000)
    assert said(two, f"[at(t, lambda: {call}) for t in {times}]") == [
        x * unit for x in (0, 0, 70, 70, 300, 300)
    ]


def test_value_that_repeats(two: "FakeNvml") -> None:
    """With a period, it begins anew."""
    two.script(0, "power", {0: 300, 0.25: 70}, period=1)
    times = (0, 0.25, 0.9, 1, 1.25, 1000.1, 1000.3)
    got = said(two, f"[at(t, nvmlDeviceGetPowerUsage, a) // 1000 for t in {times}]")
    assert got == [300, 70, 70, 300, 70, 300, 70]


def test_utilization(two: "FakeNvml") -> None:
    """Utilization is the last sixth of a second's mean, floored percent; memory untold is 0."""
    two.script(0, "active", {0: 100, 1: 0, 2: 59.9})
    two.script(0, "memactive", {0: 33, 1: 8})
    two.script(1, "active", 7)
    rates = said(
        two,
        "u = lambda t, gpu: (lambda rates: [rates.gpu, rates.memory])(at(t, "
        "nvmlDeviceGetUtilizationRates, gpu))",
        "[u(t, a) for t in (0, 0.1, 1, 1 + 1/12, 1 + 1/6, 2.5)] + [u(1, b)]",
    )
    assert rates == [[100, 33], [100, 33], [100, 33], [50, 20], [0, 8], [59, 8], [7, 0]]


def test_power_cap(two: "FakeNvml") -> None:
    """Lowered clocks count as the power cap's violation time, and give the reason meanwhile."""
    two.change(0, limit=700)
    two.script(0, "capped", {0: 0, 1: 1, 1.5: 0})
    first, second, third = said(
        two,
        "def cap():",
        "    v = nvmlDeviceGetViolationStatus(a, NVML_PERF_POLICY_POWER)",
        "    now = nvmlDeviceGetCurrentClocksEventReasons(a), "
        "nvmlDeviceGetCurrentClocksThrottleReasons(a)",
        "    return [v.referenceTime, v.violationTime, *fields(a, NVML_FI_DEV_PERF_POLICY_POWER), "
        "*now]",
        "[at(t, cap) for t in (0.5, 1.25, 3)]",
    )
    assert [second[0] - first[0], third[0] - first[0]] == [750_000, 2_500_000]  # us
    assert [second[1] - first[1], third[1] - first[1]] == [250_000_000, 500_000_000]  # ns
    assert [row[1] == row[2] for row in (first, second, third)] == [True] * 3
    assert [row[3:] for row in (first, second, third)] == [[0, 0], [4, 4], [0, 0]]
    assert said(two, "nvmlDeviceGetEnforcedPowerLimit(a)") == 700_000
    assert (
        said(two, "code(nvmlDeviceGetViolationStatus, a, NVML_PERF_POLICY_THERMAL)")
        == NOT_SUPPORTED
    )


def test_pcie_throughput(two: "FakeNvml") -> None:
    """PCIe throughput in KB/s is the mean of the last 20 ms, each way."""
    two.script(0, "pcie_tx", {0: 2, 1: 10})
    two.script(0, "pcie_rx", 0.5)
    got = said(
        two,
        "[at(t, nvmlDeviceGetPcieThroughput, a, way) for t in (0, 0.9, 1.005, 2) for way in (0, "
        "1)]",
    )
    assert got == [2_000_000, 500_000, 2_000_000, 500_000, 4_000_000, 500_000, 10_000_000, 500_000]


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
    assert said(two, "at(3.5, fields, b, NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION)") == [
        said(two, "at(3.5, nvmlDeviceGetTotalEnergyConsumption, b)")
    ]
    assert said(two, "at(3, fields, a, NVML_FI_DEV_POWER_INSTANT)") == [300_000]


def test_byte_counters(two: "FakeNvml") -> None:
    """PCIe and NVLink counters grow by the traffic, per link or for all; a field may be missing."""
    two.script(0, "pcie_tx", 4)
    two.script(0, "pcie_rx", {0: 0, 1: 1})
    two.script(0, "link:0:tx", 8)
    two.script(0, "link:35:tx", {1: 2.048})
    two.script(0, "link:35:rx", 1)
    ids = [
        197,
        198,
        (138, 0),
        (138, 35),
        (138, ALL_LINKS),
        (202, ALL_LINKS),
        (202, 35),
        (139, 35),
        (204, ALL_LINKS),
        90,
    ]
    first, second = said(two, f"[at(t, fields, a, *{ids}) for t in (1, 3)]")
    grown = [b - a for a, b in zip(first, second, strict=True)]
    pcie, kib = (
        [8 * GB, 2 * GB],
        [16 * GB // 1024, 4 * GB * 1.024 / 1024, (16 * GB + 4.096 * GB) / 1024],
    )
    assert grown[:9] == [*pcie, *kib, 20.096 * GB, 4.096 * GB, 2 * GB // 1024, 2 * GB]
    assert first[9] == -NOT_SUPPORTED
    assert min(first[:9]) > GB  # they have counted before
    assert (
        said(two, f"fields(a, (138, 3), (139, 0), (9999, 0)) + fields(b, 197, (138, {ALL_LINKS}))")
        == [-3] * 5
    )
    types = "[value.valueType for value in nvmlDeviceGetFieldValues(a, [197, (138, 0)])]"
    assert said(two, types) == [3, 3]  # NVML_VALUE_TYPE_UNSIGNED_LONG_LONG


def test_true_mean(two: "FakeNvml") -> None:
    """`mean` and `integral` are those of the script, one link's or all links', through periods."""
    two.script(0, "sm", {0.5: 80, 0.75: 40}, period=1)
    two.script(0, "link:1:tx", 3)
    two.script(0, "link:12:tx", {0: 0, 2: 5})
    assert two.mean(0, "sm", 0, 1) == two.mean(0, "sm", 7, 9) == 30
    assert two.integral(0, "sm", 10.5, 11.75) == 20 + 10 + 20
    assert (two.mean(0, "link:12:tx", 1, 3), two.mean(0, "link:*:tx", 1, 3)) == (2.5, 5.5)


# ---------------------------------------------------------------------------------------------- GPM


def test_gpm_is_the_mean_between_samples(two: "FakeNvml") -> None:
    """A metric is the exact mean between samples: percent, or MiB/s of one link or of all."""
    chance = random.Random(4)
    keys = {
        1: "active",
        2: "sm",
        3: "occupancy",
        10: "dram",
        20: "pcie_tx",
        21: "pcie_rx",
        60: "link:*:rx",
    }
    keys |= {
        61: "link:*:tx",
        62: "link:0:rx",
        63: "link:0:tx",
        97: "link:17:tx",
        212: "link:18:rx",
        406: "link:36:tx",
    }
    for key in keys.values():
        if "*" not in key:
            two.script(
                1,
                key,
                {x / 4: chance.randint(0, 100) for x in range(8)},
                period=chance.choice([None, 2]),
            )
    windows = [(0, 0.1), (0.3, 1.45), (2, 20.125)]
    got = said(two, f"[gpm(sample(s, b), sample(t, b), *{[*keys]}) for s, t in {windows}]")
    want = [
        [two.mean(1, key, *window) * (MIB_PER_GB if id_ >= 20 else 1) for id_, key in keys.items()]
        for window in windows
    ]
    assert got == [exactly(row) for row in want]


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


def test_gpm_touches_no_more_than_asked(two: "FakeNvml") -> None:
    """A query writes only the metrics it asks for, as their array's length varies."""
    two.script(0, "sm", 30)
    got = said(
        two,
        "class Short(ctypes.Structure):",
        "    _fields_ = [*c_nvmlGpmMetricsGet_t._fields_[:-1], ('metrics', c_nvmlGpmMetric_t * 2)]",
        "short = Short(version=1, numMetrics=1, sample1=sample(0, a), sample2=sample(1, a))",
        "short.metrics[0].metricId = short.metrics[1].metricId = 2",
        "short.metrics[1].nvmlReturn, short.metrics[1].value = 77, 78",
        "nvmlGpmMetricsGet(short)",
        "[[metric.nvmlReturn, metric.value] for metric in short.metrics]",
    )
    assert got == [[0, 30], [77, 78]]


def test_mig_instance(two: "FakeNvml") -> None:
    """A MIG instance has only memory and, through its card, GPM; neither has utilization."""
    two.change(0, mig=1)
    two.add(
        "gpu 1000 uuid=MIG-a memory_mib=9728 used_mib=5 gi=9", "gpu 1001 uuid=MIG-b memory_mib=9728"
    )
    for key in ("active", "power", "sm", "capped"):
        two.script(1000, key, 40)
        two.script(0, key, 50)
    two.script(1001, "used_mib", {1: 3})
    instance = (
        "instance, other = (nvmlDeviceGetMigDeviceHandleByIndex(a, index) for index in (0, 1))"
    )
    used = (
        "[at(t, nvmlDeviceGetMemoryInfo, x).used >> 20 for x in (instance, other) for t in (0, 1)]"
    )
    assert said(two, instance, used) == [5, 5, 0, 3]
    calls = (
        "nvmlDeviceGetUtilizationRates, nvmlDeviceGetPowerUsage, "
        "nvmlDeviceGetTotalEnergyConsumption"
    )
    calls += ", nvmlDeviceGetCurrentClocksEventReasons"
    assert (
        said(two, instance, f"[code(call, instance) for call in ({calls})]") == [NOT_SUPPORTED] * 4
    )
    assert said(two, "[code(nvmlDeviceGetUtilizationRates, a), nvmlDeviceGetPowerUsage(a)]") == [
        NOT_SUPPORTED,
        50000,
    ]
    assert said(
        two, "gpm(sample(0, a, 9), sample(1, a, 9), 2) + gpm(sample(0, a), sample(1, a), 2)"
    ) == [40, 50]
    assert (
        said(two, instance, "[code(sample, 0, a, 3), code(sample, 0, instance)]")
        == [INVALID_ARGUMENT] * 2
    )
    card = "nvmlDeviceGetUUID(nvmlDeviceGetDeviceHandleFromMigDeviceHandle(instance))"
    assert said(
        two, instance, f"[{card}, *map(nvmlDeviceGetGpuInstanceId, (instance, other))]"
    ) == ["GPU-a", 9, 1]


# -------------------------------------------------------------------------------- what is not there


def test_not_supported_without_a_script(two: "FakeNvml") -> None:
    """A GPU without a script supports none of the calls; its memory is what its line says."""
    two.script(1, "power", 50)
    calls = (
        "UtilizationRates PowerUsage TotalEnergyConsumption EnforcedPowerLimit "
        "CurrentClocksEventReasons"
    )
    assert (
        said(two, f"[code(globals()['nvmlDeviceGet' + x], a) for x in '{calls}'.split()]")
        == [NOT_SUPPORTED] * 5
    )
    assert said(
        two, "[code(nvmlDeviceGetViolationStatus, a, 0), code(nvmlDeviceGetPcieThroughput, a, 0)]"
    ) == [3, 3]
    assert said(two, "nvmlDeviceGetMemoryInfo(a).used >> 20") == 7


def test_error_in_a_window(two: "FakeNvml") -> None:
    """A call, a field or all calls about a GPU fail for a time; other GPUs' calls do not."""
    two.script(0, "power", 50)
    two.script(1, "power", 60)
    two.script(0, "pcie_tx", 1)
    two.answer("nvmlDeviceGetPowerUsage", 999, gpu=0, since=1, until=1.5)
    two.answer("field:197", 4, gpu=0, since=1.25)
    two.answer("*", GPU_IS_LOST, gpu=0, since=2, until=3)
    times = (0, 1, 1.49, 1.5, 2, 2.99, 3)
    power = f"[[at(t, code, nvmlDeviceGetPowerUsage, gpu) for t in {times}] for gpu in (a, b)]"
    assert said(two, power) == [[0, 999, 999, 0, GPU_IS_LOST, GPU_IS_LOST, 0], [0] * 7]
    assert [x[0] > 0 for x in said(two, "[at(t, fields, a, 197) for t in (1, 1.3)]")] == [
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


def test_script_of_no_such_key(two: "FakeNvml") -> None:
    """A misspelt key is told at once."""
    with pytest.raises(AssertionError, match="occupation"):
        two.script(0, "occupation", 5)
