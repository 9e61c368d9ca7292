"""A profile -> its view: every figure with its unit, what it means, and where it comes from."""

import shlex
from collections.abc import Iterator, Mapping

from gpulaunch.errors import printable
from gpulaunch.profiles.document.sections import Communication
from gpulaunch.profiles.pattern import PATTERNS, given_pattern
from gpulaunch.profiles.profile import Profile
from gpulaunch.show.profile.amount import amount
from gpulaunch.show.profile.resource_words import resources_section
from gpulaunch.show.profile.view import Bar, Fact, Graph, Plot, ProfileView, Section, sketch
from gpulaunch.show.terminal import figure

_EXAMPLE_RANKS = {"stencil_2d": 6, "stencil_3d": 8}
_FEW_RANKS = 4
"""That another pattern is drawn for where the profile does not say how many GPUs there are."""

_MOST_RANKS = 32  # that a pattern is drawn for
_SHAPES = {"chain": "line", "stencil_2d": "grid", "stencil_3d": "block"}


def view_of(profile: Profile, path: str, card_memory_bytes: int | None = None) -> ProfileView:
    """Everything that a profile says, in words.

    Args:
        profile: any.
        path: of its file.
        card_memory_bytes: memory of the GPU that its figures were measured on; None if unknown.
    """
    sections = (
        resources_section(profile, card_memory_bytes),
        _communication(profile),
        _curve(profile),
        _sensitivity(profile),
        _beside_on_socket(profile),
        _beside_on_gpu(profile),
        _wishes(profile),
        _counters(profile),
    )
    return ProfileView(
        name=printable(profile.name),
        description=printable(profile.description),
        facts=tuple(_head(profile, path)),
        warnings=tuple(_warnings(profile)),
        sections=tuple(
            section for section in sections if section.bars or section.facts or section.plot
        ),
    )


def _head(profile: Profile, path: str) -> Iterator[Fact]:
    yield Fact("file", printable(path), whole=True)
    if profile.command:
        yield Fact("command", printable(shlex.join(profile.command)))
    if profile.gpus:
        yield Fact("GPUs", str(profile.gpus))
    if profile.base:
        yield Fact("base", printable(profile.base))
    if profile.variants:
        yield Fact("variants", printable(", ".join(profile.variants)))
    if profile.scaling:
        sizes = ", ".join(f"{size}: {name}" for size, name in profile.scaling.profiles.items())
        yield Fact("measured sizes", printable(f"{profile.scaling.parameter} {sizes}"))
    if profile.missing_demand:
        yield Fact(
            "not recorded", f"{', '.join(profile.missing_demand)}; without, the job shares no GPU"
        )


def _warnings(profile: Profile) -> Iterator[str]:
    resources, runs = profile.resources, profile.runs
    if resources.incomplete:
        yield "incomplete: the job failed, or sampling broke off before its end"
    if resources.memory_is_reservation:
        yield "memory is what an allocator set aside; the job may need less, so it rules no GPU out"
    if runs.misfits:
        latest = (
            "the latest run does" if runs.misfits == 1 else f"the latest {runs.misfits} runs do"
        )
        yield f"{latest} not fit these figures: measure again"
    if profile.communication.confidence == "guess":
        yield "the pattern is a guess"
    if profile.shared_gpu.predicted_from:
        name = printable(profile.shared_gpu.predicted_from)
        yield f"slowdowns beside others on one GPU are predicted: those of the nearest profile, {name}"


def _sources(*facts: tuple[str, str | None]) -> tuple[Fact, ...]:
    """Those that somebody gave."""
    return tuple(Fact(label, printable(text)) for label, text in facts if text)


def _communication(profile: Profile) -> Section:
    communication = profile.communication
    graph, drawn_for = _graph(profile)
    facts = [*_pattern_facts(communication, graph)]
    for label, key in (
        ("message size", "message_bytes"),
        ("waiting", "time_percentage"),
        ("split", "split_slowdown_percentage"),
    ):
        value = getattr(communication, key)
        if value is not None:
            facts.append(Fact(label, f"{amount(key, value)}{_ENDINGS[key]}"))
    if communication.weight is not None:
        facts.append(
            Fact("weight", f"{figure(communication.weight)} of each edge of the job graph")
        )
    note = f"drawn for {drawn_for} ranks, as an example" if drawn_for else ""
    facts += _sources(("source", communication.source))
    return Section(
        "communication", note, graph=graph if graph and graph.edges else None, facts=tuple(facts)
    )


_ENDINGS = {
    "message_bytes": ", average of a collective call",
    "time_percentage": " of its time, for its links on the best GPUs",
    "split_slowdown_percentage": " longer with its GPUs on several sockets",
}


def _pattern_facts(communication: Communication, graph: Graph | None) -> Iterator[Fact]:
    if communication.pattern:
        sure = f" ({communication.confidence})" if communication.confidence else ""
        yield Fact("pattern", f"{communication.pattern}{sure}")
    if graph:
        yield Fact("measured" if graph.unit else "ranks", sketch(graph))
    if communication.bandwidth_sensitive is not None:
        sensitive = (
            "yes: faster links make it faster" if communication.bandwidth_sensitive else "no"
        )
        yield Fact("sensitive", sensitive)
    if communication.collective_calls_per_iteration is not None:
        yield Fact(
            "collectives",
            f"{communication.collective_calls_per_iteration} calls of one GPU per iteration",
        )


def _graph(profile: Profile) -> tuple[Graph | None, int]:
    """Who talks to whom, and for how many ranks that is an example, or 0."""
    communication = profile.communication
    if communication.edges:
        measured = given_pattern(profile.name, communication.edges)
        return Graph(measured.ranks, measured.given, "GB"), 0
    if communication.pattern is None:
        return None, 0
    known = profile.gpus and 1 < profile.gpus <= _MOST_RANKS
    ranks = (
        profile.gpus
        if known and profile.gpus
        else _EXAMPLE_RANKS.get(communication.pattern, _FEW_RANKS)
    )
    edges = PATTERNS[communication.pattern].edges(ranks)
    return Graph(
        ranks, edges, shape=_SHAPES.get(communication.pattern, "circle")
    ), 0 if known else ranks


def _curve(profile: Profile) -> Section:
    curve = profile.sm_curve
    plot = Plot(
        points=profile.curve,
        unit=f"throughput, {printable(curve.unit)}"
        if curve.unit
        else "throughput (its unit is not recorded)",
        knee_percentage=curve.knee_percentage,
    )
    knee = curve.knee_percentage
    facts = (
        ()
        if knee is None
        else (Fact("knee", f"{figure(knee)} % of the SMs keep 95 % of the best throughput"),)
    )
    sources = _sources(("measured on", curve.measured_on), ("source", curve.source))
    return Section(
        "throughput over the share of SMs",
        plot=plot if plot.points else None,
        facts=(*facts, *sources),
    )


def _sensitivity(profile: Profile) -> Section:
    sensitivity = profile.sensitivity
    times = {"best": sensitivity.best_s, "worst": sensitivity.worst_s}
    rates = {"best": sensitivity.best_gb_per_s, "worst": sensitivity.worst_gb_per_s}
    longest = max((time for time in times.values() if time), default=0)
    bars = tuple(
        Bar(f"{which} placement", time / longest, amount("_s", time) + _rate(rates[which]))
        for which, time in times.items()
        if time is not None and longest
    )
    facts = (
        []
        if bars
        else [
            Fact(f"{which} placement", amount("_gb_per_s", rate))
            for which, rate in rates.items()
            if rate is not None
        ]
    )
    slower = sensitivity.slowdown_percentage
    if slower is not None:
        longer = "longer" if slower >= 0 else "shorter"
        facts.append(
            Fact(
                "slowdown",
                f"{figure(abs(slower))} % {longer} on the worst placement than on the best",
            )
        )
    if sensitivity.iterations is not None:
        facts.append(Fact("timed", f"{sensitivity.iterations} iterations"))
    facts += _sources(("measured on", sensitivity.measured_on), ("source", sensitivity.source))
    what = "an iteration" if sensitivity.iterations else "a run"
    return Section(
        "sensitivity to placement", f"time of {what}" if bars else "", bars, facts=tuple(facts)
    )


def _rate(gb_per_s: float | None) -> str:
    return "" if gb_per_s is None else f", {amount('_gb_per_s', gb_per_s)}"


def _beside_on_socket(profile: Profile) -> Section:
    note, bars = _slowdowns(profile.collocation.slowdown_percentage)
    facts = _sources(("source", profile.collocation.source))
    return Section("slowdown beside others on one socket", note, bars, facts=facts)


def _beside_on_gpu(profile: Profile) -> Section:
    beside = profile.shared_gpu
    note, bars = _slowdowns(beside.slowdown_percentage)
    facts = _sources(
        ("predicted from", beside.predicted_from),
        ("measured on", beside.measured_on),
        ("source", beside.source),
    )
    return Section("slowdown beside others on one GPU", note, bars, facts=facts)


def _slowdowns(percentages: Mapping[str, float]) -> tuple[str, tuple[Bar, ...]]:
    """What a full bar means, and a bar for each of the others."""
    full = max([100.0, *percentages.values()])
    bars = tuple(
        Bar(printable(name), value / full, f"{figure(value)} %")
        for name, value in percentages.items()
    )
    return (f"how much longer it takes; a full bar is {figure(full)} %" if bars else ""), bars


def _wishes(profile: Profile) -> Section:
    placement, sharing = profile.placement, profile.sharing
    facts = [
        Fact(label, f"{amount(key, value)}{ending}")
        for label, key, ending in (
            ("bandwidth", "min_bandwidth_gb_per_s", " at least"),
            ("utility", "min_utility", " at least, 0 to 1"),
            ("host memory", "host_gb_per_s", " moved by the process of each GPU"),
        )
        if (value := getattr(placement, key)) is not None
    ]
    if placement.single_node:
        facts.append(Fact("machines", "all GPUs in one"))
    if placement.one_per_node:
        facts.append(Fact("machines", "one for each GPU"))
    if sharing.share is not None:
        facts.append(Fact("sharing", "shares GPUs" if sharing.share else "shares no GPU"))
    if sharing.sm_percentage is not None:
        facts.append(Fact("SMs", f"{sharing.sm_percentage} % where it shares a GPU"))
    return Section("what it asks for", facts=tuple(facts))


def _counters(profile: Profile) -> Section:
    counters, classification = profile.counters, profile.classification
    rows = (
        (
            "SM warps",
            counters.warp_occupancy_percentage,
            counters.theoretical_warp_occupancy_percentage,
        ),
        ("cache hits", counters.llc_hit_rate_percentage, None),
    )
    bars = tuple(
        Bar(
            label,
            value / 100,
            f"{figure(value)} %" + ("" if most is None else f", possible {figure(most)} %"),
            None if most is None else most / 100,
        )
        for label, value, most in rows
        if value is not None
    )
    facts = []
    if classification.intensity:
        facts.append(Fact("class", f"{classification.intensity}-intensive"))
    facts += _sources(("class by", classification.source))
    if counters.llc_accesses_per_kilo_instruction is not None:
        size = f", {counters.bytes_per_access} B each" if counters.bytes_per_access else ""
        rate = figure(counters.llc_accesses_per_kilo_instruction)
        facts.append(Fact("cache", f"{rate} accesses per 1,000 warp instructions{size}"))
    facts += _sources(("measured on", counters.measured_on), ("source", counters.source))
    note = (
        "SM warps: average share of the warps that the SMs can hold"
        if counters.warp_occupancy_percentage
        else ""
    )
    return Section("counters and class", note, bars, facts=tuple(facts))
