"""Profiles by name or path: shipped ones, the user's own, and those that a batch brings along.

A profile is read whole: its file over the base that it names, with the variant asked for on top.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from gpulaunch.errors import FieldError, UsageError, printable, quoted
from gpulaunch.files.document import (
    Document,
    config_directory,
    file_names,
    find_file,
    is_path,
    parse_document,
    parsed,
    read_document,
    read_text,
    shipped_directory,
)
from gpulaunch.profiles.profile import Part, Profile, Section, check_profile, check_whole
from gpulaunch.records import Record

PROFILES_VARIABLE = "GPULAUNCH_PROFILE_DIR"
"""The environment variable that names the first directory to search for profiles.

A batch puts the profiles of its job file there.
"""

_ORIGIN = {"source", "measured_on", "estimated"}
"""Keys that say where the figures beside them come from."""


def _profile_directories() -> list[str]:
    brought = os.environ.get(PROFILES_VARIABLE)
    return [
        *([brought] if brought else []),
        os.path.join(config_directory(), "profiles"),
        shipped_directory("workloads"),
        shipped_directory("benchmarks"),
    ]


def is_benchmark(path: str) -> bool:
    """Return whether a profile's file is one of the shipped ones of a paper's benchmarks."""
    return os.path.dirname(path) == shipped_directory("benchmarks")


def find_profile(name: str) -> str:
    """Return the path of a profile.

    A path is returned as it is. A name is looked for among the profiles of a running batch, then
    the user's own, then the shipped ones.

    Args:
        name: name or path; a variant after an @ is ignored.
    """
    return _find_profile(split_variant(name)[0], _profile_directories())


def _find_profile(name: str, directories: list[str]) -> str:
    return find_file(name, directories, "profile", "'gpulaunch profile list' lists them")


def load_profile(name: str) -> Profile:
    """Read the profile with this name or path, merged with its base and the variant wanted.

    Args:
        name: name or path, with a variant if one is wanted: "alexnet@batch=1", "./my.toml@batch=4".

    Raises:
        UsageError: there is no such profile, or it is wrong.
    """
    file, variant = split_variant(name)
    return read_layers(read_document(find_profile(file)), variant)


def _find_base(name: str, asker: str) -> str:
    """Return the path of the profile that a profile file names.

    A relative path begins at the directory of that file. A file that names itself means the next
    profile of that name on the search path: a user's vgg16 may be based on the shipped one.
    """
    if is_path(name):
        return os.path.normpath(os.path.join(os.path.dirname(asker), name))
    directories = _profile_directories()
    own, file = os.path.split(os.path.abspath(asker))
    if file == f"{name}.toml":
        places = [os.path.abspath(directory) for directory in directories]
        directories = directories[places.index(own) + 1 :] if own in places else directories
    return _find_profile(name, directories)


def portable(table: Mapping[str, Any], file: str) -> Mapping[str, Any]:
    """Return a profile's table for use in another directory: with an absolute path as its base."""
    base = table.get("base")
    if base is None or not is_path(split_variant(base)[0]):
        return table
    return {**table, "base": os.path.abspath(os.path.join(os.path.dirname(file), base))}


class Label(Record):
    """What a label of a container image says of the job's profile."""

    image: str
    key: str
    text: str


def labelled_profile(label: Label) -> Profile:
    """Read the profile that an image's label names.

    Raises:
        UsageError: there is no such profile, or it is wrong. An image chooses no file of this host.
    """
    try:
        if not is_path(label.text):
            return load_profile(label.text)
        message = f"{quoted(label.text)} is no name of a profile"
    except UsageError as problem:
        message = problem.message
    raise UsageError(
        f"image {printable(label.image)}: label {label.key}: {message}",
        "--profile NAME is used instead of what an image says",
    )


def profile_names() -> list[str]:
    """Return the sorted names of all profiles that can be found."""
    return file_names(_profile_directories())


@contextmanager
def profiles_at_hand(tables: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Put profiles first on the search path of this process and its children, inside the block.

    Raises:
        FailedError: the profiles cannot be written.
    """
    if not tables:
        yield
        return
    from tempfile import TemporaryDirectory  # late: it costs 4 ms

    from gpulaunch.files.write import document_text, write_text

    before = os.environ.get(PROFILES_VARIABLE)
    with TemporaryDirectory(prefix="gpulaunch-profiles-") as directory:
        for name, table in tables.items():
            write_text(
                os.path.join(directory, f"{name}.toml"), document_text({"name": name, **table})
            )
        os.environ[PROFILES_VARIABLE] = directory
        try:
            yield
        finally:
            del os.environ[PROFILES_VARIABLE]
            if before is not None:
                os.environ[PROFILES_VARIABLE] = before


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


# ------------------------------------------------------------------------------ layers of a profile


def split_variant(text: str) -> tuple[str, str | None]:
    """Split NAME@VARIANT into name or path, and variant or None; directories may have any names.

    Example:
        >>> split_variant("me@home/vgg16.toml@batch=1")
        ('me@home/vgg16.toml', 'batch=1')
    """
    directory, slash, file = text.rpartition("/")
    name, at, variant = file.partition("@")
    return f"{directory}{slash}{name}", variant if at else None


def read_layers(document: Document, variant: str | None = None) -> Profile:
    """Read the profile in a file or in a table of one, merged with its base and a variant.

    Raises:
        UsageError: the profile or its base is wrong; names path and line of the file at fault.
    """
    parsed(document, check_profile)
    found = _over_base(document)
    if variant is not None:
        found = _with_variant(found, variant)
    profile = Profile(found)
    parsed(document, lambda _: check_whole(profile))
    return profile


def _over_base(document: Document) -> Mapping[str, Any]:
    """Return a file's document merged over that of its base."""
    base = document.data.get("base")
    if base is None:
        return document.data
    name, variant = split_variant(base)
    try:
        path = _find_base(name, document.path)
        text = read_text(path)
    except UsageError as problem:
        raise _base_error(document, problem.message) from None
    lower = parse_document(path, text)
    parsed(lower, check_profile)
    if "base" in lower.data:
        found = f"{quoted(name)} has a base itself, {quoted(lower.data['base'])}"
        raise _base_error(document, f"{found}: only one profile can be below another")
    below: Mapping[str, Any] = lower.data
    if variant is not None:
        try:
            below = _with_variant(below, variant)
        except UsageError as problem:
            raise _base_error(document, problem.message) from None
    return merged(below, document.data, base)


def _with_variant(found: Mapping[str, Any], variant: str) -> dict[str, Any]:
    """Return a profile's document with a variant on top, under its name."""
    profile = Profile(found)
    if variant not in profile.variants:
        known = ", ".join(printable(f"{profile.name}@{one}") for one in profile.variants)
        raise UsageError(
            f"profile {quoted(profile.name)} has no variant {quoted(variant)}",
            f"known are {known}" if known else None,
        )
    table = profile.variants[variant]
    return {**merged(found, table, profile.name), "name": f"{profile.name}@{variant}"}


def merged(below: Mapping[str, Any], own: Mapping[str, Any], called: str) -> dict[str, Any]:
    """Merge a document over another: values of `own` win, and lists are replaced as a whole.

    If figures of both remain in a section, its source names both. If `own` does not say on which
    GPU it measured, the GPU below is not taken over as its own.

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


def _base_error(document: Document, message: str) -> UsageError:
    return document.error(FieldError(("base",), f"base: {message}"))
