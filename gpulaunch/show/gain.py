"""What other policies would have made of a machine's history, in one sentence."""

from gpulaunch.files.duration import format_duration
from gpulaunch.show import Document

_LEAST = 0.01  # of the former value; what is less is nothing


def gain_document(document: Document) -> Document:
    """Return what the best of the later runs gains over the first one.

    The best is the one in which bandwidth-sensitive jobs have the highest mean effective bandwidth,
    then the least mean turnaround.

    Args:
        document: the document from replays_document, of what was and of other policies.
    """
    before, *others = map(_figures, document["runs"])
    best = max(others or [before], key=lambda one: (one[_BANDWIDTH] or 0.0, -one[_TURNAROUND]))
    return {"before": before, "best": best}


_BANDWIDTH = "effective_bandwidth_gb_per_s"
_TURNAROUND = "turnaround_s"


def _figures(run: Document) -> Document:
    bandwidth = run["sensitive"]["effective_bandwidth_gb_per_s"]
    return {
        "policy": run["policy"],
        _BANDWIDTH: bandwidth["mean"] if bandwidth else None,
        _TURNAROUND: run["turnaround_s"]["mean"],
    }


def gain_sentence(gain: Document) -> str:
    """Return the sentence that tells what gain_document has found."""
    before, best = gain["before"], gain["best"]
    words = []
    if best[_BANDWIDTH] and before[_BANDWIDTH]:
        share = best[_BANDWIDTH] / before[_BANDWIDTH] - 1
        words.append(
            f"{best[_BANDWIDTH]:.1f} instead of {before[_BANDWIDTH]:.1f} GB/s of mean effective "
            f"bandwidth for bandwidth-sensitive jobs ({share:+.0%})"
        )
    saved = 1 - best[_TURNAROUND] / before[_TURNAROUND] if before[_TURNAROUND] else 0.0
    words.append(
        f"{format_duration(best[_TURNAROUND])} instead of "
        f"{format_duration(before[_TURNAROUND])} from launch to end ({-saved:+.0%})"
    )
    gained = saved >= _LEAST or bool(best[_BANDWIDTH] and before[_BANDWIDTH] and share >= _LEAST)
    start = f"{best['policy']} would have had" if gained else "nothing would have been gained: "
    if not gained:
        start += f"{best['policy']} has"
    return f"{start} {', '.join(words)}"
