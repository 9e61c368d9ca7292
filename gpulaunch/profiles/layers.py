"""A profile read whole: its file over the base that it names, with the variant asked for on top."""

from collections.abc import Callable, Mapping
from typing import Any

from gpulaunch.errors import FieldError, UsageError, printable, quoted
from gpulaunch.files.document import Document, parse_document, read_text
from gpulaunch.profiles.keys import Part, Section
from gpulaunch.profiles.profile import Profile, check_profile, check_whole, is_size

Find = Callable[[str, str], str]
"""Find a profile's path: takes the name or path asked for, and the path of the asking file."""

_ORIGIN = {"source", "measured_on", "estimated"}
"""Keys that say where the figures beside them come from."""


def split_variant(text: str) -> tuple[str, str | None]:
    """Split NAME@VARIANT into name or path, and variant or None; directories may have any names.

    Example:
        >>> split_variant("me@home/vgg16.toml@batch=1")
        ('me@home/vgg16.toml', 'batch=1')
    """
    directory, slash, file = text.rpartition("/")
    name, at, variant = file.partition("@")
    return f"{directory}{slash}{name}", variant if at else None


def variants_of(profile: Profile) -> list[str]:
    """Return what can follow the @: variants and measured sizes, without duplicates."""
    scaling = profile.scaling
    sizes = [f"{scaling.parameter}={size}" for size in scaling.profiles]
    return [*profile.variants, *(size for size in sizes if size not in profile.variants)]


def read_layers(document: Document, variant: str | None, find: Find) -> Profile:
    """Read the profile in a file, merged with its base and a variant.

    Args:
        document: content of the file.
        variant: the variant asked for, or None.
        find: finds the profiles that the file names.

    Raises:
        UsageError: the profile or its base is wrong; names path and line of the file at fault.
    """
    _check(document)
    found = _over_base(document, find)
    if variant is not None:
        found = _with_variant(document, found, variant, find)
    profile = Profile(found)
    try:
        check_whole(profile)
    except FieldError as problem:
        raise document.error(problem) from None
    return profile


class _NoVariantError(UsageError):
    pass


def _check(document: Document) -> None:
    try:
        check_profile(document.data)
    except FieldError as problem:
        raise document.error(problem) from None


def _over_base(document: Document, find: Find) -> Mapping[str, Any]:
    """Return a file's document merged over that of its base."""
    base = document.data.get("base")
    if base is None:
        return document.data
    where = ("base",)
    name, variant = split_variant(base)
    lower = _open_named(document, name, where, find)
    below: Mapping[str, Any] = lower.data
    if variant is not None:
        try:
            below = _with_variant(lower, below, variant, find)
        except _NoVariantError as problem:
            raise _error_at(document, where, problem.message) from None
    return merged(below, document.data, base)


def _open_named(document: Document, name: str, where: tuple[str, ...], find: Find) -> Document:
    """Open the file of a profile that another one names, and that has no base itself."""
    try:
        path = find(name, document.path)
        text = read_text(path)
    except UsageError as problem:
        raise _error_at(document, where, problem.message) from None
    lower = parse_document(path, text)
    _check(lower)
    if "base" in lower.data:
        found = f"{quoted(name)} has a base itself, {quoted(lower.data['base'])}"
        raise _error_at(document, where, f"{found}: only one profile can be below another")
    return lower


def _with_variant(
    document: Document, found: Mapping[str, Any], variant: str, find: Find
) -> dict[str, Any]:
    """Return a profile's document with a variant or a size on top, under its name."""
    profile = Profile(found)
    parameter, equals, size = variant.partition("=")
    if variant in profile.variants:
        table = profile.variants[variant]
    elif equals and parameter == profile.scaling.parameter and is_size(size):
        table = _at_size(document, profile, float(size), find)
    else:
        known = ", ".join(printable(f"{profile.name}@{one}") for one in variants_of(profile))
        any_size = f": any number above 0 is allowed for {parameter}"
        raise _NoVariantError(
            f"profile {quoted(profile.name)} has no variant {quoted(variant)}"
            f"{any_size if parameter == profile.scaling.parameter else ''}",
            f"known are {known}" if known else None,
        )
    return {**merged(found, table, profile.name), "name": f"{profile.name}@{variant}"}


def _at_size(document: Document, profile: Profile, size: float, find: Find) -> Mapping[str, Any]:
    """Return what was measured at a size, or what is predicted for it."""
    from gpulaunch.profiles.scaling import scaled  # late: few launches need it

    points = {}
    for text, name in profile.scaling.profiles.items():
        lower = _open_named(document, name, ("scaling", "profiles", text), find)
        points[float(text)] = Profile(lower.data)
    try:
        return scaled(points, size, profile.scaling.parameter or "")
    except FieldError as problem:
        raise document.error(
            FieldError(("scaling", *problem.path), f"scaling: {problem.message}")
        ) from None


def merged(below: Mapping[str, Any], own: Mapping[str, Any], called: str) -> dict[str, Any]:
    """Merge a document over another: values of `own` win, and lists are replaced as a whole.

    If figures of both remain in a section, its source names both. If `own` does not say on which
    GPU it measured, the GPU below is not taken over as its own.

    Args:
        below: the document below, already checked.
        own: the document above, already checked.
        called: name of the one below, for the source.

    Example:
        >>> below = {"resources": {"power_w": 90, "energy_j": 180, "source": "Table II"}}
        >>> own = {"resources": {"power_w": 80, "source": "our A100"}}
        >>> merged(below, own, "kripke")["resources"]["source"]
        'our A100; the rest as kripke: Table II'
    """
    result = {**below, **own}
    for name in below.keys() & own.keys():
        key = Profile.keys[name]
        if isinstance(key, Part):
            result[name] = _merged_section(below[name], own[name], key.section, called)
        elif name == "variants":
            result[name] = {**below[name], **own[name]}
    if "resources" in own and "runs" not in own:
        result.pop("runs", None)  # they are about figures that are no longer there
    return result


def _merged_section(
    below: Mapping[str, Any], own: Mapping[str, Any], section: type[Section], called: str
) -> Mapping[str, Any]:
    if section.is_one_measurement or not below:
        return own
    result = dict(below)
    if own.keys() - _ORIGIN:
        result = {key: value for key, value in below.items() if key not in _ORIGIN}
    for key, value in own.items():
        is_table = isinstance(value, Mapping) and key in below
        result[key] = {**below[key], **value} if is_table else value
    # An estimate that a measurement replaces is none any more.
    kept = [name for name in below.get("estimated", ()) if name not in own]
    if estimated := [*kept, *own.get("estimated", ())]:
        result["estimated"] = estimated
    left = [key for key in below.keys() - _ORIGIN if result[key] != own.get(key)]
    if left and "source" in section.keys:
        gpu = below.get("measured_on")
        where = f" on {gpu}" if gpu and gpu != own.get("measured_on") else ""
        result["source"] = f"{own['source']}; the rest as {called}{where}: {below['source']}"
    return result


def _error_at(document: Document, where: tuple[str, ...], message: str) -> UsageError:
    """Return an error about a profile that a file names, at the line that names it."""
    key = ".".join(part if part.isidentifier() else f'"{part}"' for part in where)
    return document.error(FieldError(where, f"{key}: {message}"))
