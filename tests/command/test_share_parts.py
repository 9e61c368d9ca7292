"""Parts of a GPU that come together, beside what tests/corpus/shares.txt holds of each."""

from contextlib import ExitStack
from pathlib import Path

from conftest import Launcher, held
from test_sharing_launch import DGX, dry, indices, status

GPU_MIB = 16160  # profiles/machines/dgx1-v100.toml


def profile(
    launcher: Launcher, mib: int = 2048, sm: int = 40, *, incomplete: bool = False
) -> tuple[str, str]:
    """Write a profile, and return the option that names it."""
    folder = Path(launcher.environment["HOME"]) / ("incomplete" if incomplete else "complete")
    folder.mkdir(exist_ok=True)
    path = folder / f"of-{mib}.toml"
    path.write_text(
        f'name = "of-{mib}"\n[resources]\nmemory_mib = {mib}\n'
        f"sm_utilization_percentage = {sm}\n"
        'memory_bandwidth_utilization_percentage = 10\nsource = "made up"\n'
        + "incomplete = true\n"
        * incomplete
    )
    return "-p", str(path)


def test_parts_fill_a_gpu(launcher: Launcher) -> None:
    """Parts come together on one GPU up to the whole, guests too, and no further."""
    with ExitStack() as stack:
        for part in ("10%",) * 4 + ("1/3",):
            stack.enter_context(held(launcher, *DGX, "--only", "0", f"--share={part}"))
        guest = stack.enter_context(held(launcher, *DGX, "--share=1/4", "--guest"))
        assert guest.gpus == "GPU-dgx1-v100-0"
        guests = [lease["guest"] for lease in status(launcher, *DGX)["leases"]]
        assert sorted(guests) == [False] * 5 + [True]
        shown = launcher.run("status", *DGX).stdout
        assert (shown.count("0 (25 %, guest)"), shown.count("0 (10 %)")) == (1, 4)
        refused = dry(launcher, *DGX, "--only", "0", "--share=1/4")
        assert (refused["status"], "average SM utilization 1" in refused["reason"]) == (75, True)
        assert indices(dry(launcher, *DGX, "--share=1/4")) != [0]


def test_a_part_with_a_profile(launcher: Launcher) -> None:
    """Beside a profile, a part is the cap of SMs and memory; the rule goes by the profile."""
    found = dry(launcher, *DGX, "--share=1/4", *profile(launcher))
    sharing = found["sharing"]
    assert (sharing["sm_utilization_percentage"], sharing["memory_bytes"]) == (40, 4040 << 20)
    with (
        held(launcher, *DGX, "--share=1/4", *profile(launcher)),
        held(launcher, *DGX, "--share=1/4", *profile(launcher)) as second,
    ):
        assert second.gpus == "GPU-dgx1-v100-0"
        assert indices(dry(launcher, *DGX, "--share=1/4", *profile(launcher))) != [0]


def test_an_incomplete_profile(launcher: Launcher) -> None:
    """Measured on a part of the job, a profile sets no limit below what is free."""
    short = (*DGX, "--share", "--only", "0", *profile(launcher, incomplete=True))
    whole = (*DGX, "--share", "--only", "0", *profile(launcher))
    with held(launcher, *whole):
        found = dry(launcher, *short)["env"]["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"]
        assert found == f"GPU-dgx1-v100-0={GPU_MIB - 2253}M"
        with held(launcher, *short):
            refused = dry(launcher, *whole)
            assert (refused["status"], "maximum memory" in refused["reason"]) == (75, True)


def test_what_may_come_together_counts_limits(launcher: Launcher) -> None:
    """Two peaks that fit are kept apart if their limits do not; status tells the limit."""
    options = (*DGX, "--only", "0", "--share", *profile(launcher, 7500))
    with held(launcher, *options):
        (lease,) = status(launcher, *DGX)["leases"]
        assert lease["share_memory_bytes"] == 8250 << 20
        refused = dry(launcher, *options)
        assert (refused["status"], "maximum memory 16500 MiB" in refused["reason"]) == (75, True)
        light = (*DGX, "--only", "0", "--share", *profile(launcher, 2048))
        assert dry(launcher, *light)["sharing"]["memory_bytes"] == (8250 + 2253) << 20
