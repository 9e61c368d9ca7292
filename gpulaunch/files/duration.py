"""Lengths of time as people write them."""
# pure: decides on plain values

import re

from gpulaunch.errors import UsageError, quoted

_UNITS_S = {"d": 86400, "h": 3600, "m": 60, "min": 60, "s": 1}
# Texts, which re compiles and keeps at their first use: few command lines have a length of time.
_PART = r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*(d|h|min|m|s)\s*"
_NUMBER = r"[0-9]{0,9}\.?[0-9]{1,9}"
# days-hours, with or without minutes and seconds; else hours:minutes:seconds or minutes:seconds.
_SLURM = (
    r"([0-9]{1,9})-([0-9]{1,9})(?::([0-9]{1,9}))?(?::([0-9]{1,9}))?"
    r"|(?:([0-9]{1,9}):)?([0-9]{1,9}):([0-9]{1,9})"
)
_SLURM_UNITS_S = (86400, 3600, 60, 1, 3600, 60, 1)


def parse_duration(text: str) -> float:
    """Return the seconds in "90s", "1.5h" or "1h30m", or in Slurm's "90:00" or "1-02:30:00".

    Units are d, h, m (or min) and s, in any case. A number without one is refused: Slurm's are
    minutes, and those of timeout are seconds.

    Raises:
        UsageError: the text is no positive length of time.
    """
    written = text.strip().lower()
    total_s = 0.0
    if clock := re.fullmatch(_SLURM, written):
        fields = zip(clock.groups(), _SLURM_UNITS_S, strict=True)
        total_s = sum(int(number) * unit_s for number, unit_s in fields if number)
    elif not re.sub(_PART, "", written):
        total_s = sum(float(number) * _UNITS_S[unit] for number, unit in re.findall(_PART, written))
    elif re.fullmatch(_NUMBER, written) and float(written):
        raise UsageError(f"{quoted(text)} has no unit: write {written}s, {written}m or {written}h")
    if not 0 < total_s < 1e10:
        raise UsageError(f"{quoted(text)} is no length of time such as 90s, 10m or 1h30m")
    return total_s


def format_duration(seconds: float) -> str:
    """Return a length of time in at most two units: 0.5 s, 5 s, 3 min, 2 h 05 min, 3 d 4 h."""
    if 0 < seconds < 10 and seconds != int(seconds):
        return f"{seconds:.2g} s"
    whole = max(0, int(seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60:02} min"
    if minutes and whole % 60 and minutes < 10:
        return f"{minutes} min {whole % 60:02} s"
    return f"{minutes} min" if minutes else f"{whole} s"
