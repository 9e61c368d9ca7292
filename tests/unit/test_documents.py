"""Documents that people and launchers write: what is understood, and what every mistake is told."""

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from toml_parser import tomllib
from values import cases, complaint, lease

from gpulaunch.errors import FieldError, UsageError, printable
from gpulaunch.files.document import MAX_FILE_BYTES
from gpulaunch.files.units import format_size, parse_size
from gpulaunch.leases.lease import Lease, parse_lease
from gpulaunch.leases.record import UNKNOWN_TIME, WRITTEN_BYTES
from gpulaunch.machine.catalog import load_described_machine, machine_names
from gpulaunch.machine.gpu import format_cpuset, parse_cpuset
from gpulaunch.machine.topology import TableKey, Topology, same_table
from gpulaunch.process import Process
from gpulaunch.process.system import parse_time
from gpulaunch.profiles.catalog import find_profile, load_profile, profile_names
from gpulaunch.profiles.demand import CurvePoint, Demand
from gpulaunch.profiles.pattern import PATTERNS
from gpulaunch.profiles.profile import Part, Profile
from gpulaunch.records import replace

CASES = tomllib.loads(Path(__file__).with_name("documents.toml").read_text())
PROFILE, MACHINE = CASES["profile"], CASES["machine"]

# ----------------------------------------------------------------------------------------- profiles


def profile_file(directory: Path, text: str) -> str:
    path = directory / "job.toml"
    path.write_text(text)
    return str(path)


def test_what_a_profile_comes_to(tmp_path: Path) -> None:
    """Percentages become fractions, MiB bytes, and what sharing depends on one demand."""
    profile = load_profile(profile_file(tmp_path, PROFILE))
    assert profile.memory_bytes == 1 << 30
    assert profile.slowdowns == {"vgg16": 0.32, "my job": 0.005}
    curve = (CurvePoint(10, 1), CurvePoint(50.5, 4), CurvePoint(100, 3.5))
    want = Demand("job", 30, 20, 1 << 30, 100, curve)
    assert (profile.demand, profile.missing_demand) == (want, [])
    without = PROFILE.replace("sm_utilization_percentage = 30\n", "")
    profile = load_profile(profile_file(tmp_path, without))
    assert (profile.demand, profile.missing_demand) == (None, ["average SM utilization"])


@cases(CASES["mistakes_in_a_profile"], "old", "new", "want")
def test_mistakes_in_a_profile(tmp_path: Path, old: str, new: str, want: str) -> None:
    """A mistake in a profile is named with path, line, key and what was expected."""
    assert PROFILE.count(old) == 1
    path = profile_file(tmp_path, PROFILE.replace(old, new))
    assert complaint(load_profile, path) == want.replace("PATTERNS", ", ".join(PATTERNS))


# ------------------------------------------------------------------------------------- broken files


@cases(CASES["broken_toml"], "text", "line")
def test_broken_toml(tmp_path: Path, text: str, line: int) -> None:
    """Broken TOML is named with path and line, in lower case, without a second place at the end."""
    number, _, message = complaint(load_profile, profile_file(tmp_path, text)).partition(": ")
    assert number == str(line)
    assert message
    assert not message[0].isupper()
    assert "(at " not in message


@cases(CASES["lines_hard_to_find"], "text", "want")
def test_lines_that_are_hard_to_find(tmp_path: Path, text: str, want: str) -> None:
    """The line of a mistake is right however the file is written, and whichever way lines end."""
    for newline in ("\n", "\r\n"):
        path = profile_file(tmp_path, text.replace("\n", newline))
        assert complaint(load_profile, path) == want


def test_toml_beyond_its_parser(tmp_path: Path) -> None:
    """What the parser cannot take is a mistake of the file."""
    for value in ("[" * 5000 + "]" * 5000, "9" * 5000):
        assert complaint(load_profile, profile_file(tmp_path, f"gpus = {value}\n"))


def test_paths_to_no_file(tmp_path: Path) -> None:
    """A directory, a path that leads nowhere or in a circle is named, with the reason."""
    (tmp_path / "directory.toml").mkdir()
    (tmp_path / "circle.toml").symlink_to(tmp_path / "circle.toml")
    for load in (load_profile, load_described_machine):
        assert complaint(load, f"{tmp_path}/directory.toml") == " is a directory"
        assert complaint(load, f"{tmp_path}/nothing.toml") == " no such file or directory"
        assert complaint(load, f"{tmp_path}/circle.toml") == " too many levels of symbolic links"


def test_file_size(tmp_path: Path) -> None:
    """A file may have 1 MiB, and not a byte more."""
    text = 'name = "job" #'
    full = text + "x" * (MAX_FILE_BYTES - len(text))
    assert load_profile(profile_file(tmp_path, full)).name == "job"
    assert complaint(load_profile, profile_file(tmp_path, full + "x")) == " larger than 1 MiB"


# ------------------------------------------------------------------------------- described machines


def machine_file(directory: Path, text: str) -> str:
    path = directory / "box.toml"
    path.write_text(text)
    return str(path)


def load_machine(path: str) -> Topology:
    return load_described_machine(path)[0]


def test_figures_of_a_machine(tmp_path: Path) -> None:
    """Links into NVSwitch join all pairs, stated PCIe holds for all."""
    text = MACHINE.replace("links = [[0, 1, 4], [3, 2, 2]]", "switch_links_per_gpu = 12")
    text = text.replace("width = 16", "width = 16\nbandwidth_gb_per_s = 10.5")
    topology = load_machine(machine_file(tmp_path, text))
    got = {
        (link.kind, link.nvlink_count, link.bandwidth_gb_per_s, link.pcie_gb_per_s)
        for link in topology.links
    }
    assert got == {("nvswitch", 12, 300, 10.5)}


def test_digest(tmp_path: Path) -> None:
    """The digest tells descriptions apart that differ in one figure, and not their places."""
    one = load_machine(machine_file(tmp_path, MACHINE))
    (tmp_path / "elsewhere").mkdir()
    assert load_machine(machine_file(tmp_path / "elsewhere", MACHINE)).digest == one.digest
    other = MACHINE.replace("[3, 2, 2]", "[3, 2, 1]")
    assert load_machine(machine_file(tmp_path, other)).digest != one.digest


def test_machine_with_instances(tmp_path: Path) -> None:
    """Lists give each GPU its own values, and a card with MIG instances is replaced by them."""
    gpus = load_machine(machine_file(tmp_path, CASES["machine_of_lists"])).gpus
    assert [(gpu.index, gpu.name, gpu.model, gpu.memory_bytes >> 20) for gpu in gpus] == [
        (2, "2", "A40", 0),
        (3, "3", "A40", 0),
        (100, "0:0", "A100 MIG 3g.20gb", 20096),
        (101, "0:1", "A100 MIG 3g.20gb", 20096),
        (203, "1:3", "A100 MIG 1g.5gb", 4864),
    ]
    got = [
        (gpu.nvswitch_links, gpu.cpu_nvlinks, gpu.nvlink_gb_per_s, gpu.pcie_width) for gpu in gpus
    ]
    assert got == [(4, 2, 14, 8)] * 2 + [(12, 2, 25, 16)] * 3


@cases(CASES["mistakes_in_a_machine"] | CASES["mistakes_in_lists"], "old", "new", "want")
def test_mistakes_in_a_machine(tmp_path: Path, old: str, new: str, want: str) -> None:
    """A mistake in a described machine is named with path, line and what was found."""
    rows = CASES["mistakes_in_lists"].values()
    text = CASES["machine_of_lists"] if [old, new, want] in rows else MACHINE
    assert text.count(old) == 1
    assert complaint(load_machine, machine_file(tmp_path, text.replace(old, new))) == want


# ---------------------------------------------------------------------------------- what is shipped


def test_profiles_of_mapa() -> None:
    """The nine workloads of mapa-sc21 have its sensitivity and its number of calls."""
    for name, (sensitive, *calls) in CASES["mapa_workloads"].items():
        one = load_profile(name).communication
        assert one.bandwidth_sensitive == sensitive, name
        assert one.collective_calls_per_iteration == (calls[0] if calls else None), name
        assert "mapa-sc21" in one.source


def test_all_that_is_shipped() -> None:
    """Every shipped profile and machine can be read, is named as its file, and says its sources."""
    with_source = {
        name
        for name, key in Profile.keys.items()
        if isinstance(key, Part) and "source" in key.section.keys
    }
    for name in profile_names():
        assert load_profile(name).name == name
        document = tomllib.loads(Path(find_profile(name)).read_text(encoding="utf-8"))
        figures = [document[key] for key in document if key in with_source]
        assert figures, name
        assert all(len(place["source"]) > 10 for place in figures), name
    for name in machine_names():
        topology, path = load_described_machine(name)
        assert topology.name == name
        source = tomllib.loads(Path(path).read_text(encoding="utf-8"))["source"]
        assert len(source.strip()) >= 20, name


# ------------------------------------------------------------------------------------------- leases


def full(**changes: object) -> Lease:
    """Make a lease in which everything is set that may be."""
    return lease("ab12", 3, 0, **({"ancestors": ("cd34", "ef56")} | changes))


def written(record: Lease) -> Any:
    """Return what is read back from the text of a record."""
    return json.loads(json.dumps(record.to_document()))


def test_lease_round_trip() -> None:
    """A lease that was written to JSON and read again is the same lease, but for its user.

    The record does not name the user: the file's owner tells.
    """
    for record in (
        full(table=None, profile=None, assumed=(), name=None, ancestors=()),
        full(command=("na\udcefve", "\x1b[2J\x00\n", "größe", "🚀"), name="\udc80"),
        full(engine="NXUF", container="1f2e", watches_use=True),
    ):
        document = written(record)
        assert (document["version"], "user_id" in document) == (1, False)
        assert parse_lease(document, record.user_id) == record
        assert parse_lease(document, 77).user_id == 77


@pytest.mark.parametrize(
    "command",
    [("ü" * 3_000, "y" * 3_000, "z" * 3_000), ("",) * 20_000],
    ids=["several", "many empty ones"],
)
def test_long_commands_are_cut(command: tuple[str, ...]) -> None:
    """A record of 8 KiB keeps the beginning of a long command and says that there was more.

    A command that just fits is written whole.
    """
    document = written(full(command=command))
    assert WRITTEN_BYTES / 4 < len(json.dumps(document)) <= WRITTEN_BYTES
    kept = parse_lease(document, 1000).command
    assert kept[:-1] == command[: len(kept) - 1]
    assert kept[-1].endswith("...")
    assert command[len(kept) - 1].startswith(kept[-1].removesuffix("..."))
    room = WRITTEN_BYTES - len(json.dumps(full(command=()).to_document()))
    document = written(full(command=("x" * (room - 2),)))
    assert len(json.dumps(document)) == WRITTEN_BYTES
    assert parse_lease(document, 1000).command == ("x" * (room - 2),)


@pytest.mark.parametrize(
    ("change", "want"),
    [
        ({"version": None}, "key 'version' is missing"),
        ({"version": True}, "version: True is not a whole number"),
        ({"version": 0}, "version: 0 is not within 1 to 1"),
        ({"version": 2, "uuids": 5}, "it needs a gpulaunch that reads version 2 of the records"),
        ({"id": None}, "key 'id' is missing"),
        ({"id": 7}, "id: 7 is not text"),
        ({"uuids": None}, "key 'uuids' is missing"),
        ({"uuids": ["GPU-3", 0]}, "uuids: 0 is not text"),
        ({"table": ["box", "00"]}, "table: ['box', '00'] has 2 values: 3 are needed"),
        ({"ancestors": None}, "key 'ancestors' is missing"),
        ({"ancestors": "cd34"}, "ancestors: 'cd34' is not a list"),
        ({"engine": 1}, "engine: 1 is not text"),
        ({"container": []}, "container: [] is not text"),
    ],
)
def test_lease_with_a_wrong_needed_value(change: dict[str, object], want: str) -> None:
    """A record whose GPUs, machine, ancestors, engine or reader are unclear is not understood."""
    document = written(full()) | change
    for one in (document, {key: value for key, value in document.items() if value is not None}):
        with pytest.raises(FieldError) as problem:
            parse_lease(one, 1000)
        assert problem.value.message == want
    with pytest.raises(FieldError, match="is not a table"):
        parse_lease([document], 1000)


@pytest.mark.parametrize(
    ("change", "want"),
    [
        ({"launcher": [4000]}, {"launcher": Process(0, 0)}),
        ({"job": [True, 2]}, {"job": Process(0, 0)}),
        ({"job": [1, 2.5]}, {"job": Process(0, 0)}),
        ({"job": {"pid": 4001}}, {"job": Process(0, 0)}),
        ({"command": "ls"}, {"command": ()}),
        ({"started_at": "now"}, {"started_at": UNKNOWN_TIME}),
        ({"started_at": 5}, {"started_at": UNKNOWN_TIME}),
        ({"clock_s": float("nan")}, {"clock_s": 0.0}),
        ({"share": {"group": ["GPU-3"]}}, {"share": None}),
        ({"shared_with": ["bob"]}, {}),
    ],
)
def test_lease_of_another_version(change: dict[str, object], want: dict[str, Any]) -> None:
    """What another version writes differently is left out; all else of the record is read.

    Four keys are enough to know which GPUs are taken, and nothing else is made up.
    """
    document = written(full())
    assert parse_lease(document | change, 1000) == replace(full(), **want)
    few = {key: document[key] for key in ("version", "id", "uuids", "ancestors")}
    told = parse_lease(few, 1000)
    assert told == Lease(id=told.id, user_id=1000, uuids=full().uuids, ancestors=("cd34", "ef56"))


def test_same_table() -> None:
    """A described machine is the same wherever its file lies; other text of its name is another."""
    key = TableKey("box", "0badc0de", "/a/box.toml")
    assert same_table(key, replace(key, file="/b/box.toml"))
    assert same_table(None, None)
    others = (replace(key, digest="11111111"), replace(key, name="crate"), None)
    assert not any(same_table(*pair) for other in others for pair in ((key, other), (other, key)))


# --------------------------------------------------------------------------- times, CPU lists, text


def test_times_of_utc_and_elsewhere() -> None:
    """Z is UTC, and a fraction of a second may have any number of digits, in every Python.

    What is no time raises ValueError.
    """
    for text, microsecond in {
        "2026-01-02T03:04:05Z": 0,
        "2026-01-02T03:04:05.5Z": 500_000,
        "2026-01-02T03:04:05.123456789Z": 123_456,
        "2026-01-02T03:04:05.12345678+00:00": 123_456,
        "2026-01-02T05:04:05.5+02:00": 500_000,
    }.items():
        got = parse_time(text)
        assert got == datetime(2026, 1, 2, 3, 4, 5, microsecond, timezone.utc)
        assert got.utcoffset() == timedelta(hours=2 if text.endswith("+02:00") else 0)
    for text in ("", "Z", "soon", "2026-02-31T00:00:00Z", "2026-01-02T03:04:05ZZ"):
        with pytest.raises(ValueError, match=r"."):
            parse_time(text)


def test_cpusets() -> None:
    """Order, overlaps and spaces make no difference, and what was read is written as Linux does.

    What is no CPU list is refused, and so are numbers that no CPU has.
    """
    for text, cpus in {
        "3,1,2": {1, 2, 3},
        "0-2,1-3": {0, 1, 2, 3},
        " 0 , 2-3\n": {0, 2, 3},
        "5-5": {5},
        "0,,1": {0, 1},
        "65535": {65535},
    }.items():
        assert parse_cpuset(text) == cpus
        assert parse_cpuset(format_cpuset(frozenset(cpus))) == cpus
    assert format_cpuset(frozenset({0, 1, 4, 5, 9})) == "0-1,4-5,9"
    for text in ("x", "1-", "-1", "3-1", "1-2-3", "0-3:1/2", "65536", "0-65536"):
        with pytest.raises(ValueError):  # noqa: PT011 - a value, not a message, is what is got
            parse_cpuset(text)


@pytest.mark.parametrize(("text", "want"), CASES["sizes"].items())
def test_size(text: str, want: list[int] | str) -> None:
    """GiB is binary, GB decimal; G is binary for a job, and of a GPU what its box says less 2 %.

    What is no positive amount of memory is refused, and so is less than 1 MiB without a unit.
    """
    if isinstance(want, str):
        with pytest.raises(UsageError) as problem:
            parse_size(text)
        assert problem.value.message.endswith(want)
    else:
        size = parse_size(text)
        assert [size, size.of_gpu_bytes] == want


def test_sizes_as_they_are_sold() -> None:
    """A size in G fits the cards that are sold with that much, whatever nvidia-smi shows."""
    for card, (shown_mib, sold_gb) in CASES["cards_as_they_are_sold"].items():
        assert parse_size(f"{sold_gb}G").of_gpu_bytes <= shown_mib << 20, card


def test_format_size() -> None:
    """Sizes are shown in the largest binary unit that leaves at least 1."""
    sizes = (1023, 1024, 1536, 16160 << 20, 1 << 40, 5 << 50)
    words = ["1023 B", "1 KiB", "1.5 KiB", "15.78 GiB", "1 TiB", "5120 TiB"]
    assert [format_size(size_bytes) for size_bytes in sizes] == words


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("python --lr 0.1 größe 東京 🚀", "python --lr 0.1 größe 東京 🚀"),
        ("a\x1b[2Jb\nc\r\td", r"a\x1b[2Jb\x0ac\x0d\x09d"),
        ("\x00\x1f\x7f\x80\x9f", r"\x00\x1f\x7f\x80\x9f"),
        ("\udc80\udcef\udcff", r"\x80\xef\xff"),  # bytes that could not be decoded
        ("\ud800\udc7f\udd00", r"\ud800\udc7f\udd00"),
        ("\u202egnp.exe", r"\u202egnp.exe"),  # text that runs backwards
        ("a\xa0b\u3000", r"a\xa0b\u3000"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_printable(text: str, want: str) -> None:
    """What other users supplied reaches a terminal without control characters, as one line."""
    assert printable(text) == want
    assert printable("".join(map(chr, range(0x3100)))).isprintable()
