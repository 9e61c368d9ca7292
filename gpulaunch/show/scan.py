"""The results of a scan: their JSON document, and lines for a terminal."""

from gpulaunch.errors import counted, printable
from gpulaunch.records import as_dict
from gpulaunch.scan.call import Scan
from gpulaunch.show import Document

_SENSITIVE = {True: "yes", False: "no", None: "unknown"}


def scan_document(scan: Scan) -> Document:
    """Return the document that `gpulaunch profile scan PATH --json` prints.

    Args:
        scan: the result of scan_sources.
    """
    return {
        "calls": [as_dict(call) | {"file": printable(call.file)} for call in scan.calls],
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

    Example:
        >>> call = {"file": "a.py", "line": 2, "api": "jax.lax.psum", "pattern": "ring"}
        >>> found = {"calls": [call], "files": 1, "pattern": "ring", "sensitive": None}
        >>> scan_lines(found | {"confidence": "certain", "reasons": []})[0]
        'a.py:2  jax.lax.psum  ring'
    """
    places = [
        (f"{call['file']}:{call['line']}", call["api"], call["pattern"])
        for call in document["calls"]
    ]
    widths = [max((len(place[column]) for place in places), default=0) for column in (0, 1)]
    rows = [f"{place:{widths[0]}}  {api:{widths[1]}}  {pattern}" for place, api, pattern in places]
    count = len(places)
    calls = counted(count, "call") if count else "no calls"
    files = counted(document["files"], "file") if document["files"] else "no files"
    return [
        *rows,
        *([""] if rows else []),
        *verdict_lines(document, f"{calls} in {files}"),
    ]


def verdict_lines(document: Document, of_what: str) -> list[str]:
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
