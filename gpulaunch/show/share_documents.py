"""The parts of JSON documents that are about sharing, and plain lines from them."""

from gpulaunch.decide.decision import Grant, ShareOption
from gpulaunch.decide.request import Request
from gpulaunch.errors import printable
from gpulaunch.show import Document


def sharing_document(request: Request, grant: Grant | None) -> Document | None:
    """Return with which jobs the GPUs are shared, and why; None if sharing was not asked for."""
    if request.exclusive_reason:
        return {"residents": [], "own_because": request.exclusive_reason}
    if request.sharing is None or grant is None:
        return None
    document: Document = (
        {"residents": []}
        if grant.share_option is None
        else share_option_document(grant.share_option)
    )
    return {**document, "own_because": grant.exclusive_reason}


def share_option_document(option: ShareOption) -> Document:
    """Return the predicted state of some GPUs if a job comes to share them."""
    sums, allotment = option.verdict.sums, option.allotment
    return {
        "uuids": list(option.group),
        "residents": [
            {
                "lease": lease.id,
                "name": lease.name,
                "profile": lease.profile,
                "sm_percentage": lease.share.sm_percentage if lease.share else None,
            }
            for lease in option.residents
        ],
        "problem": option.refusal,
        "decided_by": option.verdict.decided_by,
        "notes": list(option.verdict.notes),
        "sm_utilization_percentage": sums.sm_percentage,
        "memory_bandwidth_utilization_percentage": sums.memory_bandwidth_percentage,
        "memory_bytes": sums.memory_bytes,
        "power_w": sums.power_w,
        "predicted_power_w": sums.predicted_power_w,
        "interference": sums.interference,
        "sm_percentage": allotment.sm_percentage if allotment else None,
        "optimum_sm_percentages": list(allotment.optimum.sm_percentages) if allotment else [],
        "left_sm_percentage": allotment.left if allotment else None,
        "why": allotment.reason if allotment else None,
        "predicted_stp": option.prediction.stp if option.prediction else None,
        "predicted_antt": option.prediction.antt if option.prediction else None,
    }


def sharing_lines(document: Document) -> list[str]:
    """Return lines for people about the jobs with which a decision shares the GPUs."""
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
            f"{', '.join(beside) or 'nobody yet'}: {sharing['why']}"
        )
    ]
