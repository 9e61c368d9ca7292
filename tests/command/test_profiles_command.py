"""Profiles on the command line: launches with a base or a variant, `check`, `list`, `schema`."""

import json
import os
from pathlib import Path

import jsonschema
import pytest
from conftest import Launcher
from test_profiles import OWN, ROOT, SHIPPED, files  # noqa: F401  a fixture

from gpulaunch.profiles.catalog import load_profile, profile_names
from gpulaunch.profiles.document.schema import profile_schema


def test_schema_is_the_shipped_one(launcher: Launcher) -> None:
    """`gpulaunch profiles schema` prints the JSON Schema docs/reference/profile.schema.json."""
    done = launcher.run("profiles", "schema")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (ROOT / "docs" / "reference" / "profile.schema.json").read_text()
    jsonschema.Draft202012Validator.check_schema(json.loads(done.stdout))
    assert json.loads(done.stdout) == profile_schema()


def test_launch_names_who_asks_for_a_missing_base(launcher: Launcher, files: Path) -> None:  # noqa: F811
    """A launch tells the line that asks for a file that is not there."""
    path = files / "own.toml"
    path.write_text(OWN.replace("./below", "./beneath"))
    status, said = dry_run(launcher, "-p", str(path))
    want = f"gpulaunch: error: {path}:2: base: {files}/beneath.toml: no such file or directory\n"
    assert (status, said) == (2, want)


def test_a_pipe_is_read_only_where_somebody_writes(launcher: Launcher, tmp_path: Path) -> None:
    """A named pipe is refused at once, by check and launch; a pipe from the shell is read."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    want = f"gpulaunch: error: {path}: it is a named pipe, and a file is wanted\n"
    done = launcher.run("profiles", "check", str(path))
    assert (done.returncode, done.stderr) == (2, want)
    assert dry_run(launcher, "-p", str(path)) == (2, want)
    end, out = os.pipe()
    os.write(out, b'name = "piped"\n')
    os.close(out)
    assert load_profile(f"/dev/fd/{end}").name == "piped"
    os.close(end)


def test_launch_with_a_variant(launcher: Launcher) -> None:
    """A launch takes the variant that --profile names, and others see it under that name."""
    done = launcher.run(
        *("--topology", "dgx1-v100", "--profile", "alexnet@batch=1", "--", "gpulaunch"),
        "status",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    (lease,) = json.loads(done.stdout)["leases"]
    assert (lease["profile"], len(lease["gpus"])) == ("alexnet@batch=1", 2)


def test_job_file_profiles_have_bases(launcher: Launcher, tmp_path: Path) -> None:
    """A profile within a file of jobs may stand on another."""
    path = tmp_path / "jobs.toml"
    path.write_text(
        '[profile.mine]\nbase = "kripke-4x"\ngpus = 2\n[[job]]\nprofile = "mine"\narrival_s = 0\n',
        encoding="utf-8",
    )
    done = launcher.run(
        "simulate", "--topology", "dgx1-v100", "--policy", "preserve", "--json", "--jobs", str(path)
    )
    assert done.returncode == 0, done.stderr
    (job,) = json.loads(done.stdout)["runs"][0]["jobs"]
    assert (len(job["gpus"]), job["ended_s"]) == (2, 84.1)
    path.write_text(path.read_text().replace("kripke-4x", "nobody"))
    done = launcher.run("simulate", "--topology", "dgx1-v100", "--jobs", str(path))
    assert f"{path}:2: base: unknown profile 'nobody'" in done.stderr


def test_measured_edges_are_the_pattern(launcher: Launcher, tmp_path: Path) -> None:
    """A profile's graph is the pattern of as many GPUs; for other numbers it is all to all."""
    path = tmp_path / "job.toml"
    path.write_text(
        'name = "job"\n[communication]\nedges = [[0, 1, 9], [1, 2, 1.5]]\nsource = "counted"'
    )
    for options, want in (
        ((), "pattern job,"),
        (("-n", "3"), "pattern job,"),
        (("-n", "2"), "pattern all-to-all,"),
        (("-n", "3", "--pattern", "ring"), "pattern ring,"),
    ):
        explain = (
            "--topology",
            "dgx1-v100",
            "-p",
            str(path),
            *options,
            "--explain",
            "--dry-run",
            "--",
            "true",
        )
        done = launcher.run(*explain)
        assert (done.returncode, want in done.stdout) == (0, True), (options, done.stdout)


def dry_run(launcher: Launcher, *options: str) -> tuple[int, str]:
    done = launcher.run("--topology", "dgx1-v100", "--dry-run", *options, "--", "true")
    return done.returncode, done.stdout if done.returncode == 0 else done.stderr or done.stdout


def test_check_names_path_and_line_of_every_file(launcher: Launcher, files: Path) -> None:  # noqa: F811
    """Every file is checked, wrong ones are told with path and line, and the status is 2."""
    (files / "bad.toml").write_text('name = "bad"\n[resources]\nmemorymib = 3\nsource = "x"')
    (files / "no.toml").write_text('name = "no\n')
    done = launcher.run(
        "profiles", "check", *(str(files / f"{name}.toml") for name in ("bad", "own", "no"))
    )
    assert done.returncode == 2
    assert f"{files}/bad.toml:3: unknown key 'memorymib': nearest is 'memory_mib'\n" in done.stderr
    assert f"{files}/no.toml:1: " in done.stderr
    assert done.stdout == f"{files}/own.toml: profile 'own' is well formed\n"


def test_check_looks_at_variants_and_sizes(launcher: Launcher, files: Path) -> None:  # noqa: F811
    """What may be asked of a profile is checked with it."""
    path = files / "own.toml"
    path.write_text(f"{OWN}\n[variants.both.placement]\nsingle_node = true\none_per_node = true\n")
    done = launcher.run("profiles", "check", str(path))
    assert (done.returncode, f"{path}:15: one_per_node: true, and" in done.stderr) == (2, True), (
        done.stderr
    )
    path.write_text('name = "own"\n[scaling]\nparameter = "n"\nprofiles = { 1 = "nobody" }\n')
    done = launcher.run("profiles", "check", str(path))
    want = f"gpulaunch: error: {path}:4: scaling.profiles.\"1\": unknown profile 'nobody'\n"
    assert (done.returncode, done.stderr.startswith(want)) == (2, True), done.stderr


def test_check_of_a_variant(launcher: Launcher) -> None:
    """A variant is checked with what else may be asked for beside it or instead."""
    done = launcher.run("profiles", "check", "alexnet@batch=1", "kripke@size=2")
    assert (done.returncode, done.stderr, done.stdout.count("is well formed")) == (0, "", 2)


def test_check_tells_the_first_mistake_of_each_section(launcher: Launcher, tmp_path: Path) -> None:
    """One look finds what is wrong with the top, with every section and with every variant."""
    path = tmp_path / "job.toml"
    path.write_text(
        'name = "job"\ngpus = 0\n[resources]\npower_w = -1\nsource = "x"\n[runs]\ncount = 0\n'
        '[variants.a]\ngpus = 0\n[variants.a.sharing]\nshare = 1\n[variants."b,c"]\n'
    )
    done = launcher.run("profiles", "check", str(path))
    assert done.returncode == 2
    assert [line.split(": ")[2] for line in done.stderr.splitlines()] == [
        f"{path}:{n}" for n in (2, 4, 7, 9, 11, 12)
    ]


def test_check_warns_of_what_may_mislead(launcher: Launcher, tmp_path: Path) -> None:
    """What is legal and odd is a warning with its line, and the exit status is 0."""
    path = tmp_path / "job.toml"
    path.write_text(
        'name = "job"\n[resources]\nincomplete = true\nmemory_is_reservation = true\nutilization = '
        '"time-active"\n'
        'power_w = 9\npower_max_w = 8\nsource = "x"\n'
    )
    done = launcher.run("profiles", "check", str(path))
    assert done.returncode == 0
    assert [line.split(": ")[2] for line in done.stderr.splitlines()] == [
        f"{path}:{n}" for n in (3, 4, 5, 7)
    ]


SENSITIVITY = '[sensitivity]\nsource = "x"\n'


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (
            f"{SENSITIVITY}best_s = 10\nworst_s = 15\nslowdown_percentage = 40",
            "6: slowdown_percentage: 40, and ",
        ),
        (f"{SENSITIVITY}best_s = 10\nworst_s = 15\nslowdown_percentage = 50.4", ""),
        (
            f"{SENSITIVITY}best_gb_per_s = 9\nworst_gb_per_s = 10",
            "4: best_gb_per_s: 9 is less than worst_gb_per_s",
        ),
        (
            '[resources]\nsource = "x"\ndate = "31.3.2025"',
            "4: date: '31.3.2025' is no date such as",
        ),
        (
            '[resources]\nsource = "x"\ndate = "2025-02-30"',
            "4: date: '2025-02-30' is no date such as",
        ),
        ('[resources]\nsource = "x"\ndate = "2025-03-31T14:02:11Z"', ""),
        ('[resources]\nsource = "x"\ndate = "2024"', ""),
        ('[resources]\nsource = "x"\npower_w = 611.58\npower_max_w = 610', ""),
        (
            '[resources]\nsource = "x"\npower_w = 630\npower_max_w = 610',
            "5: power_max_w: 610 is less than power_w",
        ),
    ],
)
def test_what_check_warns_of(launcher: Launcher, tmp_path: Path, text: str, want: str) -> None:
    """Figures that contradict each other, and dates that are none, are warned of."""
    path = tmp_path / "job.toml"
    path.write_text(f'name = "job"\n{text}\n')
    done = launcher.run("profiles", "check", str(path))
    assert (
        done.returncode,
        done.stderr.startswith(want and f"gpulaunch: warning: {path}:{want}"),
    ) == (0, True)
    assert bool(done.stderr) == bool(want)


def test_file_and_name_that_differ(launcher: Launcher, tmp_path: Path) -> None:
    """The list has what can be asked for; check warns in a folder of profiles; a folder is none."""
    own = tmp_path / "gpulaunch" / "profiles"
    (own / "dir.toml").mkdir(parents=True)
    (own / "wrongname.toml").write_text('name = "other"\n[variants.a]\ngpus = 2')
    (tmp_path / "elsewhere.toml").write_text('name = "other"')
    launcher.environment["XDG_CONFIG_HOME"] = str(tmp_path)
    listed = launcher.run("profiles", "--json")
    names = {one["name"]: one["variants"] for one in json.loads(listed.stdout)}
    assert (listed.stderr, names["wrongname"], {"other", "dir"} & set(names)) == (
        "",
        ["wrongname@a"],
        set(),
    )
    done = launcher.run("profiles", "check", "wrongname@a", str(tmp_path / "elsewhere.toml"))
    want = (
        f"{own}/wrongname.toml:1: name: 'other' is in 'wrongname.toml', so 'wrongname' is what "
        "asks for it"
    )
    assert (done.returncode, done.stderr) == (0, f"gpulaunch: warning: {want}\n")


def test_list_has_everything(launcher: Launcher) -> None:
    """`profiles --json` has every field of each, what may be asked of it, and the earlier keys."""
    found = {one["name"]: one for one in json.loads(launcher.run("profiles", "--json").stdout)}
    assert set(found) == set(profile_names())
    assert found["alexnet"]["variants"] == [f"alexnet@batch={n}" for n in (1, 2, 4, 8, 64, 128)]
    assert found["kripke"]["variants"] == ["kripke@size=1", "kripke@size=4"]
    kripke = found["kripke-1x"]
    assert kripke["document"]["counters"]["warp_occupancy_percentage"] == 32.61
    before = (
        "memory_bytes",
        "sm_utilization_percentage",
        "measured_on",
        "resources_source",
        "counters",
        "sm_curve",
    )
    assert [kripke[key] for key in before] == [
        *(651_165_696, 26.56, "NVIDIA A100X 80GB", "mps-sharing-2024 Table II", None, [])
    ]
    assert "@batch=128" in launcher.run("profiles").stdout


def test_what_people_run_comes_first(launcher: Launcher, tmp_path: Path) -> None:
    """One's own profiles and those of today are listed before the benchmarks of papers."""
    own = tmp_path / "gpulaunch" / "profiles"
    own.mkdir(parents=True)
    (own / "zebra.toml").write_text('name = "zebra"')
    launcher.environment["XDG_CONFIG_HOME"] = str(tmp_path)
    wanted = ("what people run", "ddp", "vgg16", "zebra", "benchmarks of papers", "alexnet")
    lines = launcher.run("profiles").stdout.splitlines()
    firsts = [line if line in wanted else line.partition(" ")[0] for line in lines]
    assert [first for first in firsts if first in wanted] == list(wanted)
    listed = json.loads(launcher.run("profiles", "--json").stdout)
    found = {one["name"]: one["benchmark"] for one in listed}
    assert (found["zebra"], found["ddp"], found["alexnet"]) == (False, False, True)


def test_estimated_figures_are_marked(launcher: Launcher) -> None:
    """An estimated figure has a mark in the list, and the word where a profile is shown."""
    row = next(
        line for line in launcher.run("profiles").stdout.splitlines() if line.startswith("vgg16")
    )
    assert row.split()[3:7] == ["6.527", "GiB", "~100", "~79"]
    shown = launcher.run("profiles", "show", "vgg16").stdout
    assert ("299 W (estimated)" in shown, "6.527 GiB (estimated)" in shown) == (True, False)


def test_everything_that_is_shipped_is_well_formed(launcher: Launcher) -> None:
    """Every shipped profile, with all its variants and sizes, passes `profiles check`."""
    done = launcher.run("profiles", "check", *map(str, SHIPPED))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("is well formed") == len(SHIPPED) == len(profile_names())
