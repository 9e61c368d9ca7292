"""Times in ISO 8601."""

from datetime import datetime, timedelta, timezone

import pytest

from gpulaunch.process.system import parse_time


@pytest.mark.parametrize(
    ("text", "microsecond"),
    [
        ("2026-01-02T03:04:05Z", 0),
        ("2026-01-02T03:04:05.5Z", 500_000),
        ("2026-01-02T03:04:05.123Z", 123_000),
        ("2026-01-02T03:04:05.123456789Z", 123_456),
        ("2026-01-02T03:04:05.12345678+00:00", 123_456),
        ("2026-01-02T05:04:05.5+02:00", 500_000),
    ],
)
def test_times_of_utc_and_elsewhere(text: str, microsecond: int) -> None:
    """Z is UTC, and a fraction of a second may have any number of digits, in every Python."""
    got = parse_time(text)
    assert got == datetime(2026, 1, 2, 3, 4, 5, microsecond, timezone.utc)
    assert got.utcoffset() == timedelta(hours=2 if text.endswith("+02:00") else 0)


@pytest.mark.parametrize("text", ["", "Z", "soon", "2026-02-31T00:00:00Z", "2026-01-02T03:04:05ZZ"])
def test_what_is_no_time(text: str) -> None:
    """What is no time raises ValueError."""
    with pytest.raises(ValueError, match=r"."):
        parse_time(text)
