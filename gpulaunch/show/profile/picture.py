"""A profile as a picture for a report: rows with bars, edges as a matrix, a curve as a line."""

from collections.abc import Iterable, Iterator
from textwrap import wrap

from gpulaunch.records import Record, replace
from gpulaunch.show.profile.view import LinePlot, Matrix, ProfileView, Row
from gpulaunch.show.report import INK, WIDTH, new_figure, svg_of
from gpulaunch.show.terminal import figure as figure_text
from gpulaunch.typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpulaunch.show.report import Axes, Figure

_PALE = "#5b6672"
_BLUE, _TRACK = "#2f6fb5", "#e6eaef"
_MARGIN = 28  # px around everything
_LINE = 19  # px from one line to the next
_TEXT = 280  # px from the left edge to texts
_BAR = 220  # px
_INDENT = 14  # px of an inner row
_PLOT = (460, 190)  # px
_CELL = 40  # px of a matrix, unless it gets too wide
_MOST_MATRIX = 640  # px
_CHARACTERS = 92  # of a line of text
_DIGIT = 7  # px of a matrix's figures


class _Line(Record):
    """A line of the picture.

    Attributes:
        label: text at the left.
        text: text beside the label.
        share: filled share of a bar between both, 0 to 1; None for no bar.
        indent: px before the label.
        colour: colour of the label.
        size: font size of the label.
        weight: font weight of the label.
        drawing: drawing below the line.
    """

    label: str = ""
    text: str = ""
    share: float | None = None
    indent: int = 0
    colour: str = INK
    size: float = 12
    weight: str = "normal"
    drawing: Matrix | LinePlot | None = None

    @property
    def height(self) -> float:
        """Height in px, down to the next line."""
        if isinstance(self.drawing, LinePlot):
            return _LINE + _PLOT[1] + 66
        if self.drawing:
            return _LINE + _side(self.drawing) + 44
        return _LINE * max(self.size / 13, 1)


def profile_svg(view: ProfileView) -> str:
    """Return the picture as SVG; the same profile gives the same text.

    Cost: half a second, and a second to import matplotlib.
    """
    lines = list(_lines(view))
    height = sum(line.height for line in lines) + 2 * _MARGIN
    figure = new_figure(height)
    figure.set_layout_engine("none")  # every part has a fixed place
    page = _panel(figure, 0, 0, WIDTH, height)
    page.set(xlim=(0, WIDTH), ylim=(height, 0))
    page.set_axis_off()
    top = float(_MARGIN)
    for line in lines:
        _draw(figure, page, top, line)
        top += line.height
    return svg_of(figure, "profile")


def _panel(figure: "Figure", left: float, top: float, width: float, height: float) -> "Axes":
    """Add axes to a figure, at a place in px."""
    of = figure.get_window_extent().height
    return figure.add_axes((left / WIDTH, 1 - (top + height) / of, width / WIDTH, height / of))


def _lines(view: ProfileView) -> Iterator[_Line]:
    for text in wrap(view.title, _CHARACTERS):
        yield _Line(text, size=17, weight="bold")
    yield _Line()
    yield from _row_lines([Row("file", view.path), *view.rows])
    for section in view.sections:
        yield _Line()
        for text in wrap(f"{section.label}: {section.text}", _CHARACTERS * 6 // 5):
            yield _Line(text, weight="bold")
        yield from _row_lines(section.inner)


def _row_lines(rows: Iterable[Row], indent: int = 0) -> Iterator[_Line]:
    for row in rows:
        room = _CHARACTERS if row.share is None else _CHARACTERS * 2 // 3
        label = _cut(row.label, _TEXT - _MARGIN - indent, 12)
        first, *others = wrap(row.text, room) or [""]
        lines = [_Line(label, first, row.share, indent, _PALE)]
        lines += [_Line(text=text) for text in others]
        lines[-1] = replace(lines[-1], drawing=row.drawing)
        yield from lines
        if not row.drawing:
            yield from _row_lines(row.inner, indent + _INDENT)


def _draw(figure: "Figure", page: "Axes", top: float, line: _Line) -> None:
    """Draw a line of the picture, and what belongs below it."""
    base = top + 0.7 * _LINE
    page.text(
        _MARGIN + line.indent,
        base,
        line.label,
        color=line.colour,
        size=line.size,
        weight=line.weight,
    )
    left = _TEXT
    if line.share is not None:
        for length, colour in ((1.0, _TRACK), (line.share, _BLUE)):
            page.barh(base - 4, length * _BAR, 10, left=left, color=colour)
        left += _BAR + 12
    page.text(left, base, line.text, size=12)
    if isinstance(line.drawing, LinePlot):
        _draw_plot(_panel(figure, _TEXT + 40, top + _LINE + 14, *_PLOT), line.drawing)
    elif line.drawing:
        side = _side(line.drawing)
        _draw_matrix(_panel(figure, _TEXT + 24, top + _LINE + 30, side, side), line.drawing)


def _draw_plot(axes: "Axes", plot: LinePlot) -> None:
    axes.plot(plot.xs, plot.ys, color=_BLUE, marker="o", markersize=4, linewidth=2, clip_on=False)
    axes.set(xlabel=plot.x_label, ylabel=plot.y_label, xlim=(0, max(plot.xs)))
    axes.set_ylim(0, 1.05 * max(plot.ys))
    axes.grid(axis="y")


def _side(matrix: Matrix) -> float:
    """Return px of a matrix on the page."""
    return min(_CELL * matrix.ranks, _MOST_MATRIX)


def _draw_matrix(axes: "Axes", matrix: Matrix) -> None:
    ranks = range(matrix.ranks)
    weights = [[matrix.weights.get((row, other), float("nan")) for other in ranks] for row in ranks]
    heaviest = max(matrix.weights.values())
    axes.pcolormesh(weights, cmap="Blues", vmin=0, vmax=heaviest, edgecolor="white")
    middles = [rank + 0.5 for rank in ranks]
    axes.set_xticks(middles, [str(rank) for rank in ranks])
    axes.set_yticks(middles, [str(rank) for rank in ranks])
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
    axes.invert_yaxis()
    figures = {pair: figure_text(weight) for pair, weight in matrix.weights.items()}
    if _DIGIT * max(map(len, figures.values())) > _side(matrix) / matrix.ranks:
        return
    for (row, other), text in figures.items():
        colour = "white" if matrix.weights[row, other] > 0.6 * heaviest else "black"
        axes.text(other + 0.5, row + 0.5, text, color=colour, size=10, ha="center", va="center")


def _cut(text: str, width: float, size: float) -> str:
    """Return as much of a text as fits, as far as one can tell without the font."""
    most = max(int(width / (size * 0.62)), 1)
    return text if len(text) <= most else f"{text[: most - 1]}…"
