"""The table of `gpulaunch doctor`."""

from collections.abc import Sequence

from gpulaunch.errors import printable
from gpulaunch.show import Document
from gpulaunch.show.terminal import Grid, Text, make_table


def findings_table(findings: Sequence[Document]) -> Grid:
    """Return the table of the findings of `gpulaunch doctor`."""
    colours = {"ok": "green", "warning": "yellow", "problem": "red"}
    table = make_table("", "part", "found")
    for finding in findings:
        state = Text(finding["state"], colours[finding["state"]])
        hint = f"\n{printable(finding['hint'])}" if finding["hint"] else ""
        table.add_row(
            state, finding["subject"], Text(printable(finding["text"])).append(hint, "dim")
        )
    return table
