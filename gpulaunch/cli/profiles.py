"""`gpulaunch profiles`: what is known about jobs before they run."""

import sys
from collections.abc import Sequence

from gpulaunch.cli.arguments import Parser, add_json
from gpulaunch.cli.output import print_json, report, warn
from gpulaunch.core.workload.document.inherit import variants_of
from gpulaunch.core.workload.document.suspicion import suspicions
from gpulaunch.core.workload.profile import Profile
from gpulaunch.errors import UsageError, quoted
from gpulaunch.host.catalog import find_profile, load_profile, profile_names
from gpulaunch.host.document import read_document
from gpulaunch.render.profile.document import profile_document

_ACTIONS = ("show", "check", "schema")


def main(arguments: Sequence[str]) -> int:
    """List profiles, show one, check files, or print their schema."""
    usage = "gpulaunch profiles [--json] [show [--svg FILE] NAME|FILE | check NAME|FILE... | schema]"
    parser = Parser("gpulaunch profiles", "What is known about jobs before they run.", usage)
    parser.add_argument(
        "action", nargs="?", choices=_ACTIONS, help="one profile, whether files are some, or a JSON Schema of them"
    )
    parser.add_argument("profile", nargs="*", help="name or file, and @ with what is asked of it: alexnet@batch=1")
    parser.add_argument("--svg", metavar="FILE", help="with show: draw a picture for a report ('-': on stdout)")
    add_json(parser)
    options = parser.parse_intermixed_args(arguments)
    if options.svg is not None and (options.action != "show" or options.json):
        raise UsageError("--svg goes with 'gpulaunch profiles show', without --json")
    if options.svg == "":
        raise UsageError("--svg has an empty value")
    if options.action is None:
        return _list(as_json=options.json)
    if options.action == "schema":
        return _schema(options.profile)
    if not options.profile:
        raise UsageError(f"'gpulaunch profiles {options.action}' needs the name or file of a profile")
    if options.action == "check":
        return _check(options.profile, as_json=options.json)
    if len(options.profile) > 1:
        raise UsageError(f"{len(options.profile)} profiles given: 'gpulaunch profiles show' shows one")
    return _show(options.profile[0], options.svg, as_json=options.json)


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
    from gpulaunch.core.workload.document.schema import profile_schema

    print_json(profile_schema())
    return 0


def _check(names: Sequence[str], *, as_json: bool) -> int:
    """Check every file to its end, with all variants; one that is wrong hides no other."""
    good = []
    for name in names:
        try:
            good.append((find_profile(name), _checked(name)))
        except UsageError as problem:
            report(problem)
    if as_json:
        documents = [profile_document(profile, path) for path, profile in good]
        print_json(documents[0] if len(names) == len(documents) == 1 else documents)
    else:
        for path, profile in good:
            print(f"{path}: profile {quoted(profile.name)} is well formed")
    return 0 if len(good) == len(names) else UsageError.exit_status


def _checked(name: str) -> Profile:
    """A profile, once all that may be asked of it is known to be right; what is odd about it is said."""
    profile, document = load_profile(name), read_document(find_profile(name))
    asked = "," if "@" in name.rpartition("/")[2] else "@"
    for variant in variants_of(profile):
        load_profile(f"{name}{asked}{variant}")
    for place, what in suspicions(profile):
        warn(document.located(place, what))
    return profile


def _list(*, as_json: bool) -> int:
    profiles = []
    for name in profile_names():
        try:
            profiles.append((find_profile(name), load_profile(name)))
        except UsageError as problem:  # one broken file hides no other
            warn(problem.message)
    if as_json:
        print_json([profile_document(profile, path) for path, profile in profiles])
    else:
        from gpulaunch.render.tables import profiles_table
        from gpulaunch.render.terminal import draw

        draw(profiles_table([profile for _, profile in profiles]), sys.stdout)
    return 0
