"""The JSON documents of the command line, and plain lines from them.

Keys are added, never renamed.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING

from gpulaunch.containers.life import Standing
from gpulaunch.decide.decide import Decision, Grant, Wait
from gpulaunch.decide.placement.scores import Scores
from gpulaunch.decide.request import Request
from gpulaunch.errors import printable
from gpulaunch.files.duration import format_duration
from gpulaunch.leases.lease import Lease
from gpulaunch.leases.ticket import Ticket
from gpulaunch.machine.cpuset import format_cpuset
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.gpu_names import gpus_named, gpus_text
from gpulaunch.machine.topology import Topology
from gpulaunch.records import as_dict
from gpulaunch.show import Document
from gpulaunch.show.share_documents import share_option_document, sharing_document, sharing_lines

if TYPE_CHECKING:
    from gpulaunch.decide.explain import Alternative, Explanation
    from gpulaunch.leases.share import Share
    from gpulaunch.machine.driver import OutsideUse
    from gpulaunch.measure.link_fit import Comparison


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


def decision_lines(document: Document) -> list[str]:
    """Return the lines that --dry-run prints for people."""
    lines = [f"{document['decision']}: {document['reason']}"]
    if document["decision"] == "grant":
        lines.append(f"gpus: {_format_by_model(document['gpus'])}")
        lines.append(f"policy: {document['policy']}, bandwidth model {document['bandwidth_model']}")
        known = [(name, value) for name, value in document["scores"].items() if value is not None]
        lines += [_score_line(name, value) for name, value in known]
        lines += sharing_lines(document)
        if document["utility"] is not None:
            lines.append(f"utility: {document['utility']:.2f}")
        lines += [f"env: {name}={value}" for name, value in document["env"].items()]
    if document["assumed"]:
        lines.append(f"assumed: {', '.join(document['assumed']).replace('_', ' ')}")
    return lines


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


def status_document(
    topology: Topology,
    leases: Sequence[Lease],
    outside: "Sequence[OutsideUse]",
    user_name: Callable[[int], str],
    tickets: Sequence[Ticket] = (),
    left_over: Mapping[str, Sequence[int]] | None = None,
    stopped: Collection[str] = (),
    standings: Mapping[str, Standing] | None = None,
) -> Document:
    """Return the document that `gpulaunch status --json` prints: one machine's whole table.

    Args:
        topology: the machine.
        leases: live leases.
        outside: GPUs in use; a lease explains the use of those under it.
        user_name: returns the login name of a user id.
        tickets: live tickets, in the order of the queue.
        left_over: pids that still hold a lease whose launcher and job have ended, by lease id.
        stopped: ids of tickets whose launcher is stopped, so that others pass it.
        standings: known states of the leases' containers, by lease id.
    """
    used = {use.uuid: use.who for use in outside}
    gpus = []
    for gpu in topology.gpus:
        # A card may have been split into MIG instances while it was leased.
        own = {gpu.uuid, gpu.mig.card_uuid} if gpu.mig else {gpu.uuid}
        holders = [lease for lease in leases if own.intersection(lease.uuids)]
        if holders:
            state = "shared" if any(lease.share for lease in holders) else "leased"
        else:
            state = "outside" if gpu.uuid in used else "free"
        gpus.append(
            {
                "index": gpu.index,
                "name": gpu.name,
                "uuid": gpu.uuid,
                "model": gpu.model,
                "free": state == "free",
                "state": state,
                "leases": [lease.id for lease in holders],
                "outside": used.get(gpu.uuid) if state == "outside" else None,
            }
        )
    return {
        "topology": topology.name,
        "gpus": gpus,
        "leases": [
            _lease_document(
                topology,
                lease,
                user_name(lease.user_id),
                (left_over or {}).get(lease.id),
                (standings or {}).get(lease.id),
            )
            for lease in leases
        ],
        "queue": [
            _ticket_document(
                position, ticket, user_name(ticket.user_id), stopped=ticket.id in stopped
            )
            for position, ticket in enumerate(tickets, 1)
        ],
    }


def _ticket_document(position: int, ticket: Ticket, user: str, *, stopped: bool) -> Document:
    return {
        "id": ticket.id,
        "user": user,
        "gpus": ticket.gpus,
        "since": ticket.since,
        "position": position,
        "pid": ticket.launcher.pid,
        "profile": ticket.profile,
        "command": [printable(argument) for argument in ticket.command],
        "name": ticket.name,
        "within": ticket.within,
        "stopped": stopped,
        "choosy": ticket.choosy,
    }


def _lease_document(
    topology: Topology,
    lease: Lease,
    user: str,
    left_over: Sequence[int] | None,
    standing: Standing | None,
) -> Document:
    container = standing.keeper if standing else None
    index_of = {gpu.uuid: gpu.index for gpu in topology.gpus}
    name_of = {gpu.uuid: gpu.name for gpu in topology.gpus}
    return {
        "id": lease.id,
        "user": user,
        "pid": lease.launcher.pid,
        "job_pid": lease.job.pid,
        "gpus": [index_of.get(uuid) for uuid in lease.uuids],
        "gpu_names": [name_of.get(uuid) for uuid in lease.uuids],
        "uuids": list(lease.uuids),
        "shared": lease.share is not None,
        "sm_percentage": lease.share.sm_percentage if lease.share else None,
        "share_memory_bytes": lease.share.client.demand.memory_bytes if lease.share else None,
        "profile": lease.profile,
        "command": [printable(argument) for argument in lease.command],
        "started_at": lease.started_at,
        "container": container.id if container else None,
        "container_name": container.name if container else None,
        "container_state": container.state if container else None,
        "container_problem": standing.problem if standing else None,
        "name": lease.name,
        "parent": lease.ancestors[0] if lease.ancestors else None,
        "assumed": list(lease.assumed),
        "left_over_pids": None if left_over is None else list(left_over),
    }


def waiting_lines(
    topology: Topology,
    leases: Sequence[Lease],
    tickets: Sequence[Ticket],
    user_name: Callable[[int], str],
    now: datetime,
) -> list[str]:
    """Return what a waiting launch waits for.

    Examples: "alice has GPUs 0,2-3 (vgg16 for 5 min)", "earlier in the queue: bob for 8 GPUs".

    Args:
        topology: the machine.
        leases: live leases on it; those inside others are not counted twice.
        tickets: earlier tickets.
        user_name: returns the login name of a user id.
        now: an aware time, up to which durations are counted.
    """
    lines = []
    for user_id in sorted({lease.user_id for lease in leases}):
        own = [lease for lease in leases if lease.user_id == user_id and not lease.ancestors]
        uuids = {uuid for lease in own for uuid in lease.uuids}
        jobs = ", ".join(f"{_name_job(lease)} for {age(lease.started_at, now)}" for lease in own)
        if own:
            gpus = gpus_named(gpu for gpu in topology.gpus if gpu.uuid in uuids)
            lines.append(f"{user_name(user_id)} has {gpus} ({jobs})")
    if tickets:
        earlier = ", ".join(
            f"{user_name(ticket.user_id)} for {gpus_text(ticket.gpus)}" for ticket in tickets
        )
        lines.append(f"earlier in the queue: {earlier}")
    return lines


def _name_job(lease: Lease) -> str:
    # Another user wrote the record, so the command may be empty.
    program = lease.command[0].rpartition("/")[2] if lease.command else "?"
    return printable(lease.name or lease.profile or program)


def age(since: str, now: datetime) -> str:
    """Return how long ago a record's time was, or "?" if its text is no valid time.

    Another user wrote the record, so the date may be the 31st of February.
    """
    try:
        return format_duration(int((now - datetime.fromisoformat(since)).total_seconds()))
    except ValueError:
        return "?"


def topology_document(topology: Topology) -> Document:
    """Return the document that `gpulaunch topo --json` prints."""
    return {
        "name": topology.name,
        "source": topology.source,
        "gpus": [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "model": gpu.model,
                "memory_bytes": gpu.memory_bytes or None,
                "numa_node": gpu.numa_node,
                "node": gpu.node,
                "cpuset": format_cpuset(gpu.cpuset),
                "host_gb_per_s": gpu.host_gb_per_s or None,
                "compute_capability": gpu.compute_capability,
                "pci_address": gpu.pci_address,
                "pcie_generation": gpu.pcie_generation or None,
                "pcie_width": gpu.pcie_width or None,
                "nvlink_version": gpu.nvlink_version or None,
                "nvlinks_to_switch": gpu.nvswitch_links,
                "nvlinks_to_cpu": gpu.cpu_nvlinks,
                "mig": as_dict(gpu.mig) if gpu.mig else None,
            }
            for gpu in topology.gpus
        ],
        "links": [
            {
                "a": link.a,
                "b": link.b,
                "path": link.path,
                "nvlink_count": link.nvlink_count,
                "bandwidth_gb_per_s": link.bandwidth_gb_per_s,
                "kind": link.kind,
                "nvlink_version": link.nvlink_version or None,
                "nvlink_planned_gb_per_s": link.nvlink_planned_gb_per_s or None,
                "pcie_path": link.pcie_path,
                "pcie_generation": link.pcie_generation or None,
                "pcie_width": link.pcie_width or None,
                "pcie_bandwidth_gb_per_s": link.pcie_gb_per_s,
                "peer_to_peer": link.peer_to_peer,
            }
            for link in topology.links
        ],
    }


def measurement_document(
    topology: Topology, tool: str, comparisons: "Sequence[Comparison]"
) -> Document:
    """Return the document that `gpulaunch topo --measure --json` prints."""
    from gpulaunch.measure.link_fit import model_errors  # late: statistics costs a launch 9 ms

    return {
        "name": topology.name,
        "tool": tool,
        "measured": [
            {
                "gpus": list(entry.figure.sample.gpus),
                "links": list(entry.figure.sample.ring),
                "all_reduce_gb_per_s": entry.figure.all_reduce_gb_per_s,
                "cut_gb_per_s": round(entry.cut, 6),
                "mapa_gb_per_s": round(entry.mapa, 6),
                "refit_gb_per_s": None if entry.refit is None else round(entry.refit, 6),
                "sizes": [
                    {"bytes": size, "gb_per_s": bandwidth} for size, bandwidth in entry.figure.sizes
                ],
            }
            for entry in comparisons
        ],
        "root_mean_square_error_gb_per_s": model_errors(comparisons),
    }
