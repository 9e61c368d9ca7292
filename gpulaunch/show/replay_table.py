"""A table for a terminal about replays: one line for each policy."""

from gpulaunch.show import Document
from gpulaunch.show.replay_rows import KEY, Rows, all_jobs, replayed, sensitive_jobs
from gpulaunch.show.terminal import Grid, Group, Text, make_table


def replays_table(document: Document) -> Group:
    """Return the table of all runs: the machine, then the sensitive jobs.

    Args:
        document: the document from replays_document.
    """
    title, how = replayed(document)
    sensitive = sensitive_jobs(document)
    return Group(
        Text(title, "bold"),
        Text(how, "dim"),
        Text(),
        _table(all_jobs(document)),
        Text(),
        Text("bandwidth-sensitive jobs: effective bandwidth, GB/s", "bold"),
        _table(sensitive) if sensitive.rows else Text("none", "dim"),
        Text(),
        Text(KEY, "dim"),
    )


def _table(rows: Rows) -> Grid:
    table = make_table(*rows.columns, right=rows.columns[1:])
    for row in rows.rows:
        table.add_row(*row)
    return table
