"""What a profile takes over from another, and what its variants change: tables merged, sources kept straight."""
# pure: decides on plain values

from collections.abc import Mapping, Sequence

from gpulaunch.profiles.document.section import Part, Section
from gpulaunch.profiles.profile import Profile
from gpulaunch.records import Record
from gpulaunch.typing import Any

MOST_BASES = 16
"""So many profiles may stand on each other."""

_ORIGIN = ("source", "measured_on", "driver", "date", "samples")
"""Keys that say where the figures beside them are from."""


class Reference(Record):
    """A profile as somebody asks for it.

    Attributes:
        name: or path.
        variants: what is asked for of it, in order: "batch=1".
    """

    name: str
    variants: tuple[str, ...] = ()

    def __str__(self) -> str:
        """As it may be asked for."""
        return "@".join((self.name, ",".join(self.variants))) if self.variants else self.name


def read_reference(text: str) -> Reference:
    """Take NAME@VARIANT,VARIANT apart; a path's directories may have any names.

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
    """A document over another: where both say something, `own` counts; lists count as a whole.

    A section's source tells where all of its figures are from, so it names both where both have
    given some. Where `own` does not say on which GPU it measured, nobody is to think that it was
    the base's.

    Args:
        base: the document below, already checked.
        own: the one above it, likewise.
        called: what the one below is called.

    Example:
        >>> base = {"resources": {"power_w": 90, "energy_j": 180, "source": "Table II"}}
        >>> merged(base, {"resources": {"power_w": 80, "source": "our A100"}}, "kripke")["resources"]["source"]
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
    """One section over another."""
    if section.is_one_measurement or not base:
        return own
    result = {
        key: value
        for key, value in base.items()
        if key not in _ORIGIN or not own.keys() - set(_ORIGIN)
    }
    result |= {key: _over(base.get(key), value) for key, value in own.items()}
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


def _over(base: object, own: object) -> object:
    """A value over another: tables are merged, anything else is replaced."""
    return {**base, **own} if isinstance(base, Mapping) and isinstance(own, Mapping) else own


def _merged_tables(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Tables of variants: those of one name are merged section by section."""
    both = {name: merged(base[name], own[name], "the base") for name in base.keys() & own.keys()}
    return {**base, **own, **both}


def _without(runs: Mapping[str, Any], figures: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is known of runs, less what it says of figures that have been replaced."""
    return {
        key: {name: one for name, one in value.items() if name not in figures}
        if isinstance(value, Mapping)
        else value
        for key, value in runs.items()
    }


def with_variant(
    document: Mapping[str, Any], variant: str, table: Mapping[str, Any]
) -> dict[str, Any]:
    """A profile's document as one of its variants has it, under the variant's name.

    Args:
        document: of the profile.
        variant: its name, such as "batch=1".
        table: what the variant says.
    """
    name, at, others = document["name"].partition("@")
    called = f"{name}@{others},{variant}" if at else f"{name}@{variant}"
    return {**merged(document, table, document["name"]), "name": called}


def variants_of(profile: Profile) -> list[str]:
    """What may be asked for after the @: its variants, and the sizes that were measured, each once."""
    scaling = profile.scaling
    sizes = [f"{scaling.parameter}={size}" for size in scaling.profiles]
    return [*profile.variants, *(size for size in sizes if size not in profile.variants)]


def chain_text(names: Sequence[str]) -> str:
    """Profiles that stand on each other, the last one lowest."""
    return " -> ".join(names)
