"""`gpulaunch status`: who has which GPUs, since when, doing what; as a table, JSON or metrics."""

import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from gpulaunch.cli.arguments import Parser, add_json, add_topology
from gpulaunch.cli.output import Document, print_json, warn
from gpulaunch.errors import FailedError, UsageError, printable
from gpulaunch.history.past_launch import PastLaunch
from gpulaunch.history.read import read_dependent
from gpulaunch.launch.past import before_queue
from gpulaunch.launch.surroundings import find_strays, read_containers, read_shown, with_containers
from gpulaunch.leases.directory import Drain, drains_by_gpu
from gpulaunch.leases.holders import LeftOver, idle_since_s, left_over_holders
from gpulaunch.leases.lease import Lease, Ticket
from gpulaunch.leases.table import Snapshot
from gpulaunch.machine.driver import Health, Load, OutsideUse
from gpulaunch.machine.find import Machine, ask_apart, look_again, read_health, read_load
from gpulaunch.machine.gpu import Gpu
from gpulaunch.process.system import is_stopped, iso, parse_time, user_name
from gpulaunch.records import as_dict

if TYPE_CHECKING:
    from gpulaunch.containers.held_leases import Standing
    from gpulaunch.containers.in_use import RunningContainer
    from gpulaunch.history.forecast import StartRange

_SLOW_S = 5.0
"""Time between two looks at what costs more, such as health, use outside and containers."""


def main(arguments: Sequence[str]) -> int:
    """Print the allocation table of one machine."""
    options = make_parser().parse_args(arguments)
    if options.json + options.openmetrics + options.gpus > 1:
        raise UsageError("--gpus, --json and --openmetrics do not go together")
    if options.mine and options.user:
        raise UsageError("--mine and --user do not go together")
    user = user_name(os.geteuid()) if options.mine else options.user
    document, now = StatusReader(options.topology).read(), datetime.now(timezone.utc)
    if user is not None:
        document = of_user(document, user)
    if options.json:
        print_json(document)
    elif options.openmetrics:
        print(openmetrics_text(document), end="")
    else:
        from gpulaunch.cli.screen import Parts, Text, draw  # late: rich takes 25 ms
        from gpulaunch.cli.status_table import gpus_view, status_table, title_of

        title = Text(title_of(document), "bold")
        view = gpus_view(document, now, user) if options.gpus else status_table(document, now)
        draw(Parts(title, *view), sys.stdout)
    return 0


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


class Status:
    """A machine with its table, and what else is known of it; what is unknown is empty.

    The keys of mappings are ids of leases or, for `starts`, of tickets. `stopped` has the ids of
    leases whose job is stopped, and of tickets whose launcher is, so that others pass it.
    """

    def __init__(self, machine: Machine, seen: Snapshot) -> None:
        self.machine, self.seen = machine, seen
        self.problems: list[FailedError] = []
        self.stopped: set[str] = set()
        self.left_over: dict[str, LeftOver] = {}
        self.standings: dict[str, Standing] = {}
        self.containers: Sequence[RunningContainer] = ()
        self.health: Sequence[Health] = ()
        self.load: Sequence[Load] = ()
        self.strays: Sequence[OutsideUse] = ()
        self.starts: dict[str, StartRange] = {}
        self.dependent: Sequence[PastLaunch] = ()

    def document(self) -> Document:
        """Return the document that `gpulaunch status --json` prints: one machine's whole table.

        As long as there are problems, no launch is decided, so no GPU is free for one.
        """
        topology, leases = self.machine.topology, self.seen.leases
        mark_of, pace_of = drains_by_gpu(topology, self.seen.drained), {}
        if any(lease.share for lease in leases):
            from gpulaunch.sharing.membership import paces  # late: few leases are shared

            pace_of = paces(topology, leases)
        return {
            "topology": topology.name,
            "problems": [
                printable(": ".join(filter(None, (one.message, one.hint)))) for one in self.problems
            ],
            "gpus": [self._gpu(gpu, mark_of.get(gpu.uuid)) for gpu in topology.gpus],
            "leases": [self._lease(lease, pace_of.get(lease.id)) for lease in leases],
            "dependent": [_dependent_document(launch) for launch in self.dependent],
            "queue": [
                self._ticket(ticket, position)
                for position, ticket in enumerate(self.seen.tickets, 1)
            ],
            "containers": [
                self._container(container)
                for container in self.containers
                if not any(map(container.is_of, leases))
            ],
        }

    def _gpu(self, gpu: Gpu, mark: Drain | None) -> Document:
        holders = _holders_of(gpu, self.seen.leases)
        known = next((one for one in self.health if one.uuid == gpu.uuid), Health(gpu.uuid))
        uses = [use for use in self.machine.outside if use.uuid == gpu.uuid]
        used = [use.who for use in uses if use.state == "used"]
        if holders:  # with others, by MPS or by a cluster engine
            shares = [one.share or (one.engine_job and one.engine_job.shared) for one in holders]
            state = "shared" if any(shares) else "leased"
        elif known.problems or any(use.state == "barred" for use in uses):
            state = "barred"
        elif mark:
            state = "drained"
        else:
            state = "outside" if used else "free"
        return {
            "index": gpu.index,
            "name": gpu.name,
            "uuid": gpu.uuid,
            "model": gpu.model,
            "free": state == "free" and not self.problems,
            "state": state,
            "leases": [lease.id for lease in holders],
            "outside": used[-1] if state == "outside" else None,
            "strays": [
                {"pid": use.pids[0], "lease": use.stray, "who": use.who}
                for use in self.strays
                if use.uuid == gpu.uuid
            ],
            "drained": {
                "by": user_name(mark.user_id),
                "reason": printable(mark.reason) or None,
                "since": mark.since,
            }
            if mark
            else None,
            "problems": list(known.problems),
            "warnings": list(known.warnings),
            **as_dict(next((one for one in self.load if one.uuid == gpu.uuid), Load(gpu.uuid))),
            "memory_total_bytes": gpu.memory_bytes or None,
            "numa_node": gpu.numa_node,
        }

    def _lease(self, lease: Lease, pace: float | None) -> Document:
        share, job, standing = lease.share, lease.engine_job, self.standings.get(lease.id)
        container = standing.container if standing else None
        gpu_of = {gpu.uuid: gpu for gpu in self.machine.topology.gpus}
        gpus = [gpu_of.get(uuid) for uuid in lease.uuids]
        idle_s = idle_since_s(lease)
        beside = [one.id for one in self.containers if lease in one.leases_beside(self.seen.leases)]
        return {
            "id": lease.id,
            "user": user_name(lease.user_id),
            "pid": lease.launcher.pid,
            "job_pid": lease.job.pid,
            "gpus": [gpu and gpu.index for gpu in gpus],
            "gpu_names": [gpu and gpu.name for gpu in gpus],
            "uuids": list(lease.uuids),
            "shared": share is not None,
            "sm_percentage": share.sm_percentage if share else None,
            "share_memory_bytes": share.client.demand.memory_bytes if share else None,
            "guest": share is not None and share.guest,
            "promised_pace": share.promised_pace if share else None,
            "pace": pace,
            "profile": lease.profile,
            "command": [printable(argument) for argument in lease.command],
            "started_at": lease.started_at,
            "time_limit_s": lease.time_limit_s,
            "ends_at": _end_of(lease),
            "idle_since": None if idle_s is None else iso(idle_s),
            "stopped": lease.id in self.stopped,
            "container": container.id if container else None,
            "container_name": container.name if container else None,
            "container_state": container.state if container else None,
            "container_problem": standing.problem if standing else None,
            "containers_beside": beside,
            "name": lease.name,
            "parent": lease.ancestors[0] if lease.ancestors else None,
            "assumed": list(lease.assumed),
            "engine_job": {
                "engine": printable(job.engine),
                "id": printable(job.id),
                "rank": job.rank,
                "ranks": job.ranks,
                "shared": job.shared,
            }
            if job
            else None,
            **self._left_over_keys(lease),
        }

    def _left_over_keys(self, lease: Lease) -> Document:
        """Return the keys on left-over processes; whether they use GPUs is known on real ones."""
        left_over = self.left_over.get(lease.id)
        used: bool | None = None
        if left_over and lease.table is None:
            uses = [use for use in self.machine.outside if use.uuid in lease.uuids]
            used = None if any(use.lost for use in uses) else bool(uses)
        return {
            "left_over_pids": left_over.pids if left_over else None,
            "left_over_since": left_over.since if left_over else None,
            "left_over_uses_gpus": used,
        }

    def _ticket(self, ticket: Ticket, position: int) -> Document:
        return {
            "id": ticket.id,
            "user": user_name(ticket.user_id),
            "gpus": ticket.gpus,
            "since": ticket.since,
            "position": position,
            "pid": ticket.launcher.pid,
            "profile": ticket.profile,
            "command": [printable(argument) for argument in ticket.command],
            "name": ticket.name,
            "within": ticket.within,
            "stopped": ticket.id in self.stopped,
            "choosy": ticket.choosy,
            "predicted_start": start_document(self.starts.get(ticket.id)),
        }

    def _container(self, container: "RunningContainer") -> Document:
        """Return the document of a running container that has no live lease."""
        gpus = [gpu for gpu in self.machine.topology.gpus if gpu.uuid in container.uuids]
        return {
            "id": container.id,
            "name": container.name,
            "engine": container.program,
            "gpus": [gpu.index for gpu in gpus],
            "gpu_names": [gpu.name for gpu in gpus],
            "sees_all": "all" in container.names,
            "made_under": container.lease_id,
            "is_here": container.is_here,
            "leases": [lease.id for lease in container.leases_beside(self.seen.leases)],
        }


def _holders_of(gpu: Gpu, leases: Sequence[Lease]) -> list[Lease]:
    # A card may have been split into MIG instances while it was leased.
    own = {gpu.uuid, gpu.mig.card_uuid} if gpu.mig else {gpu.uuid}
    holders = [lease for lease in leases if own.intersection(lease.uuids)]
    # The other ranks of a step may not have begun, or have ended.
    return holders or [lease for lease in leases if own.intersection(lease.held_from(None))]


def _end_of(lease: Lease) -> str | None:
    """Return when a lease ends at most by its time limit, or None if it has none."""
    if lease.time_limit_s is None:
        return None
    try:
        end = parse_time(lease.started_at) + timedelta(seconds=lease.time_limit_s)
        return iso(end.timestamp())
    except (OverflowError, ValueError):  # another user wrote the record
        return None


def _dependent_document(launch: PastLaunch) -> Document:
    return {
        "name": launch.name,
        "user": user_name(launch.user_id),
        "gpus": launch.count,
        "since": iso(launch.submitted_s),
        "pid": launch.launcher.pid,
        "after": [printable(name) for name in launch.after],
        "profile": launch.profile,
        "command": [printable(argument) for argument in launch.command],
    }


def start_document(start: "StartRange | None") -> Document | None:
    """Return the times between which a launch probably starts; None if that is unknown."""
    if start is None:
        return None
    now_s = time.time()
    return {"from": iso(now_s + start.from_s), "to": iso(now_s + start.to_s)}


def of_user(document: Document, user: str) -> Document:
    """Return the document with the leases, tickets and dependent launches of one user."""
    own = {}
    for key in ("leases", "queue", "dependent"):
        own[key] = [record for record in document[key] if record["user"] == user]
    return document | own


class StatusReader(Status):
    """The status of the machine that --topology or the settings name, read again and again."""

    def __init__(self, topology: str | None) -> None:
        ask_apart()
        shown, self._table = read_shown(topology, warn)
        super().__init__(shown.machine, Snapshot([], []))
        self.containers = shown.containers
        self._read_s = time.monotonic()
        self._looked_at: set[str] | None = None

    def read(self) -> Document:
        """Return the document of this moment.

        Raises:
            FailedError: the driver fails.
        """
        if time.monotonic() - self._read_s > _SLOW_S:
            self.containers = read_containers(self.machine)
            self.machine = with_containers(look_again(self.machine), self.containers)
            self._read_s = time.monotonic()
            self._looked_at = None
        self.problems = []
        self.seen = seen = self._table.peek(problems=self.problems).of(self.machine)
        self.stopped = {one.id for one in seen.tickets if is_stopped(one.launcher)}
        self.stopped |= {lease.id for lease in seen.leases if is_stopped(lease.job)}
        ids = {lease.id for lease in seen.leases} | {ticket.id for ticket in seen.tickets}
        if ids != self._looked_at:
            self._look_slowly()
            self._looked_at = ids
        self.standings = _find_standings(seen)
        self.load = read_load(self.machine)
        self.dependent = before_queue(read_dependent(), seen.tickets, self.machine)
        return self.document()

    def _look_slowly(self) -> None:
        """Look at what need not be new for the same records: with 100 waiting it takes 0.15 s."""
        self.health = read_health(self.machine)
        self.left_over = left_over_holders(self._table, self.seen.leases)
        self.strays = find_strays(self.machine.topology, self.machine.outside, self.seen.leases)
        self.starts = {}
        if self.seen.tickets:
            from gpulaunch.history.predict import predicted_starts  # late: often nobody waits

            self.starts = predicted_starts(self.machine, self.seen, self.stopped)


def _find_standings(seen: Snapshot) -> "dict[str, Standing]":
    """Return container states by lease, without permission errors for leases held by processes."""
    leases = [lease for lease in seen.leases if lease.engine is not None]
    if not leases:
        return {}
    from gpulaunch.containers.held_leases import standings_of  # late: few leases need it

    standings = standings_of(leases)
    for lease in leases:
        if standings[lease.id].forbidden and lease.id not in seen.unlocked:
            del standings[lease.id]
    return standings


# Metrics in OpenMetrics 1.0 (https://prometheus.io/docs/specs/om/open_metrics_spec/)

_STATES = ("free", "leased", "shared", "outside", "drained", "barred")
_OF_GPUS = {  # metric: key of a GPU in the document, factor, what it tells
    "gpu_utilization_ratio": (
        *("utilization_percentage", 0.01),
        "Part of the last moment in which a kernel ran.",
    ),
    "gpu_memory_utilization_ratio": (
        *("memory_utilization_percentage", 0.01),
        "Part of it in which memory was read or written.",
    ),
    "gpu_memory_used_bytes": ("memory_used_bytes", 1, "Memory in use."),
    "gpu_memory_total_bytes": ("memory_total_bytes", 1, "All memory."),
    "gpu_power_watts": ("power_w", 1, "Power drawn now."),
    "gpu_power_limit_watts": ("power_limit_w", 1, "Power that may be drawn."),
    "gpu_temperature_celsius": ("temperature_c", 1, "Temperature."),
}


def openmetrics_text(document: Document) -> str:
    """Return the metrics of a machine; what is unknown is left out."""
    families: dict[str, list[str]] = {}

    def add(name: str, about: str, value: float | None, **labels: str) -> None:
        if value is None:
            return
        if name not in families:
            families[name] = [f"# TYPE gpulaunch_{name} gauge", f"# HELP gpulaunch_{name} {about}"]
        labels = {"topology": document["topology"], **labels}
        inside = ",".join(f'{key}="{_escaped(label)}"' for key, label in labels.items())
        families[name].append(f"gpulaunch_{name}{{{inside}}} {value:.10g}")

    counts = Counter(gpu["state"] for gpu in document["gpus"])
    for state in _STATES:
        add("gpus", "GPUs of the machine by state.", counts[state], state=state)
    add("problems", "Reasons why no launch gets a GPU now.", len(document["problems"]))
    for gpu in document["gpus"]:
        labels = {"gpu": gpu["name"], "uuid": gpu["uuid"], "model": gpu["model"]}
        add("gpu_healthy", "1 if nothing bars the GPU.", int(not gpu["problems"]), **labels)
        for name, (key, factor, about) in _OF_GPUS.items():
            add(name, about, None if gpu[key] is None else gpu[key] * factor, **labels)
        for lease in document["leases"]:
            if lease["id"] in gpu["leases"]:
                about = "1 for each GPU that a lease has."
                add("gpu_lease", about, 1, **labels, lease=lease["id"], user=lease["user"])
    waiting = document["queue"]
    add("queue_requests", "Launches that wait.", len(waiting))
    add("queue_gpus", "GPUs that they ask for.", sum(ticket["gpus"] for ticket in waiting))
    for lease in document["leases"]:
        labels = {"lease": lease["id"], "user": lease["user"], "profile": lease["profile"] or ""}
        labels["job"] = lease["name"] or shlex.join(lease["command"])
        add("lease_gpus", "GPUs of a lease.", len(lease["uuids"]), **labels)
        with suppress(ValueError):  # another user wrote the record
            start_s = parse_time(lease["started_at"]).timestamp()
            add("lease_start_time_seconds", "Start of a lease, Unix time.", start_s, **labels)
        limit_s = lease["time_limit_s"]
        add("lease_time_limit_seconds", "Longest time of a lease.", limit_s, **labels)
        stopped = int(lease["stopped"])
        add("lease_stopped", "1 if the job of a lease is stopped.", stopped, **labels)
    lines = [line for family in families.values() for line in family]
    return "\n".join([*lines, "# EOF", ""])


def _escaped(text: str) -> str:
    """Escape a label, also bytes of it that are no UTF-8."""
    text = text.encode(errors="backslashreplace").decode()
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
