"""Reproductions -> a JSON document, a table for a terminal, Markdown."""

from collections.abc import Iterable

from gpulaunch.show import Document
from gpulaunch.show.terminal import Group, Text, figure, table_of


def reproduction_table(document: Document) -> Group:
    """Every number of a reproduction beside the original, and what differs.

    Args:
        document: from reproduction_document.
    """
    parts: list[object] = [Text(document["title"], "bold")]
    for part in document["parts"]:
        columns = (part["theirs"], "ours", "ratio")
        table = table_of(part["title"], *columns, "note", right=columns)
        for row in part["rows"]:
            table.add_row(
                row["what"], figure(row["theirs"]), figure(row["ours"]), _ratio(row), row["note"]
            )
        parts += [Text(), table]
    parts += [Text(), *(Text(f"- {text}", "dim") for text in document["differs"])]
    return Group(*parts)  # type: ignore[arg-type]


def _ratio(row: Document) -> str:
    return "-" if row["ratio"] is None else f"{row['ratio']:.3f}"


def markdown(documents: Iterable[Document]) -> str:
    """Reproductions as sections of a page."""
    lines = []
    for document in documents:
        lines += [
            f"## {document['title']}",
            "",
            f"`gpulaunch simulate --paper {document['name']}`",
            "",
        ]
        for part in document["parts"]:
            lines += [
                f"| {part['title']} | {part['theirs']} | ours | ratio | |",
                "|---|---|---|---|---|",
            ]
            lines += [
                f"| {row['what']} | {figure(row['theirs'])} | {figure(row['ours'])} | "
                f"{_ratio(row)} | {row['note']} |"
                for row in part["rows"]
            ]
            lines.append("")
        lines += [*(f"- {text}" for text in document["differs"]), ""]
    return "\n".join(lines)
