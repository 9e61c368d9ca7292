"""The table of `gpulaunch profiles`."""

from collections.abc import Iterator, Sequence

from gpulaunch.errors import printable
from gpulaunch.files.size import format_size
from gpulaunch.profiles.document.inherit import variants_of
from gpulaunch.profiles.profile import Profile
from gpulaunch.show.terminal import Fitted, Text, figure
from gpulaunch.show.topology.text import wrapped

_PROFILE_COLUMNS = ("name", "pattern", "sensitive", "memory", "SM %", "BW %")
_FIGURES = 3  # the last columns, which are right-aligned
_LEAST_DESCRIPTION = 40  # columns
_JOINED = "\0"  # stands for a blank at which no line is broken


def profiles_table(profiles: Sequence[Profile]) -> Fitted:
    """Return the table of profiles, with the variants of each below it.

    A description that has no room beside the figures is put below them.
    """
    rows = [_PROFILE_COLUMNS, *map(_profile_cells, profiles)]
    widths = [max(Text(cell).cell_len for cell in column) for column in zip(*rows, strict=True)]
    return Fitted(lambda width, plain: _profile_lines(profiles, rows, widths, width, plain=plain))


def _profile_cells(profile: Profile) -> tuple[str, ...]:
    """Return the cells of a profile except its description."""
    resources = profile.resources
    return (
        printable(profile.name),
        profile.communication.pattern or "-",
        {True: "yes", False: "no", None: "-"}[profile.communication.bandwidth_sensitive],
        format_size(profile.memory_bytes) if profile.memory_bytes else "-",
        figure(resources.sm_utilization_percentage),
        figure(resources.memory_bandwidth_utilization_percentage),
    )


def _profile_lines(
    profiles: Sequence[Profile],
    rows: Sequence[Sequence[str]],
    widths: Sequence[int],
    width: int,
    *,
    plain: bool,
) -> Iterator[Text]:
    heading, *others = (_align(row, widths) for row in rows)
    left = heading.cell_len + 2
    beside = width - left >= _LEAST_DESCRIPTION
    heading.append("  description" if beside else "").stylize("bold")
    yield heading
    yield Text(("-" if plain else "─") * min(heading.cell_len, width), "dim")
    for profile, line in zip(profiles, others, strict=True):
        description = wrapped(printable(profile.description), width - (left if beside else 2))
        yield line.append(f"  {description[0]}" if beside else "")
        yield from (
            Text(f"{'':{left if beside else 2}}{more}") for more in description[beside:] if more
        )
        asked = ", ".join(
            f"@{_format_variant(profile, variant)}" for variant in variants_of(profile)
        )
        yield from (
            Text(f"  {more}".replace(_JOINED, " "), "dim")
            for more in wrapped(asked, width - 2)
            if more
        )


def _align(cells: Sequence[str], widths: Sequence[int]) -> Text:
    line = Text()
    for i, (cell, wide) in enumerate(zip(cells, widths, strict=True)):
        text = Text(cell)
        text.align("right" if i >= len(cells) - _FIGURES else "left", wide)
        line.append("  " if i else "").append_text(text)
    return line


def _format_variant(profile: Profile, variant: str) -> str:
    """Return a variant's name, and for a size also the profile that was measured there."""
    if variant in profile.variants or not profile.scaling:
        return printable(variant)
    return printable(f"{variant} is {profile.scaling.profiles[variant.partition('=')[2]]}").replace(
        " ", _JOINED
    )
