"""`gpulaunch status`: print who has which GPUs, since when, doing what."""

import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from gpulaunch.cli.arguments import Namespace, Parser, add_json, add_topology
from gpulaunch.cli.output import print_json, warn
from gpulaunch.cli.screen import draw
from gpulaunch.cli.status_table import gpu_places, gpus_view, status_table
from gpulaunch.containers.life import Standing
from gpulaunch.errors import FailedError, UsageError, printable
from gpulaunch.history.read import read_dependent
from gpulaunch.launch.outside_use import read_containers, with_containers
from gpulaunch.launch.past_end import before_queue
from gpulaunch.launch.strays import find_strays
from gpulaunch.launch.surroundings import read_shown
from gpulaunch.leases.holders import LeftOver, idle_since_s, left_over_holders
from gpulaunch.leases.lease import Lease, Ticket
from gpulaunch.leases.table import Snapshot
from gpulaunch.machine.find import ask_apart, look_again, read_health, read_load
from gpulaunch.machine.topology import Topology
from gpulaunch.process.system import is_stopped, iso, parse_time, user_name
from gpulaunch.show import Document

if TYPE_CHECKING:
    from gpulaunch.containers.in_use import RunningContainer
    from gpulaunch.history.forecast import StartRange
    from gpulaunch.history.past_launch import PastLaunch
    from gpulaunch.leases.drain import Drain
    from gpulaunch.machine.driver import Health, Load, OutsideUse


_SLOW_S = 5.0
"""Time between two looks at what costs more, such as health, use outside and containers."""


class StatusReader:
    """A reader of the table and the GPUs of the machine that a command is to show.

    Args:
        topology: value of --topology, or None.
    """

    def __init__(self, topology: str | None) -> None:
        ask_apart()
        shown, self.table = read_shown(topology, warn)
        self.machine = shown.machine
        self._containers = shown.containers
        self._health = read_health(self.machine)
        self._left_over: dict[str, LeftOver] = {}
        self._strays: list[OutsideUse] = []
        self._looked_at: set[str] | None = None
        self._starts: dict[str, StartRange] = {}
        self._read_s = time.monotonic()

    def read(self) -> Document:
        """Return the document of this moment.

        Raises:
            FailedError: the driver fails.
        """
        if time.monotonic() - self._read_s > _SLOW_S:
            self._containers = read_containers(self.machine)
            self.machine = with_containers(look_again(self.machine), self._containers)
            self._health = read_health(self.machine)
            self._looked_at = None
            self._read_s = time.monotonic()
        problems: list[FailedError] = []
        seen = self.table.peek(problems=problems).of(self.machine)
        stopped = {ticket.id for ticket in seen.tickets if is_stopped(ticket.launcher)}
        stopped |= {lease.id for lease in seen.leases if is_stopped(lease.job)}
        self._look_slowly(seen, stopped)
        return status_document(
            self.machine.topology,
            seen.leases,
            self.machine.outside,
            user_name,
            seen.tickets,
            self._left_over,
            stopped,
            _find_standings(seen),
            self._containers,
            self._health,
            seen.drained,
            read_load(self.machine),
            self._starts,
            before_queue(read_dependent(), seen.tickets, self.machine),
            problems,
            self._strays,
        )

    def _look_slowly(self, seen: Snapshot, stopped: set[str]) -> None:
        """Find left-overs, strays and probable starts, anew for other leases or another queue.

        With 100 waiting the starts take 0.15 s.
        """
        ids = {one.id for one in seen.leases} | {one.id for one in seen.tickets}
        if ids == self._looked_at:
            return
        self._looked_at = ids
        self._left_over = left_over_holders(self.table, seen.leases)
        self._strays = find_strays(self.machine.topology, self.machine.outside, seen.leases)
        self._starts = {}
        if seen.tickets:
            from gpulaunch.launch.predict import predicted_starts  # late: often nobody waits

            self._starts = predicted_starts(self.machine, seen, stopped)


def _find_standings(seen: Snapshot) -> dict[str, Standing]:
    """Return container states by lease, without permission errors for leases held by processes."""
    leases = [lease for lease in seen.leases if lease.engine is not None]
    if not leases:
        return {}
    from gpulaunch.containers.standings import standings_of  # late: few leases need it

    found = standings_of(leases)
    return {
        key: standing
        for key, standing in found.items()
        if key in seen.unlocked or not standing.forbidden
    }


def main(arguments: Sequence[str]) -> int:
    """Print the allocation table of one machine."""
    options = _parse(arguments)
    reader = StatusReader(options.topology)
    user = user_name(os.geteuid()) if options.mine else options.user
    document, now = reader.read(), datetime.now(timezone.utc)
    if user is not None:
        document = of_user(document, user)
    if options.json:
        print_json(document)
    elif options.openmetrics:
        print(openmetrics_text(document), end="")
    elif options.gpus:
        draw(gpus_view(document, gpu_places(reader.machine.topology), now, user), sys.stdout)
    else:
        draw(status_table(document, now), sys.stdout)
    return 0


def _parse(arguments: Sequence[str]) -> Namespace:
    options = make_parser().parse_args(arguments)
    if options.json + options.openmetrics + options.gpus > 1:
        raise UsageError("--gpus, --json and --openmetrics do not go together")
    if options.mine and options.user:
        raise UsageError("--mine and --user do not go together")
    return options


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser("gpulaunch status", "Who has which GPUs, since when, doing what.")
    parser.add_argument("--gpus", action="store_true", help="a row for each GPU")
    parser.add_argument("--mine", action="store_true", help="only your jobs")
    parser.add_argument("--user", metavar="NAME", help="only those of one user")
    parser.add_argument(
        "--openmetrics",
        action="store_true",
        help="print metrics, such as for node_exporter's textfile collector",
    )
    add_topology(parser)
    add_json(parser)
    return parser


LOAD_KEYS = (
    "utilization_percentage",
    "memory_utilization_percentage",
    "memory_used_bytes",
    "power_w",
    "power_limit_w",
    "temperature_c",
)
"""What a driver tells of the load of a GPU, in the record Load and in the document."""


def status_document(
    topology: Topology,
    leases: Sequence[Lease],
    outside: "Sequence[OutsideUse]",
    user_name: Callable[[int], str],
    tickets: Sequence[Ticket] = (),
    left_over: Mapping[str, LeftOver] | None = None,
    stopped: Collection[str] = (),
    standings: Mapping[str, Standing] | None = None,
    containers: "Sequence[RunningContainer]" = (),
    health: "Sequence[Health]" = (),
    drained: "Sequence[Drain]" = (),
    load: "Sequence[Load]" = (),
    starts: "Mapping[str, StartRange] | None" = None,
    dependent: "Sequence[PastLaunch]" = (),
    problems: Sequence[FailedError] = (),
    strays: "Sequence[OutsideUse]" = (),
) -> Document:
    """Return the document that `gpulaunch status --json` prints: one machine's whole table.

    Args:
        topology: the machine.
        leases: live leases.
        outside: GPUs in use; a lease explains the use of those under it.
        user_name: returns the login name of a user id.
        tickets: live tickets, in the order of the queue.
        left_over: what still holds a lease whose launcher and job have ended, by lease id.
        stopped: ids of tickets whose launcher is stopped, so that others pass it, and of leases
            whose job is stopped.
        standings: known states of the leases' containers, by lease id.
        containers: running containers that were given GPUs, with a lease or without.
        health: what is known of the GPUs' health.
        drained: marks of GPUs that are out of service.
        load: what the GPUs do at this moment; empty if not asked for, as of a described machine.
        starts: when launches that wait will probably start, by ticket id.
        dependent: launches that wait for the end of others before they queue.
        problems: reasons for which no launch is decided, so that no GPU is free for one.
        strays: use of GPUs by jobs whose leases do not have them.
    """
    used = {use.uuid: use.who for use in outside if use.state == "used"}
    health_of = {one.uuid: one for one in health}
    load_of = {one.uuid: one for one in load}
    barred = {use.uuid for use in outside if use.state == "barred"}
    barred |= {one.uuid for one in health if one.problems}
    marks = _marks_of(topology, drained)
    gpus = []
    for gpu in topology.gpus:
        # A card may have been split into MIG instances while it was leased.
        own = {gpu.uuid, gpu.mig.card_uuid} if gpu.mig else {gpu.uuid}
        holders = [lease for lease in leases if own.intersection(lease.uuids)]
        # The other ranks of a step may not have begun, or have ended.
        holders = holders or [lease for lease in leases if own.intersection(lease.held_from(None))]
        if holders:
            state = "shared" if any(map(_shares, holders)) else "leased"
        elif gpu.uuid in barred:
            state = "barred"
        elif gpu.uuid in marks:
            state = "drained"
        else:
            state = "outside" if gpu.uuid in used else "free"
        known = health_of.get(gpu.uuid)
        gpus.append(
            {
                "index": gpu.index,
                "name": gpu.name,
                "uuid": gpu.uuid,
                "model": gpu.model,
                "free": state == "free" and not problems,
                "state": state,
                "leases": [lease.id for lease in holders],
                "outside": used.get(gpu.uuid) if state == "outside" else None,
                "strays": [
                    {"pid": use.pids[0], "lease": use.stray, "who": use.who}
                    for use in strays
                    if use.uuid == gpu.uuid
                ],
                "drained": _drain_document(marks.get(gpu.uuid), user_name),
                "problems": list(known.problems) if known else [],
                "warnings": list(known.warnings) if known else [],
                **_load_document(load_of.get(gpu.uuid)),
                "memory_total_bytes": gpu.memory_bytes or None,
                "numa_node": gpu.numa_node,
            }
        )
    pace_of: dict[str, float] = {}
    if any(lease.share for lease in leases):
        from gpulaunch.sharing.membership import paces  # late: few machines have jobs that share

        pace_of = paces(topology, leases)
    return {
        "topology": topology.name,
        "problems": [
            printable(": ".join(filter(None, (one.message, one.hint)))) for one in problems
        ],
        "gpus": gpus,
        "leases": [
            _lease_document(
                topology,
                lease,
                pace_of.get(lease.id),
                user_name(lease.user_id),
                _left_over_document(lease, (left_over or {}).get(lease.id), outside),
                (standings or {}).get(lease.id),
                [one.id for one in containers if lease in one.leases_beside(leases)],
                stopped=lease.id in stopped,
            )
            for lease in leases
        ],
        "dependent": [_dependent_document(one, user_name(one.user_id)) for one in dependent],
        "queue": [
            _ticket_document(
                position, ticket, user_name(ticket.user_id), stopped=ticket.id in stopped
            )
            | {"predicted_start": start_document((starts or {}).get(ticket.id))}
            for position, ticket in enumerate(tickets, 1)
        ],
        "containers": [
            _container_document(topology, container, leases)
            for container in containers
            if not any(container.is_of(lease) for lease in leases)
        ],
    }


def of_user(document: Document, user: str) -> Document:
    """Return the document with the leases, tickets and dependent launches of one user."""
    return document | {
        key: [record for record in document[key] if record["user"] == user]
        for key in ("leases", "queue", "dependent")
    }


def _marks_of(topology: Topology, drained: "Sequence[Drain]") -> "dict[str, Drain]":
    if not drained:
        return {}
    from gpulaunch.leases.drain import drains_by_gpu  # late: few machines have a mark

    return drains_by_gpu(topology, drained)


def _load_document(load: "Load | None") -> Document:
    """Return the keys about the load of a GPU, null where it is unknown."""
    return {key: getattr(load, key, None) for key in LOAD_KEYS}


def _drain_document(drain: "Drain | None", user_name: Callable[[int], str]) -> Document | None:
    if drain is None:
        return None
    return {
        "by": user_name(drain.user_id),
        "reason": printable(drain.reason) or None,
        "since": drain.since,
    }


def start_document(start: "StartRange | None") -> Document | None:
    """Return the times between which a launch probably starts; None if that is unknown."""
    if start is None:
        return None
    now_s = time.time()
    return {"from": iso(now_s + start.from_s), "to": iso(now_s + start.to_s)}


def _shares(lease: Lease) -> bool:
    """Return whether others may have the same GPUs, by MPS or by a cluster engine."""
    return lease.share is not None or (lease.engine_job is not None and lease.engine_job.shared)


def _container_document(
    topology: Topology, container: "RunningContainer", leases: Sequence[Lease]
) -> Document:
    """Return the document of a running container that has no live lease."""
    gpus = [gpu for gpu in topology.gpus if gpu.uuid in container.uuids]
    return {
        "id": container.id,
        "name": container.name,
        "engine": container.program,
        "gpus": [gpu.index for gpu in gpus],
        "gpu_names": [gpu.name for gpu in gpus],
        "sees_all": container.traits.sees_all,
        "made_under": container.traits.lease_id,
        "is_here": container.is_here,
        "leases": [lease.id for lease in container.leases_beside(leases)],
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


def _dependent_document(launch: "PastLaunch", user: str) -> Document:
    return {
        "name": launch.name,
        "user": user,
        "gpus": launch.count,
        "since": iso(launch.submitted_s),
        "pid": launch.launcher.pid,
        "after": [printable(name) for name in launch.after],
        "profile": launch.profile,
        "command": [printable(argument) for argument in launch.command],
    }


def _lease_document(
    topology: Topology,
    lease: Lease,
    pace: float | None,
    user: str,
    left_over: Document,
    standing: Standing | None,
    containers_beside: Sequence[str],
    *,
    stopped: bool,
) -> Document:
    container = standing.keeper if standing else None
    index_of = {gpu.uuid: gpu.index for gpu in topology.gpus}
    name_of = {gpu.uuid: gpu.name for gpu in topology.gpus}
    idle_s = idle_since_s(lease)
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
        "guest": lease.share is not None and lease.share.guest,
        "promised_pace": lease.share.promised_pace if lease.share else None,
        "pace": pace,
        "profile": lease.profile,
        "command": [printable(argument) for argument in lease.command],
        "started_at": lease.started_at,
        "time_limit_s": lease.time_limit_s,
        "ends_at": _end_of(lease),
        "idle_since": None if idle_s is None else iso(idle_s),
        "stopped": stopped,
        "container": container.id if container else None,
        "container_name": container.name if container else None,
        "container_state": container.state if container else None,
        "container_problem": standing.problem if standing else None,
        "containers_beside": containers_beside,
        "name": lease.name,
        "parent": lease.ancestors[0] if lease.ancestors else None,
        "assumed": list(lease.assumed),
        "engine_job": _engine_job_document(lease),
        **left_over,
    }


def _end_of(lease: Lease) -> str | None:
    """Return when a lease ends at most by its time limit, or None if it has none."""
    if lease.time_limit_s is None:
        return None
    try:
        began = parse_time(lease.started_at).astimezone(timezone.utc)
        end = began + timedelta(seconds=lease.time_limit_s)
    except (OverflowError, ValueError):  # another user wrote the record
        return None
    return end.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _engine_job_document(lease: Lease) -> Document | None:
    """Return the document of the job of a cluster engine that a lease belongs to."""
    job = lease.engine_job
    if job is None:
        return None
    return {
        "engine": printable(job.engine),
        "id": printable(job.id),
        "rank": job.rank,
        "ranks": job.ranks,
        "shared": job.shared,
    }


def _left_over_document(
    lease: Lease, left_over: LeftOver | None, outside: "Sequence[OutsideUse]"
) -> Document:
    """Return the keys about left-over processes; whether they use GPUs is known on real ones."""
    used: bool | None = None
    if left_over and lease.table is None:
        uses = [use for use in outside if use.uuid in lease.uuids]
        used = None if any(use.lost for use in uses) else bool(uses)
    return {
        "left_over_pids": left_over.pids if left_over else None,
        "left_over_since": left_over.since if left_over else None,
        "left_over_uses_gpus": used,
    }


Labels = Mapping[str, str]


_STATES = ("free", "leased", "shared", "outside", "drained", "barred")
_OF_GPUS = {  # key of a GPU in the document: metric, factor, unit, description
    "utilization_percentage": (
        *("gpu_utilization_ratio", 0.01, "ratio"),
        "Part of the last moment in which a kernel ran.",
    ),
    "memory_utilization_percentage": (
        *("gpu_memory_utilization_ratio", 0.01, "ratio"),
        "Part of it in which memory was read or written.",
    ),
    "memory_used_bytes": ("gpu_memory_used_bytes", 1, "bytes", "Memory in use."),
    "memory_total_bytes": ("gpu_memory_total_bytes", 1, "bytes", "All memory."),
    "power_w": ("gpu_power_watts", 1, "watts", "Power drawn now."),
    "power_limit_w": ("gpu_power_limit_watts", 1, "watts", "Power that may be drawn."),
    "temperature_c": ("gpu_temperature_celsius", 1, "celsius", "Temperature."),
}


def openmetrics_text(document: Document) -> str:
    """Return the metrics of a machine; what is unknown is left out."""
    return "\n".join([*_lines(document), "# EOF", ""])


def _lines(document: Document) -> Iterator[str]:
    queue, where = document["queue"], {"topology": document["topology"]}
    gpus = [(_gpu_labels(gpu, where), gpu) for gpu in document["gpus"]]
    leases = [(_lease_labels(lease, where), lease) for lease in document["leases"]]
    counts = Counter(gpu["state"] for _, gpu in gpus)
    states = [({**where, "state": state}, counts[state]) for state in _STATES]
    yield from _metric("gpus", "", "GPUs of the machine by state.", states)
    problems = [(where, len(document["problems"]))]
    yield from _metric("problems", "", "Reasons why no launch gets a GPU now.", problems)
    healthy = [(labels, int(not gpu["problems"])) for labels, gpu in gpus]
    yield from _metric("gpu_healthy", "", "1 if nothing bars the GPU.", healthy)
    for key, (name, factor, unit, text) in _OF_GPUS.items():
        known = [(labels, gpu[key] * factor) for labels, gpu in gpus if gpu[key] is not None]
        yield from _metric(name, unit, text, known)
    yield from _metric("queue_requests", "", "Launches that wait.", [(where, len(queue))])
    wanted = [(where, sum(ticket["gpus"] for ticket in queue))]
    yield from _metric("queue_gpus", "", "GPUs that they ask for.", wanted)
    sizes = [(labels, len(lease["uuids"])) for labels, lease in leases]
    yield from _metric("lease_gpus", "", "GPUs of a lease.", sizes)
    starts = [(labels, _unix_time(lease["started_at"])) for labels, lease in leases]
    text = "Start of a lease, Unix time."
    yield from _metric("lease_start_time_seconds", "seconds", text, starts)
    limits = [(labels, lease["time_limit_s"]) for labels, lease in leases]
    text = "Longest time of a lease."
    yield from _metric("lease_time_limit_seconds", "seconds", text, limits)
    stopped = [(labels, int(lease["stopped"])) for labels, lease in leases]
    yield from _metric("lease_stopped", "", "1 if the job of a lease is stopped.", stopped)
    held = [
        ({**labels, "lease": lease["id"], "user": lease["user"]}, 1)
        for labels, gpu in gpus
        for _, lease in leases
        if lease["id"] in gpu["leases"]
    ]
    yield from _metric("gpu_lease", "", "1 for each GPU that a lease has.", held)


def _metric(
    name: str, unit: str, text: str, samples: Sequence[tuple[Labels, float | None]]
) -> Iterator[str]:
    """Yield the lines of one metric; none if none of its samples is known."""
    known = [(labels, value) for labels, value in samples if value is not None]
    if not known:
        return
    full = f"gpulaunch_{name}"
    yield f"# TYPE {full} gauge"
    if unit:
        yield f"# UNIT {full} {unit}"
    yield f"# HELP {full} {_escaped(text)}"
    for labels, value in known:
        inside = ",".join(f'{key}="{_escaped(label)}"' for key, label in labels.items())
        yield f"{full}{{{inside}}} {value:.10g}"


def _gpu_labels(gpu: Document, where: Labels) -> Labels:
    return {**where, "gpu": gpu["name"], "uuid": gpu["uuid"], "model": gpu["model"]}


def _lease_labels(lease: Document, where: Labels) -> Labels:
    return {
        **where,
        "lease": lease["id"],
        "user": lease["user"],
        "profile": lease["profile"] or "",
        "job": lease["name"] or shlex.join(lease["command"]),
    }


def _unix_time(text: str) -> float | None:
    try:
        return parse_time(text).timestamp()
    except ValueError:  # another user wrote the record
        return None


def _escaped(text: str) -> str:
    """Escape text for a label or a help line, without bytes that are no UTF-8."""
    text = text.encode(errors="backslashreplace").decode()
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
