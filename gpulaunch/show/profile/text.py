"""A profile for a terminal: figures as bars, the pattern as a matrix, the curve as a plot, and the rest in words."""

from collections.abc import Sequence
from typing import Any

from gpulaunch.show.profile.text_bar import bar_lines
from gpulaunch.show.profile.text_graph import matrix_lines
from gpulaunch.show.profile.text_plot import plot_lines
from gpulaunch.show.profile.view import Fact, ProfileView, Section, kept_whole
from gpulaunch.show.terminal import Group, Text
from gpulaunch.show.topology.text import wrapped

_LEAST = 20  # columns of a fact's text
_GAP = 2


def profile_text(view: ProfileView, width: int, *, plain: bool = False) -> Group:
    """The whole profile, one section below the other.

    Args:
        view: from view_of.
        width: columns to keep to; a word that is longer runs over them, and a file's path is never
            broken.
        plain: draw with ASCII only.
    """
    view = _in_ascii(view) if plain else view
    title = f"{view.name}: {view.description}" if view.description else view.name
    every = [*view.facts, *(fact for section in view.sections for fact in section.facts)]
    labels = max((len(fact.label) for fact in every), default=0) + _GAP
    lines = [Text(line, "bold") for line in wrapped(title, width)]
    lines += _fact_lines(view.facts, labels, width)
    lines += [
        Text(line, "yellow")
        for text in view.warnings
        for line in wrapped(f"warning: {text}", width)
    ]
    for section in view.sections:
        lines += [Text(), _heading(section.title, width, plain=plain)]
        lines += [*_drawn(section, width, plain=plain), *_fact_lines(section.facts, labels, width)]
    for line in lines:
        line.rstrip()
    return Group(*lines)


def _in_ascii(part: Any) -> Any:  # noqa: ANN401  a view and all that is in it
    """The same with our own signs spelled out; what others wrote is theirs."""
    if isinstance(part, str):
        return part.replace("±", "+-")
    if isinstance(part, tuple):
        parts = [_in_ascii(one) for one in part]
        return type(part)(*parts) if hasattr(part, "_fields") else tuple(parts)
    return part


def _heading(title: str, width: int, *, plain: bool) -> Text:
    line = "-" if plain else "─"
    return Text.assemble(
        (f"{line}{line} ", "dim"), (title, "bold"), (f" {line * (width - len(title) - 4)}", "dim")
    )


def _drawn(section: Section, width: int, *, plain: bool) -> list[Text]:
    lines = bar_lines(section.bars, width, plain=plain)
    lines += [Text(line, "dim") for line in (_lines(section.note, width) if section.note else [])]
    lines += matrix_lines(section.graph, width, plain=plain) if section.graph else []
    return lines + (plot_lines(section.plot, width, plain=plain) if section.plot else [])


def _fact_lines(facts: Sequence[Fact], labels: int, width: int) -> list[Text]:
    """Label and text of each; what does not fit goes on below its text."""
    lines = []
    for fact in facts:
        room = None if fact.whole else max(width - labels, _LEAST)
        first, *others = _lines(fact.text, room)
        lines.append(Text.assemble((f"{fact.label:<{labels}}", "dim"), first))
        lines += [Text(f"{'':{labels}}{line}") for line in others]
    return lines


def _lines(text: str, width: int | None) -> list[str]:
    return kept_whole(text, lambda whole: wrapped(whole, width))
