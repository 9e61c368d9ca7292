"""Values -> terminal tables, pictures and JSON documents."""

from gpulaunch.typing import Any

Document = dict[str, Any]
"""What is printed as JSON."""
