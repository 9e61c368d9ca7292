"""Terminal tables, pictures and JSON documents of values."""

from typing import Any

Document = dict[str, Any]
"""A value that is printed as JSON."""
