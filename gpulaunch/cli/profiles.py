"""`gpulaunch profiles`: what is known about jobs before they run."""

import sys
from collections.abc import Sequence

from gpulaunch.cli.arguments import Parser, add_json
from gpulaunch.cli.output import print_json, warn
from gpulaunch.errors import UsageError, quoted
from gpulaunch.host.catalog import find_profile, load_profile, profile_names
from gpulaunch.render.documents import profile_document


def main(arguments: Sequence[str]) -> int:
    """List profiles, show one, or check a file."""
    usage = "gpulaunch profiles [--json] [show NAME|FILE | check FILE]"
    parser = Parser("gpulaunch profiles", "What is known about jobs before they run.", usage)
    parser.add_argument("action", nargs="?", choices=("show", "check"), help="one profile, or whether a file is one")
    parser.add_argument("profile", nargs="?", help="name or file")
    add_json(parser)
    options = parser.parse_intermixed_args(arguments)
    if options.action is None:
        return _list(as_json=options.json)
    if options.profile is None:
        raise UsageError(f"'gpulaunch profiles {options.action}' needs the name or file of a profile")
    path, profile = find_profile(options.profile), load_profile(options.profile)
    if options.json:
        print_json(profile_document(profile, path))
    elif options.action == "check":
        print(f"{path}: profile {quoted(profile.name)} is well formed")
    else:
        from gpulaunch.render.tables import profile_table
        from gpulaunch.render.terminal import draw

        draw(profile_table(profile, path), sys.stdout)
    return 0


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
