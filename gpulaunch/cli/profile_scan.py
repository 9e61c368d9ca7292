"""`gpulaunch profile scan`: read a job's source, or a log of it, and run nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpulaunch.cli.arguments import Parser, add_json
from gpulaunch.cli.output import Document, print_json, say, warn
from gpulaunch.cli.profile_measure import add_target, read_target
from gpulaunch.errors import counted, printable
from gpulaunch.files.document import log_lines
from gpulaunch.lab.measure.nccl_log import LoggedTraffic, communication, read_nccl_log
from gpulaunch.lab.measure.update_profile import check_own, keep
from gpulaunch.lab.scan.sources import Scan, read_sources, scan_sources
from gpulaunch.profiles.pattern import PATTERNS, is_whole
from gpulaunch.records import as_dict

Findings = tuple[Mapping[str, Any], Sequence[str], dict[str, Any]]
"""What a file says: a document for --json, lines for people, sections of a profile."""

_SENSITIVE = {True: "yes", False: "no", None: "unknown"}


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(
        "gpulaunch profile scan",
        "Read a job's source or NCCL log, and run nothing.",
        "gpulaunch profile scan PATH | --nccl-log FILE [--json] [-o FILE]",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "path", metavar="PATH", nargs="?", help="source, a file or a folder: who talks to whom"
    )
    source.add_argument(
        "--nccl-log",
        metavar="FILE",
        help="log of NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL",
    )
    add_target(parser)
    add_json(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="say only what is wrong")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Read a file, print the findings, and write those that belong into a profile."""
    options = make_parser().parse_args(arguments)
    target = None
    if options.output is not None or options.name is not None:
        target = read_target(options)
        check_own(target[0])
    if options.path is not None:
        document, lines, sections = _read_source(options.path)
    else:
        document, lines, sections = _read_nccl_log(options.nccl_log)
    for line in document.get("warnings", ()):
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


def _read_source(path: str) -> Findings:
    found = scan_sources(*read_sources(path))
    document = scan_document(found)
    section = _communication_section(document, f"source scan of {path}")
    return document, scan_lines(document), section


def scan_document(found: Scan) -> Document:
    """Return the document that `gpulaunch profile scan PATH --json` prints."""
    return {
        "calls": [
            {"file": printable(use.file), "line": use.line, "api": use.api, "pattern": use.pattern}
            for use in found.calls
        ],
        "pattern": found.pattern,
        "sensitive": found.sensitive,
        "confidence": found.confidence,
        "reasons": [printable(reason) for reason in found.reasons],
        "warnings": [printable(warning) for warning in found.warnings],
        "files": found.files,
    }


def scan_lines(document: Document) -> list[str]:
    """Return one line for each call, with its place as compilers write it, then the conclusion."""
    calls = document["calls"]
    places = [f"{call['file']}:{call['line']}" for call in calls]
    width = max(map(len, places), default=0)
    wide = max((len(call["api"]) for call in calls), default=0)
    rows = []
    for place, call in zip(places, calls, strict=True):
        rows.append(f"{place:{width}}  {call['api']:{wide}}  {call['pattern']}")
    count = counted(len(calls), "call") if calls else "no calls"
    files = counted(document["files"], "file") if document["files"] else "no files"
    return _with_conclusion(rows, document, f"{count} in {files}")


def _read_nccl_log(path: str) -> Findings:
    name = printable(path)
    found = communication(read_nccl_log(log_lines(path)), name)
    document = nccl_document(found)
    more: dict[str, Any] = {}
    if found.edges and is_whole(found.edges, found.ranks):
        more["edges"] = [list(edge) for edge in found.edges]
    section = _communication_section(document, f"NCCL log {name}", more)
    return document, nccl_lines(document), section


def nccl_document(found: LoggedTraffic) -> Document:
    """Return the document of `gpulaunch profile scan --nccl-log FILE --json`."""
    return as_dict(found) | {"calls": [as_dict(one) for one in found.calls]}


def nccl_lines(document: Document) -> list[str]:
    """Return lines on each function, who talks to whom, and the conclusion."""
    rows = []
    for call in document["calls"]:
        size = f"{call['message_bytes'] / 1e6:.4g} MB on average"
        rows.append(f"{call['api']}  {call['pattern']}  {call['calls']} calls  {size}")
    if document["groups"]:
        groups = (" ".join(map(str, group)) for group in document["groups"])
        rows.append(f"communicators of ranks {', '.join(groups)}")
    rows += [f"ranks {a} and {b}: {gb:.3g} GB" for a, b, gb in document["edges"]]
    return _with_conclusion(rows, document, counted(document["ranks"], "rank"))


def _with_conclusion(rows: Sequence[str], document: Document, of_what: str) -> list[str]:
    """Return rows of evidence, and lines about the conclusion from all of it."""
    return [
        *rows,
        *([""] if rows else []),
        f"pattern:    {document['pattern']} ({of_what})",
        f"sensitive:  {_SENSITIVE[document['sensitive']]}",
        f"confidence: {document['confidence']}",
        *(f"  {reason}" for reason in document["reasons"]),
    ]


def _communication_section(
    document: Document, source: str, more: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    section = {"confidence": document["confidence"], "source": source, **(more or {})}
    # That nothing was found is no reason to place a job as if nothing communicated.
    silent = document["pattern"] == "none" and document["confidence"] != "certain"
    if document["pattern"] in PATTERNS and not silent:
        section["pattern"] = document["pattern"]
    if document["sensitive"] is not None and not silent:
        section["bandwidth_sensitive"] = document["sensitive"]
    # A section that says nothing but its source is not worth writing.
    return {"communication": section} if len(section) > 2 else {}
