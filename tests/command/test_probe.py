"""What this machine is, through NVML: every described machine, MIG, faults, and the cache."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tomlkit
from conftest import Launcher

from gpulaunch.files.toml import tomllib
from gpulaunch.machine.catalog import load_described_machine
from gpulaunch.machine.read_description import described_topology
from gpulaunch.machine.topology import Topology

if TYPE_CHECKING:
    from fake_nvml import FakeNvml


pytest_plugins = ("fake_nvml",)

NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, GPU_IS_LOST, UNKNOWN = 3, 4, 13, 15, 999
SHOW_GPUS = ("sh", "-c", "echo $CUDA_VISIBLE_DEVICES")

RULE = "a process can use one MIG instance at most, and only those would do"
HERE = os.uname().nodename

SPLIT = """
name = "split"
source = "made up: a card in MIG mode, one that is not, one in MIG mode with two kinds of instances"

[gpus]
count = 3
model = "NVIDIA A100-SXM4-80GB"
memory_mib = 81920
compute_capability = "8.0"

[nvlink]
version = 3
switch_links_per_gpu = 12

[pcie]
generation = 4
width = 16
peer_to_peer = true

[pcie.groups]
PXB = [[0, 1, 2]]

[[mig]]
gpu = 0
profile = "1g.10gb"
memory_mib = 9728
instances = [3, 5]

[[mig]]
gpu = 2
profile = "3g.40gb"
memory_mib = 40192
instances = [0]

[[mig]]
gpu = 2
profile = "1g.10gb"
memory_mib = 9728
instances = [1]
"""


def without_what_nvml_cannot_know(document: dict) -> dict:
    """Return a machine's description less what NVML cannot know, and with peer-to-peer known."""
    pcie = {key: value for key, value in document["pcie"].items() if key != "bandwidth_gb_per_s"}
    numa = [
        {key: value for key, value in node.items() if key != "memory_gb_per_s"}
        for node in document["numa"]
    ]
    return document | {"pcie": {"peer_to_peer": True} | pcie, "numa": numa}


def discovered(launcher: Launcher) -> dict:
    done = launcher.run("topo", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def described(launcher: Launcher, tmp_path: Path, document: dict) -> dict:
    """Return what `topo --json` says of a machine that is given as a file."""
    path = tmp_path / "machine.toml"
    path.write_text(tomlkit.dumps(document))
    return json.loads(launcher.run("topo", "--topology", str(path), "--json").stdout)


def comparable(document: dict) -> dict:
    """Leave out what differs by nature: names, where the facts come from, addresses on the bus."""
    gpus = [
        {key: value for key, value in gpu.items() if key != "pci_address"}
        for gpu in document["gpus"]
    ]
    return {"gpus": gpus, "links": document["links"]}


@pytest.mark.parametrize(
    "name",
    ["dgx1-v100", "dgx-a100", "gh200-4", "pcie-8gpu-workstation", "rtx-a6000-4", "summit"],
)
def test_round_trip(launcher: Launcher, nvml: "FakeNvml", tmp_path: Path, name: str) -> None:
    """A described machine that NVML tells of is discovered as it was described."""
    path = Path(load_described_machine(name)[1])
    document = without_what_nvml_cannot_know(tomllib.loads(path.read_text()))
    nvml.tell_of(described_topology(document, ""))
    assert comparable(discovered(launcher)) == comparable(described(launcher, tmp_path, document))


@pytest.fixture
def split(nvml: "FakeNvml") -> Topology:
    """Describe three A100, two of them in MIG mode."""
    topology = described_topology(tomllib.loads(SPLIT), "")
    nvml.tell_of(topology)
    return topology


# MIG


@pytest.mark.usefixtures("split")
def test_mig_round_trip(launcher: Launcher, tmp_path: Path) -> None:
    """MIG instances are GPUs with identity, memory, number and their cards' links."""
    found = discovered(launcher)
    assert comparable(found) == comparable(described(launcher, tmp_path, tomllib.loads(SPLIT)))
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
@pytest.mark.parametrize(
    ("options", "want"),
    [
        ((), "GPU-split-1"),
        (("--gpu-model", "1g.10gb"), "MIG-split-0-3"),
        (("--gpu-model", "3g.40gb"), "MIG-split-2-0"),
        (("--only", "0"), "MIG-split-0-3"),
        (("--only", "105"), "MIG-split-0-5"),
        (("--only", "GPU-split-2"), "MIG-split-2-1"),
        (("--only", "2", "--memory", "10GiB"), "MIG-split-2-0"),
        (("--exclude", "1"), "MIG-split-0-3"),
        (("-n", "all"), "GPU-split-1"),
    ],
)
def test_choice_of_an_instance(launcher: Launcher, options: tuple[str, ...], want: str) -> None:
    """A job gets a whole GPU, or an instance if it asks for what only those are; always by UUID."""
    done = launcher.run(*options, "--", *SHOW_GPUS)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{want}\n", "")


@pytest.mark.usefixtures("split")
@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("-n", "2", "--gpu-model", "1g.10gb"), f"2 GPUs requested: {RULE}"),
        (("-n", "all", "--gpu-model", "MIG"), f"4 GPUs requested: {RULE}"),
        (("-n", "2"), f"1 of {HERE}'s 5 are whole GPUs, the others MIG instances"),
        (("--only", "MIG-split-0"), "'MIG-split-0' fits 2 GPUs of"),
        (("--exclude", "MIG-split-0"), "'MIG-split-0' fits 2 GPUs of"),
    ],
)
def test_instances_do_not_work_together(
    launcher: Launcher, options: tuple[str, ...], why: str
) -> None:
    """Several MIG instances for one job are refused, with CUDA's rule as the reason.

    The beginning of several instances' UUIDs names none of them, even if all are of one card.
    """
    done = launcher.run(*options, "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (2, "")
    assert why in done.stderr


def test_instance_in_use(launcher: Launcher, nvml: "FakeNvml", split: Topology) -> None:  # noqa: ARG001
    """A process on one instance is use of that one, and its neighbours on the card are free.

    People read card:instance everywhere: in status, in explanations, in what --verbose says.
    """
    nvml.add(f"process 1003 {os.getpid()} 300")
    hold = (
        "--only",
        "0",
        "-v",
        "--explain",
        "--",
        "sh",
        "-c",
        "echo $CUDA_VISIBLE_DEVICES; read x",
    )
    with launcher.start(*hold, stdin=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == "MIG-split-0-5\n"
        table = launcher.run("status").stdout
        _, told = holder.communicate("")
    assert " free: 1,2:0,2:1 (" in table
    assert "  0:5  " in table
    assert "GPU 0:5 of" in told
    assert "0:5 is the only set of free GPUs that fits" in told


def test_card_that_is_split_while_it_is_leased(launcher: Launcher, nvml: "FakeNvml") -> None:
    """The instances of a card that was leased whole before it was split are its holder's."""
    nvml.describe([{"uuid": "GPU-a", "name": "A100", "mig": 0}], [])
    with launcher.start("--", "sh", "-c", "echo held; read line", stdin=subprocess.PIPE) as holder:
        holder.stdout.readline()
        nvml.change(0, mig=1)
        nvml.add("gpu 1000 uuid=MIG-a name=A100_MIG_1g.10gb memory_mib=9728")
        assert launcher.run("--", "true").returncode == 75
        (gpu,) = json.loads(launcher.run("status", "--json").stdout)["gpus"]
        assert gpu["state"] == "leased"
        holder.communicate("")
    assert launcher.run("--", *SHOW_GPUS).stdout == "MIG-a\n"


def test_card_that_is_split_while_somebody_waits_for_it(
    launcher: Launcher, nvml: "FakeNvml"
) -> None:
    """A launch that has waited for a card since before it was split does not get it whole."""
    nvml.describe([{"uuid": "GPU-a", "name": "A100", "mig": 0}], [])
    with launcher.start("--", "sh", "-c", "echo held; read line", stdin=subprocess.PIPE) as holder:
        holder.stdout.readline()
        with launcher.start("--wait-timeout", "1s", "--only", "0", "--", "echo", "ran") as waiter:
            assert "waiting as number 1" in waiter.stderr.readline()
            nvml.change(0, mig=1)
            nvml.add("gpu 1000 uuid=MIG-a name=A100_MIG_1g.10gb memory_mib=9728")
            holder.communicate("")
            out, _ = waiter.communicate()
    assert (waiter.returncode, out) == (124, "")


@pytest.mark.usefixtures("split")
def test_instances_have_no_future(launcher: Launcher) -> None:
    """Only the links of whole GPUs are preserved: no later job could use instances together."""
    options = ("--only", "0", "--dry-run", "--json", "--", "true")
    scores = json.loads(launcher.run(*options).stdout)["scores"]
    assert scores["preserved_bandwidth_gb_per_s"] == 0


@pytest.mark.usefixtures("split")
def test_number_of_instances_is_not_told(launcher: Launcher, nvml: "FakeNvml") -> None:
    """Where NVML does not say how many instances a card may have, they are found all the same."""
    for code in (NOT_SUPPORTED, FUNCTION_NOT_FOUND, UNKNOWN):
        nvml.answer("nvmlDeviceGetMaxMigDeviceCount", code)
        forget(launcher)
        assert len(discovered(launcher)["gpus"]) == 5
        nvml.drop("error ")


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


def test_speed_of_an_nvlink(launcher: Launcher, nvml: "FakeNvml") -> None:
    """A link's speed is what the driver says, or its version's if only the raw rate differs."""
    wanted = {"": 25.0, "speed=26562": 25.0, "speed=14062": 14.062, "speed=53125": 53.125}
    for said, want in wanted.items():
        pair(nvml, *(f"nvlink {a} 0 peer={1 - a} version=6 {said}" for a in range(2)))
        forget(launcher)
        assert link(launcher)["bandwidth_gb_per_s"] == want, said


def test_speed_of_each_nvlink(launcher: Launcher, nvml: "FakeNvml") -> None:
    """Drivers that tell the speed and state link by link are asked so; the slowest counts for all.

    A link that sleeps is up.
    """
    links = ((0, 14000, 0), (1, 20000, 1), (2, 14000, 2))
    said = (
        f"nvlink {a} {n} peer={1 - a} version=6 hopper speed={speed} state={state}"
        for a in range(2)
        for n, speed, state in links
    )
    pair(nvml, *said)
    assert (link(launcher)["nvlink_count"], link(launcher)["bandwidth_gb_per_s"]) == (2, 28.0)


def test_nvlinks_to_a_cpu(launcher: Launcher, nvml: "FakeNvml") -> None:
    """NVLinks into a CPU join no two GPUs, and are counted."""
    pair(nvml, "nvlink 0 0 peer=cpu version=2", "nvlink 0 1 peer=cpu version=2")
    assert link(launcher)["path"] == "SYS"
    assert [gpu["nvlinks_to_cpu"] for gpu in discovered(launcher)["gpus"]] == [2, 0]


def test_switch_that_is_hidden(launcher: Launcher, nvml: "FakeNvml") -> None:
    """Links to an unknown device that is no card go to an NVSwitch, as virtual machines see it.

    If not even its address is told, they join nothing that we know of.
    """
    pair(nvml, *(f"nvlink {gpu} {n} peer=switch version=6" for gpu in range(2) for n in range(3)))
    for code in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
        nvml.answer("nvmlDeviceGetNvLinkRemoteDeviceType", code)
        forget(launcher)
        assert (link(launcher)["kind"], link(launcher)["nvlink_count"]) == ("nvswitch", 3)
    nvml.answer("nvmlDeviceGetNvLinkRemotePciInfo_v2", NOT_SUPPORTED)
    forget(launcher)
    assert link(launcher)["kind"] == "pcie"


def test_one_end_tells(launcher: Launcher, nvml: "FakeNvml") -> None:
    """Where one of two GPUs does not tell where its NVLinks go, the other one's word is enough."""
    pair(nvml, *(f"nvlink {a} {n} peer={1 - a} version=6" for a in range(2) for n in range(2)))
    for silent in (0, 1):
        nvml.answer("nvmlDeviceGetNvLinkRemotePciInfo_v2", NOT_SUPPORTED, gpu=silent)
        forget(launcher)
        assert (link(launcher)["kind"], link(launcher)["nvlink_count"]) == ("nvlink", 2)
        nvml.drop("error ")


def test_switches_are_not_counted_as_peers(launcher: Launcher, nvml: "FakeNvml") -> None:
    """A link that ends in an NVSwitch joins no two GPUs, even at a GPU's address."""
    pair(nvml, "nvlink 0 0 peer=switch version=6", "nvlink 1 0 peer=switch version=6")
    nvml.change(1, pci="ffff:f0:00")
    assert (link(launcher)["kind"], link(launcher)["nvlink_count"]) == ("nvswitch", 1)


def test_numa_node(launcher: Launcher, nvml: "FakeNvml") -> None:
    """Memory of one node next to a GPU tells its node; of several it tells none."""
    pair(nvml, numa="1")
    nvml.change(1, numa="0-1")
    assert [gpu["numa_node"] for gpu in discovered(launcher)["gpus"]] == [1, None]


def test_lost_peer_is_no_switch(launcher: Launcher, nvml: "FakeNvml") -> None:
    """With a card lost, a link to something unknown may be one to that."""
    pair(nvml, *(f"nvlink {gpu} 0 peer=switch version=6" for gpu in range(2)))
    nvml.add("gpu 2 uuid=GPU-2 name=A100")
    nvml.answer("nvmlDeviceGetNvLinkRemoteDeviceType", NOT_SUPPORTED)
    nvml.add(f"error nvmlDeviceGetHandleByIndex_v2 2 {GPU_IS_LOST}")
    found = json.loads(launcher.run("topo", "--json").stdout)
    assert found["links"][0]["kind"] == "pcie"


def test_peer_to_peer(launcher: Launcher, nvml: "FakeNvml") -> None:
    """Cards that cannot read each other's memory go through the host's, however near they are."""
    for status, want in ((0, (True, 48.0)), (2, (False, 36.0))):
        pair(nvml, "ancestor 0 1 10", f"p2p 0 1 {status}")
        forget(launcher)
        assert (link(launcher)["peer_to_peer"], link(launcher)["bandwidth_gb_per_s"]) == want


def test_compute_mode(launcher: Launcher, nvml: "FakeNvml") -> None:
    """A GPU whose compute mode forbids everybody to use it is not granted.

    One for one process at a time is, and doctor names its mode.
    """
    pair(nvml, mode=2)
    nvml.change(1, mode=3)
    done = launcher.run("-n", "2", "--", "true")
    assert (done.returncode, done.stdout) == (75, "")
    assert "1 is out of service (GPU 0: compute mode Prohibited)" in done.stderr
    assert launcher.run("--", *SHOW_GPUS).stdout == "1\n"
    found = json.loads(launcher.run("doctor", "--json").stdout)["findings"]
    texts = [finding["text"] for finding in found if finding["subject"] == "compute mode"]
    assert "GPU 1: EXCLUSIVE_PROCESS" in texts


def test_mps_client(launcher: Launcher, nvml: "FakeNvml") -> None:
    """A client of an MPS server is use outside gpulaunch."""
    pair(nvml, f"mps 0 {os.getpid()} 300")
    done = launcher.run("--", *SHOW_GPUS)
    assert (done.stdout, done.stderr) == ("1\n", "")


# Garbage


def test_garbage(launcher: Launcher, nvml: "FakeNvml") -> None:
    """An answer that is no text is no answer."""
    pair(nvml, "garbage nvmlDeviceGetName 0", "garbage nvmlDeviceGetPciBusId 1")
    models = [gpu["model"] for gpu in discovered(launcher)["gpus"]]
    assert models == ["unknown", "NVIDIA H100"]


@pytest.mark.parametrize("fault", ["garbage nvmlDeviceGetUUID 0", "unprintable"])
def test_no_identity(launcher: Launcher, nvml: "FakeNvml", fault: str) -> None:
    """A GPU without a UUID cannot be leased, so it is left out with a warning."""
    pair(nvml, fault)
    if fault == "unprintable":
        nvml.change(0, uuid="GPU\x01\x7f")
    done = launcher.run("--", *SHOW_GPUS)
    want = "gpulaunch: warning: GPU 0 is left out: it has no UUID\n"
    assert (done.stdout, done.stderr) == ("GPU-1\n", want)


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


def written(edit: Callable[[str], str]) -> Callable[[Path, "FakeNvml"], object]:
    """Return a function that changes the cache's text."""
    return lambda path, _: path.write_text(edit(path.read_text()))


def aged(seconds: float) -> Callable[[Path, "FakeNvml"], object]:
    """Return a function that changes the cache's age."""
    return lambda path, _: os.utime(path, (time.time() - seconds,) * 2)


def split_one(_: Path, nvml: "FakeNvml") -> None:
    nvml.change(1, mig=1)
    nvml.add("gpu 2000 uuid=MIG-b name=A_MIG_1g.5gb")


BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
CPUS = json.dumps(sorted(os.sched_getaffinity(0)), separators=(",", ":"))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda _, nvml: nvml.add("driver 570.1"), id="driver"),
        pytest.param(lambda _, nvml: nvml.change(1, uuid="GPU-new"), id="new card"),
        pytest.param(lambda _, nvml: nvml.swap(0, 1), id="index"),
        pytest.param(split_one, id="mig"),
        pytest.param(lambda _, nvml: nvml.answer("nvmlDeviceGetMigMode", UNKNOWN), id="odd answer"),
        pytest.param(written(lambda text: text.replace(BOOT, "another")), id="boot"),
        pytest.param(written(lambda text: text.replace(CPUS, "[7]", 1)), id="cpus"),
        pytest.param(
            written(lambda text: text.replace('"topology":[', '"topology":[[', 1)), id="damage"
        ),
        pytest.param(written(lambda text: text[:-20]), id="short"),
        pytest.param(
            written(lambda text: text.replace('"key":[["index"', '"key":[["number"')),
            id="other format",
        ),
        pytest.param(aged(901), id="age"),
        pytest.param(aged(-60), id="future"),
        pytest.param(lambda path, _: path.chmod(0o666), id="writable"),
    ],
)
def test_forgotten(
    launcher: Launcher, warm: "FakeNvml", change: Callable[[Path, "FakeNvml"], object]
) -> None:
    """What was read once is not read again, unless what it depends on has changed.

    A changed list, driver or boot, age, damage, or a file that others can write empties the cache.
    """
    assert cached(launcher).stat().st_mode & 0o777 == 0o600
    assert link(launcher)["nvlink_count"] == 2
    change(cached(launcher), warm)
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
    """What a call failed to tell in earnest is asked again the next time."""
    pair(nvml, "ancestor 0 1 10", f"error nvmlDeviceGetTopologyCommonAncestor 0 {UNKNOWN}")
    assert link(launcher)["path"] == "SYS"
    nvml.drop("error ")
    assert link(launcher)["path"] == "PIX"


def test_gpu_that_is_lost_half_way(launcher: Launcher, nvml: "FakeNvml") -> None:
    """A GPU that is lost while its paths are asked for is left out, and that is not cached."""
    pair(nvml, f"error nvmlDeviceGetTopologyCommonAncestor 0 {GPU_IS_LOST}")
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
    """A GPU without memory of its own has the system's, of which what is available is free."""
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


def test_memory_that_is_not_told(launcher: Launcher, nvml: "FakeNvml") -> None:
    """Memory that a driver fails to tell stays unknown: it is not taken for the system's."""
    for code in (NO_PERMISSION, FUNCTION_NOT_FOUND, UNKNOWN):
        spark(nvml, code)
        forget(launcher)
        (gpu,) = discovered(launcher)["gpus"]
        assert gpu["memory_bytes"] is None, code
