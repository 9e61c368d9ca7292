"""A profile ready to be shown: a row for each key that is set, in the order of its sections.

Terminal (text.py) and file (picture.py) draw the same rows. Labels and units come from the
declarations of the keys, and how a row is drawn depends only on the kind of its key. A key that is
added to a section is shown without a change here.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from math import floor, log10
from operator import itemgetter

from gpulaunch.errors import printable
from gpulaunch.files.duration import format_duration
from gpulaunch.files.fields import ListOf, RowOf
from gpulaunch.files.size import format_size
from gpulaunch.profiles.keys import Curve, FiguresOf, Key, Number, Part, Section
from gpulaunch.profiles.profile import Profile
from gpulaunch.records import Record, replace
from gpulaunch.show.terminal import figure
from gpulaunch.typing import Any

_MOST_RANKS = 32  # largest number for which a matrix is drawn
_MOST_PAIRS = 6  # that a line names

_UNITS = {
    "_percentage": "%",
    "_gb_per_s": "GB/s",
    "_mib": "MiB",
    "_bytes": "B",
    "_w": "W",
    "_j": "J",
    "_s": "s",
}
_BYTES = {"MiB": 1 << 20, "B": 1}
_WORDS = {
    "gpus": "GPUs",
    "llc": "LLC",
    "nvlink": "NVLink",
    "pcie": "PCIe",
    "rx": "received",
    "sm": "SM",
    "tx": "sent",
}
NO_BREAK = "\u00a0"
"""Blank between a number and its unit, which belong on one line."""

_IN_TITLE = ("name", "description")

_Beside = Mapping[str, Sequence[tuple[str, float]]]
"""Name of a number -> label and value of each other number that is shown beside it."""


class Matrix(Record):
    """Amounts of data between ranks.

    Attributes:
        ranks: number of ranks.
        weights: weights of pairs of ranks, each pair in both orders.
    """

    ranks: int
    weights: Mapping[tuple[int, int], float]


class LinePlot(Record):
    """A line through points.

    Attributes:
        xs: x of each point.
        ys: y of each point.
        x_label: meaning of xs, with their unit.
        y_label: meaning of ys, with their unit.
    """

    xs: Sequence[float]
    ys: Sequence[float]
    x_label: str
    y_label: str


class Row(Record):
    """The value of one key, or one section, of a profile; its texts are safe for a terminal.

    Attributes:
        label: name of the value.
        text: the value with its unit; the meaning of a section.
        share: length of a bar, 0 to 1; None for no bar.
        inner: rows that belong to this one.
        drawing: drawing that a picture shows instead of those rows.
    """

    label: str
    text: str
    share: float | None = None
    inner: tuple["Row", ...] = ()
    drawing: Matrix | LinePlot | None = None


class ProfileView(Record):
    """Everything that is shown of a profile.

    Attributes:
        title: name and description.
        path: path of the file.
        rows: rows above the sections of the file.
        sections: sections that say something, each with its rows.
    """

    title: str
    path: str
    rows: tuple[Row, ...]
    sections: tuple[Row, ...]


def view_of(profile: Profile, path: str, gpu_memory_bytes: int | None = None) -> ProfileView:
    """Return everything that a profile says, ready to be shown.

    Args:
        profile: any profile.
        path: path of its file.
        gpu_memory_bytes: memory of the GPU that was measured; None if unknown.
    """
    rows = [row for row in _rows(profile, {}, None) if row.label not in _IN_TITLE]
    if profile.missing_demand:
        missing = f"{', '.join(profile.missing_demand)}; without, the job shares no GPU"
        rows.append(Row("not recorded", missing))
    sections = []
    for name, key in Profile.keys.items():
        if isinstance(key, Part):
            section = key.section(profile.document.get(name))
            own = tuple(_rows(section, _numbers_beside(profile, key.section), gpu_memory_bytes))
            sections.append(Row(name, _without_markdown(key.meaning), inner=own))
    return ProfileView(
        title=printable(": ".join(filter(None, (profile.name, profile.description)))),
        path=printable(path),
        rows=tuple(rows),
        sections=tuple(section for section in sections if section.inner),
    )


def _without_markdown(meaning: str) -> str:
    """Return the meaning of a key without links and quotes."""
    text = re.sub(r" \(\[more\]\(.*?\)\)", "", meaning)
    return re.sub(r"\[(.*?)\]\(.*?\)", r"\1", text).replace("`", "")


def _rows(section: Section, beside: _Beside, gpu_memory_bytes: int | None) -> Iterator[Row]:
    """Return a row for each key that is set, except keys that are shown with others."""
    elsewhere: set[str] = set()
    for name, key in section.keys.items():
        if isinstance(key, Curve) and name in section.document:
            elsewhere |= {key.over, key.unit_in}
    for name, key in section.keys.items():
        value = section.document.get(name)
        if isinstance(key, Number) and (value is not None or name in beside):
            row = _number_row(key, value, beside.get(name, ()), gpu_memory_bytes)
            estimated = name in section.document.get("estimated", ())
            yield replace(row, text=f"{row.text} (estimated)") if estimated else row
        elif (
            value is None
            or name in elsewhere
            or name == "estimated"
            or isinstance(key, Part | FiguresOf)
        ):
            continue
        elif isinstance(key, Curve):
            yield _curve_row(key, section)
        else:
            yield _plain_row(key, value)


def _plain_row(key: Key[Any], value: Any) -> Row:  # noqa: ANN401
    """Return the row of a key that is no number, by the kind of its value."""
    text = str(value)
    if isinstance(key.rule, ListOf) and isinstance(key.rule.rule, RowOf):
        return _edges_row(key, value)
    if isinstance(value, Mapping):
        kinds = {type(one) for one in value.values()}
        if kinds <= {int, float}:
            return _table_row(key, value)
        if kinds == {str}:
            rows = [Row(printable(name), printable(words)) for name, words in value.items()]
            return Row(label_of(key), "", inner=tuple(rows))
        text = ", ".join(value)
    elif isinstance(value, list):
        text = shlex.join(map(str, value))
    elif isinstance(value, bool):
        text = "yes" if value else "no"
    return Row(label_of(key), printable(text))


def _number_row(
    key: Number[Any],
    value: float | None,
    beside: Sequence[tuple[str, float]],
    gpu_memory_bytes: int | None,
) -> Row:
    """Return the row of a number: with a bar if it is a share of something."""
    text, share = "not recorded", None
    if value is not None:
        text = amount(key, value)
        used_bytes = value * _BYTES["MiB"]
        if unit_of(key) == "%" and key.most == 100:
            share = value / 100
        elif unit_of(key) == "MiB" and gpu_memory_bytes and used_bytes <= gpu_memory_bytes:
            share = used_bytes / gpu_memory_bytes
            text += f" of {amount(key, gpu_memory_bytes / _BYTES['MiB'])}"
    if beside:
        others = (f"{sign} {amount(key, _rounded(number, value))}" for sign, number in beside)
        text += f" ({', '.join(others)})"
    return Row(label_of(key), text, share)


def _rounded(number: float, figure_beside: float | None) -> float:
    """Return a number without the digits that the figure beside it does not show.

    Example:
        >>> _rounded(0.04738, 70.75), _rounded(2.5e-06, 3.0)
        (0.05, 0.0)
    """
    if not figure_beside:
        return number
    return round(number, 3 - floor(log10(abs(figure_beside))))


def _numbers_beside(profile: Profile, section: type[Section]) -> _Beside:
    """Return figures of other sections about a section's numbers, such as their spread."""
    found: dict[str, list[tuple[str, float]]] = {}
    for part in Profile.keys.values():
        if not isinstance(part, Part):
            continue
        said = profile.document.get(part.name, {})
        for key in part.section.keys.values():
            if isinstance(key, FiguresOf) and key.section is section:
                for name, number in said.get(key.name, {}).items():
                    found.setdefault(name, []).append((key.label, number))
    return found


def _table_row(key: Key[Any], table: Mapping[str, float]) -> Row:
    """Return a row with a bar for each number of a table."""
    full = max(table.values(), default=0.0)
    if unit_of(key) == "%":
        full = max(full, 100.0)
    inner = []
    for name, value in table.items():
        inner.append(Row(printable(name), amount(key, value), value / full if full else 0.0))
    return Row(
        label_of(key), f"a full bar is {amount(key, full)}" if inner else "none", inner=tuple(inner)
    )


def _curve_row(key: Curve, section: Section) -> Row:
    """Return a row with a bar for each point of a curve, which a picture draws as a line."""
    over = section.keys[key.over]
    xs, ys = section.document[key.over], section.document[key.name]
    unit = printable(section.document.get(key.unit_in, ""))
    inner = []
    for x, y in zip(xs, ys, strict=True):
        inner.append(Row(amount(over, x), f"{figure(y)} {unit}".rstrip(), y / max(ys)))
    plot = LinePlot(
        xs,
        ys,
        x_label=f"{label_of(over)}, {unit_of(over)}",
        y_label=f"{label_of(key)}, {unit}" if unit else label_of(key),
    )
    return Row(label_of(key), f"by {label_of(over)}", inner=tuple(inner), drawing=plot)


def _edges_row(key: Key[Any], edges: Sequence[tuple[int, int, float]]) -> Row:
    """Return a row with the heaviest pairs of ranks, and a matrix of all of them."""
    ordered = sorted(edges, key=itemgetter(2), reverse=True)
    pairs = [f"{a}-{b}{NO_BREAK}{amount(key, weight)}" for a, b, weight in ordered[:_MOST_PAIRS]]
    named = ", ".join(pairs)
    more = len(ordered) - _MOST_PAIRS
    ranks = 1 + max((max(a, b) for a, b, _ in edges), default=-1)
    weights = {}
    for a, b, weight in edges:
        weights[a, b] = weights[b, a] = weight
    matrix = Matrix(ranks, weights) if 0 < ranks <= _MOST_RANKS else None
    return Row(label_of(key), f"{named} and {more} more" if more > 0 else named, drawing=matrix)


def label_of(key: Key[Any]) -> str:
    """Return what a key is about: its label, or its name without the unit.

    Example:
        >>> label_of(Profile.resources.section.sm_utilization_percentage)
        'SM utilization'
    """
    name = key.name
    words = name.removesuffix(_unit_ending(name)).split("_")
    return key.label or " ".join(_WORDS.get(word, word) for word in words)


def unit_of(key: Key[Any]) -> str:
    """Return the unit of a key's numbers, which its row or the end of its name says."""
    return key.unit or _UNITS.get(_unit_ending(key.name), "")


def _unit_ending(name: str) -> str:
    """Return the end of a name that is a unit."""
    return next((ending for ending in _UNITS if name.endswith(ending)), "")


def amount(key: Key[Any], value: float) -> str:
    """Return a number of a key with its unit, such as 148.2 W, 2 GiB or 3 min 04 s."""
    unit = unit_of(key)
    text = f"{figure(value)} {unit}".rstrip()
    if unit in _BYTES:
        text = format_size(round(value * _BYTES[unit]))
    elif unit == "J" and value >= 1000:
        text = f"{figure(value / 1000)} kJ"
    elif unit == "s" and value >= 100:
        text = format_duration(value)
    return text.replace(" ", NO_BREAK)
