"""Lengths of time as people write them."""
# pure: decides on plain values

import re

_UNITS_S = {"d": 86400, "h": 3600, "m": 60, "min": 60, "s": 1, "": 1}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*(d|h|min|m|s|)")


def parse_duration(text: str) -> float:
    """Return the seconds in "90", "90s", "1.5h", "10m" or "1h30m"; d, h, m (or min), s in any case.

    Raises:
        ValueError: the text is no positive length of time.
    """
    rest = text.strip().lower()
    parts = 0
    total_s = 0.0
    while rest:
        part = _PART.match(rest)
        if not part or (parts and not part[2]):  # 1h30 could mean minutes or seconds
            raise ValueError(text)
        total_s += float(part[1]) * _UNITS_S[part[2]]
        rest = rest[part.end() :].lstrip()
        parts += 1
    if not 0 < total_s < 1e10:
        raise ValueError(text)
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
