"""What a scan found -> its JSON document, and rows for a terminal."""

from gpulaunch.errors import printable
from gpulaunch.records import as_dict
from gpulaunch.scan.call import Scan
from gpulaunch.show import Document

_SENSITIVE = {True: "yes", False: "no", None: "unknown"}


def scan_document(scan: Scan) -> Document:
    """What `gpulaunch profile --scan PATH --json` prints.

    Args:
        scan: from scan_sources.
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
    """A call on each line, as compilers write places, and below them what follows from all.

    Args:
        document: from scan_document.

    Example:
        >>> scan_lines({"calls": [{"file": "a.py", "line": 2, "api": "jax.lax.psum", "pattern": "ring"}],
        ...     "pattern": "ring", "sensitive": None, "confidence": "certain", "reasons": [], "files": 1})[0]
        'a.py:2  jax.lax.psum  ring'
    """
    places = [
        (f"{call['file']}:{call['line']}", call["api"], call["pattern"])
        for call in document["calls"]
    ]
    widths = [max((len(place[column]) for place in places), default=0) for column in (0, 1)]
    rows = [f"{place:{widths[0]}}  {api:{widths[1]}}  {pattern}" for place, api, pattern in places]
    count = len(places)
    calls = f"{_counted(count, 'call')} in {_counted(document['files'], 'file')}"
    return [
        *rows,
        *([""] if rows else []),
        *verdict_lines(document, calls),
    ]


def verdict_lines(document: Document, of_what: str) -> list[str]:
    """What follows from all that was found.

    Args:
        document: with pattern, sensitive, confidence and reasons.
        of_what: what stands behind the pattern.
    """
    return [
        f"pattern:    {document['pattern']} ({of_what})",
        f"sensitive:  {_SENSITIVE[document['sensitive']]}",
        f"confidence: {document['confidence']}",
        *(f"  {reason}" for reason in document["reasons"]),
    ]


def _counted(count: int, what: str) -> str:
    return f"{count or 'no'} {what}" if count == 1 else f"{count or 'no'} {what}s"
