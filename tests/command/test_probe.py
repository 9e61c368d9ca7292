"""What this machine is, through NVML: every described machine, MIG, faults, and the cache."""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import Launcher
from values import cases

from gpulaunch.machine.catalog import load_described_machine

if TYPE_CHECKING:
    from fake_nvml import FakeNvml


pytest_plugins = ("fake_nvml",)

NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, GPU_IS_LOST, UNKNOWN = 3, 4, 13, 15, 999
SHOW_GPUS = ("sh", "-c", "echo $CUDA_VISIBLE_DEVICES")

RULE = "a process can use one MIG instance at most, and only those would do"
HERE = os.uname().nodename

SPLIT = str(Path(__file__).with_name("split.toml"))


def discovered(launcher: Launcher, *options: str) -> dict:
    done = launcher.run("topo", "--json", *options)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def check_as_described(launcher: Launcher, nvml: "FakeNvml", machine: str) -> None:
    """Check that a machine of which NVML tells is discovered as it is described.

    Its GPUs' addresses on the bus and peer-to-peer are in no description.
    """
    nvml.tell_of(load_described_machine(machine)[0])
    got, want = discovered(launcher), discovered(launcher, "--topology", machine)
    for document in (got, want):
        for gpu in document["gpus"]:
            del gpu["pci_address"]
        for link in document["links"]:
            del link["peer_to_peer"]
    assert (got["gpus"], got["links"]) == (want["gpus"], want["links"])


@pytest.mark.parametrize("name", ["dgx-a100", "gh200-4", "rtx-a6000-4", "rtx-5090-8"])
def test_round_trip(launcher: Launcher, nvml: "FakeNvml", name: str) -> None:
    """A described machine that NVML tells of is discovered as it was described."""
    check_as_described(launcher, nvml, name)


@pytest.fixture
def split(nvml: "FakeNvml") -> None:
    """Describe three A100, two of them in MIG mode."""
    nvml.tell_of(load_described_machine(SPLIT)[0])


# MIG


def test_mig_round_trip(launcher: Launcher, nvml: "FakeNvml") -> None:
    """MIG instances are GPUs with identity, memory, number and their cards' links.

    They are found where NVML does not say how many of them a card may have, too.
    """
    check_as_described(launcher, nvml, SPLIT)
    found = discovered(launcher)
    nvml.answer("nvmlDeviceGetMaxMigDeviceCount", UNKNOWN)
    forget(launcher)
    assert discovered(launcher) == found
    assert [(gpu["index"], gpu["uuid"], gpu["memory_bytes"] >> 20) for gpu in found["gpus"]] == [
        (1, "GPU-split-1", 81920),
        (103, "MIG-split-0-3", 9728),
        (105, "MIG-split-0-5", 9728),
        (300, "MIG-split-2-0", 40192),
        (301, "MIG-split-2-1", 9728),
    ]
    links = {(x["a"], x["b"]): (x["path"], x["nvlink_count"]) for x in found["links"]}
    assert (links[1, 103], links[103, 300], links[103, 105]) == (
        ("NVL", 12),
        ("NVL", 12),
        ("PIX", 0),
    )


@pytest.mark.usefixtures("split")
def test_choice_of_an_instance(launcher: Launcher) -> None:
    """A job gets a whole GPU, or an instance if it asks for what only those are; always by UUID.

    Several MIG instances for one job are refused, with CUDA's rule as the reason. The beginning of
    several instances' UUIDs names none of them, even if all are of one card.
    """
    for options, want in (
        ((), "GPU-split-1"),
        (("--gpu-model", "3g.40gb"), "MIG-split-2-0"),
        (("--only", "0"), "MIG-split-0-3"),
        (("--only", "105"), "MIG-split-0-5"),
        (("--only", "2", "--memory", "10GiB"), "MIG-split-2-0"),
        (("--exclude", "1"), "MIG-split-0-3"),
        (("-n", "all"), "GPU-split-1"),
    ):
        done = launcher.run(*options, "--", *SHOW_GPUS)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{want}\n", "")
    for options, why in (
        (("-n", "2", "--gpu-model", "1g.10gb"), f"2 GPUs requested: {RULE}"),
        (("-n", "2"), f"1 of {HERE}'s 5 are whole GPUs, the others MIG instances"),
        (("--only", "MIG-split-0"), "'MIG-split-0' fits 2 GPUs of"),
    ):
        done = launcher.run(*options, "--", "echo", "ran")
        assert (done.returncode, done.stdout, why in done.stderr) == (2, "", True), done.stderr


@pytest.mark.usefixtures("split")
def test_instance_in_use(launcher: Launcher, nvml: "FakeNvml") -> None:
    """A process on one instance is use of that one, and its neighbours on the card are free.

    People read card:instance everywhere: in status, in explanations, in what --verbose says.
    """
    nvml.add(f"process 1003 {os.getpid()} 300")
    job = ("--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; read x")
    with launcher.start("--only", "0", "-v", "--explain", *job, stdin=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == "MIG-split-0-5\n"
        table = launcher.run("status").stdout
        _, told = holder.communicate("")
    assert " free: 1,2:0,2:1 (" in table
    assert "  0:5  " in table
    assert "GPU 0:5 of" in told
    assert "0:5 is the only set of free GPUs that fits" in told


def test_use_of_an_instance(launcher: Launcher, nvml: "FakeNvml", tmp_path: Path) -> None:
    """What an instance uses is measured through its card, by the instance's own number."""
    card = {"uuid": "GPU-a", "name": "H100", "cc": "9.0", "mig": 1, "gpm": 1}
    nvml.describe([card], ["gpu 1000 uuid=MIG-a name=H100_MIG_1g.10gb memory_mib=9728 gi=9"])
    nvml.script(0, "sm", 90)
    nvml.script(1000, "sm", 40)
    nvml.begin_script()
    path = tmp_path / "job.toml"
    assert launcher.run("profile", "measure", "-o", str(path), "--", "sleep", "1").returncode == 0
    assert "\nsm_utilization_percentage = 40.0\n" in path.read_text()


def test_card_that_is_split_while_it_is_leased(launcher: Launcher, nvml: "FakeNvml") -> None:
    """The instances of a card that was leased whole before it was split are its holder's.

    A launch that has waited for the card since then does not get it whole.
    """
    nvml.describe([{"uuid": "GPU-a", "name": "A100", "mig": 0}], [])
    wait = ("--wait-timeout", "1s", "--only", "0", "--", "echo", "ran")
    with launcher.start("--", "sh", "-c", "echo held; read line", stdin=subprocess.PIPE) as holder:
        holder.stdout.readline()
        with launcher.start(*wait) as waiter:
            assert "waiting as number 1" in waiter.stderr.readline()
            nvml.change(0, mig=1)
            nvml.add("gpu 1000 uuid=MIG-a name=A100_MIG_1g.10gb memory_mib=9728")
            assert launcher.run("--", "true").returncode == 75
            (gpu,) = json.loads(launcher.run("status", "--json").stdout)["gpus"]
            assert gpu["state"] == "leased"
            holder.communicate("")
            assert (waiter.communicate()[0], waiter.returncode) == ("", 124)
    assert launcher.run("--", *SHOW_GPUS).stdout == "MIG-a\n"


# What the driver says of links


def pair(nvml: "FakeNvml", *lines: str, **values: object) -> None:
    """Describe two GPUs with these facts."""
    gpu = {"name": "NVIDIA H100", "memory_mib": 81920, "cc": "9.0", "gen": 5, "width": 16} | values
    nvml.describe(
        [gpu | {"uuid": f"GPU-{i}", "pci": f"ffff:{i + 1:02x}:00"} for i in range(2)], lines
    )


def forget(launcher: Launcher) -> None:
    """Let the machine be read anew."""
    cached(launcher).unlink(missing_ok=True)


def link(launcher: Launcher) -> dict:
    return discovered(launcher)["links"][0]


# nvml.h counts 3.0, 3.1, 4.0, 5.0, 6.0 as 4, 5, 6, 7, 8; drivers of 2023 and 2024 as 5, 6, 7, 8.
VERSIONS = {
    "H100": ("9.0", 18, "peer=switch version=6 speed=26562", (4, 450, 370.8)),
    "GB200, old": ("10.0", 18, "peer=switch version=8 speed=53125", (5, 900, 721.8)),
    "RTX A6000, old": ("8.6", 4, "peer={} version=6 speed=14062", (3, 56.25, 48)),
    "V100, old": ("7.0", 2, "peer={} version=4", (2, 50, 40)),
    "P100": ("6.0", 4, "peer={} version=99", (1, 80, 72)),
    "its own speed": ("9.0", 1, "peer={} version=6 speed=53125", (4, 53.125, 42.5)),
}


@cases(VERSIONS, "capability", "links", "said", "want")
def test_version_of_nvlinks(
    launcher: Launcher,
    nvml: "FakeNvml",
    capability: str,
    links: int,
    said: str,
    want: tuple[int, float, float],
) -> None:
    """NVLinks have the version of their cards' capability, whatever number the driver has for it.

    Their speed is what the driver says, or their version's if only the raw rate differs.
    """
    ends = [f"nvlink {a} {n} {said.format(1 - a)}" for a in (0, 1) for n in range(links)]
    pair(nvml, *ends, cc=capability)
    found = discovered(launcher)
    one = found["links"][0]
    got = (one["bandwidth_gb_per_s"], one["nvlink_planned_gb_per_s"])
    assert (found["gpus"][0]["nvlink_version"], *got) == pytest.approx(want)


def test_unknown_compute_capability(launcher: Launcher, nvml: "FakeNvml") -> None:
    """Of a card without a known capability NVML's number tells, as nvml.h counts.

    A later number counts as the newest, and none as the oldest.
    """
    for number, want in {1: 20, 2: 25, 6: 25, 7: 50, 99: 50, None: 20}.items():
        pair(nvml, *(f"nvlink {a} 0 peer={1 - a} version={number or 9}" for a in (0, 1)), cc="13.0")
        if number is None:
            nvml.answer("nvmlDeviceGetNvLinkVersion", NOT_SUPPORTED)
            nvml.answer("nvmlDeviceGetCudaComputeCapability", NOT_SUPPORTED)
        forget(launcher)
        assert link(launcher)["bandwidth_gb_per_s"] == want, number


TO_SWITCH = [f"nvlink {gpu} {n} peer=switch version=6" for gpu in (0, 1) for n in (0, 1)]
TO_PEER = [f"nvlink {gpu} {n} peer={1 - gpu} version=6" for gpu in (0, 1) for n in (0, 1)]
SPEEDS = [
    f"nvlink {gpu} {n} peer={1 - gpu} version=6 hopper speed={speed} state={state}"
    for gpu in (0, 1)
    for n, speed, state in ((0, 14000, 0), (1, 20000, 1), (2, 14000, 2))
]


def silent(function: str, code: int, *gpus: int) -> list[str]:
    """Return lines by which a function does not answer about these GPUs."""
    return [f"error {function} {gpu} {code}" for gpu in gpus]


KIND, PLACE = "nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkRemotePciInfo_v2"
LINKS = {
    "the slowest of NVLinks counts for all, and one that sleeps is up": (SPEEDS, "nvlink", 2, 28),
    "NVLinks into a CPU join no two GPUs": (["nvlink 0 0 peer=cpu version=2"], "pcie", 0, 37.44),
    "a hidden switch": ([*TO_SWITCH, *silent(KIND, 3, 0, 1)], "nvswitch", 2, 50),
    "a device that tells not even its address": (
        *([*TO_SWITCH, *silent(KIND, 3, 0, 1), *silent(PLACE, 3, 0, 1)], "pcie", 0, 37.44),
    ),
    "the first end does not tell": ([*TO_PEER, *silent(PLACE, 3, 0)], "nvlink", 2, 50),
    "the second end does not tell": ([*TO_PEER, *silent(PLACE, 3, 1)], "nvlink", 2, 50),
    "a card is lost, and the other end may be that": (
        [
            *("gpu 2 uuid=GPU-2 name=A100", *TO_SWITCH, *silent(KIND, NOT_SUPPORTED, 0, 1)),
            *silent("nvmlDeviceGetHandleByIndex_v2", GPU_IS_LOST, 2),
        ],
        *("pcie", 0, 37.44),
    ),
    "near cards": (["ancestor 0 1 10", "p2p 0 1 0"], "pcie", 0, 48),
    "near cards that cannot read each other": (["ancestor 0 1 10", "p2p 0 1 2"], "pcie", 0, 36),
}


@cases(LINKS, "lines", "kind", "count", "gb_per_s")
def test_what_joins_two_gpus(
    launcher: Launcher, nvml: "FakeNvml", lines: list[str], kind: str, count: int, gb_per_s: float
) -> None:
    """Whatever the driver tells of two GPUs' links, they have those that it is sure of.

    Memory of one node next to a GPU tells its node; of several it tells none.
    """
    pair(nvml, *lines, numa="1")
    nvml.change(1, numa="0-1")
    found = json.loads(launcher.run("topo", "--json").stdout)
    one = found["links"][0]
    got = (one["kind"], one["nvlink_count"], one["bandwidth_gb_per_s"])
    assert got == (kind, count, gb_per_s)
    cpu_links = sum("peer=cpu" in line for line in lines)
    assert [gpu["nvlinks_to_cpu"] for gpu in found["gpus"]] == [cpu_links, 0]
    assert [gpu["numa_node"] for gpu in found["gpus"]] == [1, None]


def test_compute_mode(launcher: Launcher, nvml: "FakeNvml") -> None:
    """A GPU whose compute mode forbids everybody to use it is not granted.

    One for one process at a time is, and doctor names its mode. A client of an MPS server is use
    outside gpulaunch.
    """
    pair(nvml, mode=2)
    nvml.change(1, mode=3)
    done = launcher.run("-n", "2", "--", "true")
    assert (done.returncode, done.stdout) == (75, "")
    assert "1 is out of service (GPU 0: compute mode Prohibited)" in done.stderr
    assert launcher.run("--", *SHOW_GPUS).stdout == "1\n"
    alone = launcher.environment | {"PATH": ""}  # without Podman's answers
    found = json.loads(launcher.run("doctor", "--json", env=alone).stdout)["findings"]
    texts = [finding["text"] for finding in found if finding["subject"] == "compute mode"]
    assert "GPU 1: EXCLUSIVE_PROCESS" in texts
    pair(nvml, f"mps 0 {os.getpid()} 300")
    assert launcher.run("--", *SHOW_GPUS).stdout == "1\n"


# Garbage


def test_garbage(launcher: Launcher, nvml: "FakeNvml") -> None:
    """An answer that is no text is no answer; a GPU without a UUID is left out with a warning."""
    pair(nvml, "garbage nvmlDeviceGetName 0", "garbage nvmlDeviceGetPciBusId 1")
    models = [gpu["model"] for gpu in discovered(launcher)["gpus"]]
    assert models == ["unknown", "NVIDIA H100"]
    nvml.add("garbage nvmlDeviceGetUUID 0")
    nvml.change(1, uuid="GPU\x01\x7f")
    done = launcher.run("--", *SHOW_GPUS)
    left_out = [f"GPU {gpu} is left out: it has no UUID" for gpu in (0, 1)]
    assert (done.returncode, done.stdout) == (125, "")
    assert f"NVML lists no GPU in service; {'; '.join(left_out)}\n" in done.stderr


# What is remembered


def cached(launcher: Launcher) -> Path:
    return Path(launcher.environment["XDG_RUNTIME_DIR"], "gpulaunch.topology.json")


@pytest.fixture
def warm(launcher: Launcher, nvml: "FakeNvml") -> "FakeNvml":
    """Describe two GPUs, which the cache knows with two NVLinks, and which have lost them since."""
    pair(nvml, *(f"nvlink {a} {n} peer={1 - a} version=6" for a in range(2) for n in range(2)))
    discovered(launcher)
    nvml.drop("nvlink ")
    return nvml


BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
CPUS = json.dumps(sorted(os.sched_getaffinity(0)), separators=(",", ":"))
MIG = "gpu 2000 uuid=MIG-b name=A_MIG_1g.5gb"
TOLD = {
    "driver": lambda nvml: nvml.add("driver 570.1"),
    "new card": lambda nvml: nvml.change(1, uuid="GPU-new"),
    "index": lambda nvml: nvml.swap(0, 1),
    "odd answer": lambda nvml: nvml.answer("nvmlDeviceGetMigMode", UNKNOWN),
    "mig": lambda nvml: (nvml.change(1, mig=1), nvml.add(MIG)),
}
WRITTEN = {
    "boot": (BOOT, "another"),
    "other version": ('"key":[["index"', '"key":[["number"'),
    "cpus": (CPUS, "[7]"),
    "damage": ('"topology":[', '"topology":[['),
}


@pytest.mark.parametrize("change", [*TOLD, *WRITTEN, "age", "future", "writable"])
def test_forgotten(launcher: Launcher, warm: "FakeNvml", change: str) -> None:
    """What was read once is not read again, unless what it depends on has changed.

    A changed list, driver or boot, age, damage, or a file that others can write empties the cache.
    """
    cache = cached(launcher)
    assert cache.stat().st_mode & 0o777 == 0o600
    assert link(launcher)["nvlink_count"] == 2
    if change in TOLD:
        TOLD[change](warm)
    elif change in WRITTEN:
        text = cache.read_text()
        assert WRITTEN[change][0] in text
        cache.write_text(text.replace(*WRITTEN[change], 1))
    elif change == "writable":
        cache.chmod(0o666)
    else:
        seconds = {"age": 901, "future": -60}[change]
        os.utime(cache, (time.time() - seconds,) * 2)
    assert link(launcher)["nvlink_count"] == 0


def test_instance_of_another_size(launcher: Launcher, nvml: "FakeNvml") -> None:
    """A MIG instance that was made anew in another size, under the same UUID, is read again."""
    nvml.describe(
        [{"uuid": "GPU-a", "name": "A100", "mig": 1}],
        ["gpu 1000 uuid=MIG-a name=A_MIG_3g.20gb memory_mib=19968"],
    )
    discovered(launcher)
    nvml.drop("gpu 1000 ")
    nvml.add("gpu 1000 uuid=MIG-a name=A_MIG_1g.5gb memory_mib=4864")
    assert discovered(launcher)["gpus"][0]["memory_bytes"] == 4864 << 20


def test_passing_failure_is_not_remembered(launcher: Launcher, nvml: "FakeNvml") -> None:
    """What a call failed to tell in earnest is asked again the next time.

    A GPU that is lost while its paths are asked for is left out, and that is not cached.
    """
    pair(nvml, "ancestor 0 1 10", f"error nvmlDeviceGetTopologyCommonAncestor 0 {UNKNOWN}")
    assert link(launcher)["path"] == "SYS"
    nvml.drop("error ")
    assert link(launcher)["path"] == "PIX"
    forget(launcher)
    nvml.add(f"error nvmlDeviceGetTopologyCommonAncestor 0 {GPU_IS_LOST}")
    for _ in range(2):
        done = launcher.run("-n", "all", "--", *SHOW_GPUS)
        want = "gpulaunch: warning: GPU 0 is left out: GPU is lost\n"
        assert (done.returncode, done.stdout, done.stderr) == (0, "GPU-1\n", want)


@pytest.mark.usefixtures("warm")
def test_nowhere_to_remember(launcher: Launcher) -> None:
    """Where nothing can be kept, everything works, by reading anew."""
    runtime = Path(launcher.environment["XDG_RUNTIME_DIR"])
    for file in runtime.iterdir():
        file.unlink()
    Path(runtime, "gpulaunch.topology.json.lock").mkdir()
    Path(runtime, "gpulaunch.topology.json").mkdir()
    assert link(launcher)["nvlink_count"] == 0


# Memory that is the system's


def spark(nvml: "FakeNvml", code: int = NOT_SUPPORTED) -> None:
    """Describe a DGX Spark, whose GPU has no memory but the system's."""
    nvml.describe([{"uuid": "GPU-gb10", "name": "NVIDIA GB10", "cc": "12.1"}], [])
    for function in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"):
        nvml.answer(function, code)


def test_unified_memory(launcher: Launcher, nvml: "FakeNvml") -> None:
    """A GPU without memory of its own has the system's, of which what is available is free.

    Memory that a driver fails to tell stays unknown: it is not taken for the system's.
    """
    spark(nvml)
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total = int(fields["MemTotal"].split()[0]) << 10
    (gpu,) = discovered(launcher)["gpus"]
    assert gpu["memory_bytes"] == total
    assert launcher.run("--memory", f"{total}", "--", *SHOW_GPUS).stdout == "0\n"
    assert launcher.run("--memory", f"{total + 1}", "--", *SHOW_GPUS).returncode == 2
    (told,) = json.loads(launcher.run("status", "--json").stdout)["gpus"]
    assert told["memory_total_bytes"] == total
    assert 0 < told["memory_used_bytes"] < total
    assert "MemoryInfo" not in launcher.run("doctor").stdout
    for code in (NO_PERMISSION, FUNCTION_NOT_FOUND):
        spark(nvml, code)
        forget(launcher)
        (gpu,) = discovered(launcher)["gpus"]
        assert gpu["memory_bytes"] is None, code
