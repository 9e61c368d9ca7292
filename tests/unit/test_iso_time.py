"""Times in ISO 8601."""

from datetime import datetime, timedelta, timezone

import pytest

from gpulaunch.process.system import parse_time


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
