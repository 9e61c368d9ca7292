"""Values -> rich tables for a terminal. Colour adds to the words and never replaces them."""

import shlex
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Literal, TextIO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpulaunch.core.decide import Decision, Grant
from gpulaunch.core.duration import format_duration
from gpulaunch.core.explain import Explanation
from gpulaunch.core.hardware.cpuset import format_cpuset
from gpulaunch.core.hardware.naming import gpus_named
from gpulaunch.core.placement.measurement import Comparison, kinds, model_errors
from gpulaunch.core.placement.scores import Scores
from gpulaunch.core.request import Request
from gpulaunch.core.size import format_size
from gpulaunch.core.workload.profile import Profile
from gpulaunch.errors import printable
from gpulaunch.render.documents import Document, age

if TYPE_CHECKING:
    from gpulaunch.core.hardware.gpu import Gpu
    from gpulaunch.core.sharing.joining import Joining

_UNCUT = 4096  # columns: a pipe has no edge to fit to


def draw(table: RenderableType, stream: TextIO | None, *, fit: bool = True) -> None:
    """Write a table to a terminal, as wide as that is and in its colours, or uncut and plain to anything else.

    Args:
        table: what the functions below return.
        stream: None draws nothing.
        fit: cut to the terminal's width; else the terminal wraps what is too long.
    """
    if stream is not None:
        Console(file=stream, highlight=False, markup=False, width=None if fit and stream.isatty() else _UNCUT).print(
            table
        )


def _table(*columns: str, right: Sequence[str] = ()) -> Table:
    """A table whose last column alone gives way when the terminal is narrow."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in right else "left"
        table.add_column(column, justify=justify, no_wrap=column != columns[-1], overflow="fold")
    return table


def _cut(text: str) -> Text:
    """A cell of the last column: one line, cut where the terminal ends."""
    return Text(printable(text), no_wrap=True, overflow="ellipsis")


def status_table(document: Document, now: datetime) -> Group:
    """Who has what, since when, doing what.

    Args:
        document: from status_document.
        now: aware; durations are counted up to it.
    """
    gpus = document["gpus"]
    free = [gpu for gpu in gpus if gpu["free"]]
    lines: list[Table | Text] = []
    if document["leases"]:
        shares = ["share"] if any(lease["shared"] for lease in document["leases"]) else []
        table = _table("GPUs", *shares, "user", "since", "lease", "profile", "command", right=("since",))
        for lease in document["leases"]:
            held, *others = _lease_cells(lease, now)
            table.add_row(held, *([_share_cell(lease)] if shares else []), *others)
        lines += [table, Text()]
        lines += [
            Text(
                f"lease {lease['id']} is held by a left-over process of a job that has ended (pid "
                f"{', '.join(map(str, lease['left_over_pids']))}): 'gpulaunch free {lease['id']}' ends it",
                "yellow",
            )
            for lease in document["leases"]
            if lease["left_over_pids"]
        ]
        notes = [Text(note, "yellow") for lease in document["leases"] if (note := _container_note(lease))]
        lines += [*notes, Text()] if notes else []
    if document["queue"]:
        table = _table("waiting", "GPUs", "user", "since", "ticket", "profile", "command", right=("waiting", "since"))
        for ticket in document["queue"]:
            table.add_row(str(ticket["position"]), str(ticket["gpus"]), *_ticket_cells(ticket, now))
        lines += [table, Text()]
    lines += [
        Text(f"GPU {gpu['name']} is in use outside gpulaunch: {printable(gpu['outside'])}", "red")
        for gpu in gpus
        if gpu["state"] == "outside"
    ]
    lines.append(Text(f"free: {_names(free) or 'none'}", "green" if free else "yellow"))
    title = f"{document['topology']}: {len(free)} of {len(gpus)} GPUs free"
    models = {gpu["model"] for gpu in gpus}
    return Group(Text(f"{title} ({', '.join(map(printable, sorted(models)))})", "bold"), *lines)


def _container_note(lease: Document) -> str:
    """Why a lease stays whose container does not run, or cannot be asked about."""
    if lease["container_problem"]:
        return f"lease {lease['id']} stays until its engine tells of its container: {lease['container_problem']}"
    if lease["container_state"] in (None, "running"):
        return ""
    note = f"lease {lease['id']} stays: container {printable(lease['container_name'])} "
    if lease["container_state"] == "exited":
        return f"{note}has ended, and its restart policy may start it: 'gpulaunch free {lease['id']}' ends that"
    if lease["container_state"] == "created":
        return f"{note}is made, and not started yet"
    return f"{note}is {printable(lease['container_state'])}"


def _names(gpus: Sequence[Document]) -> str:
    """Ranges of whole GPUs, then MIG instances."""
    whole = frozenset(gpu["index"] for gpu in gpus if gpu["name"] == str(gpu["index"]))
    return ",".join(filter(None, [format_cpuset(whole), *(gpu["name"] for gpu in gpus if gpu["index"] not in whole)]))


def _lease_cells(lease: Document, now: datetime) -> list[str | Text]:
    profile = printable(lease["profile"] or "")
    if lease["assumed"] and len(lease["gpus"]) > 1:  # a GPU alone has no traffic that could be assumed
        profile = f"{profile} (assumed)" if profile else "assumed"
    gpus = ",".join("?" if name is None else name for name in lease["gpu_names"])
    inside = f"in {lease['parent']}: " if lease["parent"] else ""
    inside += f"container {lease['container_name']}: " if lease["container_name"] else ""
    since = age(lease["started_at"], now)
    return [gpus, printable(lease["user"]), since, lease["id"], Text(profile), _cut(inside + _doing(lease))]


def _share_cell(lease: Document) -> str:
    if not lease["shared"]:
        return "all"
    return f"{lease['sm_percentage']} %, {format_size(lease['share_memory_bytes'])}"


def _ticket_cells(ticket: Document, now: datetime) -> list[str | Text]:
    stopped = "stopped, so others pass: " if ticket["stopped"] else "choosy, so others may pass: " * ticket["choosy"]
    since = age(ticket["since"], now)
    profile = printable(ticket["profile"] or "")
    return [printable(ticket["user"]), since, ticket["id"], Text(profile), _cut(stopped + _doing(ticket))]


def _doing(record: Document) -> str:
    return record["name"] or " ".join(map(_quoted, record["command"]))


def _quoted(argument: str) -> str:
    return argument if argument.isalnum() else shlex.quote(argument)


def findings_table(findings: Sequence[Document]) -> Table:
    """What `gpulaunch doctor` found."""
    colours = {"ok": "green", "warning": "yellow", "problem": "red"}
    table = _table("", "part", "found")
    for finding in findings:
        state = Text(finding["state"], colours[finding["state"]])
        hint = f"\n{printable(finding['hint'])}" if finding["hint"] else ""
        table.add_row(state, finding["subject"], Text(printable(finding["text"])).append(hint, "dim"))
    return table


def explanation_table(request: Request, decision: Decision, explanation: Explanation) -> Group:
    """Who was left out, the best candidates with their scores, why the winner won or what would work instead."""
    parts: list[Table | Text] = []
    if explanation.excluded:
        table = _table("left out", "because")
        for why, gpus in _by_reason(explanation).items():
            table.add_row(gpus, _cut(why))
        parts += [table, Text()]
    parts += _sharing_parts(request, decision, explanation)
    if isinstance(decision, Grant):
        parts += _grant_parts(request, decision, explanation)
    else:
        parts += _alternative_parts(request, explanation)
    return Group(*parts)


def _sharing_parts(request: Request, decision: Decision, explanation: Explanation) -> list[Table | Text]:
    """The share groups that there are, what all would use together there, and whether the job may come."""
    if request.sharing is None:
        return []
    columns = ("SM %", "BW %", "memory")
    table = _table("", "GPUs", *columns, "verdict on all together", right=columns)
    chosen = decision.joining if isinstance(decision, Grant) else None
    for joining, gpus in explanation.sharing:
        sums, mark = joining.verdict.sums, ">" if joining == chosen else ""
        figures = (_figure(sums.sm_percentage), _figure(sums.memory_bandwidth_percentage))
        table.add_row(mark, gpus, *figures, format_size(sums.memory_bytes), _verdict(joining))
    parts: list[Table | Text] = [Text(f"sharing for {request.sharing.client.objective.name}", "bold"), table]
    if isinstance(decision, Grant) and decision.own_because:
        parts.append(Text(f"not shared: {printable(decision.own_because)}", "yellow"))
    if chosen and chosen.part:
        optimum = " / ".join(f"{percentage} %" for percentage in chosen.part.optimum.sm_percentages)
        given = request.sharing.sm_percentage
        percentage = f"{given} % of the SMs, as asked for" if given else f"{chosen.part.sm_percentage} % of the SMs"
        parts.append(Text(f"{percentage}: {chosen.part.reason}"))
        parts.append(Text(f"best for all together would be {optimum}: {chosen.part.optimum.reason}", "dim"))
    if chosen and chosen.prediction:
        stp, antt = chosen.prediction
        parts.append(Text(f"predicted by their curves: STP {stp:.3g}, ANTT {antt:.3g}", "dim"))
    return [*parts, Text()]


def _verdict(joining: "Joining") -> Text:
    """Whether the job may come, and who is there."""
    verdict = Text(printable(joining.problem or "may come"), "red" if joining.problem else "green")
    for note in () if joining.problem else joining.verdict.notes:
        verdict.append(f"; {note}", "yellow")
    for lease in joining.residents:
        percentage = f", {lease.share.sm_percentage} % of the SMs" if lease.share else ""
        job = lease.name or lease.profile or lease.command[0]
        verdict.append(f"\nbeside {printable(job)} ({lease.id}){percentage}", "dim")
    return verdict


def _by_reason(explanation: Explanation) -> dict[str, str]:
    """The GPUs that were left out, as people name them, by the reason that they share."""
    reasons: dict[str, list[Gpu]] = {}
    for left_out in explanation.excluded:
        reasons.setdefault(left_out.why, []).append(left_out.gpu)
    return {why: gpus_named(gpus) for why, gpus in reasons.items()}


def _grant_parts(request: Request, grant: Grant, explanation: Explanation) -> list[Table | Text]:
    columns = ("effective", "preserved", "aggregate", "fragmentation", "cost")
    table = _table("", *columns, "GPUs", right=columns)
    choice = grant.choice
    for place, candidate in enumerate(explanation.candidates):
        style = "bold green" if place == 0 else ""
        gpus = _cut(choice.set_named(candidate.gpus))
        table.add_row(">" if place == 0 else "", *_score_cells(candidate.scores), gpus, style=style)
    assumed = f"; assumed: {', '.join(request.assumed).replace('_', ' ')}" if request.assumed else ""
    sensitive = "bandwidth-sensitive" if choice.sensitive else "not bandwidth-sensitive"
    pattern = request.pattern.name if request.pattern.ranks else request.pattern.name.replace("_", "-")
    return [
        Text(f"{_candidates(grant)}, bandwidths in GB/s", "bold"),
        table,
        Text(explanation.reason),
        *_idle_part(explanation),
        Text(
            f"policy {request.policy.replace('_', '-')}, bandwidth model {request.bandwidth_model}, pattern"
            f" {printable(pattern)}, {sensitive}{assumed}; in rank order: {choice.named(grant.placement.gpus)}",
            "dim",
        ),
    ]


def _idle_part(explanation: Explanation) -> list[Text]:
    idle = explanation.if_idle
    if idle is None:
        return []
    gpus = ",".join(map(str, idle.gpus))
    return [
        Text(
            f"the idle machine would give {gpus} with {_figure(idle.effective_bandwidth)} GB/s:"
            f" {idle.instead} waits for as much",
            "yellow",
        )
    ]


def _alternative_parts(request: Request, explanation: Explanation) -> list[Table | Text]:
    if not explanation.alternatives:
        return [Text("nothing that asks for less would be granted now", "dim")]
    table = _table("instead", "effective, GB/s", "GPUs", right=("effective, GB/s",))
    for alternative in explanation.alternatives:
        gpus = ",".join(map(str, alternative.gpus))
        found, least = alternative.effective_bandwidth, request.wishes.least_gb_per_s
        figure = f"{_figure(found)} of {least:g}" if least and found is not None else _figure(found)
        table.add_row(printable(alternative.instead), figure, _cut(gpus))
    return [Text("what would be granted now:", "bold"), table]


def _candidates(grant: Grant) -> str:
    count = grant.placement.candidates
    if count == 1:
        return "1 candidate"
    compared = grant.placement.by and not grant.placement.made
    return f"{count} candidates, {'best' if compared else 'what the policy takes'} first"


def _score_cells(scores: Scores) -> list[str]:
    bandwidths = (scores.effective_bandwidth, scores.preserved_bandwidth, scores.aggregate_bandwidth)
    return [*map(_figure, bandwidths), f"{scores.fragmentation:.2f}", str(scores.communication_cost)]


def measurement_table(comparisons: Sequence[Comparison]) -> Group:
    """Every measured set beside what the models say, and how far those are off."""
    columns = ("measured", "cut", "Eq. 2", "refit")
    table = _table("GPUs", *columns, "links of its best ring", right=columns)
    for entry in comparisons:
        figures = (entry.figure.all_reduce_gb_per_s, entry.cut, entry.mapa, entry.refit)
        gpus = ",".join(map(str, entry.figure.sample.gpus))
        table.add_row(gpus, *map(_figure, figures), kinds(entry.figure.sample))
    errors = model_errors(comparisons)
    off = ", ".join(f"{_MODELS[name]} {error:.3g}" for name, error in errors.items() if error is not None)
    lines = [Text(f"all-reduce bus bandwidth, GB/s; root mean square difference: {off}", "dim")]
    if errors["refit"] is None:
        lines.append(Text("without numpy Eq. 2 is not fitted to this machine: pip install numpy", "dim"))
    else:
        sets = "1 set" if len(comparisons) == 1 else f"{len(comparisons)} sets"
        lines.append(Text(f"refit: the 14 coefficients of Eq. 2 by least squares over these {sets}", "dim"))
    return Group(table, *lines)


_MODELS = {"cut": "cut", "mapa": "Eq. 2 as published", "refit": "Eq. 2 refitted"}


def profiles_table(profiles: Sequence[Profile]) -> Group:
    """All profiles, a line each."""
    table = _table(
        *("name", "pattern", "sensitive", "memory", "SM %", "BW %", "description"),
        right=("memory", "SM %", "BW %"),
    )
    for profile in profiles:
        table.add_row(
            printable(profile.name),
            (profile.pattern or "-").replace("_", "-"),
            {True: "yes", False: "no", None: "-"}[profile.bandwidth_sensitive],
            format_size(profile.memory_bytes) if profile.memory_bytes else "-",
            _figure(profile.sm_utilization_percentage),
            _figure(profile.memory_bandwidth_utilization_percentage),
            _cut(profile.description),
        )
    return Group(table)


def profile_table(profile: Profile, path: str) -> Group:
    """One profile, a line for each thing known."""
    table = _table("what", "value")
    beside = ", ".join(f"{slowdown * 100:g} % beside {other}" for other, slowdown in profile.slowdowns)
    places = {name: "yes" for name in ("single_node", "one_per_node") if getattr(profile, name)}
    known = {**profile._asdict(), "single_node": None, "one_per_node": None, **places, "slowdowns": beside or None}
    known["sm_curve"] = ", ".join(f"{p.sm_percentage:g} %: {p.throughput:g}" for p in profile.sm_curve) or None
    known["counters"] = _counters(profile)
    for name, value in known.items():
        if value is not None and name not in ("name", "description", "memory_is_reservation"):
            shown = format_size(value) if name.endswith("_bytes") else str(value)
            if name == "memory_bytes" and profile.memory_is_reservation:
                shown += " (set aside by an allocator; no need)"
            table.add_row(name.removesuffix("_bytes").replace("_", " "), Text(printable(shown)))
    table.add_row("file", Text(printable(path)))
    return Group(Text(f"{printable(profile.name)}: {printable(profile.description)}", "bold"), table)


def _counters(profile: Profile) -> str | None:
    if profile.counters is None:
        return None
    accesses, hits, size = profile.counters
    return f"{accesses:g} LLC accesses per kilo instruction of {size} B each, {hits * 100:g} % hits"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def plan_table(document: Document) -> Group:
    """What to run together, who runs alone and why, and how to divide the tasks of repeated jobs.

    Args:
        document: from plan_document.
    """
    right = ("GPU", "start", "time", "STP", "ANTT", "energy")
    groups = _table("group", *right, "jobs (share of SMs)", right=("group", *right))
    for group in document["groups"]:
        groups.add_row(str(group["group"]), str(group["gpu"]), *_group_cells(group["predicted"]), _members(group))
    notes = [
        Text(f"group {group['group']}: {printable(note)}", "yellow")
        for group in document["groups"]
        for note in group["notes"]
    ]
    estimated = " (estimated)" if document["idle_power_estimated"] else ""
    idle = "" if document["idle_power_w"] is None else f"; idle GPU: {document['idle_power_w']:.0f} W{estimated}"
    return Group(
        *_plan_title(document),
        Text(),
        groups,
        *notes,
        *_alone_parts(document["groups"]),
        *_configuration_parts(document["configurations"]),
        Text(),
        Text(f"all predicted from the figures of each job alone{idle}", "dim"),
    )


def _plan_title(document: Document) -> list[Text]:
    jobs = len({job["name"] for group in document["groups"] for job in group["jobs"]})
    counts = f"{_counted(jobs, 'job')} in {_counted(len(document['groups']), 'group')}"
    gpus = f"{_counted(document['gpus'], 'GPU')} ({printable(document['gpu_model'])})"
    return [
        Text(f"{counts} on {gpus}", "bold"),
        Text(f"predicted:           {_cost(document['predicted'])}"),
        Text(f"one after the other: {_cost(document['sequential'])}"),
        Text(f"objective {document['objective']}: {_gains(document['predicted'])}", "bold green"),
    ]


def _cost(cost: Document) -> str:
    return f"{format_duration(cost['time_s'])}, energy {_energy(cost['energy_j'])}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _gains(predicted: Document) -> str:
    names = ("throughput", "energy_efficiency", "product")
    return ", ".join(f"{name.replace('_', ' ')} {_ratio(predicted[name])}" for name in names)


def _group_cells(predicted: Document) -> list[str]:
    times = [format_duration(predicted[key]) for key in ("start_s", "time_s")]
    return [*times, f"{predicted['stp']:.2f}", f"{predicted['antt']:.2f}", _energy(predicted["energy_j"])]


def _members(group: Document) -> str:
    return ", ".join(map(_member, group["jobs"]))


def _member(job: Document) -> str:
    part = f" {job['workflow']}/{job['workflows']}" if job["workflows"] > 1 else ""
    tasks = f" x{job['tasks']}" if job["tasks"] > 1 else ""
    share = "alone" if job["sm_percentage"] is None else f"{job['sm_percentage']} %"
    return f"{job['name']}{part}{tasks} ({share})"


def _alone_parts(groups: Sequence[Document]) -> list[Table | Text]:
    table = _table("alone", "because")
    for group in groups:
        if group["why_alone"]:
            table.add_row(group["jobs"][0]["name"], group["why_alone"])
    return [Text(), table] if table.row_count else []


def _configuration_parts(configurations: Sequence[Document]) -> list[Table | Text]:
    columns = ("tasks x workflows", "time", "throughput", "efficiency", "product")
    table = _table("", "job", *columns, right=columns)
    limits = _table("most workflows", "because")
    for entry in configurations:
        choices = entry["choices"]
        if entry["limits"]:
            limits.add_row(f"{entry['job']}: {choices[-1]['workflows']}", "; ".join(map(printable, entry["limits"])))
        for choice in choices if len(choices) > 1 else []:
            best = choice["workflows"] == entry["best"]["workflows"]
            name = entry["job"] if choice is choices[0] else ""
            table.add_row(">" if best else "", name, *_choice_cells(choice), style="bold green" if best else "")
    title = Text("all tasks of one job on one GPU:", "bold")
    parts: list[Table | Text] = [Text(), title, table] if table.row_count else []
    return [*parts, Text(), limits] if limits.row_count else parts


def _choice_cells(choice: Document) -> list[str]:
    predicted = choice["predicted"]
    ratios = [_ratio(predicted[name]) for name in ("throughput", "energy_efficiency", "product")]
    return [f"{choice['tasks']} x {choice['workflows']}", format_duration(predicted["time_s"]), *ratios]


def _energy(energy_j: float | None) -> str:
    return "unknown" if energy_j is None else f"{_figure(energy_j / 1000)} kJ"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
