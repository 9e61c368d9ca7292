"""The door to matplotlib: empty sheets in our style, and what is drawn on them as SVG and PNG.

Only this file imports it.
"""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from io import BytesIO
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from gpulaunch.records import Record
from gpulaunch.show.report.colours import ALL, GRID, INK, PALE, PAPER, Colour

__all__ = [
    "WIDTH",
    "Axes",
    "FuncFormatter",
    "MaxNLocator",
    "Picture",
    "Rectangle",
    "Sheet",
    "styled",
]

WIDTH = 1040
"""Of a sheet; as all lengths, in pixels of the page at 100 %."""

_PER_INCH = 72  # so that a point of matplotlib's is a pixel of the page
_SHARPNESS = 2  # pixels of a PNG in one of the page
_FONT = "DejaVu Sans"  # comes with matplotlib
_STYLE: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": GRID.light,
    "axes.facecolor": "none",
    "axes.labelcolor": PALE.light,
    "axes.linewidth": 1.0,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": PAPER.light,
    "font.family": [_FONT],
    "font.size": 12.0,
    "grid.color": GRID.light,
    "grid.linewidth": 1.0,
    "lines.solid_capstyle": "butt",
    "svg.fonttype": "none",  # text stays text: sharp, to be searched and copied
    "svg.hashsalt": "gpulaunch",
    "text.color": INK.light,
    "text.parse_math": False,  # a name may have dollars
    "xtick.color": GRID.light,
    "xtick.labelcolor": PALE.light,
    "xtick.labelsize": 11.0,
    "ytick.color": GRID.light,
    "ytick.labelcolor": PALE.light,
    "ytick.labelsize": 11.0,
}

_ROOT = (
    f'<svg font-family="{_FONT}, Verdana, Arial, sans-serif" stroke-linejoin="round" role="img" '
)
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_NAMES = {colour.light: colour.name for colour in ALL}


class Picture(Record):
    """What was drawn.

    Attributes:
        name: of its files.
        svg: a document of its own, light.
        png: the same in pixels.
        inline: the SVG for a page whose style sheet defines our colours.
    """

    name: str
    svg: str
    png: bytes
    inline: str


@contextmanager
def styled() -> Iterator[None]:
    """In which all drawing is done: our style, whatever the user's own is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a letter that the font does not have is drawn as a box
        style: Any = {
            key: value
            for key, value in mpl.rcParamsDefault.items()
            if not key.startswith("backend")
        }
        with mpl.rc_context(style | _STYLE):
            yield


class Sheet:
    """An empty picture.

    Args:
        name: of its files.
        height: in pixels.
    """

    def __init__(self, name: str, height: float) -> None:
        self.name, self.height = name, height
        self._figure = Figure(figsize=(WIDTH / _PER_INCH, height / _PER_INCH), dpi=_PER_INCH)
        self._notes: list[str] = []

    def panel(self, left: float, top: float, width: float, height: float) -> Axes:
        """Axes at a place.

        Args:
            left: from the sheet's left edge.
            top: from its upper edge.
            width: of the axes.
            height: likewise.
        """
        bottom = 1 - (top + height) / self.height
        return self._figure.add_axes((left / WIDTH, bottom, width / WIDTH, height / self.height))

    def write(
        self,
        left: float,
        top: float,
        text: str,
        *,
        colour: Colour = INK,
        **style: Any,  # noqa: ANN401
    ) -> None:
        """A line of text; `top` is its baseline, and `style` is matplotlib's."""
        self._figure.text(left / WIDTH, 1 - top / self.height, text, color=colour.light, **style)

    def mark(self, left: float, top: float, width: float, height: float, colour: Colour) -> None:
        """A filled box, as beside a name."""
        place = (left / WIDTH, 1 - (top + height) / self.height)
        self._figure.add_artist(
            Rectangle(
                place, width / WIDTH, height / self.height, facecolor=colour.light, edgecolor="none"
            )
        )

    def note(self, artist: Artist, text: str) -> None:
        """What is shown where the pointer rests on something that was drawn."""
        artist.set_gid(f"note-{len(self._notes)}")
        self._notes.append(text)

    def finish(self) -> Picture:
        """Draw it."""
        vector, raster = BytesIO(), BytesIO()
        self._figure.savefig(vector, format="svg")
        self._figure.savefig(
            raster, format="png", dpi=_SHARPNESS * _PER_INCH, metadata={"Software": None}
        )
        body = self._tidied(vector.getvalue().decode())
        svg = f'<?xml version="1.0" encoding="utf-8"?>\n{body}'
        return Picture(self.name, svg, raster.getvalue(), _themed(body))

    def _tidied(self, svg: str) -> str:
        """With notes and ids of its own, and without what nobody reads, such as the date."""
        svg = re.sub(r"<(metadata|style)\b.*?</\1>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
        used = set(re.findall(r'(?:url\(#|href="#)([\w.-]+)', svg))
        svg = re.sub(r"<[^<>]*>", lambda found: self._tag(found[0], used), svg)
        return re.sub(r"\n\s*", "\n", svg)

    def _tag(self, tag: str, used: set[str]) -> str:
        """One of the SVG's tags, shorter."""
        note = re.fullmatch(r'<g id="note-(\d+)">', tag)
        if note:
            return f"<g><title>{escape(self._notes[int(note[1])], quote=False)}</title>"
        tag = re.sub(
            r' id="([\w.-]+)"',
            lambda own: f' id="{self.name}-{own[1]}"' if own[1] in used else "",
            tag,
        )
        tag = re.sub(r'(url\(#|href="#)', rf"\1{self.name}-", tag)
        tag = re.sub(r' transform="rotate\(-0 [^"]*"', "", tag).replace(
            f"font-family: '{_FONT}'; ", ""
        )
        tag = re.sub(r"(\d\.\d\d)\d+", r"\1", " ".join(tag.split()))
        return tag.replace("<svg ", _ROOT, 1)


def _themed(svg: str) -> str:
    """With colours that the page's style sheet may change, and as wide as it says."""
    svg = re.sub(r"<[^<>]*>", lambda found: _COLOUR.sub(_variable, found[0]), svg)
    return re.sub(r'(<svg [^>]*?) width="[^"]*" height="[^"]*"', r"\1", svg, count=1)


def _variable(found: re.Match[str]) -> str:
    name = _NAMES.get(found[0])
    return f"var(--{name}, {found[0]})" if name else found[0]
