"""A decision as a JSON document, and as plain lines made of it.

Keys of documents are added, never renamed.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from gpulaunch.decide.decision import Decision, Grant, Wait
from gpulaunch.decide.placement.problem import Scores
from gpulaunch.decide.request import Request
from gpulaunch.errors import printable
from gpulaunch.machine.gpu import Gpu
from gpulaunch.show import Document
from gpulaunch.show.share_documents import share_option_document, sharing_document, sharing_lines

if TYPE_CHECKING:
    from gpulaunch.decide.explain import Alternative, Explanation
    from gpulaunch.leases.share import Share


def decision_document(
    request: Request,
    decision: Decision,
    gpus: Sequence[Gpu],
    environment: Mapping[str, str],
    command: Sequence[str],
    share: "Share | None" = None,
) -> Document:
    """Return the document that --dry-run --json prints.

    Args:
        request: the request of the launch.
        decision: the decision about it.
        gpus: granted GPUs, in rank order; empty unless granted.
        environment: variables that the job would get.
        command: argv of the job.
        share: the share in its lease, if it shares.
    """
    grant = decision if isinstance(decision, Grant) else None
    return {
        "decision": "grant" if grant else "wait" if isinstance(decision, Wait) else "refuse",
        "reason": decision.reason,
        "gpus": [
            {
                "index": gpu.index,
                "name": gpu.name,
                "uuid": gpu.uuid,
                "model": gpu.model,
                "numa_node": gpu.numa_node,
                "node": gpu.node,
            }
            for gpu in gpus
        ],
        "policy": request.policy.replace("_", "-"),
        "bandwidth_model": request.bandwidth_model,
        "pattern": request.pattern.name.replace("_", "-"),
        "scores": _scores_document(grant.placement.scores if grant else None),
        "utility": grant.placement.utility if grant else None,
        "shared": share is not None,
        "sm_percentage": share.sm_percentage if share else None,
        "sharing": sharing_document(request, grant),
        "env": dict(environment),
        "argv": [printable(argument) for argument in command],
        "profile": request.profile,
        "assumed": list(request.assumed),
    }


def explanation_document(explanation: "Explanation") -> Document:
    """Return the part of the document that --explain adds."""
    return {
        "why": explanation.reason,
        "candidates": [
            {"gpus": list(candidate.gpus), "scores": _scores_document(candidate.scores)}
            for candidate in explanation.candidates
        ],
        "excluded": [
            {"index": left_out.gpu.index, "name": left_out.gpu.name, "why": printable(left_out.why)}
            for left_out in explanation.excluded
        ],
        "alternatives": [
            _alternative_document(alternative) for alternative in explanation.alternatives
        ],
        "if_idle": _alternative_document(explanation.if_idle) if explanation.if_idle else None,
        "share_groups": [
            {"gpus": gpus, **share_option_document(option)} for option, gpus in explanation.sharing
        ],
    }


def _alternative_document(alternative: "Alternative") -> Document:
    return {
        "instead": printable(alternative.instead),
        "gpus": list(alternative.gpus),
        "effective_bandwidth_gb_per_s": alternative.effective_bandwidth,
    }


def decision_lines(document: Document, *, explained: bool = False) -> list[str]:
    """Return the lines that --dry-run prints for people.

    Args:
        document: the document of a decision.
        explained: whether a table of its candidates follows, which says the scores and the policy.
    """
    lines = [f"{document['decision']}: {document['reason']}"]
    if document["decision"] == "grant":
        lines.append(f"gpus: {_format_by_model(document['gpus'])}")
        lines += [] if explained else _score_lines(document)
        lines += sharing_lines(document)
        if document["utility"] is not None:
            lines.append(f"utility: {document['utility']:.2f}")
        lines += [f"env: {name}={value}" for name, value in document["env"].items()]
    if document["assumed"] and not (explained and document["decision"] == "grant"):
        lines.append(f"assumed: {', '.join(document['assumed']).replace('_', ' ')}")
    return lines


def _score_lines(document: Document) -> list[str]:
    scores = [(name, value) for name, value in document["scores"].items() if value is not None]
    policy = f"policy: {document['policy']}, bandwidth model {document['bandwidth_model']}"
    return [policy, *(_score_line(name, value) for name, value in scores)]


def _format_by_model(gpus: Sequence[Document]) -> str:
    """Return names by model in rank order, such as "0,2,3 (Tesla V100-SXM2-16GB)".

    GPUs of one model that are not adjacent in rank order are listed apart.
    """
    runs = [
        (model, [gpu["name"] for gpu in run])
        for model, run in groupby(gpus, key=lambda gpu: gpu["model"])
    ]
    return ", ".join(f"{','.join(names)} ({printable(model)})" for model, names in runs)


def _score_line(name: str, value: float) -> str:
    unit = " GB/s" if name.endswith("_gb_per_s") else ""
    return f"{name.removesuffix('_gb_per_s').replace('_', ' ')}: {value:.4g}{unit}"


def _scores_document(scores: Scores | None) -> dict[str, float | None]:
    def known(value: float | None) -> float | None:
        return None if value is None else round(value, 6)

    return {
        "aggregate_bandwidth_gb_per_s": known(scores.aggregate_bandwidth) if scores else None,
        "effective_bandwidth_gb_per_s": known(scores.effective_bandwidth) if scores else None,
        "preserved_bandwidth_gb_per_s": known(scores.preserved_bandwidth) if scores else None,
        "lasting_bandwidth_gb_per_s": known(scores.lasting_bandwidth) if scores else None,
        "fragmentation": known(scores.fragmentation) if scores else None,
        "communication_cost": scores.communication_cost if scores else None,
    }
