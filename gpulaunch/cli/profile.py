"""`gpulaunch profile list|show|measure|scan`: what is known about jobs before they run."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from gpulaunch.cli.arguments import Namespace, Parser, add_json
from gpulaunch.cli.output import prepare_stdout, print_json, say, warn
from gpulaunch.cli.profile_measure import add_target, make_measure_parser, measure, read_target
from gpulaunch.errors import UsageError, printable, quoted

WORDS = {
    "list": "the profiles that can be named",
    "show": "all that one profile says",
    "measure": "run a job, and write what it uses into its profile",
    "scan": "read a job's source, or a log of it, and run nothing",
}
"""Word -> its description."""

_MOST_CSV_BYTES = 1 << 28


def main(arguments: Sequence[str], command: Sequence[str] | None) -> int:
    """Run one of the words.

    Args:
        arguments: the word and the arguments after it, before the --.
        command: argv after the --; None if there is no --.
    """
    word = arguments[0] if arguments else ""
    if word in ("-h", "--help"):
        prepare_stdout()
        make_parser().print_help()
        return 0
    if word == "measure":
        return measure(arguments[1:], command)
    if word in WORDS and command is not None:
        raise UsageError(f"profile {word} runs no command, but -- is given")
    if word not in WORDS:
        known = f"known are {', '.join(WORDS)}"
        if not word or word.startswith("-"):
            raise UsageError("no word given after profile", known)
        raise UsageError(f"unknown word {quoted(word)} after profile", known)
    prepare_stdout()
    options = word_parsers()[word].parse_args(arguments[1:])
    if word == "list":
        return _list(as_json=options.json)
    if word == "show":
        return _show(options.profile, as_json=options.json)
    return _scan(options)


def make_parser() -> Parser:
    """Return the parser that prints the help; each word has its own."""
    words = "\n".join(f"  {word:8} {summary}" for word, summary in WORDS.items())
    parser = Parser(
        "gpulaunch profile",
        "What is known about jobs before they run.",
        "gpulaunch profile WORD [OPTIONS]",
        epilog=f"words, each with a --help of its own:\n{words}",
    )
    parser.add_argument("word", metavar="WORD", choices=WORDS, help="one of the words below")
    return parser


def word_parsers() -> dict[str, Parser]:
    """Return the parser of each word."""
    listing = Parser("gpulaunch profile list", "Print the profiles that can be named.")
    add_json(listing)
    showing = Parser("gpulaunch profile show", "Print all that a profile says.")
    showing.add_argument(
        "profile",
        metavar="PROFILE",
        help="name or file, and @ with what is asked of it: alexnet@batch=1",
    )
    add_json(showing)
    scan = Parser(
        "gpulaunch profile scan",
        "Read a job's source, NCCL log or profiler's counters, and run nothing.",
        "gpulaunch profile scan PATH | --nccl-log FILE | --ncu FILE | --activity FILE [--json] "
        "[-o FILE]",
    )
    source = scan.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "path", metavar="PATH", nargs="?", help="source, a file or a folder: who talks to whom"
    )
    source.add_argument(
        "--nccl-log",
        metavar="FILE",
        help="log of NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL",
    )
    source.add_argument("--ncu", metavar="FILE", help="counters in Nsight Compute's CSV")
    source.add_argument(
        "--activity", metavar="FILE", help="SM and DRAM activity, by DCGM or Nsight Systems"
    )
    add_target(scan)
    add_json(scan)
    scan.add_argument("-q", "--quiet", action="store_true", help="say only what is wrong")
    return {"list": listing, "show": showing, "measure": make_measure_parser(), "scan": scan}


def _list(*, as_json: bool) -> int:
    from gpulaunch.cli.screen import draw
    from gpulaunch.profiles.catalog import find_profile, is_benchmark, load_profile, profile_names
    from gpulaunch.show.profile import profile_document, profiles_table

    profiles = []
    for name in profile_names():
        try:
            profiles.append((find_profile(name), load_profile(name).but(name=name)))
        except UsageError as problem:  # a broken file does not hide the others
            warn(problem.message)
    if as_json:
        print_json([profile_document(profile, path) for path, profile in profiles])
        return 0
    benchmarks = [profile for path, profile in profiles if is_benchmark(path)]
    others = [profile for path, profile in profiles if not is_benchmark(path)]
    groups = ("what people run", others), ("benchmarks of papers", benchmarks)
    draw(profiles_table(groups), sys.stdout)
    return 0


def _show(name: str, *, as_json: bool) -> int:
    from gpulaunch.cli.screen import draw
    from gpulaunch.profiles.catalog import find_profile, load_profile
    from gpulaunch.show.profile import profile_document, profile_text

    path, profile = find_profile(name), load_profile(name)
    if as_json:
        print_json(profile_document(profile, path))
    else:
        draw(profile_text(profile, path), sys.stdout)
    return 0


Findings = tuple[Mapping[str, Any], Sequence[str], dict[str, Any], Sequence[str]]
"""What a file says: a document for --json, lines for people, sections of a profile, warnings."""


def _scan(options: Namespace) -> int:
    """Read a file, print the findings, and write those that belong into a profile."""
    from gpulaunch.measure.update_profile import check_own, keep

    target = None
    if options.output is not None or options.name is not None:
        target = read_target(options)
        check_own(target[0])
    document, lines, sections, warnings = _read(options, target)
    for line in warnings:
        warn(line)
    if options.json:
        print_json(document)
    else:
        print("\n".join(lines))
    if target is None:
        return 0
    path, name = target
    for line in keep(path, name, sections, guessed=True):
        warn(line)
    if not sections:
        warn(f"nothing for a profile was found, and nothing is written to {path}")
    elif not options.quiet:
        say("info", f"written to {path}")
    return 0


def _read(options: Namespace, target: tuple[str, str] | None) -> "Findings":
    if options.path is not None:
        return _read_source(options.path)
    if options.nccl_log is not None:
        return _read_nccl_log(options.nccl_log)
    if options.ncu is not None:
        return _read_ncu(options.ncu)
    return _read_activity(options.activity, target)


def _read_source(path: str) -> Findings:
    from gpulaunch.scan.sources import read_sources, scan_sources
    from gpulaunch.show.scan import scan_document, scan_lines

    files, unread = read_sources(path)
    scan = scan_sources(files, unread)
    document = scan_document(scan)
    section = _communication_section(document, f"source scan of {path}")
    return document, scan_lines(document), section, scan.warnings


def _read_nccl_log(path: str) -> Findings:
    from gpulaunch.files.document import log_lines
    from gpulaunch.measure.logs.nccl_log import communication, read_nccl_log
    from gpulaunch.profiles.pattern import is_whole
    from gpulaunch.show.scan import nccl_document, nccl_lines

    name = printable(path)
    found = communication(read_nccl_log(log_lines(path)), name)
    document = nccl_document(found)
    more: dict[str, Any] = {}
    if found.edges and is_whole(found.edges, found.ranks):
        more["edges"] = [list(edge) for edge in found.edges]
    sections = _communication_section(document, f"NCCL log {name}", more)
    return document, nccl_lines(document), sections, ()


def _read_ncu(path: str) -> Findings:
    from gpulaunch.files.document import read_text
    from gpulaunch.measure.logs.nsight import read_ncu
    from gpulaunch.measure.run import rounded
    from gpulaunch.records import as_dict

    figures = as_dict(read_ncu(read_text(path, _MOST_CSV_BYTES), printable(path)))
    kernels = figures["kernels"]
    section = {
        key: value if isinstance(value, int) else rounded(value)
        for key, value in figures.items()
        if key != "kernels"
    }
    lines = [f"{key.replace('_', ' ')}: {value:.4g}" for key, value in section.items()]
    source = f"Nsight Compute, {kernels} kernels, {printable(path)}"
    sections = {"counters": {**section, "source": source}}
    return figures, [f"{kernels} kernels", *lines], sections, ()


def _read_activity(path: str, target: tuple[str, str] | None) -> Findings:
    from gpulaunch.files.document import read_text
    from gpulaunch.measure.logs.activity import read_activity
    from gpulaunch.measure.run import rounded
    from gpulaunch.profiles.profile_file import read_profile_file
    from gpulaunch.records import as_dict

    found = read_activity(read_text(path, _MOST_CSV_BYTES), printable(path))
    known = read_profile_file(target[0]).get("resources", {}) if target else {}
    busy = found.busy_percentage
    if busy is None and known.get("utilization") == "time-active":
        busy = known.get("sm_utilization_percentage")
    section = {
        **known,
        "sm_utilization_percentage": rounded(found.sm_percentage),
        "memory_bandwidth_utilization_percentage": rounded(found.dram_percentage),
        "utilization": "share",
        "source": "; ".join(filter(None, (known.get("source"), f"activity, {printable(path)}"))),
    }
    if busy is not None:
        section["time_active_percentage"] = rounded(busy)
    lines = [
        f"{found.samples} samples",
        f"SMs in use: {found.sm_percentage:.4g} %",
        f"memory in use: {found.dram_percentage:.4g} %",
        *([] if busy is None else [f"time in which a kernel ran: {busy:.4g} %"]),
    ]
    return as_dict(found), lines, {"resources": section}, ()


def _communication_section(
    document: Mapping[str, Any], source: str, more: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    from gpulaunch.profiles.pattern import PATTERNS

    section = {"confidence": document["confidence"], "source": source, **(more or {})}
    # That nothing was found is no reason to place a job as if nothing communicated.
    silent = document["pattern"] == "none" and document["confidence"] != "certain"
    if document["pattern"] in PATTERNS and not silent:
        section["pattern"] = document["pattern"]
    if document["sensitive"] is not None and not silent:
        section["bandwidth_sensitive"] = document["sensitive"]
    # A section that says nothing but its source is not worth writing.
    return {"communication": section} if len(section) > 2 else {}
