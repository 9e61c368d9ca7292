"""A profile file with all that it is based on: its base, the variants asked for, sizes."""

import os
from collections.abc import Callable, Mapping, Sequence

from gpulaunch.errors import FieldError, UsageError, printable, quoted
from gpulaunch.files.document import Document, parse_document, read_text
from gpulaunch.profiles.document.inherit import (
    MOST_BASES,
    Reference,
    chain_text,
    merged,
    read_reference,
    variants_of,
    with_variant,
)
from gpulaunch.profiles.profile import Profile, check_profile, check_whole, is_size
from gpulaunch.typing import Any

Find = Callable[[str, str], str]
"""Find a profile's path: takes the name or path asked for, and the path of the asking file."""


def read_chain(document: Document, variants: Sequence[str], find: Find) -> Profile:
    """Read the profile in a file, merged with the profiles that it is based on.

    Args:
        document: content of the file.
        variants: the variants asked for, in order.
        find: finds the profiles that the file names.

    Raises:
        UsageError: the profile or one below it is wrong; names path and line of the file at fault.
    """
    return _Chain(find, ()).read(document, variants)


class _NoVariantError(UsageError):
    pass


class _Chain:
    """A chain of profile files, each based on the next, topmost first.

    Args:
        find: finds the profiles that the files name.
        above: files above the one to be read next.
    """

    def __init__(self, find: Find, above: tuple[Document, ...]) -> None:
        self._find, self._above = find, above

    def read(self, document: Document, variants: Sequence[str]) -> Profile:
        """Read a profile file below the files above it."""
        try:
            check_profile(document.data)
        except FieldError as problem:
            raise document.error(problem) from None
        below, found = self._merge_with_base(document)
        _refuse_twice(variants)
        for variant in variants:
            found = self._with_variant(document, found, variant)
        profile = Profile(found)
        try:
            check_whole(profile)
        except FieldError as problem:
            raise _blame(problem, (document, *below), variants) from None
        return profile

    def _merge_with_base(
        self, document: Document
    ) -> tuple[tuple[Document, ...], Mapping[str, Any]]:
        """Return a file's document merged over that of its base, and the files below it."""
        base = document.data.get("base")
        if base is None:
            return (), document.data
        reference = read_reference(base)
        lower = self._open_named(document, reference, ("base",))
        found = self._read_lower(document, lower, reference, ("base",))
        return (lower,), merged(found.document, document.data, str(reference))

    def _read_lower(
        self, document: Document, lower: Document, reference: Reference, where: tuple[str, ...]
    ) -> Profile:
        try:
            return _Chain(self._find, (*self._above, document)).read(lower, reference.variants)
        except _NoVariantError as problem:
            raise _error_at(document, where, problem.message) from None

    def _open_named(
        self, document: Document, reference: Reference, where: tuple[str, ...]
    ) -> Document:
        """Open the file that another one names; refuse a circle."""
        try:
            path = self._find(reference.name, document.path)
            text = read_text(path)
        except UsageError as problem:
            raise _error_at(document, where, problem.message) from None
        chain = (*self._above, document)
        names = [printable(one.data["name"]) for one in chain]
        if any(_is_same(path, one.path) for one in chain):
            chained = chain_text([*names, printable(reference.name)])
            raise _error_at(document, where, f"these stand on each other in a circle: {chained}")
        if len(chain) > MOST_BASES:
            chained = chain_text(names)
            raise _error_at(
                document, where, f"more than {MOST_BASES} profiles stand on each other: {chained}"
            )
        return parse_document(path, text)

    def _with_variant(
        self, document: Document, found: Mapping[str, Any], variant: str
    ) -> Mapping[str, Any]:
        """Return the document changed by a variant."""
        profile = Profile(found)
        if variant in profile.variants:
            return with_variant(found, variant, profile.variants[variant])
        parameter, equals, size = variant.partition("=")
        if equals and parameter == profile.scaling.parameter and is_size(size):
            return with_variant(found, variant, self._at_size(document, profile, float(size)))
        known = variants_of(profile)
        why = (
            f": any number above 0 is allowed for {parameter}"
            if parameter == profile.scaling.parameter
            else ""
        )
        hint = (
            f"known are {', '.join(printable(f'{profile.name}@{one}') for one in known)}"
            if known
            else None
        )
        raise _NoVariantError(
            f"profile {quoted(profile.name)} has no variant {quoted(variant)}{why}", hint
        )

    def _at_size(self, document: Document, profile: Profile, size: float) -> Mapping[str, Any]:
        """Return what was measured at a size, or what is predicted for it."""
        from gpulaunch.profiles.document.scaling import scaled  # late: few launches need it

        points = {}
        for text, name in profile.scaling.profiles.items():
            reference, where = read_reference(name), ("scaling", "profiles", text)
            lower = self._open_named(document, reference, where)
            points[float(text)] = self._read_lower(document, lower, reference, where)
        try:
            return scaled(points, size, profile.scaling.parameter or "")
        except FieldError as problem:
            raise document.error(
                FieldError(("scaling", *problem.path), f"scaling: {problem.message}")
            ) from None


def _refuse_twice(variants: Sequence[str]) -> None:
    """Refuse two sizes, or two values of any other KEY=VALUE variant."""
    asked: dict[str, str] = {}
    for variant in variants:
        key, equals, _ = variant.partition("=")
        if equals and key in asked:
            raise _NoVariantError(
                f"{quoted(key)} is asked for twice: {printable(asked[key])}, {printable(variant)}"
            )
        asked[key] = variant


def _error_at(document: Document, where: tuple[str, ...], message: str) -> UsageError:
    """Return an error about a profile that a file names, at the line that names it."""
    key = ".".join(part if part.isidentifier() else f'"{part}"' for part in where)
    return document.error(FieldError(where, f"{key}: {message}"))


def _is_same(path: str, other: str) -> bool:
    try:
        return os.path.samefile(path, other)
    except OSError:
        return False


def _blame(
    problem: FieldError, documents: Sequence[Document], variants: Sequence[str]
) -> UsageError:
    """Return an error about the merged profile, at the line most likely at fault."""
    for document in documents:
        for place in (
            *(("variants", one, *problem.path) for one in reversed(variants)),
            problem.path,
        ):
            if document.has(place):
                return document.error(FieldError(place, problem.message))
    return documents[0].error(problem)
