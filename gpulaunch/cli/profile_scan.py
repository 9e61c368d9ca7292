"""What a scan or a log of NCCL shows: JSON documents, and lines for a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpulaunch.cli.arguments import Namespace
from gpulaunch.cli.output import print_json, say, warn
from gpulaunch.cli.profile_measure import read_target
from gpulaunch.errors import counted, printable
from gpulaunch.measure.logs.nccl_log import LoggedTraffic
from gpulaunch.records import as_dict
from gpulaunch.scan.sources import Scan
from gpulaunch.show import Document

_MOST_CSV_BYTES = 1 << 28
_SENSITIVE = {True: "yes", False: "no", None: "unknown"}


def scan_document(scan: Scan) -> Document:
    """Return the document that `gpulaunch profile scan PATH --json` prints.

    Args:
        scan: the result of scan_sources.
    """
    return {
        "calls": [
            {"file": printable(use.file), "line": use.line, "api": use.api, "pattern": use.pattern}
            for use in scan.calls
        ],
        "pattern": scan.pattern,
        "sensitive": scan.sensitive,
        "confidence": scan.confidence,
        "reasons": [printable(reason) for reason in scan.reasons],
        "warnings": [printable(warning) for warning in scan.warnings],
        "files": scan.files,
    }


def scan_lines(document: Document) -> list[str]:
    """Return one line for each call, with its place as compilers write it, then the conclusion.

    Args:
        document: the document from scan_document.
    """
    calls = document["calls"]
    places = [f"{call['file']}:{call['line']}" for call in calls]
    width = max(map(len, places), default=0)
    wide = max((len(call["api"]) for call in calls), default=0)
    rows = [
        f"{place:{width}}  {call['api']:{wide}}  {call['pattern']}"
        for place, call in zip(places, calls, strict=True)
    ]
    count = counted(len(calls), "call") if calls else "no calls"
    files = counted(document["files"], "file") if document["files"] else "no files"
    return [*rows, *([""] if rows else []), *_verdict_lines(document, f"{count} in {files}")]


def nccl_document(found: LoggedTraffic) -> Document:
    """Return the document of `gpulaunch profile scan --nccl-log FILE --json`.

    Args:
        found: from communication.
    """
    return as_dict(found) | {"calls": [as_dict(one) for one in found.calls]}


def nccl_lines(document: Document) -> list[str]:
    """Return lines on each function, who talks to whom, and the conclusion.

    Args:
        document: the document from nccl_document.
    """
    found = []
    for call in document["calls"]:
        size = f"{call['message_bytes'] / 1e6:.4g} MB on average"
        found.append(f"{call['api']}  {call['pattern']}  {call['calls']} calls  {size}")
    if document["groups"]:
        groups = (" ".join(map(str, group)) for group in document["groups"])
        found.append(f"communicators of ranks {', '.join(groups)}")
    found += [f"ranks {a} and {b}: {gb:.3g} GB" for a, b, gb in document["edges"]]
    verdict = _verdict_lines(document, counted(document["ranks"], "rank"))
    return [*found, *([""] if found else []), *verdict]


def _verdict_lines(document: Document, of_what: str) -> list[str]:
    """Return the lines about the conclusion from everything that was found.

    Args:
        document: document with pattern, sensitive, confidence and reasons.
        of_what: evidence for the pattern.
    """
    return [
        f"pattern:    {document['pattern']} ({of_what})",
        f"sensitive:  {_SENSITIVE[document['sensitive']]}",
        f"confidence: {document['confidence']}",
        *(f"  {reason}" for reason in document["reasons"]),
    ]


Findings = tuple[Mapping[str, Any], Sequence[str], dict[str, Any], Sequence[str]]
"""What a file says: a document for --json, lines for people, sections of a profile, warnings."""


def scan(options: Namespace) -> int:
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

    files, unread = read_sources(path)
    found = scan_sources(files, unread)
    document = scan_document(found)
    section = _communication_section(document, f"source scan of {path}")
    return document, scan_lines(document), section, found.warnings


def _read_nccl_log(path: str) -> Findings:
    from gpulaunch.files.document import log_lines
    from gpulaunch.measure.logs.nccl_log import communication, read_nccl_log
    from gpulaunch.profiles.pattern import is_whole

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
