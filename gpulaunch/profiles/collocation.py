"""How jobs do beside each other on one socket, as their profiles say it of either."""

from collections.abc import Iterator
from contextlib import suppress

from gpulaunch.errors import UsageError
from gpulaunch.files.document import read_text
from gpulaunch.profiles.catalog import find_profile, load_profile, profile_names
from gpulaunch.profiles.profile import Profile


def slowdowns_both_ways(profile: Profile) -> dict[str, tuple[float, float]]:
    """By name of another profile: how much slower this one is beside it, and it beside this one; 0 where nobody says.

    Source: topo-aware-sc17 4.2 and 5.1.
    """
    own, theirs = profile.slowdowns, dict(_others(profile.name))
    known = [name for name in own | theirs if own.get(name) or theirs.get(name)]
    return {name: (own.get(name, 0.0), theirs.get(name, 0.0)) for name in known}


def _others(beside: str) -> Iterator[tuple[str, float]]:
    """Names of all profiles and variants in reach, and how much slower each is beside a job of that name."""
    for name in profile_names():
        with suppress(UsageError):  # somebody's broken profile is not this job's problem
            text = read_text(find_profile(name))
            if "collocation" not in text and "base" not in text:
                continue  # most say nothing of it, and this is read by every launch
            profile = load_profile(name)
            slowdown = profile.slowdowns.get(beside, 0.0)
            yield name, slowdown
            for variant, table in profile.variants.items():
                percentages = table.get("collocation", {}).get("slowdown_percentage", {})
                yield (
                    f"{name}@{variant}",
                    percentages[beside] / 100 if beside in percentages else slowdown,
                )
