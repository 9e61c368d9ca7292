"""A curve for a terminal: eight braille dots a character, or one sign where only ASCII can be printed."""

from itertools import pairwise

from gpulaunch.profiles.demand import CurvePoint
from gpulaunch.show.profile.view import Plot
from gpulaunch.show.terminal import Text, figure
from gpulaunch.show.topology.text import wrapped

_ROWS = 9  # an odd number, so that half of the axis has a row of its own
_MOST = 64  # columns of the plot
_LEAST = 20
_AXIS_TEXT = " % of the SMs"
_MARKED = 20  # points that are marked; more would hide the curve
_STEP = 20  # per cent from one number below the axis to the next
_BRAILLE = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))

_Dots = set[tuple[int, int]]
"""Column and row, counted from the lower left corner."""


def plot_lines(plot: Plot, width: int, *, plain: bool) -> list[Text]:
    """The curve with its axes, a line on which throughput is proportional to the SMs, and the knee.

    Args:
        plot: its points.
        width: columns of the terminal; the plot itself has 20 at least.
        plain: draw with ASCII only.
    """
    labels = {round(share * (_ROWS - 1)): plot.tick(share) for share in (0, 0.5, 1)}
    margin = max(map(len, labels.values()))
    columns = max(_LEAST, min(_MOST, width - margin - 2 - len(_AXIS_TEXT)))
    axis = ("+", "|", "-") if plain else ("┤", "│", "─")
    field = _field(plot, columns, plain=plain)
    lines = [Text(line, "dim") for line in wrapped(plot.unit, width)]
    for row in reversed(range(_ROWS)):
        line = Text(
            f"{labels.get(row, ''):>{margin}} {axis[0] if row in labels else axis[1]}", "dim"
        )
        lines.append(line.append_text(field[row]))
    lines.append(Text(f"{'':{margin}} {'+' if plain else '└'}{axis[2] * columns}", "dim"))
    lines.append(Text(f"{'':{margin + 2}}{_numbers(columns)}{_AXIS_TEXT}", "dim"))
    if plot.knee_percentage is not None:
        lines.append(
            Text(
                " " * (margin + 2) + _knee_text(plot.knee_percentage, columns, plain=plain),
                "yellow",
            )
        )
    return [*lines, Text("dotted: throughput in proportion to the SMs", "dim")]


def _field(plot: Plot, columns: int, *, plain: bool) -> list[Text]:
    """The rows of the plot, the lowest first."""
    across, down = (1, 1) if plain else (2, 4)
    wide, high = columns * across, _ROWS * down
    curve = _line(plot.points, plot.top, wide, high)
    dotted = {
        dot for dot in _line(plot.proportional, plot.top, wide, high) if dot[0] % (3 * across) == 0
    }
    marks = (
        {_cell(point, plot.top, columns, high) for point in plot.points}
        if len(plot.points) <= _MARKED
        else set()
    )
    knee = None if plot.knee_percentage is None else _column(plot.knee_percentage, columns)
    rows = []
    for row in range(_ROWS):
        line = Text()
        for column in range(columns):
            signs = [_sign(dots, column, row, plain=plain) for dots in (curve, dotted)]
            if (column, row) in marks:
                line.append("o" if plain else "●", "bold cyan")
            elif signs[0]:
                line.append("*" if plain else signs[0], "cyan")
            elif column == knee:
                line.append(":" if plain else "┊", "yellow")
            else:
                line.append(("." if plain else signs[1]) if signs[1] else " ", "dim")
        rows.append(line)
    return rows


def _line(points: tuple[CurvePoint, ...], top: float, wide: int, high: int) -> _Dots:
    """Dots along straight lines from each point to the next, without gaps."""
    at = [(p.sm_percentage / 100 * (wide - 1), p.throughput / top * (high - 1)) for p in points]
    dots = {(round(x), round(y)) for x, y in at}
    for (x, y), (end_x, end_y) in pairwise(at):
        steps = max(1, round(2 * max(abs(end_x - x), abs(end_y - y))))
        dots |= {
            (round(x + (end_x - x) * i / steps), round(y + (end_y - y) * i / steps))
            for i in range(steps)
        }
    return dots


def _sign(dots: _Dots, column: int, row: int, *, plain: bool) -> str:
    """The character that shows the dots of a cell; nothing if it has none."""
    if plain:
        return "." if (column, row) in dots else ""
    bits = sum(
        bit
        for up, pair in enumerate(reversed(_BRAILLE))
        for right, bit in enumerate(pair)
        if (2 * column + right, 4 * row + up) in dots
    )
    return chr(0x2800 + bits) if bits else ""


def _cell(point: CurvePoint, top: float, columns: int, high: int) -> tuple[int, int]:
    """Where a point's mark stands."""
    return _column(point.sm_percentage, columns), round(
        point.throughput / top * (high - 1)
    ) * _ROWS // high


def _column(sm_percentage: float, columns: int) -> int:
    return round(sm_percentage / 100 * (columns - 1))


def _numbers(columns: int) -> str:
    """The numbers below the axis; the last ends where the axis does."""
    line = ""
    for percentage in range(0, 101, _STEP):
        at = _column(percentage, columns)
        text = str(percentage)
        line = line.ljust(min(at, columns - len(text))) + text
    return line


def _knee_text(knee_percentage: float, columns: int, *, plain: bool) -> str:
    at, sign = _column(knee_percentage, columns), "^" if plain else "▲"
    text = f"knee: {figure(knee_percentage)} %"
    return f"{text} {sign}".rjust(at + 1) if at > columns // 2 else f"{'':{at}}{sign} {text}"
