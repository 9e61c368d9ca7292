"""Documents that people and launchers write: what is understood, and what every mistake is told."""

import json
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from values import cases, complaint, lease

from gpulaunch.errors import FieldError, UsageError, printable
from gpulaunch.files.document import MAX_FILE_BYTES
from gpulaunch.files.size import format_size, parse_size
from gpulaunch.files.toml import tomllib
from gpulaunch.leases.lease import Lease, parse_lease
from gpulaunch.leases.record_fields import (
    UNKNOWN_TIME,
    WRITTEN_BYTES,
    NewerRecordError,
)
from gpulaunch.machine.catalog import load_described_machine, machine_names
from gpulaunch.machine.gpu import Gpu, format_cpuset, parse_cpuset
from gpulaunch.machine.topology import TableKey, Topology, same_table
from gpulaunch.process.identity import Process
from gpulaunch.profiles.catalog import find_profile, load_profile, profile_names
from gpulaunch.profiles.demand import Counters, CurvePoint, Demand
from gpulaunch.profiles.keys import Communication, Part, PlacementNeeds
from gpulaunch.profiles.pattern import PATTERNS
from gpulaunch.profiles.profile import Profile
from gpulaunch.records import replace

CASES = tomllib.loads(Path(__file__).with_name("documents.toml").read_text())

# ----------------------------------------------------------------------------------------- profiles

PROFILE = """\
name = "job"
description = "a job"
gpus = 2

[communication]
pattern = "ring"
bandwidth_sensitive = true
collective_calls_per_iteration = 100
source = "measured"

[resources]
memory_mib = 1000
memory_is_reservation = true
sm_utilization_percentage = 50.5
memory_bandwidth_utilization_percentage = 10
power_w = 200
energy_j = 2000.0
duration_s = 10
measured_on = "a GPU"
source = "measured too"
"""


def profile_file(directory: Path, text: str | bytes) -> str:
    path = directory / "job.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def test_profile(tmp_path: Path) -> None:
    """Every key of a profile arrives in its record, memory in bytes."""
    profile = load_profile(profile_file(tmp_path, PROFILE))
    assert (profile.name, profile.description, profile.gpus) == ("job", "a job", 2)
    assert profile.communication == Communication(
        {
            "pattern": "ring",
            "bandwidth_sensitive": True,
            "collective_calls_per_iteration": 100,
            "source": "measured",
        }
    )
    assert (profile.resources.power_w, profile.resources.estimated) == (200, [])
    assert (profile.resources.memory_mib, profile.memory_bytes) == (1000, 1000 * 1024 * 1024)
    assert (profile.resources.source, profile.resources.memory_is_reservation) == (
        "measured too",
        True,
    )
    assert not profile.placement


def test_smallest_profile(tmp_path: Path) -> None:
    """A name is all that a profile needs; what is not known is None."""
    assert load_profile(profile_file(tmp_path, 'name = "job"')) == Profile({"name": "job"})


SHAPES = "ring, tree, ring+tree, chain, all_to_all, star, stencil_2d, stencil_3d, none"


@cases(CASES["mistakes_in_a_profile"], "old", "new", "want")
def test_mistakes_in_a_profile(tmp_path: Path, old: str, new: str, want: str) -> None:
    """A mistake in a profile is named with path, line, key and what was expected."""
    assert PROFILE.count(old) == 1
    path = profile_file(tmp_path, PROFILE.replace(old, new))
    assert complaint(load_profile, path) == want.replace("SHAPES", SHAPES)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_lines_are_counted_alike(tmp_path: Path, newline: str) -> None:
    """The line is right whichever way the lines end."""
    path = profile_file(
        tmp_path, PROFILE.replace("power_w = 200", "power_w = -1").replace("\n", newline)
    )
    assert complaint(load_profile, path) == "16: power_w: -1 is not within 0 to 100000"


WISHES = """\
name = "job"

[placement]
min_bandwidth_gb_per_s = 40
min_utility = 0.5
single_node = true
host_gb_per_s = 12.5

[collocation]
source = "measured by hand"

[collocation.slowdown_percentage]
vgg16 = 32
"my job" = 0.5
"""


def test_what_a_profile_needs_of_a_placement(tmp_path: Path) -> None:
    """What a job needs of its GPUs, and its slowdowns as fractions, arrive in its record."""
    profile = load_profile(profile_file(tmp_path, WISHES))
    assert profile.placement == PlacementNeeds(
        {
            "min_bandwidth_gb_per_s": 40,
            "min_utility": 0.5,
            "single_node": True,
            "host_gb_per_s": 12.5,
        }
    )
    assert (profile.slowdowns, profile.collocation.source) == (
        {"vgg16": 0.32, "my job": 0.005},
        "measured by hand",
    )
    spread = WISHES.replace("single_node = true", "single_node = false\none_per_node = true")
    profile = load_profile(profile_file(tmp_path, spread))
    assert (profile.placement.single_node, profile.placement.one_per_node) == (False, True)


@cases(CASES["mistakes_in_needs"], "old", "new", "want")
def test_mistakes_in_what_a_profile_needs(tmp_path: Path, old: str, new: str, want: str) -> None:
    """A mistake in what a job needs of its GPUs is named with path, line, key and expectation."""
    assert WISHES.count(old) == 1
    assert complaint(load_profile, profile_file(tmp_path, WISHES.replace(old, new))) == want


SHARES = """\
name = "job"

[sharing]
share = true
sm_percentage = 40

[sm_curve]
sm_percentage = [10, 50.5, 100]
throughput = [1, 4, 3.5]
source = "measured"

[counters]
llc_accesses_per_kilo_instruction = 120
llc_hit_rate_percentage = 75
bytes_per_access = 128
source = "counted"

[resources]
memory_mib = 1024
sm_utilization_percentage = 30
memory_bandwidth_utilization_percentage = 20
power_w = 100
source = "sampled"
"""


def test_what_a_profile_says_about_sharing(tmp_path: Path) -> None:
    """Whether and how a job shares, its throughput over SMs and its counters become one demand."""
    profile = load_profile(profile_file(tmp_path, SHARES))
    curve = (CurvePoint(10, 1), CurvePoint(50.5, 4), CurvePoint(100, 3.5))
    assert (profile.sharing.share, profile.sharing.sm_percentage, profile.missing_demand) == (
        True,
        40,
        [],
    )
    assert profile.demand == Demand("job", 30, 20, 1 << 30, 100, curve, Counters(120, 0.75, 128))


def test_what_a_demand_lacks(tmp_path: Path) -> None:
    """A profile without one of the three figures has no demand, and says which it lacks."""
    for key, name in (
        ("memory_mib = 1024", "maximum memory"),
        ("sm_utilization_percentage = 30", "average SM utilization"),
        ("memory_bandwidth_utilization_percentage = 20", "average memory-bandwidth utilization"),
    ):
        profile = load_profile(profile_file(tmp_path, SHARES.replace(f"{key}\n", "")))
        assert (profile.demand, profile.missing_demand) == (None, [name])
    assert load_profile(
        profile_file(tmp_path, SHARES.replace("bytes_per_access = 128\n", ""))
    ).llc_counters == Counters(120, 0.75, 32)


@cases(CASES["mistakes_in_sharing"], "old", "new", "want")
def test_mistakes_in_what_a_profile_says_about_sharing(
    tmp_path: Path, old: str, new: str, want: str
) -> None:
    """A mistake in what sharing depends on is named with path, line, key and what was expected."""
    assert SHARES.count(old) == 1
    assert complaint(load_profile, profile_file(tmp_path, SHARES.replace(old, new))) == want


@pytest.mark.parametrize("shape", SHAPES.split(", "))
def test_profile_of_every_shape(tmp_path: Path, shape: str) -> None:
    """A profile may name any built-in pattern; the pages on profiles and patterns list all."""
    profile = load_profile(profile_file(tmp_path, PROFILE.replace('"ring"', f'"{shape}"')))
    assert profile.communication.pattern == shape
    documents = Path(__file__).parents[2] / "docs"
    assert f"`{shape}`" in (documents / "reference" / "profiles.md").read_text()
    assert f"`{shape.replace('_', '-')}`" in (documents / "reference" / "patterns.md").read_text()


def test_shapes() -> None:
    """The patterns that these tests know are all there are."""
    assert SHAPES.split(", ") == list(PATTERNS)


# ------------------------------------------------------------------------------------- broken files


@pytest.mark.parametrize(
    ("sentence", "text", "line"),
    [
        ("a value without quotes", "# a comment\nname = vgg16\n", 2),
        ("a key twice", 'name = "job"\ngpus = 2\nname = "other"\n', 3),
        ("an unclosed text", 'name = "job\ngpus = 2\n', 1),
        ("an escape that TOML does not have", 'name = "job"\ndescription = "C:\\qux"\n', 2),
        ("JSON", '{"name": "job"}\n', 1),
        ("a list that never ends is missed where the file ends", 'name = "job"\ngpus = [1,\n2,', 3),
    ],
)
def test_broken_toml(tmp_path: Path, sentence: str, text: str, line: int) -> None:
    """Broken TOML is named with path and line, in lower case, without a second place at the end."""
    said = complaint(load_profile, profile_file(tmp_path, text))
    number, _, message = said.partition(": ")
    assert number == str(line), sentence
    assert message
    assert not message[0].isupper()
    assert "(at " not in message


@pytest.mark.parametrize(
    ("sentence", "raw", "want"),
    [
        ("Latin 1", b'name = "job"\n\ndescription = "na\xefve"\n', "3: byte 0xef is not UTF-8"),
        ("UTF-16", 'name = "job"\n'.encode("utf-16-le") + b"\xff\xfe", "2: byte 0xff is not UTF-8"),
        ("a program", b"\x7fELF\x02\x01\x01\x80", "1: byte 0x80 is not UTF-8"),
    ],
)
def test_not_utf_8(tmp_path: Path, sentence: str, raw: bytes, want: str) -> None:
    """A byte that is not UTF-8 is named with its line."""
    assert complaint(load_profile, profile_file(tmp_path, raw)) == want, sentence


def test_directory(tmp_path: Path) -> None:
    """A directory is no profile."""
    (tmp_path / "job.toml").mkdir()
    assert complaint(load_profile, str(tmp_path / "job.toml")) == " is a directory"


def test_missing_file(tmp_path: Path) -> None:
    """A path that leads nowhere is named."""
    assert complaint(load_profile, str(tmp_path / "job.toml")) == " no such file or directory"
    assert (
        complaint(load_described_machine, str(tmp_path / "box.toml"))
        == " no such file or directory"
    )


def test_circle_of_links(tmp_path: Path) -> None:
    """A symbolic link to itself cannot be read."""
    (tmp_path / "job.toml").symlink_to(tmp_path / "job.toml")
    assert (
        complaint(load_profile, str(tmp_path / "job.toml")) == " too many levels of symbolic links"
    )


@contextmanager
def nobody() -> Iterator[None]:
    """Act as a user without rights: root may read everything."""
    mine = os.geteuid()
    if mine == 0:
        try:
            os.seteuid(65534)
        except OSError:
            pytest.skip("root cannot become another user here")
    try:
        yield
    finally:
        os.seteuid(mine)


def test_unreadable_file(tmp_path: Path) -> None:
    """A file that this user may not read is named."""
    path = profile_file(tmp_path, PROFILE)
    Path(path).chmod(0)
    with nobody():
        assert complaint(load_profile, path) == " permission denied"


def test_file_size(tmp_path: Path) -> None:
    """A file may have 1 MiB, and not a byte more."""
    text = 'name = "job" #'
    full = text + "x" * (MAX_FILE_BYTES - len(text))
    assert load_profile(profile_file(tmp_path, full)).name == "job"
    assert complaint(load_profile, profile_file(tmp_path, full + "x")) == " larger than 1 MiB"


@pytest.mark.parametrize(
    ("load", "name", "want"),
    [
        (load_profile, "vgg17", "unknown profile 'vgg17': did you mean vgg16?"),
        (load_described_machine, "dgx9", "unknown topology 'dgx9': did you mean dgx2?"),
    ],
)
def test_unknown_name(load: Any, name: str, want: str) -> None:
    """A name that no file has is an error with a hint, never a default."""
    with pytest.raises(UsageError) as problem:
        load(name)
    assert problem.value.message == want
    assert problem.value.hint
    assert problem.value.exit_status == 2


def test_own_profile_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile of the user's own stands before one of the same name that is shipped."""
    directory = tmp_path / "gpulaunch" / "profiles"
    directory.mkdir(parents=True)
    (directory / "vgg16.toml").write_text('name = "vgg16"\ngpus = 5')
    (directory / "mine.toml").write_text('name = "mine"')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert load_profile("vgg16") == Profile({"name": "vgg16", "gpus": 5})
    assert {"alexnet", "mine", "vgg16"} < set(profile_names())


# ------------------------------------------------------------------------------- described machines

MACHINE = """\
name = "box"
description = "a box"
source = "made up"

[gpus]
count = 4
model = "A100"
memory_mib = 40960
compute_capability = "8.0"

[nvlink]
version = 3
links = [[0, 1, 4], [3, 2, 2]]

[pcie]
generation = 4
width = 16

[pcie.groups]
PIX = [[0, 1]]
NODE = [[0, 1, 2]]

[[numa]]
node = 1
gpus = [0, 1]
cpuset = "0-3,8"

[[numa]]
node = 0
gpus = [2]
"""


def machine_file(directory: Path, text: str) -> str:
    path = directory / "box.toml"
    path.write_text(text)
    return str(path)


def load_machine(path: str) -> Topology:
    return load_described_machine(path)[0]


def test_machine(tmp_path: Path) -> None:
    """A described machine has the GPUs, links, NUMA nodes and CPUs that its file says."""
    path = machine_file(tmp_path, MACHINE)
    topology, found_at = load_described_machine(path)
    assert found_at == path
    assert (topology.name, topology.source) == ("box", "made up")
    common = {
        "model": "A100",
        "memory_bytes": 40 << 30,
        "compute_capability": "8.0",
        "pcie_generation": 4,
        "pcie_width": 16,
        "nvlink_version": 3,
    }
    near = frozenset({0, 1, 2, 3, 8})
    assert topology.gpus == (
        Gpu(index=0, uuid="GPU-box-0", numa_node=1, cpuset=near, **common),
        Gpu(index=1, uuid="GPU-box-1", numa_node=1, cpuset=near, **common),
        Gpu(index=2, uuid="GPU-box-2", numa_node=0, **common),
        Gpu(index=3, uuid="GPU-box-3", **common),
    )
    got = [
        (
            link.a,
            link.b,
            link.path,
            link.nvlink_count,
            link.bandwidth_gb_per_s,
            link.nvlink_planned_gb_per_s,
        )
        for link in topology.links
    ]
    assert got == [
        (0, 1, "NVL", 4, 100, 80),
        (0, 2, "NODE", 0, 19.68, 0),  # 24 GB/s x 0.82
        (0, 3, "SYS", 0, 12, 0),  # 24 GB/s x 1/2
        (1, 2, "NODE", 0, 19.68, 0),
        (1, 3, "SYS", 0, 12, 0),
        (2, 3, "NVL", 2, 50, 40),
    ]
    assert [
        (link.pcie_path, link.pcie_gb_per_s) for link in (topology.links[0], topology.links[5])
    ] == [
        ("PIX", 24),
        ("SYS", 12),
    ]


def test_machine_with_switch(tmp_path: Path) -> None:
    """Links into NVSwitch join every pair."""
    text = MACHINE.replace("links = [[0, 1, 4], [3, 2, 2]]", "switch_links_per_gpu = 12")
    links = load_machine(machine_file(tmp_path, text)).links
    got = {(link.kind, link.path, link.nvlink_count, link.bandwidth_gb_per_s) for link in links}
    assert got == {("nvswitch", "NVL", 12, 300)}


def test_machine_with_pcie_figure(tmp_path: Path) -> None:
    """A stated PCIe bandwidth holds for every path."""
    text = MACHINE.replace("width = 16", "width = 16\nbandwidth_gb_per_s = 10.5")
    assert {link.pcie_gb_per_s for link in load_machine(machine_file(tmp_path, text)).links} == {
        10.5
    }


def test_host_memory(tmp_path: Path) -> None:
    """A GPU has its NUMA node's memory bandwidth where the file says it, and 0 elsewhere."""
    text = MACHINE.replace('cpuset = "0-3,8"', 'cpuset = "0-3,8"\nmemory_gb_per_s = 85.5')
    got = [gpu.host_gb_per_s for gpu in load_machine(machine_file(tmp_path, text)).gpus]
    assert got == [85.5, 85.5, 0, 0]


def test_digest(tmp_path: Path) -> None:
    """The digest tells descriptions apart that differ in one figure, and not their places."""
    one = load_machine(machine_file(tmp_path, MACHINE))
    (tmp_path / "elsewhere").mkdir()
    assert load_machine(machine_file(tmp_path / "elsewhere", MACHINE)).digest == one.digest
    assert (
        load_machine(machine_file(tmp_path, MACHINE.replace("[3, 2, 2]", "[3, 2, 1]"))).digest
        != one.digest
    )


@cases(CASES["mistakes_in_a_machine"], "old", "new", "want")
def test_mistakes_in_a_machine(tmp_path: Path, old: str, new: str, want: str) -> None:
    """A mistake in a described machine is named with path, line and what was found."""
    assert MACHINE.count(old) == 1
    path = machine_file(tmp_path, MACHINE.replace(old, new))
    assert complaint(load_machine, path) == want


@cases(CASES["lines_hard_to_find"], "old", "new", "want")
def test_lines_that_are_hard_to_find(tmp_path: Path, old: str, new: str, want: str) -> None:
    """The line of a mistake is right however the file is written."""
    text = PROFILE.replace(old, new)
    if "resources" in new:
        text = text[: text.index("[resources]")]
    assert complaint(load_profile, profile_file(tmp_path, text)) == want


@pytest.mark.parametrize(
    ("sentence", "value"),
    [("a list too deep", "[" * 5000 + "]" * 5000), ("a number too long", "9" * 5000)],
)
def test_toml_beyond_its_parser(tmp_path: Path, sentence: str, value: str) -> None:
    """What the TOML parser cannot take is a mistake of the file, not of gpulaunch."""
    assert complaint(load_profile, profile_file(tmp_path, f"gpus = {value}\n")), sentence


@pytest.mark.parametrize(
    ("sentence", "before", "part", "after"),
    [
        ("a key", "", "a", " = 1"),
        ("the head of a table", "[", "a", "]"),
        ("quoted", "", r'"a.\"b"', " = 1"),
        ("within a table on one line", "x = {b = 1, ", "a", " = 1}"),
    ],
)
def test_keys_too_deep(tmp_path: Path, sentence: str, before: str, part: str, after: str) -> None:
    """A key has at most 16 levels, however many it is given: no file keeps a launch busy."""
    for levels, want in ((16, "unknown key"), (17, "a key of more than 16 levels"), (50_000, "")):
        text = f"gpus = 2\n{before}{'.'.join([part] * levels)}{after}\n"
        began_s = time.monotonic()
        got = complaint(load_profile, profile_file(tmp_path, text))
        assert got.startswith(f"2: {want}"), sentence
        assert time.monotonic() - began_s < 1, sentence


# ---------------------------------------------------------------------------------- what is shipped

# mapa-sc21 2.3 and 4: does the job profit from fast links; Figure 5b: collective calls per GPU and
# iteration.
MAPA_WORKLOADS = {
    "alexnet": (True, 80_001),
    "caffenet": (False, 84_936),
    "cusimann": (False, None),
    "gmm": (False, None),
    "googlenet": (False, 640_001),
    "inception-v3": (True, 2_830_001),
    "jacobi": (False, None),
    "resnet50": (True, 1_600_001),
    "vgg16": (True, 160_001),
}


def test_memory_that_is_a_reservation() -> None:
    """WarpX reserves its memory, as TensorFlow and vLLM do; that of ddp is of another job."""
    assert {
        name for name in profile_names() if load_profile(name).resources.memory_is_reservation
    } == {
        *("bert", "ddp", "llama-3-8b"),
        *("warpx-1x", "warpx-4x"),
    }


def test_profiles_of_mapa() -> None:
    """The nine workloads of mapa-sc21 have its sensitivity and its number of calls."""
    got = {}
    for name in MAPA_WORKLOADS:
        profile = load_profile(name)
        got[name] = (
            profile.communication.bandwidth_sensitive,
            profile.communication.collective_calls_per_iteration,
        )
        assert "mapa-sc21" in profile.communication.source
    assert got == MAPA_WORKLOADS


WITH_SOURCE = {
    name
    for name, key in Profile.keys.items()
    if isinstance(key, Part) and "source" in key.section.keys
}


def test_all_that_is_shipped() -> None:
    """Every shipped profile and machine can be read, is named as its file, and says its sources."""
    profiles = {name: load_profile(name) for name in profile_names()}
    assert {name: profile.name for name, profile in profiles.items()} == {
        name: name for name in profiles
    }
    assert set(profiles) >= set(MAPA_WORKLOADS)
    machines = {name: load_described_machine(name) for name in machine_names()}
    assert {name: topology.name for name, (topology, _) in machines.items()} == {
        name: name for name in machines
    }
    assert {"dgx1-v100", "pcie-4gpu-workstation"} <= set(machines)
    for path in (*map(find_profile, profiles), *(path for _, path in machines.values())):
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        figures = [document] if "gpus" in document and isinstance(document["gpus"], dict) else []
        figures += [document[key] for key in document if key in WITH_SOURCE]
        assert figures or "scaling" in document, path
        assert all(len(place["source"]) > 10 for place in figures), path


# ------------------------------------------------------------------------------------------- leases


def full(**changes: object) -> Lease:
    """Make a lease in which everything is set that may be."""
    return lease("ab12", 3, 0, **({"ancestors": ("cd34", "ef56")} | changes))


def written(record: Lease) -> Any:
    """Return what is read back from the text of a record."""
    return json.loads(json.dumps(record.to_document()))


@pytest.mark.parametrize(
    ("sentence", "record"),
    [
        ("everything set", full()),
        (
            "nothing set that need not be",
            full(table=None, profile=None, assumed=(), name=None, ancestors=()),
        ),
        ("bytes that no text has", full(command=("cat", "na\udcefve", "\udcff"), name="\udc80")),
        (
            "control characters and other scripts",
            full(command=("echo", "\x1b[2J\x00\n", "größe", "🚀")),
        ),
        ("a container of some engine", full(engine="NXUF", container="1f2e")),
        (
            "wishes about who is next to it",
            full(host_gb_per_s=12.5, apart_from=("vgg16", "my job")),
        ),
        ("no start times", full(launcher=Process(1, 0), job=Process(2, 0))),
        ("another user", full(user_id=0)),
    ],
)
def test_lease_round_trip(sentence: str, record: Lease) -> None:
    """A lease that was written to JSON and read again is the same lease."""
    assert parse_lease(written(record), record.user_id) == record, sentence


def test_user_is_not_in_the_record() -> None:
    """A record does not name its user: the file's owner tells."""
    document = written(full())
    assert "user_id" not in document
    assert document["version"] == 1
    assert parse_lease(document, 77).user_id == 77


@pytest.mark.parametrize(
    "command",
    [
        ("x" * (WRITTEN_BYTES + 1),),
        ("x" * (WRITTEN_BYTES // 2), "y" * 100_000),
        ("x" * (WRITTEN_BYTES // 2 - 1), "y" * 100_000),
        ("ü" * 3_000, "y" * 3_000, "z" * 3_000),
        ("x",) * 20_000,
        ("",) * 20_000,
    ],
    ids=["one argument", "room used up", "one place left", "several", "many", "many empty ones"],
)
def test_long_commands_are_cut(command: tuple[str, ...]) -> None:
    """A record of 8 KiB keeps the beginning of a long command and says that there was more."""
    document = written(full(command=command))
    assert WRITTEN_BYTES / 4 < len(json.dumps(document)) <= WRITTEN_BYTES
    kept = parse_lease(document, 1000).command
    assert kept[:-1] == command[: len(kept) - 1]
    assert kept[-1].endswith("...")
    assert command[len(kept) - 1].startswith(kept[-1].removesuffix("..."))


def test_commands_within_the_limit_are_kept() -> None:
    """A command that just fits is written whole."""
    room = WRITTEN_BYTES - len(json.dumps(full(command=()).to_document()))
    for command in (("x" * (room - 2),), ("x" * (room - 9), "abc")):
        document = written(full(command=command))
        assert len(json.dumps(document)) == WRITTEN_BYTES
        assert parse_lease(document, 1000).command == command


@pytest.mark.parametrize("key", ["version", "id", "uuids", "ancestors"])
def test_lease_without_a_needed_key(key: str) -> None:
    """A record without what tells which GPUs are free, or with null for it, is not understood."""
    document = written(full())
    for without in (document | {key: None}, {k: v for k, v in document.items() if k != key}):
        with pytest.raises(FieldError) as problem:
            parse_lease(without, 1000)
        assert problem.value.message == f"key '{key}' is missing"


@pytest.mark.parametrize(
    ("sentence", "change", "want"),
    [
        ("a version that is no number", {"version": "1"}, "version: '1' is not a whole number"),
        ("a version that is only like 1", {"version": True}, "version: True is not a whole number"),
        ("a fraction for a version", {"version": 1.0}, "version: 1.0 is not a whole number"),
        ("no reader at all", {"version": 0}, "version: 0 is not within 1 to 1"),
        ("a number for text", {"id": 7}, "id: 7 is not text"),
        ("text for a list", {"uuids": "GPU-3"}, "uuids: 'GPU-3' is not a list"),
        ("a number for a UUID", {"uuids": ["GPU-3", 0]}, "uuids: 0 is not text"),
        ("text for a table", {"table": "box"}, "table: 'box' is not a list"),
        (
            "a table without a file",
            {"table": ["box", "00"]},
            "table: ['box', '00'] has 2 values: 3 are needed",
        ),
        ("numbers in a table", {"table": ["box", 0, "f"]}, "table: 0 is not text"),
        ("text for ancestors", {"ancestors": "cd34"}, "ancestors: 'cd34' is not a list"),
        ("a number for an engine", {"engine": 1}, "engine: 1 is not text"),
        ("a list for a container", {"container": []}, "container: [] is not text"),
    ],
)
def test_lease_with_a_wrong_needed_value(
    sentence: str, change: dict[str, object], want: str
) -> None:
    """A record whose GPUs, machine, ancestors or engine are unclear is not understood."""
    with pytest.raises(FieldError) as problem:
        parse_lease(written(full()) | change, 1000)
    assert problem.value.message == want, sentence


OTHER_FORMS: list[tuple[str, dict[str, object], dict[str, object]]] = [
    ("a pid alone", {"launcher": [4000]}, {"launcher": Process(0, 0)}),
    ("a third number", {"job": [1, 2, 3]}, {"job": Process(0, 0)}),
    ("a pid below zero", {"job": [-1, 2]}, {"job": Process(0, 0)}),
    ("a truth for a pid", {"job": [True, 2]}, {"job": Process(0, 0)}),
    ("a fraction for a time", {"job": [1, 2.5]}, {"job": Process(0, 0)}),
    ("a table for a process", {"job": {"pid": 4001}}, {"job": Process(0, 0)}),
    ("a list in the command", {"command": [["ls"]]}, {"command": ()}),
    ("text for a command", {"command": "ls"}, {"command": ()}),
    ("a number for a profile", {"profile": 16}, {"profile": None}),
    ("a number for a name", {"name": 0}, {"name": None}),
    ("another form of time", {"started_at": "now"}, {"started_at": UNKNOWN_TIME}),
    ("a number for a time", {"started_at": 5}, {"started_at": UNKNOWN_TIME}),
    ("text for a bandwidth", {"host_gb_per_s": "5"}, {"host_gb_per_s": 0.0}),
    ("no number for a bandwidth", {"host_gb_per_s": float("nan")}, {"host_gb_per_s": 0.0}),
    ("text for names", {"apart_from": "vgg16"}, {"apart_from": ()}),
    ("text for a share", {"share": "half"}, {"share": None}),
    ("another form of share", {"share": {"group": ["GPU-3"]}}, {"share": None}),
    ("a key that nobody knows", {"shared_with": ["bob"]}, {}),
]


@pytest.mark.parametrize(("sentence", "change", "want"), OTHER_FORMS)
def test_lease_of_another_version(
    sentence: str, change: dict[str, object], want: dict[str, Any]
) -> None:
    """What another version writes differently is left out; all else of the record is read."""
    assert parse_lease(written(full()) | change, 1000) == replace(full(), **want), sentence


def test_lease_with_needed_keys_alone() -> None:
    """Four keys are enough to know which GPUs are taken, and nothing else is made up."""
    document = {key: written(full())[key] for key in ("version", "id", "uuids", "ancestors")}
    assert parse_lease(document, 1000) == Lease(
        id=full().id,
        user_id=1000,
        table=None,
        uuids=full().uuids,
        launcher=Process(0, 0),
        job=Process(0, 0),
        command=(),
        profile=None,
        assumed=(),
        name=None,
        started_at=UNKNOWN_TIME,
        ancestors=full().ancestors,
        boot_id="",
    )


def test_lease_that_needs_a_later_reader() -> None:
    """A record that says that this version must not read it is not read, whatever it holds."""
    with pytest.raises(NewerRecordError) as problem:
        parse_lease({"version": 2, "uuids": 5}, 1000)
    assert problem.value.message == "it needs a gpulaunch that reads version 2 of the records"


@pytest.mark.parametrize("document", [None, 1, "lease", [], ["version"]])
def test_what_is_no_lease_at_all(document: object) -> None:
    """JSON that is no object is not understood."""
    with pytest.raises(FieldError) as problem:
        parse_lease(document, 1000)
    assert problem.value.message == f"{document!r} is not a table"


def test_same_table() -> None:
    """A described machine is the same wherever its file lies; other text of its name is another."""
    key = TableKey("box", "0badc0de", "/a/box.toml")
    assert same_table(key, replace(key, file="/b/box.toml"))
    assert not same_table(key, replace(key, digest="11111111"))
    assert not same_table(key, replace(key, name="crate"))
    assert not same_table(key, None)
    assert not same_table(None, key)
    assert same_table(None, None)


# --------------------------------------------------------------------------- CPU lists, sizes, text


@pytest.mark.parametrize("seed", range(20))
def test_cpuset_round_trip(seed: int) -> None:
    """A set of CPUs that was written as Linux does reads as the same set."""
    rng = random.Random(seed)
    cpus = frozenset(rng.sample(range(512), rng.randrange(257)))
    assert parse_cpuset(format_cpuset(cpus)) == cpus


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("", []),
        ("0", [0]),
        ("0-3", [0, 1, 2, 3]),
        ("0-1,8", [0, 1, 8]),
        ("0-1,4-5,9", [0, 1, 4, 5, 9]),
    ],
)
def test_cpuset_text(text: str, cpus: list[int]) -> None:
    """CPU lists read and write as in /sys, runs joined."""
    assert parse_cpuset(text) == frozenset(cpus)
    assert format_cpuset(frozenset(cpus)) == text


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("3,1,2", [1, 2, 3]),
        ("0-2,1-3", [0, 1, 2, 3]),
        (" 0 , 2-3\n", [0, 2, 3]),
        ("5-5", [5]),
        ("0,,1", [0, 1]),
        ("65535", [65535]),
    ],
)
def test_cpuset_as_people_write_it(text: str, cpus: list[int]) -> None:
    """Order, overlaps and spaces make no difference."""
    assert parse_cpuset(text) == frozenset(cpus)


@pytest.mark.parametrize(
    "text", ["x", "1-", "-1", "3-1", "1-2-3", "0x1", "1.5", "0-3:1/2", "1;2", "65536", "0-65536"]
)
def test_no_cpuset(text: str) -> None:
    """What is no CPU list is refused, and so are numbers that no CPU has."""
    with pytest.raises(ValueError):  # noqa: PT011 - a value, not a message, is what the caller gets
        parse_cpuset(text)


@pytest.mark.parametrize(
    ("text", "size_bytes", "of_gpu_bytes"),
    [
        ("8GiB", 8 << 30, 8 << 30),
        ("8 GiB", 8 << 30, 8 << 30),
        ("8gib", 8 << 30, 8 << 30),
        ("8GB", 8 * 10**9, 8 * 10**9),
        ("8G", 8 << 30, 784 * 10**7),
        (" 8g ", 8 << 30, 784 * 10**7),
        ("1.5g", 3 << 29, 147 * 10**7),
        ("2T", 2 << 40, 196 * 10**10),
        ("2TB", 2 * 10**12, 2 * 10**12),
        ("512MiB", 512 << 20, 512 << 20),
        ("16160M", 16160 << 20, 158368 * 10**5),
        ("2048k", 2048 << 10, 2007040),
        ("1048576", 1 << 20, 1 << 20),
        ("1048576B", 1 << 20, 1 << 20),
    ],
)
def test_size(text: str, size_bytes: int, of_gpu_bytes: int) -> None:
    """GiB is binary, GB decimal; G is binary for a job, and of a GPU what its box says less 2 %."""
    size = parse_size(text)
    assert (size, size.of_gpu_bytes) == (size_bytes, of_gpu_bytes)


SOLD = {
    "DGX-1 V100": (16160, 16),
    "Tesla V100-SXM3-32GB": (32510, 32),
    "Tesla P100-SXM2-16GB": (16280, 16),
    "Tesla K80, half": (11441, 12),
    "Tesla T4": (15079, 16),
    "Quadro RTX 6000 with ECC": (22698, 24),
    "GeForce RTX 2080 Ti": (11019, 11),
    "GeForce RTX 4090": (24564, 24),
    "GeForce RTX 5090": (32607, 32),
    "A10G": (22731, 24),
    "A40": (45634, 48),
    "L40S": (46068, 48),
    "A100-SXM4-40GB": (40536, 40),
    "A100 80GB PCIe": (80994, 80),
    "H100 80GB HBM3": (81559, 80),
    "H100 NVL": (95830, 94),
    "H200": (143771, 141),
    "B200": (183359, 180),
    "B300": (275040, 288),
}
"""Models, with the MiB that nvidia-smi shows and the GB that they are sold with."""


@pytest.mark.parametrize("model", SOLD)
def test_sizes_as_they_are_sold(model: str) -> None:
    """A size in G fits the cards that are sold with that much."""
    shown_mib, sold_gb = SOLD[model]
    assert parse_size(f"{sold_gb}G").of_gpu_bytes <= shown_mib << 20


@pytest.mark.parametrize(
    "text",
    ["", " ", "0", "0G", "-1", "-1G", "0.5", "x", "G", "GiB", "B", "inf", "-inf", "infG", "nan",
     "nanGiB", "8X", "8GX", "8GBB", "8 8", "8,5G", "0x10", "9223372036854775808", "8388608T",
     "1e400"],
)  # fmt: skip
def test_no_size(text: str) -> None:
    """What is no positive amount of memory is refused."""
    with pytest.raises(UsageError, match="is no amount of memory such as 8GiB"):
        parse_size(text)


@pytest.mark.parametrize("text", ["1", "40", "1024B", "16k", "0.5MiB"])
def test_size_without_unit(text: str) -> None:
    """What is less than 1 MiB lacks its unit."""
    with pytest.raises(UsageError, match=r"bytes: write a unit, such as 8GiB$"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(1, "1 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (16160 << 20, "15.78 GiB"),
     (80 << 30, "80 GiB"), (1 << 40, "1 TiB"), (5 << 50, "5120 TiB")],
)  # fmt: skip
def test_format_size(size_bytes: int, text: str) -> None:
    """Sizes are shown in the largest binary unit that leaves at least 1."""
    assert format_size(size_bytes) == text


@pytest.mark.parametrize(
    ("sentence", "text", "want"),
    [
        ("plain text stays", "python train.py --lr 0.1", "python train.py --lr 0.1"),
        ("and other scripts", "größe 東京 🚀", "größe 東京 🚀"),
        ("nothing is nothing", "", ""),
        ("an escape sequence", "a\x1b[2Jb", r"a\x1b[2Jb"),
        ("lines", "a\nb\r\tc", r"a\x0ab\x0d\x09c"),
        ("the ends of the control range", "\x00\x1f\x7f\x80\x9f", r"\x00\x1f\x7f\x80\x9f"),
        ("a byte that could not be decoded", "na\udcefve", r"na\xefve"),
        ("the first and the last of those", "\udc80\udcff", r"\x80\xff"),
        ("other surrogates", "\ud800\udc7f\udd00", r"\ud800\udc7f\udd00"),
        ("text that runs backwards", "\u202egnp.exe", r"\u202egnp.exe"),
        ("spaces that look like others", "a\xa0b\u3000", r"a\xa0b\u3000"),
        ("invisible tags", "\U000e0041", r"\U000e0041"),
    ],
)
def test_printable(sentence: str, text: str, want: str) -> None:
    """What other users supplied reaches a terminal without control characters, as one line."""
    assert printable(text) == want, sentence


def test_printable_leaves_nothing_out() -> None:
    """Whatever the characters are, what comes out is printable."""
    every = "".join(map(chr, range(0x110000)))
    assert printable(every).isprintable()
