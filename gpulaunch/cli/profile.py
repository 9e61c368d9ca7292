"""`gpulaunch profile list|show`: what is known about jobs before they run."""

import sys
from collections.abc import Sequence

from gpulaunch.cli.arguments import Parser, add_json
from gpulaunch.cli.help import word_parser
from gpulaunch.cli.output import Document, print_json, warn
from gpulaunch.cli.screen import Grid, Parts, Text, draw, figure
from gpulaunch.errors import UsageError, printable
from gpulaunch.files.units import format_size
from gpulaunch.files.write import document_text
from gpulaunch.profiles.catalog import (
    find_profile,
    is_benchmark,
    load_profile,
    profile_names,
)
from gpulaunch.profiles.profile import Profile

_FIGURES = ("memory", "SM %", "BW %")


def make_parser() -> Parser:
    """Return the parser of the word after it."""
    return word_parser("profile", "What is known about jobs before they run.")


def profile_show_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser("gpulaunch profile show", "Print all that a profile says, as TOML.")
    parser.add_argument(
        "profile",
        metavar="PROFILE",
        help="name or file, and @ with what is asked of it: alexnet@batch=1",
    )
    add_json(parser)
    return parser


def profile_show(arguments: Sequence[str]) -> int:
    """Print one profile."""
    options = profile_show_parser().parse_args(arguments)
    path, profile = find_profile(options.profile), load_profile(options.profile)
    if options.json:
        print_json(profile_document(profile, path))
    else:
        print(profile_text(profile, path))
    return 0


def profile_list_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser("gpulaunch profile list", "Print the profiles that can be named.")
    add_json(parser)
    return parser


def profile_list(arguments: Sequence[str]) -> int:
    """Print the profiles: those of people first, then the benchmarks; variants below each."""
    options = profile_list_parser().parse_args(arguments)
    profiles = []
    for name in profile_names():
        try:
            profiles.append((find_profile(name), load_profile(name).but(name=name)))
        except UsageError as problem:  # a broken file does not hide the others
            warn(problem.message)
    if options.json:
        print_json([profile_document(profile, path) for path, profile in profiles])
        return 0

    table = Grid(
        *("name", "pattern", "sensitive", *_FIGURES, "description"),
        right=_FIGURES,
        leave=("sensitive", "pattern", *reversed(_FIGURES)),
    )
    for heading, of_papers in (("what people run", False), ("benchmarks of papers", True)):
        group = [profile for path, profile in profiles if is_benchmark(path) == of_papers]
        if group:
            table.add_row(Text(heading, "bold"))
        for profile in group:
            description = Text(printable(profile.description))
            if variants := _variants_text(profile):
                description.append("\n" if profile.description else "").append(variants, "dim")
            table.add_row(*_cells(profile), description)
    estimated = any(profile.resources.estimated for _, profile in profiles)
    draw(Parts(table, *([Text("~ estimated", "dim")] if estimated else [])), sys.stdout)
    return 0


def _cells(profile: Profile) -> list[str]:
    """Return the cells of a profile but the description; what is unknown is empty."""
    resources, communication = profile.resources, profile.communication
    figures = {"memory_mib": format_size(profile.memory_bytes) if profile.memory_bytes else ""}
    for name in ("sm_utilization_percentage", "memory_bandwidth_utilization_percentage"):
        figures[name] = figure(getattr(resources, name)).strip("-")
    return [
        printable(profile.name),
        communication.pattern or "",
        {True: "yes", False: "no", None: ""}[communication.bandwidth_sensitive],
        *(f"~{text}" if name in resources.estimated else text for name, text in figures.items()),
    ]


def _variants_text(profile: Profile) -> str:
    """Return how to ask for its variants."""
    return ", ".join(f"@{printable(variant)}" for variant in profile.variants)


def profile_text(profile: Profile, path: str) -> str:
    """Return a profile as TOML, but its variants, with what else is known about it in comments."""
    known = [f"file: {path}"]
    if variants := _variants_text(profile):
        known.append(f"variants: {variants}")
    if profile.missing_demand:
        missing = ", ".join(profile.missing_demand)
        known.append(f"not recorded: {missing}; without, the job shares no GPU")
    said = {key: value for key, value in profile.document.items() if key != "variants"}
    lines = [*(f"# {line}" for line in known), *document_text(said).rstrip("\n").split("\n")]
    return "\n".join(map(printable, lines))


def profile_document(profile: Profile, path: str) -> Document:
    """Return the document that `gpulaunch profile show NAME --json` prints."""
    name = profile.name.partition("@")[0]
    return {
        "name": profile.name,
        "description": profile.description,
        "benchmark": is_benchmark(path),
        "variants": [f"{name}@{variant}" for variant in profile.variants],
        "document": profile.document,
        "path": path,
    }
