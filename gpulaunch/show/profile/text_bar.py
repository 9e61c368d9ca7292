"""Bars for a terminal: blocks in eighths of a column, or signs that every terminal has."""

from collections.abc import Sequence

from gpulaunch.show.profile.view import Bar
from gpulaunch.show.terminal import Text
from gpulaunch.show.topology.layout import shortened

_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
_LEAST, _MOST = 8, 50  # columns of a bar
_MOST_LABEL = 24  # columns; of a longer one the end is cut
_GAP = 2


def bar_lines(bars: Sequence[Bar], width: int, *, plain: bool) -> list[Text]:
    """A line for each bar: label, bar, figure; all bars are as long as the longest of the others leaves room for.

    Where that is too little, each bar has a line of its own below.

    Args:
        bars: of one section.
        width: columns of the terminal.
        plain: draw with ASCII only.
    """
    labels = min(max((len(bar.label) for bar in bars), default=0), _MOST_LABEL)
    texts = max((len(bar.text) for bar in bars), default=0)
    long = min(_MOST, width - labels - texts - 2 * _GAP)
    if long < _LEAST:
        return _stacked(bars, width, plain=plain)
    return [
        Text.assemble(
            f"{_label(bar.label, labels, plain=plain):<{labels + _GAP}}",
            *drawn(bar, long, plain=plain),
            f"{'':{_GAP}}{bar.text}",
        )
        for bar in bars
    ]


def _stacked(bars: Sequence[Bar], width: int, *, plain: bool) -> list[Text]:
    """For a narrow terminal: two lines each."""
    lines = []
    for bar in bars:
        label = _label(bar.label, max(width - len(bar.text) - _GAP, _LEAST), plain=plain)
        lines += [
            Text(f"{label}{'':{_GAP}}{bar.text}"),
            Text.assemble(*drawn(bar, min(_MOST, width), plain=plain)),
        ]
    return lines


def _label(label: str, most: int, *, plain: bool) -> str:
    return shortened(label, most).replace("…", "~") if plain else shortened(label, most)


def drawn(bar: Bar, width: int, *, plain: bool) -> list[tuple[str, str]]:
    """The bar alone, in so many columns: parts and their styles.

    A share that is not 0 is never drawn as nothing.

    Example:
        >>> "".join(part for part, _ in drawn(Bar("", 0.5, "", 0.75), 8, plain=True))
        '####--|-'
    """
    full = _filled(min(max(bar.share, 0.0), 1.0), width, plain=plain)
    rest = ("-" if plain else "·") * (width - len(full))
    if bar.mark is None:
        return [(full, "cyan"), (rest, "dim")]
    at = min(max(int(bar.mark * width), len(full)), width - 1)
    line, sign = full + rest, "|" if plain else "│"
    return [
        (line[: min(at, len(full))], "cyan"),
        (line[len(full) : at], "dim"),
        (sign, "bold"),
        (line[at + 1 :], "dim"),
    ]


def _filled(share: float, width: int, *, plain: bool) -> str:
    if plain:
        return "#" * max(round(share * width), share > 0)
    eighths = max(round(share * width * 8), share > 0)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8]
