"""A profile on the terminal: labels and values, bars for shares, a matrix for edges."""

from collections.abc import Iterable, Iterator
from functools import partial

from gpulaunch.records import Record
from gpulaunch.show.profile.view import NO_BREAK, Matrix, ProfileView, Row
from gpulaunch.show.terminal import Fitted, Text, bar, figure
from gpulaunch.show.topology.text import wrapped

_MOST_LABEL = 30  # columns
_BAR = 20  # columns
_LEAST_FOR_BARS = 60  # columns of a terminal
_LEAST_TEXT = 16  # columns
_GAP = 2


class _Page(Record):
    """The layout that the rows of a profile keep to.

    Attributes:
        width: columns of the terminal.
        labels: columns of the longest label and the gap after it.
        plain: draw with ASCII only.
    """

    width: int
    labels: int
    plain: bool


def profile_text(view: ProfileView) -> Fitted:
    """Return the lines of a profile, as wide as the terminal; a path is never broken."""
    return Fitted(partial(_lines, view))


def _lines(view: ProfileView, width: int, plain: bool) -> Iterator[Text]:
    every = [*view.rows, *(row for section in view.sections for row in section.inner)]
    longest = max(map(_label_columns, every), default=0)
    page = _Page(width, min(longest, _MOST_LABEL, width // 2) + _GAP, plain)
    yield from _paragraph(view.title, width, style="bold")
    yield _line((f"{'file':<{page.labels}}", "dim"), view.path)
    yield from _row_lines(view.rows, page)
    for section in view.sections:
        yield Text()
        heading = f"{section.label}: {section.text}"
        yield from _paragraph(heading, width, len(section.label), style="dim")
        yield from _row_lines(section.inner, page)


def _paragraph(text: str, width: int, bold: int = 0, style: str = "") -> Iterator[Text]:
    """Draw text over the whole width, the first characters in bold."""
    for words in wrapped(text, width):
        yield _line((words[:bold], "bold"), (words[bold:], style))
        bold = 0


def _label_columns(row: Row, depth: int = 0) -> int:
    inner = (_label_columns(one, depth + 1) for one in row.inner)
    return max(2 * depth + len(row.label), *inner, 0)


def _row_lines(rows: Iterable[Row], page: _Page, depth: int = 0) -> Iterator[Text]:
    """Draw rows; text that does not fit continues below, as does text beside a too long label."""
    for row in rows:
        label = "  " * depth + row.label.replace(NO_BREAK, " ")
        if len(label) + _GAP > page.labels:
            yield _line((label, "dim"))
            label = ""
        line = _line((f"{label:<{page.labels}}", "dim"))
        if row.share is not None and page.width >= _LEAST_FOR_BARS:
            line.append_text(bar(row.share, _BAR, plain=page.plain)).append(" " * _GAP)
        left = line.cell_len
        text = row.text.replace("±", "+-") if page.plain else row.text
        lines = wrapped(text, max(page.width - left, _LEAST_TEXT))
        first, *others = (one.replace(NO_BREAK, " ") for one in lines)
        yield line.append(first)
        for more in others:
            yield _line(f"{'':{left}}{more}")
        if isinstance(row.drawing, Matrix):
            yield from _matrix_lines(row.drawing, page)
        yield from _row_lines(row.inner, page, depth + 1)


def _matrix_lines(matrix: Matrix, page: _Page) -> Iterator[Text]:
    """Draw a row and a column for each rank; nothing where they do not fit."""
    figures = {pair: figure(weight) for pair, weight in matrix.weights.items()}
    column = _GAP + max(map(len, figures.values()))
    if 6 + matrix.ranks * column > page.width:
        return
    heaviest = max(matrix.weights.values())
    yield _line(("  rank" + "".join(f"{rank:>{column}}" for rank in range(matrix.ranks)), "dim"))
    for row in range(matrix.ranks):
        line = _line((f"{row:>6}", "dim"))
        for other in range(matrix.ranks):
            share = matrix.weights.get((row, other), 0.0) / heaviest
            style = "bold cyan" if share > 0.75 else "" if share > 0.25 else "dim"
            line.append(f"{figures.get((row, other), '-'):>{column}}", style)
        yield line


def _line(*parts: str | tuple[str, str]) -> Text:
    """Return a line of fixed length: the terminal wraps it, so it can be copied."""
    return Text.assemble(*parts, no_wrap=True, overflow="ignore")
