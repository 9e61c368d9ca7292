"""`gpulaunch profile show NAME`: keys with units in the order of the table; and the list."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from toml_parser import tomllib

from gpulaunch.cli.profile import amount, profile_text
from gpulaunch.profiles.keys import Resources
from gpulaunch.profiles.profile import Profile

HERE = Path(__file__).parent
FULL = HERE / "full_profile.toml"
DOCUMENT = tomllib.loads(FULL.read_text())


def saying(text: str, value: Any) -> Any:
    """Return a value of a document with this text in place of each text in it."""
    if isinstance(value, str):
        return text
    if isinstance(value, list):
        return [saying(text, one) for one in value]
    if isinstance(value, dict):
        return {key: saying(text, one) for key, one in value.items()}
    return value


PROFILES = {  # a view is safe whatever may be in a file, so these are not checked
    "full": Profile(DOCUMENT),
    "name only": Profile({"name": "unheard-of"}),
    "hostile": Profile(saying('a"b<&>]]>\\c\x1b[31m\n\x00\u202e\udcff', DOCUMENT)),
    "long": Profile(saying("A" * 300, DOCUMENT)),
}
EVERY = pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)


def lines(profile: Profile, width: int = 80, path: str = "/p/job.toml") -> list[str]:
    """Return what a terminal of so many columns shows."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    console = Console(file=stream, highlight=False, markup=False, width=width)
    console.print(profile_text(profile, path), crop=False)
    stream.seek(0)
    return [line.rstrip() for line in stream.read().splitlines()]


@pytest.mark.parametrize(
    ("key", "value", "want"),
    [
        (Resources.memory_mib, 2048, "2 GiB"),
        (Resources.power_w, 148.16, "148.2 W"),
        (Resources.energy_j, 999, "999 J"),
        (Resources.energy_j, 12467.54, "12.47 kJ"),
        (Resources.duration_s, 0.4123, "0.4123 s"),
        (Resources.duration_s, 184, "3 min 04 s"),
        (Profile.placement.section.min_bandwidth_gb_per_s, 12.2, "12.2 GB/s"),
    ],
)
def test_amount(key, value, want):
    """A number has the unit of its row or of its name's end."""
    assert amount(key, value) == want


def test_everything_recorded_is_shown():
    """A fully measured profile: figures, spread, edges, curve and sources."""
    assert lines(PROFILES["full"]) == (HERE / "full_profile.txt").read_text().splitlines()


@EVERY
@pytest.mark.parametrize("width", [40, 80])
def test_text_fits_and_is_safe(profile: Profile, width: int) -> None:
    """No line exceeds the terminal, and nothing that a profile says is a control character."""
    shown = lines(profile, width)
    assert [line for line in shown if len(line) > width or not line.isprintable()] == []


def test_path_is_never_broken() -> None:
    """A file's path is on one line, however long it is and whatever it holds."""
    path = "/home/somebody/a folder/" + "deep/" * 20 + "job.toml"
    assert lines(PROFILES["name only"], 48, path=path)[1] == f"file: {path}"
