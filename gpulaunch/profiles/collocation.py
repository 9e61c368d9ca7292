"""Slowdowns of jobs beside each other on one socket, according to both of their profiles."""

from collections.abc import Iterator
from contextlib import suppress

from gpulaunch.errors import UsageError
from gpulaunch.files.document import read_text
from gpulaunch.profiles.catalog import find_profile, load_profile, profile_names
from gpulaunch.profiles.profile import Profile


def slowdowns_both_ways(profile: Profile) -> dict[str, tuple[float, float]]:
    """Return, for each other profile, this job's slowdown beside it and its slowdown beside this.

    A slowdown is a fraction of the time alone; 0 if the profile does not say.

    Source: topo-aware-sc17 4.2 and 5.1.
    """
    own, theirs = profile.slowdowns, dict(_slowdowns_of_others(profile.name))
    known = [name for name in own | theirs if own.get(name) or theirs.get(name)]
    return {name: (own.get(name, 0.0), theirs.get(name, 0.0)) for name in known}


def _slowdowns_of_others(beside: str) -> Iterator[tuple[str, float]]:
    """Yield every profile and variant that can be found with its slowdown beside the named job."""
    for name in profile_names():
        with suppress(UsageError):  # another profile's mistake is not this job's problem
            text = read_text(find_profile(name))
            if "collocation" not in text and "base" not in text:
                continue  # most profiles say nothing about it, and every launch comes here
            profile = load_profile(name)
            slowdown = profile.slowdowns.get(beside, 0.0)
            yield name, slowdown
            for variant, table in profile.variants.items():
                percentages = table.get("collocation", {}).get("slowdown_percentage", {})
                yield (
                    f"{name}@{variant}",
                    percentages[beside] / 100 if beside in percentages else slowdown,
                )
