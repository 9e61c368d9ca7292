"""Inheritance of profiles: base and variants are merged, and sources stay correct."""
# pure: decides on plain values

from collections.abc import Mapping, Sequence

from gpulaunch.profiles.document.section import Part, Section
from gpulaunch.profiles.profile import Profile
from gpulaunch.records import Record
from gpulaunch.typing import Any

MOST_BASES = 16
"""Longest chain of profiles that are based on each other."""

_ORIGIN = ("source", "measured_on", "driver", "date", "samples", "estimated")
"""Keys that say where the figures beside them come from."""


class Reference(Record):
    """A profile as it is asked for on a command line or in a file.

    Attributes:
        name: name or path.
        variants: variants asked for, in order: "batch=1".
    """

    name: str
    variants: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Write the reference as a command line does."""
        return "@".join((self.name, ",".join(self.variants))) if self.variants else self.name


def read_reference(text: str) -> Reference:
    """Split NAME@VARIANT,VARIANT; the directories of a path may have any names.

    Example:
        >>> read_reference("me@home/vgg16.toml@batch=1,precision=fp16")
        Reference(name='me@home/vgg16.toml', variants=('batch=1', 'precision=fp16'))
    """
    directory, slash, file = text.rpartition("/")
    name, at, asked = file.partition("@")
    return Reference(
        f"{directory}{slash}{name}", tuple(asked.replace("@", ",").split(",")) if at else ()
    )


def merged(base: Mapping[str, Any], own: Mapping[str, Any], called: str) -> dict[str, Any]:
    """Merge a document over its base: values of `own` win, and lists are replaced as a whole.

    If figures of both remain in a section, its source names both. If `own` does not say on which
    GPU it measured, the base's GPU is not taken over as its own.

    Args:
        base: the document below, already checked.
        own: the document above, already checked.
        called: name of the one below, for the source.

    Example:
        >>> base = {"resources": {"power_w": 90, "energy_j": 180, "source": "Table II"}}
        >>> own = {"resources": {"power_w": 80, "source": "our A100"}}
        >>> merged(base, own, "kripke")["resources"]["source"]
        'our A100; the rest as kripke: Table II'
    """
    result = {**base, **own}
    for name in base.keys() & own.keys():
        key = Profile.keys.get(name)
        if isinstance(key, Part):
            result[name] = _merged_section(base[name], own[name], key.section, called)
        elif isinstance(own[name], Mapping):
            result[name] = _merged_tables(base[name], own[name])
    if "runs" in base and "runs" not in own:
        result["runs"] = _without(base["runs"], own.get("resources", {}))
    return result


def _merged_section(
    base: Mapping[str, Any], own: Mapping[str, Any], section: type[Section], called: str
) -> Mapping[str, Any]:
    """Merge one section over that of the base."""
    if section.is_one_measurement or not base:
        return own
    result = {
        key: value
        for key, value in base.items()
        if key not in _ORIGIN or not own.keys() - set(_ORIGIN)
    }
    result |= {key: _replace(base.get(key), value) for key, value in own.items()}
    # An estimate that a measurement replaces is none any more.
    kept = [name for name in base.get("estimated", ()) if name not in own]
    if estimated := [*kept, *own.get("estimated", ())]:
        result["estimated"] = estimated
    left = base.keys() - own.keys() - set(_ORIGIN)
    tables = [key for key in base.keys() & own.keys() if isinstance(own[key], Mapping)]
    if "source" in section.keys and (
        left or any(base[key].keys() - own[key].keys() for key in tables)
    ):
        result["source"] = _both_sources(base, own, called)
    return result


def _both_sources(base: Mapping[str, Any], own: Mapping[str, Any], called: str) -> str:
    gpu = base.get("measured_on")
    where = f" on {gpu}" if gpu and gpu != own.get("measured_on") else ""
    return f"{own['source']}; the rest as {called}{where}: {base['source']}"


def _replace(base: object, own: object) -> object:
    """Put a value over another: merge tables, replace anything else."""
    return {**base, **own} if isinstance(base, Mapping) and isinstance(own, Mapping) else own


def _merged_tables(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Merge tables of variants; variants of one name are merged section by section."""
    both = {name: merged(base[name], own[name], "the base") for name in base.keys() & own.keys()}
    return {**base, **own, **both}


def _without(runs: Mapping[str, Any], figures: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the figures of runs without those that have been replaced."""
    kept: dict[str, Any] = {}
    for key, value in runs.items():
        kept[key] = value
        if isinstance(value, Mapping):
            kept[key] = {name: one for name, one in value.items() if name not in figures}
    return kept


def with_variant(
    document: Mapping[str, Any], variant: str, table: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a profile's document with one of its variants applied, under the variant's name.

    Args:
        document: the profile's document.
        variant: name of the variant, such as "batch=1".
        table: the variant's table.
    """
    name, at, others = document["name"].partition("@")
    called = f"{name}@{others},{variant}" if at else f"{name}@{variant}"
    return {**merged(document, table, document["name"]), "name": called}


def variants_of(profile: Profile) -> list[str]:
    """Return what can follow the @: variants and measured sizes, without duplicates."""
    scaling = profile.scaling
    sizes = [f"{scaling.parameter}={size}" for size in scaling.profiles]
    return [*profile.variants, *(size for size in sizes if size not in profile.variants)]


def chain_text(names: Sequence[str]) -> str:
    """Return a chain of profiles as text, the base last."""
    return " -> ".join(names)
