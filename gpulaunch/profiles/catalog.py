"""Profiles by name or path: shipped ones, the user's own, and those that a batch brings along."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from gpulaunch.errors import UsageError, printable, quoted
from gpulaunch.files.data_files import (
    config_directory,
    file_names,
    find_file,
    is_path,
    shipped_directory,
)
from gpulaunch.files.document import Document, parse_document, read_document, read_text
from gpulaunch.profiles.layers import read_layers, split_variant
from gpulaunch.profiles.profile import Profile
from gpulaunch.records import Record

PROFILES_VARIABLE = "GPULAUNCH_PROFILE_DIR"
"""The environment variable that names the first directory to search for profiles.

A batch puts the profiles of its job file there.
"""

MAX_LABEL_CHARACTERS = 8192

_INSTEAD = "--profile NAME is used instead of what an image says"


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
    document = read_document(_find_profile(file, _profile_directories()))
    return read_layers(document, variant, _find_base)


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


def profile_within(document: Document) -> Profile:
    """Read a profile that is a table in another document, merged with its base.

    Raises:
        UsageError: the profile is wrong.
    """
    return read_layers(document, None, _find_base)


def portable(table: Mapping[str, Any], file: str) -> Mapping[str, Any]:
    """Return a profile's table for use in another directory: with an absolute path as its base.

    Args:
        table: a profile's table, already checked.
        file: path of the file that it is in.
    """
    base = table.get("base")
    if base is None or not is_path(split_variant(base)[0]):
        return table
    return {**table, "base": os.path.abspath(os.path.join(os.path.dirname(file), base))}


class Label(Record):
    """A profile in a container image.

    Attributes:
        image: name of the image.
        key: key of the label.
        text: name of a profile that can be found here, or a whole profile as TOML.
    """

    image: str
    key: str
    text: str


def labelled_profile(label: Label) -> Profile:
    """Read the profile that an image's label names or contains.

    Raises:
        UsageError: there is no such profile, or it is wrong, or longer than MAX_LABEL_CHARACTERS.
    """
    if len(label.text) > MAX_LABEL_CHARACTERS:
        size = f"{len(label.text)} characters, more than {MAX_LABEL_CHARACTERS}"
        raise UsageError(f"image {printable(label.image)}: label {label.key} has {size}", _INSTEAD)
    origin = f"image {printable(label.image)}: label {label.key}"
    try:
        key, equals, _ = label.text.partition("=")
        if equals and "@" not in key:  # else it is the name of a variant: alexnet@batch=1
            return read_layers(parse_document(origin, label.text), None, _find_named)
        if not is_path(label.text):  # an image must not choose files of this host
            return load_profile(label.text)
        message = f"{origin}: {quoted(label.text)} is no name of a profile"
    except UsageError as problem:
        message = (
            problem.message
            if problem.message.startswith(origin)
            else f"{origin}: {problem.message}"
        )
    raise UsageError(message, _INSTEAD)


def _find_named(name: str, _asker: str) -> str:
    if is_path(name):
        raise UsageError(f"{quoted(name)} is no name of a profile")
    return _find_profile(name, _profile_directories())


def profile_names() -> list[str]:
    """Return the sorted names of all profiles that can be found."""
    return file_names(_profile_directories())


@contextmanager
def profiles_at_hand(tables: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Put profiles first on the search path of this process and its children, inside the block.

    Args:
        tables: profiles by name, as in TOML.

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
