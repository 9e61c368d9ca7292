"""Tables of all sets: decisions are the same with them, and a bad file of them changes nothing."""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from itertools import count, cycle, islice, product
from pathlib import Path

import pytest
import values
from test_policies import Case, Machine, random_needs, random_topology

from gpulaunch.decide.placement import tables
from gpulaunch.decide.placement.fabric import MAPPED_GPUS, Fabric, fabric_of
from gpulaunch.decide.placement.place import place
from gpulaunch.decide.placement.scores import Scorer
from gpulaunch.decide.placement.tables import read_tables, tabulate, to_bytes
from gpulaunch.launch.placement_tables import attach_tables, make_tables
from gpulaunch.machine import find
from gpulaunch.machine.table_key import TableKey
from gpulaunch.machine.topology import Topology
from gpulaunch.profiles.pattern import PATTERNS
from gpulaunch.records import replace

ROOT = Path(__file__).parents[2]
POLICIES = ["baseline", "best_fit", "greedy", "preserve", "preserve_paper", "lookahead"]
EIGHT, OTHER = values.machine("dgx1-v100"), values.machine("dgx1-p100")


def content_of(topology: Topology) -> bytes:
    """Return the content of the file with a machine's tables."""
    fabric = Fabric(topology)
    tabulate(fabric)
    return to_bytes(fabric)


@pytest.fixture(scope="module")
def content() -> bytes:
    """Return the tables of EIGHT."""
    return content_of(EIGHT)


# Decisions


def test_tables_come_back(content: bytes) -> None:
    """What is read is what was made, figure by figure."""
    made, back = Fabric(EIGHT), Fabric(EIGHT)
    tabulate(made)
    read_tables(back, content)
    assert {name: [*table] for name, table in back.tables.items()} == made.tables
    assert {name: bytes(order) for name, order in back.orders.items()} == made.orders
    assert to_bytes(back) == content


def cases(machine: Machine, rng: random.Random, number: int) -> Iterator[Case]:
    """Draw requests to a machine, for each named pattern by each policy in turn."""
    gpus = len(machine.indices)
    for policy, pattern in islice(cycle(product(POLICIES, PATTERNS.values())), number):
        free = rng.sample(machine.indices, rng.randrange(1, gpus + 1))
        asked = rng.randrange(1, len(free) + 1)
        model = rng.choice(("cut", "cut", "cut", "mapa", "measured"))
        sensitive = rng.random() < 0.6
        case = Case(machine, free, free, asked, policy, model, sensitive, pattern)
        few = gpus <= 6 and rng.random() < 0.3  # what a need is met by is found by trying all
        yield replace(case, needs=random_needs(rng, case)) if few else case


@pytest.mark.parametrize("seed", range(30))
def test_decisions_are_the_same_with_tables(seed: int) -> None:
    """On machines of 3 to 10 GPUs each score policy places each named pattern as without tables."""
    rng = random.Random(f"tables {seed}")
    gpus = 9 + seed % 2 if seed >= 28 else 3 + seed % 6
    drawn = (random_topology(rng, gpus) for _ in count())
    bare = Machine(next(one for one in drawn if Fabric(one).has_tables))
    tabulated = Machine(replace(bare.topology))
    asked = list(cases(bare, rng, 120))
    want = [place(case.problem(), case.policy) for case in asked]
    read_tables(fabric_of(tabulated.topology), content_of(bare.topology))
    asked = [replace(case, machine=tabulated) for case in asked]
    assert [place(case.problem(), case.policy) for case in asked] == want
    tables = fabric_of(tabulated.topology).tables
    assert tables.keys() >= {"cut", "among", "chain slowest", "star slowest"}


def test_tables_leave_out_what_is_not_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern has no table where the search gives up on a set; the others have theirs."""
    monkeypatch.setattr(tables, "_EFFORT", 0)
    fabric = Fabric(EIGHT)
    tabulate(fabric)
    assert fabric.orders.keys() == {"all_to_all"}


def test_tables_are_as_sure_of_the_last_set_as_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many sets there are, each has all the effort that one may have."""
    monkeypatch.setattr(tables, "_EFFORT", 10)
    fabric = Fabric(EIGHT)
    tabulate(fabric)
    for name in ("chain", "star", "stencil_2d", "stencil_3d"):
        slowest, every = fabric.tables[f"{name} slowest"], range(8)
        for mask in (mask for mask in range(256) if mask & mask - 1):
            one = Scorer(fabric, every, mask.bit_count(), PATTERNS[name], "cut", every).mapper
            assert one.slowest(fabric.positions(mask), slowest_first=True) == slowest[mask]


# Files


def attached(machine: find.Machine) -> bool:
    """Return whether a machine that was just read gets tables."""
    machine = replace(machine, topology=replace(machine.topology))
    attach_tables(machine)
    return bool(fabric_of(machine.topology).tables)


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    """Return the description of EIGHT where a wheel keeps it."""
    directory = tmp_path / "gpulaunch" / "_profiles" / "machines"
    directory.mkdir(parents=True)
    return Path(shutil.copy(ROOT / "profiles/machines/dgx1-v100.toml", directory))


def described(path: Path) -> find.Machine:
    """Return EIGHT as described by a file."""
    return find.Machine(EIGHT, (), TableKey("dgx1-v100", "0", str(path)))


def test_tables_of_a_wheel_are_read(shipped: Path, content: bytes) -> None:
    """Tables beside a shipped description are read; beside any other file they mean nothing."""
    assert not attached(described(shipped))
    shipped.with_suffix(".tables").write_bytes(content)
    assert attached(described(shipped))
    elsewhere = shipped.rename(shipped.parents[3] / "mine.toml")
    elsewhere.with_suffix(".tables").write_bytes(content)
    assert not attached(described(elsewhere))


BAD: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "zeros": lambda content: bytes(len(content)),
    "without a line": lambda _: b"\x8d\xef\x02\xd2\x00",
    "truncated in its title": lambda content: content[:100],
    "truncated in its figures": lambda content: content[:-1],
    "longer": lambda content: content + b"x",
    "one bit of a figure": lambda content: content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
    "one bit of the title": lambda content: content[:9] + bytes([content[9] ^ 1]) + content[10:],
    "of another machine": lambda _: content_of(OTHER),
    "huge": lambda content: content + bytes(2 << 20),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_tables_of_a_wheel_change_nothing(shipped: Path, content: bytes, kind: str) -> None:
    """A damaged file, or that of another machine, is as none."""
    shipped.with_suffix(".tables").write_bytes(BAD[kind](content))
    assert not attached(described(shipped))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> Path:
    """Return the file with the tables of this machine, which is EIGHT."""
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    path = runtime / "gpulaunch.tables"
    path.write_bytes(content)
    path.chmod(0o600)
    return path


HERE = find.Machine(EIGHT, (), None)


def test_tables_of_this_machine_are_read(cache: Path) -> None:
    """The user's own file is read, and none is none."""
    assert attached(HERE)
    cache.unlink()
    assert not attached(HERE)


@pytest.mark.parametrize("kind", BAD)
def test_bad_tables_of_this_machine_change_nothing(cache: Path, content: bytes, kind: str) -> None:
    """A damaged file, or that of another machine, is as none."""
    cache.write_bytes(BAD[kind](content))
    assert not attached(HERE)


HOSTILE: dict[str, Callable[[Path], object]] = {
    "writable by others": lambda path: path.chmod(0o666),
    "a symbolic link": lambda path: path.rename(f"{path}.x") and path.symlink_to(f"{path}.x"),
    "a named pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "a directory": lambda path: (path.unlink(), path.mkdir()),
    "in a directory of others": lambda path: path.parent.chmod(0o777),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_tables_that_others_may_have_made_are_not_read(cache: Path, kind: str) -> None:
    """Only the user's own regular file in the user's own directory counts."""
    HOSTILE[kind](cache)
    assert not attached(HERE)


def test_tables_are_made_once(cache: Path, content: bytes) -> None:
    """This machine's tables are made where they are missing or another's, and kept."""
    told: list[str] = []
    kept = cache.stat().st_ino
    make_tables(replace(EIGHT), told.append)
    assert cache.stat().st_ino == kept
    cache.write_bytes(content_of(OTHER))
    make_tables(replace(EIGHT), told.append)
    made = cache.stat()
    assert (cache.read_bytes(), made.st_mode & 0o777) == (content, 0o600)
    make_tables(replace(EIGHT), told.append)
    assert (cache.stat().st_ino, told) == (made.st_ino, [])


def test_machines_without_tables(cache: Path) -> None:
    """Where all GPUs are linked alike, or are more than 16, no file is made."""
    cache.unlink()
    for name in ("dgx-a100", "nvl72", "minsky-cluster"):
        make_tables(values.machine(name), print)
        assert not cache.exists()


def test_a_wheel_has_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The build hook adds tables of the machines of up to 8 GPUs whose sets differ."""
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    monkeypatch.syspath_prepend(str(ROOT))
    from hatch_build import GeneratedFiles

    hook = GeneratedFiles(str(ROOT), {}, None, None, str(tmp_path / "dist"), "wheel")
    data: dict[str, dict[str, str]] = {"force_include": {}, "shared_data": {}}
    hook.initialize("standard", data)
    made = {Path(path).stem: path for path in data["force_include"] if path.endswith(".tables")}
    machines = [path.stem for path in (ROOT / "profiles" / "machines").rglob("*.toml")]
    fabrics = {name: Fabric(values.machine(name)) for name in machines}
    small = {name for name, fabric in fabrics.items() if len(fabric.gpus) <= MAPPED_GPUS}
    want = {name for name in small if fabrics[name].has_tables}
    assert made.keys() == want
    for name, path in made.items():
        read_tables(fabrics[name], Path(path).read_bytes())
        assert fabrics[name].tables
        inside = data["force_include"][path]
        assert inside.removesuffix(".tables") + ".json" in data["force_include"].values()
