"""Who talks to whom, for a terminal: a matrix of ranks whose cells are darker the more goes between two of them."""

from math import ceil

from gpulaunch.show.profile.view import Graph
from gpulaunch.show.terminal import Text
from gpulaunch.show.topology.text import wrapped

_SHADES = {False: "░▒▓█", True: "-+*#"}
_NONE = {False: "·", True: "."}
_MOST = 32  # ranks that a matrix is drawn of


def matrix_lines(graph: Graph, width: int, *, plain: bool) -> list[Text]:
    """A row and a column for each rank, with figures where they fit, and what the shades mean.

    Args:
        graph: its ranks and edges.
        width: columns of the terminal.
        plain: draw with ASCII only.

    Returns:
        Nothing where no rank talks, or the matrix would not fit.
    """
    weights = graph.weights
    figures = {pair: f"{weight:.3g}" for pair, weight in weights.items()} if graph.unit else {}
    cells = max(map(len, figures.values()), default=0)
    if figures and _columns(graph, 3 + cells) > width:
        figures, cells = {}, 0
    column = 3 + cells if figures else 2
    if not graph.edges or graph.ranks > _MOST or _columns(graph, column) > width:
        return []
    head = Text("rank", "dim").append(
        "".join(f" {rank:>{column}}" for rank in range(graph.ranks)), "dim"
    )
    lines = [head]
    for row in range(graph.ranks):
        line = Text(f"{row:>4}", "dim")
        for other in range(graph.ranks):
            line.append(" ")
            if row == other:
                line.append("x".rjust(column), "dim")
            elif (row, other) in weights:
                line.append(_shade(weights[row, other] / graph.heaviest, plain=plain) * 2, "cyan")
                line.append(f" {figures[row, other]:>{cells}}" if figures else "")
            else:
                line.append(_NONE[plain].rjust(column), "dim")
        lines.append(line)
    return lines + _legend(graph, width, plain=plain)


def _columns(graph: Graph, column: int) -> int:
    return 4 + graph.ranks * (column + 1)


def _shade(share: float, *, plain: bool) -> str:
    return _SHADES[plain][min(max(ceil(share * 4), 1), 4) - 1]


def _legend(graph: Graph, width: int, *, plain: bool) -> list[Text]:
    """What the shades mean, where they differ."""
    if not graph.unit:
        return []
    steps = [
        f"{sign * 2} to {graph.heaviest * (i + 1) / 4:.3g}" for i, sign in enumerate(_SHADES[plain])
    ]
    legend = f"{graph.unit} in both directions together: {', '.join(steps)}"
    return [Text(line, "dim") for line in wrapped(legend, width)]
