"""`gpulaunch profiles`: list, show and check profiles."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress

from gpulaunch.cli.arguments import Parser, add_json
from gpulaunch.cli.output import print_json, report, warn
from gpulaunch.errors import UsageError, quoted
from gpulaunch.files.document import Document, read_document
from gpulaunch.files.iso_time import parse_time
from gpulaunch.profiles.catalog import (
    find_profile,
    is_benchmark,
    load_profile,
    name_in_reach,
    profile_names,
)
from gpulaunch.profiles.document.inherit import read_reference, variants_of
from gpulaunch.profiles.document.suspicion import suspicions
from gpulaunch.profiles.profile import Profile, profile_mistakes
from gpulaunch.records import replace
from gpulaunch.show.profile.document import profile_document

_ACTIONS = ("show", "check", "schema")


def main(arguments: Sequence[str]) -> int:
    """List profiles, show one, check files, or print their schema."""
    options = make_parser().parse_intermixed_args(arguments)
    if options.svg is not None and (options.action != "show" or options.json):
        raise UsageError("--svg goes with 'gpulaunch profiles show', without --json")
    if options.svg == "":
        raise UsageError("--svg has an empty value")
    if options.action is None:
        return _list(as_json=options.json)
    if options.action == "schema":
        return _schema(options.profile)
    if not options.profile:
        raise UsageError(
            f"'gpulaunch profiles {options.action}' needs the name or file of a profile"
        )
    if options.action == "check":
        return _check(options.profile, as_json=options.json)
    if len(options.profile) > 1:
        raise UsageError(
            f"{len(options.profile)} profiles given: 'gpulaunch profiles show' shows one"
        )
    return _show(options.profile[0], options.svg, as_json=options.json)


def make_parser() -> Parser:
    """Return the parser of the command line."""
    usage = (
        "gpulaunch profiles [--json] [show [--svg FILE] NAME|FILE | check NAME|FILE... | schema]"
    )
    parser = Parser("gpulaunch profiles", "What is known about jobs before they run.", usage)
    parser.add_argument(
        "action",
        nargs="?",
        choices=_ACTIONS,
        help="one profile, whether files are some, or a JSON Schema of them",
    )
    parser.add_argument(
        "profile",
        metavar="PROFILE",
        nargs="*",
        help="name or file, and @ with what is asked of it: alexnet@batch=1",
    )
    parser.add_argument(
        "--svg", metavar="FILE", help="with show: draw a picture for a report ('-': on stdout)"
    )
    add_json(parser)
    return parser


def _show(name: str, svg: str | None, *, as_json: bool) -> int:
    path, profile = find_profile(name), load_profile(name)
    if as_json:
        print_json(profile_document(profile, path))
    else:
        from gpulaunch.cli.profile_show import show_profile

        show_profile(profile, path, svg)
    return 0


def _schema(profiles: Sequence[str]) -> int:
    if profiles:
        raise UsageError("'gpulaunch profiles schema' takes no profile")
    from gpulaunch.profiles.document.schema import profile_schema

    print_json(profile_schema())
    return 0


def _check(names: Sequence[str], *, as_json: bool) -> int:
    """Check every file to its end, with all variants; a wrong file does not hide the others."""
    good = []
    for name in names:
        try:
            document = read_document(find_profile(name))
            mistakes = [document.error(mistake) for mistake in profile_mistakes(document.data)]
            if not mistakes:
                good.append((document.path, _load_checked(name, document)))
        except UsageError as problem:
            mistakes = [problem]
        for mistake in mistakes:
            report(mistake)
    if as_json:
        documents = [profile_document(profile, path) for path, profile in good]
        print_json(documents[0] if len(names) == len(documents) == 1 else documents)
    else:
        for path, profile in good:
            print(f"{path}: profile {quoted(profile.name)} is well formed")
    return 0 if len(good) == len(names) else UsageError.exit_status


def _load_checked(name: str, document: Document) -> Profile:
    """Return a profile after checking all its variants and sizes; warn of suspicious values."""
    profile = load_profile(name, document)
    asked = read_reference(name)
    for variant in variants_of(profile):
        key = variant.partition("=")[0]
        others = [one for one in asked.variants if one.partition("=")[0] != key]
        load_profile(str(replace(asked, variants=(*others, variant))), document)
    for place, what in (*_suspect_name_and_date(profile, document), *suspicions(profile)):
        warn(document.located(place, what))
    return profile


def _suspect_name_and_date(
    profile: Profile, document: Document
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield suspicious names and dates, with their places."""
    own, file = document.data["name"], name_in_reach(document.path)
    if file not in (None, own):
        yield (
            ("name",),
            (
                f"name: {quoted(own)} is in {quoted(f'{file}.toml')}, "
                f"so {quoted(file)} is what asks for it"
            ),
        )
    date = profile.resources.date
    if date is not None and not _is_date(date):
        yield (
            ("resources", "date"),
            f"date: {quoted(date)} is no date such as 2025-03-31 (ISO 8601)",
        )


def _is_date(text: str) -> bool:
    """Return whether a text is a date or time of ISO 8601; a year, or a year and month, will do."""
    for rest in ("", "-01", "-01-01"):
        with suppress(ValueError):
            parse_time(text + rest)
            return True
    return False


def _list(*, as_json: bool) -> int:
    profiles = []
    for name in profile_names():
        try:
            profiles.append((find_profile(name), load_profile(name).but(name=name)))
        except UsageError as problem:  # a broken file does not hide the others
            warn(problem.message)
    if as_json:
        print_json([profile_document(profile, path) for path, profile in profiles])
    else:
        from gpulaunch.show.profile.table import profiles_table
        from gpulaunch.show.terminal import draw

        benchmarks = [profile for path, profile in profiles if is_benchmark(path)]
        others = [profile for path, profile in profiles if not is_benchmark(path)]
        groups = ("what people run", others), ("benchmarks of papers", benchmarks)
        draw(profiles_table(groups), sys.stdout)
    return 0
