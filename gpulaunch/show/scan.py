"""What a scan or a log of NCCL shows: JSON documents, and lines for a terminal."""

from gpulaunch.errors import counted, printable
from gpulaunch.measure.logs.nccl_log import LoggedTraffic
from gpulaunch.records import as_dict
from gpulaunch.scan.sources import Scan
from gpulaunch.show import Document

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
