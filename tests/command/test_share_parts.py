"""Parts of a GPU by --share=1/2, guests, and the memory limit of jobs that share."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from conftest import Launcher, held
from test_sharing_launch import DGX, dry, indices, status

GPU_MIB = 16160  # profiles/machines/dgx1-v100.toml


def profile(
    launcher: Launcher, mib: int = 2048, sm: int = 40, incomplete: str = "false"
) -> tuple[str, str]:
    """Write a profile, and return the option that names it."""
    path = Path(launcher.environment["HOME"]) / f"of-{mib}-{incomplete}.toml"
    path.write_text(
        f'name = "of-{mib}"\n[resources]\nincomplete = {incomplete}\nmemory_mib = {mib}\n'
        f"sm_utilization_percentage = {sm}\n"
        'memory_bandwidth_utilization_percentage = 10\nsource = "made up"\n'
    )
    return "-p", str(path)


TOLD = "profile of-2048 is incomplete, measured on a part of the job, which may use more of a GPU"


def limits(document: dict) -> tuple[int, str]:
    """Return the SM percentage and the memory limit of a dry run."""
    variable = document["env"]["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"]
    return document["sm_percentage"], variable.removeprefix("GPU-dgx1-v100-0=")


@pytest.mark.parametrize(
    ("part", "percentage", "mib"),
    [
        ("1/2", 50, 8080),
        ("50%", 50, 8080),
        ("1/3", 33, 5332),
        ("100 %", 100, GPU_MIB),
        ("0.5", 50, 8080),
        (".29", 29, 4686),
        ("33.3%", 33, 5332),
        ("1", 100, GPU_MIB),
        ("1.0", 100, GPU_MIB),
    ],
)
def test_a_part_of_a_gpu(launcher: Launcher, part: str, percentage: int, mib: int) -> None:
    """A job without a profile gets the part of SMs and memory that --share= or --share says."""
    found = dry(launcher, *DGX, f"--share={part}")
    assert dry(launcher, *DGX, "--share", part) == found
    assert (found["status"], limits(found)) == (0, (percentage, f"{mib}M"))
    sharing = found["sharing"]
    assert (sharing["sm_utilization_percentage"], sharing["memory_bytes"]) == (
        percentage,
        mib << 20,
    )


@pytest.mark.parametrize("parts", [("25%",) * 4, ("1/2", "1/3"), ("10%",) * 10, ("3/4", "1/4")])
def test_parts_fill_a_gpu(launcher: Launcher, parts: tuple[str, ...]) -> None:
    """Parts come together on one GPU up to the whole, however many they are, and no further."""
    with ExitStack() as stack:
        for part in parts:
            job = stack.enter_context(held(launcher, *DGX, "--only", "0", f"--share={part}"))
            assert job.gpus == "GPU-dgx1-v100-0"
        refused = dry(launcher, *DGX, "--only", "0", "--share=1/4")
        assert (refused["status"], "average SM utilization 1" in refused["reason"]) == (75, True)
        assert indices(dry(launcher, *DGX, "--share=1/4")) != [0]


@pytest.mark.parametrize(
    "part", ["3/2", "0%", "0/0", "1/300", "101%", "0", "2", "50", "half", "1/-2", "²%"]
)
def test_no_part_of_a_gpu(launcher: Launcher, part: str) -> None:
    """A value that is no part of a GPU is a usage error of one line."""
    done = launcher.run(*DGX, f"--share={part}", "--", "true")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    shown = "0/1" if part == "0" else part
    assert line.startswith(f"gpulaunch: error: --share: '{shown}' is no")


@pytest.mark.parametrize("word", ["status", "docker", "train.py", "7z"])
def test_what_is_no_part_is_the_first_word(launcher: Launcher, word: str) -> None:
    """--share takes no value from what follows but a part: a word keeps its meaning."""
    found = launcher.run(*DGX, "--share", word, "--help")
    assert found.stderr == launcher.run(*DGX, "--guest", word, "--help").stderr.replace(
        "--guest", "--share"
    )
    assert launcher.run(*DGX, "--share", "--", "echo", "1/2").stdout == "1/2\n"


@pytest.mark.parametrize(("value", "shares"), [("1", True), ("true", True), ("0", False)])
def test_a_number_in_a_setting_is_a_switch(launcher: Launcher, value: str, shares: bool) -> None:
    """GPULAUNCH_SHARE=1 and share = 1 switch sharing on, 0 switches it off, as all switches."""
    launcher.environment["GPULAUNCH_SHARE"] = value
    assert dry(launcher, *DGX, *profile(launcher))["shared"] is shares


def test_a_part_with_a_profile(launcher: Launcher) -> None:
    """Beside a profile, a part is the cap of SMs and memory; the rule goes by the profile."""
    found = dry(launcher, *DGX, "--share=1/4", *profile(launcher))
    assert limits(found) == (25, "4040M")
    sharing = found["sharing"]
    assert (sharing["sm_utilization_percentage"], sharing["memory_bytes"]) == (40, 4040 << 20)
    with (
        held(launcher, *DGX, "--share=1/4", *profile(launcher)),
        held(launcher, *DGX, "--share=1/4", *profile(launcher)) as second,
    ):
        assert second.gpus == "GPU-dgx1-v100-0"
        assert indices(dry(launcher, *DGX, "--share=1/4", *profile(launcher))) != [0]


def test_an_incomplete_profile(launcher: Launcher) -> None:
    """Measured on a part of the job, a profile warns, and sets no limit below what is free."""
    short = (*DGX, "--share", "--only", "0", *profile(launcher, incomplete="true"))
    assert TOLD in launcher.run(*short, "--dry-run", "--", "true").stderr
    assert limits(dry(launcher, *short)) == (100, f"{GPU_MIB}M")
    whole = (*DGX, "--share", "--only", "0", *profile(launcher))
    assert "incomplete" not in launcher.run(*whole, "--dry-run", "--", "true").stderr
    with held(launcher, *whole):
        assert limits(dry(launcher, *short))[1] == f"{GPU_MIB - 2253}M"
        with held(launcher, *short):
            refused = dry(launcher, *whole)
            assert (refused["status"], "maximum memory" in refused["reason"]) == (75, True)


@pytest.mark.parametrize(("option", "mib"), [("--share=1/2", 8080), ("--memory=3GiB", 3072)])
def test_a_bound_beside_an_incomplete_profile(launcher: Launcher, option: str, mib: int) -> None:
    """What bounds the memory of a job says more than an incomplete profile, which is warned of."""
    options = (*DGX, "--share", option, *profile(launcher, incomplete="true"))
    assert TOLD in launcher.run(*options, "--dry-run", "--", "true").stderr
    assert limits(dry(launcher, *options))[1] == f"{mib}M"


def test_a_part_that_is_too_small(launcher: Launcher) -> None:
    """A part with less memory than the profile's job takes is not shared, and that is said."""
    done = launcher.run(*DGX, "--share=10%", *profile(launcher), "--", "true")
    want = "not shared: 10 % of a GPU's 15.78 GiB is 1.578 GiB: profile 'of-2048' takes 2 GiB"
    assert (done.returncode, done.stderr) == (0, f"gpulaunch: warning: {want}\n")


def test_what_is_said_comes_before_the_part(launcher: Launcher) -> None:
    """--sm-percentage, --memory and --sm count where a part is given, too."""
    options = ("--share=1/2", "--sm-percentage", "80", "--memory", "1GiB", "--sm", "30")
    found = dry(launcher, *DGX, *options)
    assert limits(found) == (80, "1024M")
    assert found["sharing"]["sm_utilization_percentage"] == 30


def test_a_part_from_python_and_from_a_setting(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """allocate(share="1/2") and GPULAUNCH_SHARE=1/2 mean the same as --share=1/2."""
    import gpulaunch

    monkeypatch.setenv("GPULAUNCH_STATE_DIR", str(launcher.state))
    with gpulaunch.allocate(topology="dgx1-v100", share="1/2") as lease:
        assert lease.env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
    launcher.environment["GPULAUNCH_SHARE"] = "1/2"
    assert limits(dry(launcher, *DGX)) == (50, "8080M")


# ------------------------------------------------------------------------------------------- guests


def test_a_guest(launcher: Launcher) -> None:
    """A guest shares with MPS's lower priority, which its variables and status tell."""
    found = dry(launcher, *DGX, "--guest", *profile(launcher))
    assert (found["shared"], found["env"]["CUDA_MPS_CLIENT_PRIORITY"]) == (True, "1")
    assert "CUDA_MPS_CLIENT_PRIORITY" not in dry(launcher, *DGX, "--share=1/2")["env"]
    with (
        held(launcher, *DGX, "--share=1/2") as guarded,
        held(launcher, *DGX, "--share=1/4", "--guest") as guest,
    ):
        assert guest.gpus == guarded.gpus
        assert sorted(lease["guest"] for lease in status(launcher, *DGX)["leases"]) == [
            False,
            True,
        ]
        shown = launcher.run("status", *DGX).stdout
        assert shown.count("0 (25 %, guest)") == shown.count("0 (50 %)") == 1


def test_a_guest_with_gpus_of_its_own(launcher: Launcher) -> None:
    """--guest --exclusive is refused: a guest shares."""
    done = launcher.run(*DGX, "--guest", "--exclusive", "--", "true")
    want = "gpulaunch: error: --guest true: only jobs that share have that\n"
    assert (done.returncode, done.stderr) == (2, want)


# --------------------------------------------------------------------------------- the memory limit


@pytest.mark.parametrize(
    ("mib", "headroom", "want"),
    [
        (2048, None, 2253),  # 2252.8
        (2048, "0", 2048),
        (2048, "25%", 2560),
        (15000, None, GPU_MIB),
        (2048, "100", 4096),
    ],
)
def test_a_memory_limit_has_headroom(
    launcher: Launcher, mib: int, headroom: str | None, want: int
) -> None:
    """A job may hold 10 % more than its measured peak, or as the setting says, up to the GPU's."""
    if headroom:
        launcher.environment["GPULAUNCH_SHARE_MEMORY_HEADROOM"] = headroom
    found = dry(launcher, *DGX, "--share", *profile(launcher, mib))
    assert limits(found)[1] == f"{want}M"


def test_what_may_come_together_counts_limits(launcher: Launcher) -> None:
    """Two peaks that fit are kept apart if their limits do not; status tells the limit."""
    options = (*DGX, "--only", "0", "--share", *profile(launcher, 7500))
    with held(launcher, *options):
        (lease,) = status(launcher, *DGX)["leases"]
        assert lease["share_memory_bytes"] == 8250 << 20
        refused = dry(launcher, *options)
        assert (refused["status"], "maximum memory 16500 MiB" in refused["reason"]) == (75, True)
        launcher.environment["GPULAUNCH_SHARE_MEMORY_HEADROOM"] = "4"
        assert dry(launcher, *options)["status"] == 0
        light = (*DGX, "--only", "0", "--share", *profile(launcher, 2048))
        assert dry(launcher, *light)["sharing"]["memory_bytes"] == (8250 + 2130) << 20


def test_a_limit_that_is_said_is_the_limit(launcher: Launcher) -> None:
    """--memory is what a job may hold, without headroom, whatever its profile says."""
    found = dry(launcher, *DGX, "--share", *profile(launcher), "--memory", "3GiB")
    assert limits(found)[1] == "3072M"
