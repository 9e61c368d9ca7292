"""A profile file together with those that it stands on: its base, the variants that are asked for, problem sizes."""

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
"""Path of the profile that a file asks for: its name or path, and the path of the file that
asks.
"""


def read_chain(document: Document, variants: Sequence[str], find: Find) -> Profile:
    """The whole profile of a file.

    Args:
        document: of the file.
        variants: what is asked for of it, in order.
        find: how the profiles that it names are found.

    Raises:
        UsageError: it is wrong, or one that it stands on; with path and line of the file that is.
    """
    return _Chain(find, ()).read(document, variants)


class _NoVariantError(UsageError):
    pass


class _Chain:
    """Files that stand on each other, the topmost first.

    Args:
        find: how the profiles that they name are found.
        above: those above the one that is to be read next.
    """

    def __init__(self, find: Find, above: tuple[Document, ...]) -> None:
        self._find, self._above = find, above

    def read(self, document: Document, variants: Sequence[str]) -> Profile:
        """The profile of a file, as those above it see it."""
        try:
            check_profile(document.data)
        except FieldError as problem:
            raise document.error(problem) from None
        below, found = self._below(document)
        _refuse_twice(variants)
        for variant in variants:
            found = self._varied(document, found, variant)
        profile = Profile(found)
        try:
            check_whole(profile)
        except FieldError as problem:
            raise _blamed(problem, (document, *below), variants) from None
        return profile

    def _below(self, document: Document) -> tuple[tuple[Document, ...], Mapping[str, Any]]:
        """A file's document over that of its base, and the files below it."""
        base = document.data.get("base")
        if base is None:
            return (), document.data
        reference = read_reference(base)
        lower = self._open(document, reference, ("base",))
        found = self._read_lower(document, lower, reference, ("base",))
        return (lower,), merged(found.document, document.data, str(reference))

    def _read_lower(
        self, document: Document, lower: Document, reference: Reference, where: tuple[str, ...]
    ) -> Profile:
        try:
            return _Chain(self._find, (*self._above, document)).read(lower, reference.variants)
        except _NoVariantError as problem:
            raise _located(document, where, problem.message) from None

    def _open(self, document: Document, reference: Reference, where: tuple[str, ...]) -> Document:
        """The file that another one names; a name or path that leads in a circle is refused."""
        try:
            path = self._find(reference.name, document.path)
            text = read_text(path)
        except UsageError as problem:
            raise _located(document, where, problem.message) from None
        chain = (*self._above, document)
        names = [printable(one.data["name"]) for one in chain]
        if any(_is_same(path, one.path) for one in chain):
            chained = chain_text([*names, printable(reference.name)])
            raise _located(document, where, f"these stand on each other in a circle: {chained}")
        if len(chain) > MOST_BASES:
            chained = chain_text(names)
            raise _located(
                document, where, f"more than {MOST_BASES} profiles stand on each other: {chained}"
            )
        return parse_document(path, text)

    def _varied(
        self, document: Document, found: Mapping[str, Any], variant: str
    ) -> Mapping[str, Any]:
        """What was found, as a variant has it."""
        profile = Profile(found)
        if variant in profile.variants:
            return with_variant(found, variant, profile.variants[variant])
        parameter, equals, size = variant.partition("=")
        if equals and parameter == profile.scaling.parameter and is_size(size):
            return with_variant(found, variant, self._scaled(document, profile, float(size)))
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

    def _scaled(self, document: Document, profile: Profile, size: float) -> Mapping[str, Any]:
        """What is predicted of a size, or was measured of it."""
        from gpulaunch.profiles.document.scaling import scaled  # late: few launches need it

        points = {}
        for text, name in profile.scaling.profiles.items():
            reference, where = read_reference(name), ("scaling", "profiles", text)
            lower = self._open(document, reference, where)
            points[float(text)] = self._read_lower(document, lower, reference, where)
        try:
            return scaled(points, size, profile.scaling.parameter or "")
        except FieldError as problem:
            raise document.error(
                FieldError(("scaling", *problem.path), f"scaling: {problem.message}")
            ) from None


def _refuse_twice(variants: Sequence[str]) -> None:
    """Refuse to take a job at two sizes, or with two values of what else is asked for as KEY=VALUE."""
    asked: dict[str, str] = {}
    for variant in variants:
        key, equals, _ = variant.partition("=")
        if equals and key in asked:
            raise _NoVariantError(
                f"{quoted(key)} is asked for twice: {printable(asked[key])}, {printable(variant)}"
            )
        asked[key] = variant


def _located(document: Document, where: tuple[str, ...], message: str) -> UsageError:
    """A problem with a profile that a file names, at the line that names it."""
    key = ".".join(part if part.isidentifier() else f'"{part}"' for part in where)
    return document.error(FieldError(where, f"{key}: {message}"))


def _is_same(path: str, other: str) -> bool:
    try:
        return os.path.samefile(path, other)
    except OSError:
        return False


def _blamed(
    problem: FieldError, documents: Sequence[Document], variants: Sequence[str]
) -> UsageError:
    """A problem of the whole, in the file and at the line that have most to do with it."""
    for document in documents:
        for place in (
            *((("variants", one, *problem.path)) for one in reversed(variants)),
            problem.path,
        ):
            if document.has(place):
                return document.error(FieldError(place, problem.message))
    return documents[0].error(problem)
