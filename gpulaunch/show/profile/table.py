"""The table of `gpulaunch profiles`."""

from collections.abc import Sequence

from gpulaunch.errors import printable
from gpulaunch.files.size import format_size
from gpulaunch.profiles.layers import variants_of
from gpulaunch.profiles.profile import Profile
from gpulaunch.show.terminal import Group, Text, figure, make_table

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
