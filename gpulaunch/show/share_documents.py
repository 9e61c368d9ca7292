"""Values of sharing -> their part of the JSON documents, and plain lines made of them."""

from typing import TYPE_CHECKING

from gpulaunch.decide.decide import Grant
from gpulaunch.decide.request import Request
from gpulaunch.errors import printable
from gpulaunch.show import Document

if TYPE_CHECKING:
    from gpulaunch.decide.share_options import Joining


def sharing_document(request: Request, grant: Grant | None) -> Document | None:
    """With whom the GPUs are shared, or will be, and what speaks for and against it; None if nobody asked for it."""
    if request.own_because:
        return {"residents": [], "own_because": request.own_because}
    if request.sharing is None or grant is None:
        return None
    joined: Document = (
        {"residents": []} if grant.joining is None else joining_document(grant.joining)
    )
    return {**joined, "own_because": grant.own_because}


def joining_document(joining: "Joining") -> Document:
    """What becomes of some GPUs if a job comes to share them."""
    sums, part = joining.verdict.sums, joining.part
    return {
        "uuids": list(joining.group),
        "residents": [
            {
                "lease": lease.id,
                "name": lease.name,
                "profile": lease.profile,
                "sm_percentage": lease.share.sm_percentage if lease.share else None,
            }
            for lease in joining.residents
        ],
        "problem": joining.problem,
        "notes": list(joining.verdict.notes),
        "sm_utilization_percentage": sums.sm_percentage,
        "memory_bandwidth_utilization_percentage": sums.memory_bandwidth_percentage,
        "memory_bytes": sums.memory_bytes,
        "power_w": sums.power_w,
        "predicted_power_w": sums.predicted_power_w,
        "interference": sums.interference,
        "sm_percentage": part.sm_percentage if part else None,
        "optimum_sm_percentages": list(part.optimum.sm_percentages) if part else [],
        "left_sm_percentage": part.left if part else None,
        "why": part.reason if part else None,
        "predicted_stp": joining.prediction.stp if joining.prediction else None,
        "predicted_antt": joining.prediction.antt if joining.prediction else None,
    }


def sharing_lines(document: Document) -> list[str]:
    """With whom the GPUs of a decision are shared, for people."""
    sharing = document["sharing"]
    if sharing is None:
        return []
    if not document["shared"]:
        return [f"not shared: {printable(sharing['own_because'])}"]
    beside = [
        printable(f"{one['name'] or one['profile'] or 'a job'} ({one['lease']})")
        for one in sharing["residents"]
    ]
    return [
        (
            f"shared: {document['sm_percentage']} % of the SMs, with "
            f"{', '.join(beside) or 'nobody yet'}"
        )
    ]
