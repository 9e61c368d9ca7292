"""A reproduction as plain data: what `gpulaunch simulate --paper NAME --json` prints."""

from typing import Any

from gpulaunch.papers.reproduction import Reproduction


def reproduction_document(reproduction: Reproduction) -> dict[str, Any]:
    """One reproduction.

    Args:
        reproduction: what was found.
    """
    return {
        "name": reproduction.name,
        "title": reproduction.title,
        "parts": [
            {
                "title": part.title,
                "theirs": part.theirs,
                "rows": [{**row._asdict(), "ratio": row.ratio} for row in part.rows],
            }
            for part in reproduction.parts
        ],
        "differs": list(reproduction.differs),
    }
