"""`gpulaunch profile list|show`: what is known about jobs before they run."""

import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from gpulaunch.cli.arguments import Parser, add_json
from gpulaunch.cli.help import word_parser
from gpulaunch.cli.output import Document, print_json, warn
from gpulaunch.cli.screen import Grid, Parts, Text, draw, figure
from gpulaunch.errors import UsageError, printable
from gpulaunch.files.fields import ListOf, RowOf
from gpulaunch.files.units import format_duration, format_size
from gpulaunch.profiles.catalog import (
    find_profile,
    is_benchmark,
    load_profile,
    profile_names,
)
from gpulaunch.profiles.keys import Curve, FiguresOf, Key, Number, Part, Section
from gpulaunch.profiles.profile import Profile

_Beside = Mapping[str, Sequence[tuple[str, float]]]
"""Name of a number -> label and value of each other number that is shown beside it."""

_MOST_PAIRS = 6  # of edges that a line names

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
_WORDS = {"gpus": "GPUs", "llc": "LLC", "sm": "SM"}
_IN_TITLE = ("name", "description")
_FIGURES = ("memory", "SM %", "BW %")


def make_parser() -> Parser:
    """Return the parser of the word after it."""
    return word_parser("profile", "What is known about jobs before they run.")


def profile_show_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser("gpulaunch profile show", "Print all that a profile says.")
    parser.add_argument(
        "profile",
        metavar="PROFILE",
        help="name or file, and @ with what is asked of it: alexnet@batch=1",
    )
    add_json(parser)
    return parser


def profile_show(arguments: Sequence[str]) -> int:
    """Print one profile."""
    options = profile_show_parser().parse_args(arguments)
    path, profile = find_profile(options.profile), load_profile(options.profile)
    if options.json:
        print_json(profile_document(profile, path))
    else:
        draw(profile_text(profile, path), sys.stdout)
    return 0


def profile_list_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser("gpulaunch profile list", "Print the profiles that can be named.")
    add_json(parser)
    return parser


def profile_list(arguments: Sequence[str]) -> int:
    """Print the profiles: those of people first, then the benchmarks; variants below each."""
    options = profile_list_parser().parse_args(arguments)
    profiles = []
    for name in profile_names():
        try:
            profiles.append((find_profile(name), load_profile(name).but(name=name)))
        except UsageError as problem:  # a broken file does not hide the others
            warn(problem.message)
    if options.json:
        print_json([profile_document(profile, path) for path, profile in profiles])
        return 0

    table = Grid(
        *("name", "pattern", "sensitive", *_FIGURES, "description"),
        right=_FIGURES,
        leave=("sensitive", "pattern", *reversed(_FIGURES)),
    )
    for heading, of_papers in (("what people run", False), ("benchmarks of papers", True)):
        group = [profile for path, profile in profiles if is_benchmark(path) == of_papers]
        if group:
            table.add_row(Text(heading, "bold"))
        for profile in group:
            description = Text(printable(profile.description))
            if profile.variants:
                asked = ", ".join(f"@{printable(variant)}" for variant in profile.variants)
                description.append("\n" if profile.description else "").append(asked, "dim")
            table.add_row(*_cells(profile), description)
    estimated = any(profile.resources.estimated for _, profile in profiles)
    draw(Parts(table, *([Text("~ estimated", "dim")] if estimated else [])), sys.stdout)
    return 0


def _cells(profile: Profile) -> list[str]:
    """Return the cells of a profile but the description; what is unknown is empty."""
    resources, communication = profile.resources, profile.communication
    figures = {"memory_mib": format_size(profile.memory_bytes) if profile.memory_bytes else ""}
    for name in ("sm_utilization_percentage", "memory_bandwidth_utilization_percentage"):
        figures[name] = figure(getattr(resources, name)).strip("-")
    return [
        printable(profile.name),
        communication.pattern or "",
        {True: "yes", False: "no", None: ""}[communication.bandwidth_sensitive],
        *(f"~{text}" if name in resources.estimated else text for name, text in figures.items()),
    ]


def profile_text(profile: Profile, path: str) -> Parts:
    """Return a profile with a row for each key that is set, in the order of its sections.

    Labels and units come from the declarations of the keys, and how a row is drawn depends only on
    the kind of its key: a key that is added to a section is shown without a change here. The path
    of its file is not broken.
    """
    top = [row for row in _section_rows(profile, {}) if row[0] not in _IN_TITLE]
    if profile.missing_demand:
        missing = f"{', '.join(profile.missing_demand)}; without, the job shares no GPU"
        top.append(("not recorded", missing))
    sections = [(Text(), top)]
    for name, key in Profile.keys.items():
        if isinstance(key, Part):
            section = key.section(profile.document.get(name))
            meaning = f": {_without_markdown(key.meaning)}"
            heading = Text.assemble("\n", (name, "bold"), (meaning, "dim"))
            beside = _numbers_beside(profile, key.section)
            sections.append((heading, list(_section_rows(section, beside))))
    table = Grid("what", "value")
    for heading, rows in sections:
        if rows and heading.plain:
            table.add_row(heading)
        for label, text in rows:
            table.add_row(label, Text(text, overflow="fold"))  # a path or an address is not cut
    title = printable(": ".join(filter(None, (profile.name, profile.description))))
    file = Text(f"file: {printable(path)}", no_wrap=True, overflow="ignore")
    return Parts(Text(title, "bold"), file, Text(), table)


def _without_markdown(meaning: str) -> str:
    """Return the meaning of a section without the link to more about it, and without quotes."""
    return re.sub(r" \(\[more\]\(.*?\)\)", "", meaning).replace("`", "")


def _numbers_beside(profile: Profile, section: type[Section]) -> _Beside:
    """Return figures of other sections about a section's numbers, such as their spread."""
    found: dict[str, list[tuple[str, float]]] = {}
    for part in Profile.keys.values():
        if isinstance(part, Part):
            said = profile.document.get(part.name, {})
            for key in part.section.keys.values():
                if isinstance(key, FiguresOf) and key.section is section:
                    for name, number in said.get(key.name, {}).items():
                        found.setdefault(name, []).append((key.label, number))
    return found


def _section_rows(section: Section, beside: _Beside) -> Iterator[tuple[str, str]]:
    """Yield label and value of each key that is set, except keys that are shown with others."""
    elsewhere = {"estimated"}
    for name, key in section.keys.items():
        if isinstance(key, Curve) and name in section.document:
            elsewhere |= {key.over, key.unit_in}
    for name, key in section.keys.items():
        value = section.document.get(name)
        if isinstance(key, Number) and (value is not None or name in beside):
            text = "not recorded" if value is None else amount(key, value)
            if name in beside:
                others = [f"{sign} {amount(key, number)}" for sign, number in beside[name]]
                text += f" ({', '.join(others)})"
            if name in section.document.get("estimated", ()):
                text += " (estimated)"
        elif value is None or name in elsewhere or isinstance(key, Part | FiguresOf):
            continue
        elif isinstance(key, Curve):
            text = _curve_text(key, section)
        else:
            text = _plain_text(key, value)
        yield _label(key), printable(text)


def _plain_text(key: Key[Any], value: Any) -> str:  # noqa: ANN401
    """Return the value of a key that is no number, by the kind of its value."""
    if isinstance(key.rule, ListOf) and isinstance(key.rule.rule, RowOf):
        return _edges_text(key, value)
    if isinstance(value, Mapping):
        shown = []
        for name, one in value.items():
            if isinstance(one, Mapping):
                shown.append(name)
            else:
                number = isinstance(one, int | float)
                shown.append(f"{name}: {amount(key, one) if number else one}")
        return ", ".join(shown) or "none"
    if isinstance(value, list):
        return shlex.join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _curve_text(key: Curve, section: Section) -> str:
    over = section.keys[key.over]
    unit = section.document.get(key.unit_in, "")
    points = zip(section.document[key.over], section.document[key.name], strict=True)
    shown = ", ".join(
        f"{' + '.join(map(str, x)) if isinstance(x, list) else amount(over, x)}: {figure(y)}"
        for x, y in points
    )
    return f"{unit} by {_label(over)}: {shown}".lstrip()


def _edges_text(key: Key[Any], edges: Sequence[tuple[int, int, float]]) -> str:
    """Return the heaviest pairs of ranks."""
    ordered = sorted(edges, key=itemgetter(2), reverse=True)
    named = ", ".join(f"{a}-{b} {amount(key, weight)}" for a, b, weight in ordered[:_MOST_PAIRS])
    more = len(ordered) - _MOST_PAIRS
    return f"{named} and {more} more" if more > 0 else named


def _label(key: Key[Any]) -> str:
    """Return what a key is about: its label, or its name without the unit, "SM utilization"."""
    words = _split_unit(key.name)[0].split("_")
    return key.label or " ".join(_WORDS.get(word, word) for word in words)


def amount(key: Key[Any], value: float) -> str:
    """Return a number of a key with its unit, such as 148.2 W, 2 GiB or 3 min 04 s."""
    unit = key.unit or _split_unit(key.name)[1]
    if unit in _BYTES:
        return format_size(round(value * _BYTES[unit]))
    if unit == "J" and value >= 1000:
        return f"{figure(value / 1000)} kJ"
    if unit == "s" and value >= 100:
        return format_duration(value)
    return f"{figure(value)} {unit}".rstrip()


def _split_unit(name: str) -> tuple[str, str]:
    """Return a key's name without its unit, and that unit; "" for none."""
    for ending, unit in _UNITS.items():
        if name.endswith(ending):
            return name.removesuffix(ending), unit
    return name, ""


def profile_document(profile: Profile, path: str) -> Document:
    """Return the document that `gpulaunch profile show NAME --json` prints."""
    return {
        "name": profile.name,
        "description": profile.description,
        "benchmark": is_benchmark(path),
        "variants": [f"{profile.name}@{variant}" for variant in profile.variants],
        "document": profile.document,
        "path": path,
    }
