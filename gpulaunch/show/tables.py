"""Tables for a terminal. Colour adds to the words and never replaces them."""

import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from gpulaunch.decide.decide import Decision, Grant
from gpulaunch.decide.explain import Explanation
from gpulaunch.decide.placement.scores import Scores
from gpulaunch.decide.request import Request
from gpulaunch.errors import printable
from gpulaunch.files.size import format_size
from gpulaunch.machine.cpuset import format_cpuset
from gpulaunch.machine.gpu_names import gpus_named
from gpulaunch.measure.link_fit import Comparison, kinds, model_errors
from gpulaunch.profiles.document.inherit import variants_of
from gpulaunch.profiles.profile import Profile
from gpulaunch.show import Document
from gpulaunch.show.documents import age
from gpulaunch.show.terminal import Fitted, Group, Table, Text, cut, figure, table_of
from gpulaunch.show.topology.text import wrapped

if TYPE_CHECKING:
    from gpulaunch.decide.share_options import ShareOption
    from gpulaunch.machine.gpu import Gpu
    from gpulaunch.sharing.partition import Partition


def status_table(document: Document, now: datetime) -> Group:
    """Return the table of leases and the queue: user, GPUs, time and command.

    Args:
        document: the document from status_document.
        now: an aware time, up to which durations are counted.
    """
    gpus = document["gpus"]
    free = [gpu for gpu in gpus if gpu["free"]]
    lines: list[Table | Text] = []
    if document["leases"]:
        shares = ["share"] if any(lease["shared"] for lease in document["leases"]) else []
        table = table_of(
            "GPUs", *shares, "user", "since", "lease", "profile", "command", right=("since",)
        )
        for lease in document["leases"]:
            held, *others = _lease_cells(lease, now)
            table.add_row(held, *([_share_cell(lease)] if shares else []), *others)
        lines += [table, Text()]
        lines += [
            Text(
                f"lease {lease['id']} is held by a left-over process of a job that has ended (pid "
                f"{', '.join(map(str, lease['left_over_pids']))}): 'gpulaunch free {lease['id']}' "
                "ends it",
                "yellow",
            )
            for lease in document["leases"]
            if lease["left_over_pids"]
        ]
        notes = [
            Text(note, "yellow") for lease in document["leases"] if (note := _container_note(lease))
        ]
        lines += [*notes, Text()] if notes else []
    if document["queue"]:
        table = table_of(
            "waiting",
            "GPUs",
            "user",
            "since",
            "ticket",
            "profile",
            "command",
            right=("waiting", "since"),
        )
        for ticket in document["queue"]:
            table.add_row(str(ticket["position"]), str(ticket["gpus"]), *_ticket_cells(ticket, now))
        lines += [table, Text()]
    lines += [
        Text(f"GPU {gpu['name']} is in use outside gpulaunch: {printable(gpu['outside'])}", "red")
        for gpu in gpus
        if gpu["state"] == "outside"
    ]
    lines.append(Text(f"free: {_format_names(free) or 'none'}", "green" if free else "yellow"))
    title = f"{document['topology']}: {len(free)} of {len(gpus)} GPUs free"
    models = {gpu["model"] for gpu in gpus}
    return Group(Text(f"{title} ({', '.join(map(printable, sorted(models)))})", "bold"), *lines)


def _container_note(lease: Document) -> str:
    """Return why a lease stays whose container does not run, or whose engine does not answer."""
    if lease["container_problem"]:
        return (
            f"lease {lease['id']} stays until its engine tells of its container: "
            f"{lease['container_problem']}"
        )
    if lease["container_state"] in (None, "running"):
        return ""
    note = f"lease {lease['id']} stays: container {printable(lease['container_name'])} "
    if lease["container_state"] == "exited":
        return (
            f"{note}has ended, and its restart policy may start it: 'gpulaunch free {lease['id']}' "
            "ends that"
        )
    if lease["container_state"] == "created":
        return f"{note}is made, and not started yet"
    return f"{note}is {printable(lease['container_state'])}"


def _format_names(gpus: Sequence[Document]) -> str:
    """Return the names of GPUs: ranges of whole GPUs, then MIG instances."""
    whole = frozenset(gpu["index"] for gpu in gpus if gpu["name"] == str(gpu["index"]))
    return ",".join(
        filter(
            None,
            [format_cpuset(whole), *(gpu["name"] for gpu in gpus if gpu["index"] not in whole)],
        )
    )


def _lease_cells(lease: Document, now: datetime) -> list[str | Text]:
    profile = printable(lease["profile"] or "")
    # A single GPU has no traffic that could be assumed.
    if lease["assumed"] and len(lease["gpus"]) > 1:
        profile = f"{profile} (assumed)" if profile else "assumed"
    gpus = ",".join("?" if name is None else name for name in lease["gpu_names"])
    inside = f"in {lease['parent']}: " if lease["parent"] else ""
    inside += f"container {lease['container_name']}: " if lease["container_name"] else ""
    since = age(lease["started_at"], now)
    return [
        gpus,
        printable(lease["user"]),
        since,
        lease["id"],
        Text(profile),
        cut(inside + _describe_job(lease)),
    ]


def _share_cell(lease: Document) -> str:
    if not lease["shared"]:
        return "all"
    return f"{lease['sm_percentage']} %, {format_size(lease['share_memory_bytes'])}"


def _ticket_cells(ticket: Document, now: datetime) -> list[str | Text]:
    stopped = (
        "stopped, so others pass: "
        if ticket["stopped"]
        else "choosy, so others may pass: " * ticket["choosy"]
    )
    since = age(ticket["since"], now)
    profile = printable(ticket["profile"] or "")
    return [
        printable(ticket["user"]),
        since,
        ticket["id"],
        Text(profile),
        cut(stopped + _describe_job(ticket)),
    ]


def _describe_job(record: Document) -> str:
    return record["name"] or " ".join(map(_quoted, record["command"]))


def _quoted(argument: str) -> str:
    return argument if argument.isalnum() else shlex.quote(argument)


def findings_table(findings: Sequence[Document]) -> Table:
    """Return the table of the findings of `gpulaunch doctor`."""
    colours = {"ok": "green", "warning": "yellow", "problem": "red"}
    table = table_of("", "part", "found")
    for finding in findings:
        state = Text(finding["state"], colours[finding["state"]])
        hint = f"\n{printable(finding['hint'])}" if finding["hint"] else ""
        table.add_row(
            state, finding["subject"], Text(printable(finding["text"])).append(hint, "dim")
        )
    return table


def explanation_table(request: Request, decision: Decision, explanation: Explanation) -> Group:
    """Return why the decision was made: excluded GPUs, the best candidates, or alternatives."""
    parts: list[Table | Text] = []
    if explanation.excluded:
        table = table_of("left out", "because")
        for why, gpus in _gpus_by_reason(explanation).items():
            table.add_row(gpus, cut(why))
        parts += [table, Text()]
    parts += _sharing_parts(request, decision, explanation)
    if isinstance(decision, Grant):
        parts += _grant_parts(request, decision, explanation)
    else:
        parts += _alternative_parts(request, explanation)
    return Group(*parts)


def _sharing_parts(
    request: Request, decision: Decision, explanation: Explanation
) -> list[Table | Text]:
    """Return the share groups with the total use in each, and whether the job may join."""
    if request.sharing is None:
        return []
    columns = ("SM %", "BW %", "memory")
    table = table_of("", "GPUs", *columns, "verdict on all together", right=columns)
    chosen = decision.share_option if isinstance(decision, Grant) else None
    for option, gpus in explanation.sharing:
        sums, mark = option.verdict.sums, ">" if option == chosen else ""
        figures = (figure(sums.sm_percentage), figure(sums.memory_bandwidth_percentage))
        table.add_row(
            mark, gpus, *figures, format_size(sums.memory_bytes), _describe_verdict(option)
        )
    parts: list[Table | Text] = [
        Text(f"sharing for {request.sharing.client.objective.name}", "bold")
    ]
    parts += [table] if explanation.sharing else []
    if isinstance(decision, Grant) and decision.exclusive_reason:
        parts.append(Text(f"not shared: {printable(decision.exclusive_reason)}", "yellow"))
    if chosen and chosen.allotment:
        parts.append(
            Text(f"{chosen.allotment.sm_percentage} % of the SMs: {chosen.allotment.reason}")
        )
        optimum = chosen.allotment.optimum
        if len(optimum.sm_percentages) > 1:
            parts.append(
                Text(
                    f"best for all together would be {_format_shares(optimum)}: {optimum.reason}",
                    "dim",
                )
            )
    if chosen and chosen.residents and chosen.prediction:
        stp, antt = chosen.prediction.stp, chosen.prediction.antt
        parts.append(Text(f"predicted: STP {stp:.3g}, ANTT {antt:.3g}", "dim"))
    return [*parts, Text()]


def _format_shares(optimum: "Partition") -> str:
    """Format shares of the SMs, such as "30 % / 70 %", or "50 % each"."""
    percentages = optimum.sm_percentages
    return (
        f"{percentages[0]} % each"
        if len(set(percentages)) == 1
        else " / ".join(f"{p} %" for p in percentages)
    )


def _describe_verdict(option: "ShareOption") -> Text:
    """Return whether the job may join a group, and the jobs that are in it."""
    verdict = Text(printable(option.refusal or "may come"), "red" if option.refusal else "green")
    for note in () if option.refusal else option.verdict.notes:
        verdict.append(f"; {note}", "yellow")
    for lease in option.residents:
        percentage = f", {lease.share.sm_percentage} % of the SMs" if lease.share else ""
        job = lease.name or lease.profile or lease.command[0]
        verdict.append(f"\nbeside {printable(job)} ({lease.id}){percentage}", "dim")
    return verdict


def _gpus_by_reason(explanation: Explanation) -> dict[str, str]:
    """Return the names of excluded GPUs by their common reason."""
    reasons: dict[str, list[Gpu]] = {}
    for left_out in explanation.excluded:
        reasons.setdefault(left_out.why, []).append(left_out.gpu)
    return {why: gpus_named(gpus) for why, gpus in reasons.items()}


def _grant_parts(request: Request, grant: Grant, explanation: Explanation) -> list[Table | Text]:
    columns = ("effective", "preserved", "lasting", "aggregate", "fragmentation", "cost")
    table = table_of("", *columns, "GPUs", right=columns)
    problem = grant.problem
    for place, candidate in enumerate(explanation.candidates):
        style = "bold green" if place == 0 else ""
        gpus = cut(problem.format_set(candidate.gpus))
        table.add_row(">" if place == 0 else "", *_score_cells(candidate.scores), gpus, style=style)
    assumed = (
        f"; assumed: {', '.join(request.assumed).replace('_', ' ')}" if request.assumed else ""
    )
    sensitive = "bandwidth-sensitive" if problem.sensitive else "not bandwidth-sensitive"
    pattern = (
        request.pattern.name if request.pattern.ranks else request.pattern.name.replace("_", "-")
    )
    return [
        Text(f"{_count_candidates(grant)}, bandwidths in GB/s", "bold"),
        table,
        Text(explanation.reason),
        *_idle_part(explanation),
        Text(
            f"policy {request.policy.replace('_', '-')}, bandwidth model "
            f"{request.bandwidth_model}, pattern"
            f" {printable(pattern)}, {sensitive}{assumed}; in rank order: "
            f"{problem.format_ranks(grant.placement.gpus)}",
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
            f"the idle machine would give {gpus} with {figure(idle.effective_bandwidth)} GB/s:"
            f" {idle.instead} waits for as much",
            "yellow",
        )
    ]


def _alternative_parts(request: Request, explanation: Explanation) -> list[Table | Text]:
    if not explanation.alternatives:
        return [Text("nothing that asks for less would be granted now", "dim")]
    table = table_of("instead", "effective, GB/s", "GPUs", right=("effective, GB/s",))
    for alternative in explanation.alternatives:
        gpus = ",".join(map(str, alternative.gpus))
        found, least = alternative.effective_bandwidth, request.wishes.least_gb_per_s
        of = f" of {least:g}" if least and found is not None else ""
        table.add_row(printable(alternative.instead), figure(found) + of, cut(gpus))
    return [Text("what would be granted now:", "bold"), table]


def _count_candidates(grant: Grant) -> str:
    count = grant.placement.candidates
    if count == 1:
        return "1 candidate"
    compared = grant.placement.by and not grant.placement.chosen_by_policy
    return f"{count} candidates, {'best' if compared else 'what the policy takes'} first"


def _score_cells(scores: Scores) -> list[str]:
    bandwidths = (
        scores.effective_bandwidth,
        scores.preserved_bandwidth,
        scores.lasting_bandwidth,
        scores.aggregate_bandwidth,
    )
    return [*map(figure, bandwidths), f"{scores.fragmentation:.2f}", str(scores.communication_cost)]


def measurement_table(comparisons: Sequence[Comparison]) -> Group:
    """Return every measured set beside the models' figures, and the models' errors."""
    columns = ("measured", "cut", "Eq. 2", "refit")
    table = table_of("GPUs", *columns, "links of its best ring", right=columns)
    for entry in comparisons:
        figures = (entry.figure.all_reduce_gb_per_s, entry.cut, entry.mapa, entry.refit)
        gpus = ",".join(map(str, entry.figure.sample.gpus))
        table.add_row(gpus, *map(figure, figures), kinds(entry.figure.sample))
    errors = model_errors(comparisons)
    off = ", ".join(
        f"{_MODELS[name]} {error:.3g}" for name, error in errors.items() if error is not None
    )
    lines = [Text(f"all-reduce bus bandwidth, GB/s; root mean square difference: {off}", "dim")]
    if errors["refit"] is None:
        lines.append(
            Text("without numpy Eq. 2 is not fitted to this machine: pip install numpy", "dim")
        )
    else:
        sets = "1 set" if len(comparisons) == 1 else f"{len(comparisons)} sets"
        lines.append(
            Text(f"refit: the 14 coefficients of Eq. 2 by least squares over these {sets}", "dim")
        )
    return Group(table, *lines)


_MODELS = {"cut": "cut", "mapa": "Eq. 2 as published", "refit": "Eq. 2 refitted"}


def profiles_table(profiles: Sequence[Profile]) -> Fitted:
    """Return the table of profiles, with the variants of each below it.

    A description that has no room beside the figures is put below them.
    """
    rows = [_PROFILE_COLUMNS, *map(_profile_cells, profiles)]
    widths = [max(Text(cell).cell_len for cell in column) for column in zip(*rows, strict=True)]
    return Fitted(lambda width, plain: _profile_lines(profiles, rows, widths, width, plain=plain))


_PROFILE_COLUMNS = ("name", "pattern", "sensitive", "memory", "SM %", "BW %")
_FIGURES = 3  # the last columns, which are right-aligned
_LEAST_DESCRIPTION = 40  # columns


def _profile_cells(profile: Profile) -> tuple[str, ...]:
    """Return the cells of a profile except its description."""
    resources = profile.resources
    return (
        printable(profile.name),
        profile.communication.pattern or "-",
        {True: "yes", False: "no", None: "-"}[profile.communication.bandwidth_sensitive],
        format_size(profile.memory_bytes) if profile.memory_bytes else "-",
        figure(resources.sm_utilization_percentage),
        figure(resources.memory_bandwidth_utilization_percentage),
    )


def _profile_lines(
    profiles: Sequence[Profile],
    rows: Sequence[Sequence[str]],
    widths: Sequence[int],
    width: int,
    *,
    plain: bool,
) -> Iterator[Text]:
    heading, *others = (_align(row, widths) for row in rows)
    left = heading.cell_len + 2
    beside = width - left >= _LEAST_DESCRIPTION
    heading.append("  description" if beside else "").stylize("bold")
    yield heading
    yield Text(("-" if plain else "─") * min(heading.cell_len, width), "dim")
    for profile, line in zip(profiles, others, strict=True):
        description = wrapped(printable(profile.description), width - (left if beside else 2))
        yield line.append(f"  {description[0]}" if beside else "")
        yield from (
            Text(f"{'':{left if beside else 2}}{more}") for more in description[beside:] if more
        )
        asked = ", ".join(
            f"@{_format_variant(profile, variant)}" for variant in variants_of(profile)
        )
        yield from (
            Text(f"  {more}".replace(_JOINED, " "), "dim")
            for more in wrapped(asked, width - 2)
            if more
        )


def _align(cells: Sequence[str], widths: Sequence[int]) -> Text:
    line = Text()
    for i, (cell, wide) in enumerate(zip(cells, widths, strict=True)):
        text = Text(cell)
        text.align("right" if i >= len(cells) - _FIGURES else "left", wide)
        line.append("  " if i else "").append_text(text)
    return line


_JOINED = "\0"  # stands for a blank at which no line is broken


def _format_variant(profile: Profile, variant: str) -> str:
    """Return a variant's name, and for a size also the profile that was measured there."""
    if variant in profile.variants or not profile.scaling:
        return printable(variant)
    return printable(f"{variant} is {profile.scaling.profiles[variant.partition('=')[2]]}").replace(
        " ", _JOINED
    )
