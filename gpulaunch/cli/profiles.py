"""`gpulaunch profiles`: list and show profiles."""

import sys
from collections.abc import Sequence

from gpulaunch.cli.arguments import Parser, add_json
from gpulaunch.cli.output import print_json, warn
from gpulaunch.errors import UsageError
from gpulaunch.profiles.catalog import (
    find_profile,
    is_benchmark,
    load_profile,
    profile_names,
)
from gpulaunch.show.profile.document import profile_document

_ACTIONS = ("show",)


def main(arguments: Sequence[str]) -> int:
    """List profiles, or show one."""
    options = make_parser().parse_intermixed_args(arguments)
    if options.svg is not None and (options.action != "show" or options.json):
        raise UsageError("--svg goes with 'gpulaunch profiles show', without --json")
    if options.svg == "":
        raise UsageError("--svg has an empty value")
    if options.action is None:
        return _list(as_json=options.json)
    if not options.profile:
        raise UsageError("'gpulaunch profiles show' needs the name or file of a profile")
    if len(options.profile) > 1:
        raise UsageError(
            f"{len(options.profile)} profiles given: 'gpulaunch profiles show' shows one"
        )
    return _show(options.profile[0], options.svg, as_json=options.json)


def make_parser() -> Parser:
    """Return the parser of the command line."""
    usage = "gpulaunch profiles [--json] [show [--svg FILE] NAME|FILE]"
    parser = Parser("gpulaunch profiles", "What is known about jobs before they run.", usage)
    parser.add_argument(
        "action",
        nargs="?",
        choices=_ACTIONS,
        help="one profile, with the first mistake in its file",
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
