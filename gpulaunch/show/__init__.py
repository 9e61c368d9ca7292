"""Terminal tables, pictures and JSON documents of values."""

from gpulaunch.typing import Any

Document = dict[str, Any]
"""A value that is printed as JSON."""


def counted(count: int, noun: str) -> str:
    """Return a number of things in words: "1 rank", "2 ranks"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
