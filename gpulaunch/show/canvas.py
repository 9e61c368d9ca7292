"""The door to matplotlib: figures in the style of gpulaunch, as SVG documents and PNG files.

Lengths are in pixels of a page at 100 %; in a saved file one pixel is one point.
"""

import logging
import os
import re
import warnings
from collections.abc import Mapping
from io import BytesIO
from shutil import rmtree

from gpulaunch.errors import FailedError
from gpulaunch.files.extras import install_hint
from gpulaunch.typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes  # noqa: TC004 - a type for others, too
    from matplotlib.figure import Figure  # noqa: TC004

    __all__ = ["Axes", "Figure"]

WIDTH = 1040
INK, PAPER = "#1f2933", "#ffffff"
"""The colours of text and ground, which a page may replace by its own."""

_PER_INCH = 72  # so that a point of matplotlib's is a pixel
_SHARPNESS = 2  # pixels of a PNG in one of the page
_PALE = INK + "b0"  # with opacity, so that it reads on dark ground, too
_STYLE: Any = {
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "axes.labelcolor": _PALE,
    "axes.spines.bottom": False,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "figure.constrained_layout.h_pad": 0.08,
    "figure.constrained_layout.w_pad": 0.08,
    "figure.facecolor": PAPER,
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, and so is the same everywhere
    "font.size": 11,
    "grid.color": INK + "24",
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text: sharp, to be searched and copied
    "text.color": INK,
    "text.parse_math": False,  # a name may have dollars
    "xaxis.labellocation": "left",
    "xtick.color": _PALE,
    "xtick.major.size": 0,
    "ytick.color": INK,
    "ytick.major.size": 0,
}


def load_matplotlib(purpose: str = "a picture") -> None:
    """Import matplotlib, which need not be installed, and set the style of all figures.

    Args:
        purpose: What is to be drawn, for the error.

    Raises:
        FailedError: matplotlib is not installed, or does not start.
    """
    # Matplotlib warns that it makes the directory that is removed below.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    before = os.environ.get("MPLCONFIGDIR")
    try:
        import matplotlib as mpl
        import matplotlib.figure
    except ImportError as problem:
        hint = install_hint("report")
        raise FailedError(f"{purpose} needs matplotlib: {problem}", hint) from None
    except ValueError as problem:  # MPLBACKEND names no backend
        raise FailedError(f"matplotlib: {problem}") from None
    # Without a cache that it may write to, matplotlib makes a directory, and removes it at exit.
    # Our commands end by os._exit, which skips that.
    made = os.environ.get("MPLCONFIGDIR")
    if made and made != before:
        rmtree(made, ignore_errors=True)
    mpl.rcdefaults()  # whatever style the user has set
    mpl.rcParams.update(_STYLE)


def new_figure(height: float, width: float = WIDTH) -> "Figure":
    """Return an empty figure that lays out what is drawn on it.

    Raises:
        FailedError: matplotlib is not installed, or does not start.
    """
    load_matplotlib()
    from matplotlib.figure import Figure

    size = width / _PER_INCH, height / _PER_INCH
    return Figure(figsize=size, dpi=_PER_INCH, layout="constrained")


def add_legend(figure: "Figure", colours: Mapping[str, str]) -> None:
    """Add a legend of colours above all axes of a figure.

    Args:
        figure: The figure.
        colours: The colours by their meaning.
    """
    from matplotlib.patches import Patch

    patches = [Patch(color=colour, label=text) for text, colour in colours.items()]
    figure.legend(handles=patches, loc="outside upper left", ncols=len(patches))


def add_rectangle(
    axes: "Axes",
    begin: tuple[float, float],
    size: tuple[float, float],
    note: str,
    **style: Any,  # noqa: ANN401 - as matplotlib has it
) -> None:
    """Draw a rectangle on axes, with a note that SVG shows where the pointer rests on it.

    Args:
        axes: The axes, whose scales are set.
        begin: The corner with the least x and y.
        size: The width and the height.
        note: The note.
        style: Properties of the rectangle, as matplotlib calls them.
    """
    from matplotlib.patches import Rectangle

    axes.add_artist(Rectangle(begin, *size, gid=f"note: {note}", clip_on=False, **style))


def svg_of(figure: "Figure", name: str) -> str:
    """Return a figure as an SVG document; the same figure makes the same text.

    Args:
        figure: The figure.
        name: A name that no other figure in the same page has: ids in the document depend on it.
    """
    import matplotlib as mpl

    vector = BytesIO()
    unsaid = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with mpl.rc_context({"svg.hashsalt": name}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a letter that the font does not have is drawn as a box
        figure.savefig(vector, format="svg", metadata=unsaid)
    svg = vector.getvalue().decode()
    svg = re.sub(r"<g id=([\"'])note: (.*?)\1>", r"<g><title>\2</title>", svg)
    return re.sub(r'<g id="[\w.]+"', "<g", svg)


def png_of(figure: "Figure") -> bytes:
    """Return a figure as a PNG file, of twice the size in pixels."""
    raster = BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as above
        figure.savefig(raster, dpi=_SHARPNESS * _PER_INCH, metadata={"Software": None})
    return raster.getvalue()
