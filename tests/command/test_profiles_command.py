"""Profiles on the command line: launches with a base or a variant, `profile list` and `show`."""

import json
import os
from pathlib import Path

import pytest
from conftest import Launcher
from test_profiles import OWN, ROOT, SHIPPED, files  # noqa: F401  a fixture

from gpulaunch.profiles.catalog import load_profile, profile_names


def test_launch_names_who_asks_for_a_missing_base(launcher: Launcher, files: Path) -> None:  # noqa: F811
    """A launch tells the line that asks for a file that is not there."""
    path = files / "own.toml"
    path.write_text(OWN.replace("./below", "./beneath"))
    status, said = dry_run(launcher, "-p", str(path))
    want = f"gpulaunch: error: {path}:2: base: {files}/beneath.toml: no such file or directory\n"
    assert (status, said) == (2, want)


def test_a_pipe_is_read_only_where_somebody_writes(launcher: Launcher, tmp_path: Path) -> None:
    """A named pipe is refused at once, by show and launch; a pipe from the shell is read."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    want = f"gpulaunch: error: {path}: it is a named pipe, and a file is wanted\n"
    done = launcher.run("profile", "show", str(path))
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


def test_set_goes_over_the_profile(launcher: Launcher) -> None:
    """--set, also given several times, overrides the profile, and makes one where there is none."""
    assert (
        json.loads(dry_run(launcher, "--json", "-p", "vgg16", "--set", "gpus=3")[1])["gpus"][2][
            "index"
        ]
        == 3
    )
    status, said = dry_run(launcher, "-p", "vgg16", "--set", "memory=17GiB", "--set=gpus=3")
    assert (
        status,
        "3 GPUs requested: 0 of dgx1-v100's 8 satisfy profile vgg16's 17 GiB of memory" in said,
    ) == (
        2,
        True,
    )
    status, said = dry_run(launcher, "--set", "resources.memory_mib=17408")
    assert (status, "--set's 17 GiB of memory" in said) == (2, True)
    assert (
        dry_run(launcher, "--set", "memory=17GiB", "--memory", "1GiB")[0] == 0
    )  # an option of its own counts more


@pytest.mark.parametrize(
    ("options", "want"),
    [
        (("memory",), "--set memory: it is not KEY=VALUE"),
        (("powerw=3",), "--set powerw=3: unknown key 'powerw': nearest is 'power_w'"),
        (
            ("sm_percentage=3",),
            (
                "--set sm_percentage=3: 'sm_percentage' could be sharing.sm_percentage or "
                "sm_curve.sm_percentage"
            ),
        ),
        (("power_w=much",), "--set power_w=much: power_w: 'much' is not a number"),
        (("memory=much",), "--set memory=much: 'much' is no amount of memory such as 8GiB"),
        (
            ("memory=12",),
            "--set memory=12: '12B' is 12 bytes: write a unit, such as 8GiB",
        ),
        (
            ("idle_percentage=101",),
            "--set idle_percentage=101: idle_percentage: 101 is not within 0 to 100",
        ),
        (
            ("resources=1",),
            "--set resources=1: 'resources' is a section: write resources.KEY=VALUE",
        ),
        (("name=x",), "--set name=x: unknown key 'name'"),
        (("pattern=rings",), "--set pattern=rings: pattern: 'rings' is none of ring, "),
        (
            ('collocation.slowdown_percentage."a=32',),
            (
                '--set collocation.slowdown_percentage."a=32: it is not KEY=VALUE, '
                "with KEY as in TOML where it has quotes"
            ),
        ),
        (("resources.source= ",), "--set resources.source= : source: it is empty"),
    ],
)
def test_mistakes_of_set(launcher: Launcher, options: tuple[str, ...], want: str) -> None:
    """A mistake is told with the option as it was typed."""
    status, said = dry_run(launcher, *(word for option in options for word in ("--set", option)))
    assert (status, said.startswith(f"gpulaunch: error: {want}")) == (2, True), said


def test_file_and_name_that_differ(launcher: Launcher, tmp_path: Path) -> None:
    """The list has profiles by the names that can be asked for; a folder is none."""
    own = tmp_path / "gpulaunch" / "profiles"
    (own / "dir.toml").mkdir(parents=True)
    (own / "wrongname.toml").write_text('name = "other"\n[variants.a]\ngpus = 2')
    launcher.environment["XDG_CONFIG_HOME"] = str(tmp_path)
    listed = launcher.run("profile", "list", "--json")
    names = {one["name"]: one["variants"] for one in json.loads(listed.stdout)}
    assert (listed.stderr, names["wrongname"], {"other", "dir"} & set(names)) == (
        "",
        ["wrongname@a"],
        set(),
    )


def test_list_has_everything(launcher: Launcher) -> None:
    """`profile list --json` has every field, what may be asked of each, and earlier keys."""
    found = {
        one["name"]: one for one in json.loads(launcher.run("profile", "list", "--json").stdout)
    }
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
    assert "@batch=128" in launcher.run("profile", "list").stdout


def test_what_people_run_comes_first(launcher: Launcher, tmp_path: Path) -> None:
    """One's own profiles and those of today are listed before the benchmarks of papers."""
    own = tmp_path / "gpulaunch" / "profiles"
    own.mkdir(parents=True)
    (own / "zebra.toml").write_text('name = "zebra"')
    launcher.environment["XDG_CONFIG_HOME"] = str(tmp_path)
    wanted = ("what people run", "ddp", "vgg16", "zebra", "benchmarks of papers", "alexnet")
    lines = launcher.run("profile", "list").stdout.splitlines()
    firsts = [line if line in wanted else line.partition(" ")[0] for line in lines]
    assert [first for first in firsts if first in wanted] == list(wanted)
    listed = json.loads(launcher.run("profile", "list", "--json").stdout)
    found = {one["name"]: one["benchmark"] for one in listed}
    assert (found["zebra"], found["ddp"], found["alexnet"]) == (False, False, True)


def test_estimated_figures_are_marked(launcher: Launcher) -> None:
    """An estimated figure has a mark in the list, and the word where a profile is shown."""
    row = next(
        line
        for line in launcher.run("profile", "list").stdout.splitlines()
        if line.startswith("vgg16")
    )
    assert row.split()[3:7] == ["6.527", "GiB", "~100", "~79"]
    shown = launcher.run("profile", "show", "vgg16").stdout
    assert ("299 W (estimated)" in shown, "6.527 GiB (estimated)" in shown) == (True, False)


def test_every_shipped_profile_is_listed(launcher: Launcher) -> None:
    """Every shipped profile can be loaded, and is in the list."""
    done = launcher.run("profile", "list", "--json")
    assert (done.stderr, len(json.loads(done.stdout))) == ("", len(SHIPPED))


def test_a_file_that_is_wrong(launcher: Launcher, tmp_path: Path) -> None:
    """`profile show` names the line of a bad file, and the status is 2."""
    bad = tmp_path / "bad.toml"
    bad.write_text('name = "bad"\n[resources]\nsm_utilization_percentage = 101\nsource = "me"\n')
    done = launcher.run("profile", "show", str(bad))
    problem = f"gpulaunch: error: {bad}:3: sm_utilization_percentage: 101 is not within 0 to 100\n"
    assert (done.returncode, done.stderr) == (2, problem)
