"""Profiles: what a file may say, what stands under it, unmeasured sizes, the shipped library."""

import json
from pathlib import Path
from typing import Any

import pytest
from toml_parser import tomllib
from values import cases

from gpulaunch.errors import FieldError, UsageError
from gpulaunch.profiles.catalog import load_profile, slowdowns_both_ways
from gpulaunch.profiles.demand import CurvePoint
from gpulaunch.profiles.profile import Profile, check_profile

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "profiles").glob("[bw]*/*.toml"), key=lambda path: path.name)

# ----------------------------------------------------------------------------------------- mistakes


def refused(name: str) -> UsageError:
    with pytest.raises(UsageError) as problem:
        load_profile(name)
    return problem.value


@pytest.mark.parametrize(
    "change",
    [
        {"communication": {"weight": 0, "source": "x"}},
        {"resources": {"utilization": "busy", "source": "x"}},
        {"variants": {"a=1": {"name": "x"}}},
        {"variants": {"a,b": {}}},
        {"name": "x@y"},
        {"name": "x\ny"},
        {"resources": {"power_w": 2, "source": ""}},
        {"command": []},
        {"runs": {"spread": {"foo": 3}}},
        {"version": 2},
    ],
    ids=json.dumps,
)
def test_refused(change: dict[str, Any]) -> None:
    """What is wrong by itself is refused."""
    with pytest.raises(FieldError):
        check_profile({"name": "job", **change})


TWICE = "name = 'job'\n[communication]\nedges = [[0, 1, 9], [1, 2, 1], [1, 0, 2]]\nsource = 'x'"
NAMED = {
    "a section twice": (
        '[resources]\nsource = "x"\n[resources]\npower_w = 2',
        "3: '[resources]' stands twice",
    ),
    "a list of tables": (
        "[[resources]]",
        "1: resources: it is a list of tables, and one table is wanted",
    ),
    "a mark of bytes": (
        '\ufeffname = "a"',
        "1: it begins with a byte-order mark: save it as UTF-8 without one",
    ),
    "an edge twice": (TWICE, "3: edges: 0-1 is there twice, in either order"),
}


@cases(NAMED, "text", "want")
def test_mistakes_are_named(tmp_path: Path, text: str, want: str) -> None:
    """What is wrong is told in the words of whoever writes profiles, not of a parser."""
    path = tmp_path / "job.toml"
    path.write_text(text)
    assert refused(str(path)).message.startswith(f"{path}:{want}")


# -------------------------------------------------------------------------------- base and variants

BASE, OWN = (Path(__file__).with_name(f"{name}.toml").read_text() for name in ("below", "own"))
"""A profile, and one that stands on it."""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "a@b"
    folder.mkdir()
    (folder / "below.toml").write_text(BASE)
    (folder / "own.toml").write_text(OWN)
    return folder


def test_a_profile_stands_on_another(files: Path) -> None:
    """What a file says counts, the rest is its base's; tables are merged and lists are replaced.

    Half of one curve is never put together with half of another.
    """
    path = files / "own.toml"
    profile = load_profile(str(path))
    said = (profile.name, profile.description, profile.command)
    assert said == ("own", "the one below", ["train", "--fast"])
    assert (profile.resources.memory_mib, profile.resources.power_w) == (700, 90)
    assert profile.slowdowns == {"vgg16": 0.2, "gmm": 0.03}
    assert profile.curve == (CurvePoint(50, 3), CurvePoint(100, 4))
    path.write_text(
        f'{OWN}\n[sm_curve]\nsm_percentage = [100]\nthroughput = [9]\nsource = "swept again"\n'
    )
    profile = load_profile(str(path))
    assert profile.curve == (CurvePoint(100, 9),)
    assert (profile.sm_curve.unit, profile.sm_curve.source) == (None, "swept again")


def test_a_source_names_all_that_gave_figures(files: Path) -> None:
    """A source names base and file if both gave figures, and never another's GPU.

    What the file measured in place of an estimate is none, and how figures differed between runs
    is not told of others.
    """
    below = BASE.replace("power_w = 90", 'power_w = 90\nestimated = ["memory_mib", "power_w"]')
    (files / "below.toml").write_text(below)
    profile = load_profile(str(files / "own.toml"))
    want = "sampled again; the rest as ./below.toml on A100: sampled"
    assert (profile.resources.source, profile.resources.measured_on) == (want, "H100")
    assert profile.collocation.source == "tried again; the rest as ./below.toml: tried"
    assert profile.resources.estimated == ["power_w"]
    assert not profile.runs
    whole = OWN.replace("memory_mib = 700", "memory_mib = 700\npower_w = 80")
    (files / "own.toml").write_text(whole)
    assert load_profile(str(files / "own.toml")).resources.source == "sampled again"
    (files / "own.toml").write_text('name = "own"\nbase = "./below.toml"')
    assert load_profile(str(files / "own.toml")).runs.count == 5


def test_a_variant_goes_over_the_file(files: Path) -> None:
    """A variant is asked for after an @, also one of the base, or as a base; one at a time."""
    path = str(files / "own.toml")
    profile = load_profile(f"{path}@batch=1")
    assert (profile.name, profile.gpus, profile.communication.weight) == ("own@batch=1", 2, 4)
    assert load_profile(path).gpus is None
    want = "profile 'own' has no variant 'batch=1,precision=fp16'"
    assert refused(f"{path}@batch=1,precision=fp16").message == want
    assert refused(path + "@x").hint == "known are own@batch=1, own@precision=fp16"
    (files / "own.toml").write_text('name = "own"\nbase = "./below.toml@batch=1"')
    profile = load_profile(path)
    assert (profile.name, profile.gpus, profile.communication.weight) == ("own", 2, 4)


def test_own_profile_stands_on_the_shipped_one_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A base of the file's own name is the next one of that name."""
    directory = tmp_path / "gpulaunch" / "profiles"
    directory.mkdir(parents=True)
    (directory / "vgg16.toml").write_text('name = "vgg16"\nbase = "vgg16"\ngpus = 5')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    profile = load_profile("vgg16")
    assert (profile.gpus, profile.communication.collective_calls_per_iteration) == (5, 160_001)


NO_BASE_BELOW = "has a base itself, 'vgg16': only one profile can be below another"
WRONG = {
    "no such base": ("own", "./below.toml", "below", "own.toml:2: base: unknown profile 'below'"),
    "a base that has one itself": (
        *("below", "[resources]", 'base = "vgg16"\n[resources]'),
        f"own.toml:2: base: './below.toml' {NO_BASE_BELOW}",
    ),
    "a variant is wrong": (
        *("below", "weight = 4", "weight = 0"),
        "below.toml:28: weight: 0 is not within 0.001 to 1000",
    ),
}


@cases(WRONG, "file", "old", "new", "want")
def test_mistakes_of_files_that_stand_on_each_other(
    files: Path, file: str, old: str, new: str, want: str
) -> None:
    """A mistake is told with path and line of the file that has it."""
    path = files / f"{file}.toml"
    assert path.read_text().count(old) == 1
    path.write_text(path.read_text().replace(old, new))
    assert refused(str(files / "own.toml")).message == f"{files}/{want}"


def test_contradictions(files: Path) -> None:
    """What contradicts itself in a variant is told when that is asked for."""
    path = files / "own.toml"
    curve = "sm_percentage = [50, 100]\nthroughput = [1]\nsource = 'swept'"
    path.write_text(f"name = 'own'\n[variants.a.sm_curve]\n{curve}")
    assert load_profile(str(path)).name == "own"
    want = "throughput: 1 values for 2 shares"
    assert refused(f"{path}@a").message.startswith(f"{path}: {want}")


# --------------------------------------------------------------------------------------- slowdowns


def test_slowdown_on_one_gpu_goes_first(tmp_path: Path) -> None:
    """Beside a job on one GPU its measured slowdown counts, beside others that on one socket."""
    path = tmp_path / "job.toml"
    path.write_text(
        'name = "job"\n[collocation]\nsource = "a"\nslowdown_percentage = { x = 1, y = 2 }\n'
        '[shared_gpu]\nsource = "b"\nslowdown_percentage = { x = 30 }\n'
    )
    profile = load_profile(str(path))
    assert profile.gpu_slowdowns == {"x": 0.3, "y": 0.02}
    assert profile.slowdowns == {"x": 0.01, "y": 0.02}
    assert profile.measured_on_one_gpu == ("x",)


def test_slowdowns_of_variants_count_both_ways() -> None:
    """What a variant says of its neighbours, and they of it, is known under the variants' names."""
    found = slowdowns_both_ways(load_profile("alexnet@batch=64"))
    assert found["googlenet@batch=4"] == pytest.approx((0.03043, 0.2865))
    assert found["alexnet@batch=1"] == pytest.approx((0.04882, 0.24098))
    assert slowdowns_both_ways(load_profile("kripke-1x")) == {}


# -------------------------------------------------------------------------------------- the library

CLASSES = {
    "compute": "dxtc tpacf binomial-options leukocyte coulombic-potential mergesort pathfinder",
    "memory": "lavamd gaussian-elimination lbm dwt2d gesummv page-view-count streamcluster",
}


@pytest.mark.parametrize("intensity", CLASSES)
def test_classes_of_cd_search(intensity: str) -> None:
    """The 14 benchmarks of cd-search-ics18 Table 1 have its classes."""
    for name in CLASSES[intensity].split():
        classification = load_profile(name).classification
        assert (classification.intensity, "cd-search-ics18 Table 1" in classification.source) == (
            intensity,
            True,
        )
    mergesort = load_profile("mergesort").resources
    got = (mergesort.memory_bandwidth_utilization_percentage, mergesort.utilization)
    assert got == (13.3, None)  # of a simulated GPU, not by GPM


@pytest.mark.parametrize("network", ["alexnet", "googlenet"])
def test_batch_classes_are_the_published_data(network: str) -> None:
    """Times, split slowdowns and collocations by batch class are the published ones, for 2 GPUs.

    The job graph's weight falls from 4 for the smallest batch to 1 (topo-aware-sc17 5.1).
    """
    path = ROOT / "profiles" / "generators" / "poisson.toml"
    published = tomllib.loads(path.read_text())["profile"]
    for weight, batch in ((4, 1), (3, 4), (2, 64), (1, 128)):
        want = Profile({"name": "x", **published[f"{network}-b{batch}-n2"]})
        got = load_profile(f"{network}@batch={batch}")
        assert (got.gpus, got.resources.duration_s) == (2, want.resources.duration_s)
        assert (got.split_slowdown, got.communication.weight) == (want.split_slowdown, weight)
        assert got.slowdowns == {
            name.removesuffix("-n2").replace("-b", "@batch="): slowdown
            for name, slowdown in want.slowdowns.items()
            if name.endswith("-n2")
        }
