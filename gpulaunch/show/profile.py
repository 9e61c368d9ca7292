"""A profile on the terminal, profiles as a table, and both as JSON documents.

A profile is shown as a row for each key that is set, in the order of its sections. Labels and units
come from the declarations of the keys, and how a row is drawn depends only on the kind of its key:
a key that is added to a section is shown without a change here.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter

from gpulaunch.errors import printable
from gpulaunch.files.duration import format_duration
from gpulaunch.files.fields import ListOf, RowOf
from gpulaunch.files.size import format_size
from gpulaunch.profiles.catalog import is_benchmark
from gpulaunch.profiles.keys import Curve, FiguresOf, Key, Number, Part, Section
from gpulaunch.profiles.layers import variants_of
from gpulaunch.profiles.profile import Profile
from gpulaunch.records import Record, as_dict
from gpulaunch.show import Document
from gpulaunch.show.terminal import Fitted, Group, Text, bar, figure, make_table
from gpulaunch.show.topology.text import wrapped
from gpulaunch.typing import Any

_MOST_PAIRS = 6  # of edges that a line names
_MOST_LABEL = 30  # columns
_BAR = 20  # columns
_LEAST_FOR_BARS = 60  # columns of a terminal
_LEAST_TEXT = 16  # columns
_GAP = 2

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
    "sm": "SM",
}
NO_BREAK = "\u00a0"
"""Blank between a number and its unit, which belong on one line."""

_IN_TITLE = ("name", "description")


class Row(Record):
    """The value of one key; its texts are safe for a terminal.

    Attributes:
        label: name of the value.
        text: the value with its unit.
        share: length of a bar, 0 to 1; None for no bar.
    """

    label: str
    text: str
    share: float | None = None


def profile_text(profile: Profile, path: str) -> Fitted:
    """Return the lines of a profile, as wide as the terminal; the path of its file is not broken.

    Args:
        profile: any profile.
        path: path of its file.
    """
    return Fitted(partial(_lines, profile, path))


def _lines(profile: Profile, path: str, width: int, plain: bool) -> Iterator[Text]:
    top = [row for row in section_rows(profile) if row.label not in _IN_TITLE]
    if profile.missing_demand:
        missing = f"{', '.join(profile.missing_demand)}; without, the job shares no GPU"
        top.append(Row("not recorded", missing))
    sections = {}
    for name, key in Profile.keys.items():
        if isinstance(key, Part):
            section = key.section(profile.document.get(name))
            rows = list(section_rows(section, _numbers_beside(profile, key.section)))
            if rows:
                sections[name] = rows
    every = [*top, *(row for rows in sections.values() for row in rows)]
    longest = max((len(row.label) for row in every), default=0)
    labels = min(longest, _MOST_LABEL, width // 2) + _GAP
    title = printable(": ".join(filter(None, (profile.name, profile.description))))
    yield from _paragraph(title, width, style="bold")
    yield _line((f"{'file':<{labels}}", "dim"), printable(path))
    yield from _row_lines(top, width, labels, plain)
    for name, rows in sections.items():
        yield Text()
        heading = f"{name}: {_without_markdown(Profile.keys[name].meaning)}"
        yield from _paragraph(heading, width, len(name), style="dim")
        yield from _row_lines(rows, width, labels, plain)


def _paragraph(text: str, width: int, bold: int = 0, style: str = "") -> Iterator[Text]:
    """Draw text over the whole width, the first characters in bold."""
    for words in wrapped(text, width):
        yield _line((words[:bold], "bold"), (words[bold:], style))
        bold = 0


def _row_lines(rows: Iterable[Row], width: int, labels: int, plain: bool) -> Iterator[Text]:
    """Draw rows; text that does not fit continues below, as does text beside a too long label."""
    for row in rows:
        label = row.label
        if len(label) + _GAP > labels:
            yield _line((label, "dim"))
            label = ""
        line = _line((f"{label:<{labels}}", "dim"))
        if row.share is not None and width >= _LEAST_FOR_BARS:
            line.append_text(bar(row.share, _BAR, plain=plain)).append(" " * _GAP)
        left = line.cell_len
        text = row.text.replace("±", "+-") if plain else row.text
        lines = wrapped(text, max(width - left, _LEAST_TEXT))
        first, *others = (one.replace(NO_BREAK, " ") for one in lines)
        yield line.append(first)
        for more in others:
            yield _line(f"{'':{left}}{more}")


def _line(*parts: str | tuple[str, str]) -> Text:
    """Return a line of fixed length: the terminal wraps it, so it can be copied."""
    return Text.assemble(*parts, no_wrap=True, overflow="ignore")


def _without_markdown(meaning: str) -> str:
    """Return the meaning of a key without links and quotes."""
    text = re.sub(r" \(\[more\]\(.*?\)\)", "", meaning)
    return re.sub(r"\[(.*?)\]\(.*?\)", r"\1", text).replace("`", "")


def section_rows(
    section: Section, beside: Mapping[str, Sequence[tuple[str, float]]] | None = None
) -> Iterator[Row]:
    """Return a row for each key of a section that is set, except keys that are shown with others.

    Args:
        section: a section, or a whole profile.
        beside: name of a number -> label and value of each other number that is shown beside it.
    """
    beside = beside or {}
    elsewhere: set[str] = set()
    for name, key in section.keys.items():
        if isinstance(key, Curve) and name in section.document:
            elsewhere |= {key.over, key.unit_in}
    estimated = section.document.get("estimated", ())
    for name, key in section.keys.items():
        value = section.document.get(name)
        if isinstance(key, Number) and (value is not None or name in beside):
            yield _number_row(key, value, beside.get(name, ()), is_estimated=name in estimated)
        elif value is None or name in elsewhere or name == "estimated":
            continue
        elif isinstance(key, Curve):
            yield _curve_row(key, section)
        elif not isinstance(key, Part | FiguresOf):
            yield _plain_row(key, value)


def _plain_row(key: Key[Any], value: Any) -> Row:  # noqa: ANN401
    """Return the row of a key that is no number, by the kind of its value."""
    if isinstance(key.rule, ListOf) and isinstance(key.rule.rule, RowOf):
        return _edges_row(key, value)
    text = str(value)
    if isinstance(value, Mapping):
        shown = []
        for name, one in value.items():
            if isinstance(one, Mapping):
                shown.append(name)
            else:
                number = isinstance(one, int | float)
                shown.append(f"{name}: {amount(key, one) if number else one}")
        text = ", ".join(shown) or "none"
    elif isinstance(value, list):
        text = shlex.join(map(str, value))
    elif isinstance(value, bool):
        text = "yes" if value else "no"
    return Row(label_of(key), _printable(text))


def _printable(text: str) -> str:
    """Return a text that is safe for a terminal, with the unbreakable blanks that are ours."""
    return NO_BREAK.join(map(printable, text.split(NO_BREAK)))


def _number_row(
    key: Number[Any],
    value: float | None,
    beside: Sequence[tuple[str, float]],
    *,
    is_estimated: bool,
) -> Row:
    """Return the row of a number: with a bar if it is a percentage of all there is."""
    text, share = "not recorded", None
    if value is not None:
        text = amount(key, value)
        if unit_of(key) == "%" and key.most == 100:
            share = value / 100
    if beside:
        others = (f"{sign} {amount(key, number)}" for sign, number in beside)
        text += f" ({', '.join(others)})"
    return Row(label_of(key), f"{text} (estimated)" if is_estimated else text, share)


def _numbers_beside(profile: Profile, section: type[Section]) -> dict[str, list[tuple[str, float]]]:
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


def _curve_row(key: Curve, section: Section) -> Row:
    """Return a row with all points of a curve."""
    over = section.keys[key.over]
    unit = section.document.get(key.unit_in, "")
    points = zip(section.document[key.over], section.document[key.name], strict=True)
    shown = ", ".join(f"{amount(over, x)}:{NO_BREAK}{figure(y)}" for x, y in points)
    return Row(label_of(key), _printable(f"{unit} by {label_of(over)}: {shown}".lstrip()))


def _edges_row(key: Key[Any], edges: Sequence[tuple[int, int, float]]) -> Row:
    """Return a row with the heaviest pairs of ranks."""
    ordered = sorted(edges, key=itemgetter(2), reverse=True)
    pairs = [f"{a}-{b}{NO_BREAK}{amount(key, weight)}" for a, b, weight in ordered[:_MOST_PAIRS]]
    named = ", ".join(pairs)
    more = len(ordered) - _MOST_PAIRS
    return Row(label_of(key), f"{named} and {more} more" if more > 0 else named)


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


_FIGURES = ("memory", "SM %", "BW %")


def profiles_table(groups: Sequence[tuple[str, Sequence[Profile]]]) -> Group:
    """Return the table of profiles in groups with headings; variants follow the descriptions."""
    table = make_table(
        *("name", "pattern", "sensitive", *_FIGURES, "description"),
        right=_FIGURES,
        leave=("sensitive", "pattern", *reversed(_FIGURES)),
    )
    for heading, profiles in groups:
        if profiles:
            table.add_row(Text(heading, "bold"))
        for profile in profiles:
            table.add_row(*_profile_cells(profile))
    estimated = any(profile.resources.estimated for _, group in groups for profile in group)
    return Group(table, *([Text("~ estimated", "dim")] if estimated else []))


def _profile_cells(profile: Profile) -> list[str | Text]:
    """Return the cells of a profile; what is unknown is empty."""
    resources, communication = profile.resources, profile.communication
    sm, bandwidth = "sm_utilization_percentage", "memory_bandwidth_utilization_percentage"
    figures = {
        "memory_mib": format_size(profile.memory_bytes) if profile.memory_bytes else "",
        **{name: figure(getattr(resources, name)).strip("-") for name in (sm, bandwidth)},
    }
    description = Text(printable(profile.description))
    if variants := variants_of(profile):
        asked = ", ".join(f"@{_format_variant(profile, variant)}" for variant in variants)
        description.append("\n" if profile.description else "").append(asked, "dim")
    return [
        printable(profile.name),
        communication.pattern or "",
        {True: "yes", False: "no", None: ""}[communication.bandwidth_sensitive],
        *(f"~{text}" if name in resources.estimated else text for name, text in figures.items()),
        description,
    ]


def _format_variant(profile: Profile, variant: str) -> str:
    """Return a variant's name, and for a size also the profile that was measured there."""
    if variant in profile.variants or not profile.scaling:
        return printable(variant)
    return printable(f"{variant} is {profile.scaling.profiles[variant.partition('=')[2]]}")


_COMMUNICATION = ("pattern", "bandwidth_sensitive", "collective_calls_per_iteration")
_RESOURCES = (
    *("sm_utilization_percentage", "memory_bandwidth_utilization_percentage"),
    *("power_w", "energy_j", "duration_s", "measured_on"),
)


def profile_document(profile: Profile, path: str) -> Document:
    """Return the document that `gpulaunch profile show NAME --json` prints.

    The key "document" has everything, as in a file; the keys beside it are older than that and are
    kept for compatibility.
    """
    communication, resources, counters = (
        profile.communication,
        profile.resources,
        profile.llc_counters,
    )
    return {
        "name": profile.name,
        "description": profile.description,
        "benchmark": is_benchmark(path),
        "gpus": profile.gpus,
        **{key: getattr(communication, key) for key in _COMMUNICATION},
        "communication_share": profile.communication_share,
        "split_slowdown": profile.split_slowdown,
        "communication_source": communication.source,
        **{
            key: getattr(profile.placement, key)
            for key in ("min_bandwidth_gb_per_s", "min_utility")
        },
        **{key: bool(getattr(profile.placement, key)) for key in ("single_node", "one_per_node")},
        "host_gb_per_s": profile.placement.host_gb_per_s,
        "slowdowns": profile.slowdowns,
        "collocation_source": profile.collocation.source,
        "memory_bytes": profile.memory_bytes,
        "memory_is_reservation": bool(resources.memory_is_reservation),
        **{key: getattr(resources, key) for key in _RESOURCES},
        "resources_source": resources.source,
        "share": profile.sharing.share,
        "sm_percentage": profile.sharing.sm_percentage,
        "sm_curve": [as_dict(point) for point in profile.curve],
        "sm_curve_source": profile.sm_curve.source,
        "counters": as_dict(counters) if counters else None,
        "counters_source": profile.counters.source,
        "variants": [f"{profile.name}@{variant}" for variant in variants_of(profile)],
        "document": profile.document,
        "path": path,
    }
