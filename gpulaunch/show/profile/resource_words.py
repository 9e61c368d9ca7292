"""What a job uses of one GPU, in words and shares."""

from collections.abc import Iterator, Mapping

from gpulaunch.errors import printable
from gpulaunch.files.size import format_size
from gpulaunch.profiles.document.sections import Resources
from gpulaunch.profiles.profile import Profile
from gpulaunch.show.profile.amount import amount, amount_between_runs
from gpulaunch.show.profile.view import Bar, Fact, Section
from gpulaunch.show.terminal import figure

_BARS = (  # label, key of the average, key of the maximum
    ("SM utilization", "sm_utilization_percentage", "sm_utilization_max_percentage"),
    ("SM occupancy", "sm_occupancy_percentage", None),
    (
        "memory bandwidth",
        "memory_bandwidth_utilization_percentage",
        "memory_bandwidth_utilization_max_percentage",
    ),
    ("time active", "time_active_percentage", None),
    ("idle samples", "idle_percentage", None),
    ("power cap active", "power_cap_percentage", None),
)
_ENDINGS = {"time_active_percentage": " of the time", "idle_percentage": " of the samples"}
_INSTRUMENTS = {"share": " (GPM)", "time-active": " (NVML)"}
_MEANINGS = {
    "share": "utilization: share of the SMs, and of the DRAM bandwidth, in use%s",
    "time-active": "utilization: share of the time in which a kernel ran, and in which memory was "
    "accessed%s;"
    " not the share of SMs, nor of bandwidth",
    None: "utilization: whether of SMs and bandwidth or of time is not recorded%s",
}
_MOST_TELLING = {  # of all 95th percentiles
    "duration_s": "duration",
    "sm_utilization_percentage": "SM utilization",
    "memory_bandwidth_utilization_percentage": "memory bandwidth",
    "power_w": "power",
}
_TRAFFIC = (("PCIe", "pcie"), ("NVLink", "nvlink"))


def resources_section(profile: Profile, card_memory_bytes: int | None) -> Section:
    """Bars for all that has an end, and the rest in lines.

    Args:
        profile: any.
        card_memory_bytes: memory of the GPU that was measured; None if unknown.
    """
    bars = [*_bars(profile), *_memory_bar(profile, card_memory_bytes)]
    resources = profile.resources
    utilized = (
        resources.sm_utilization_percentage,
        resources.memory_bandwidth_utilization_percentage,
    )
    notes = ["averages over the run"] if any(bar.label != "memory" for bar in bars) else []
    notes += ["a line marks the maximum"] if any(bar.mark is not None for bar in bars) else []
    notes += (
        ["in an idle sample no kernel ran at all"] if resources.idle_percentage is not None else []
    )
    notes += [_meaning(resources)] if any(value is not None for value in utilized) else []
    facts = tuple(_facts(profile, has_bar=any(bar.label == "memory" for bar in bars)))
    deviates = "±" in "".join([*(bar.text for bar in bars), *(fact.text for fact in facts)])
    facts += tuple(_origin(profile, deviates=deviates))
    return Section("use of one GPU", "; ".join(notes), tuple(bars), facts=facts)


def _meaning(resources: Resources) -> str:
    """What utilization is; by what it was measured, if we have sampled it."""
    kind = resources.utilization
    instrument = _INSTRUMENTS.get(kind or "", "") if resources.samples is not None else ""
    return _MEANINGS[kind] % instrument


def _bars(profile: Profile) -> Iterator[Bar]:
    for label, key, most_key in _BARS:
        value = getattr(profile.resources, key)
        most = getattr(profile.resources, most_key) if most_key else None
        if value is not None:
            end = "" if most is None else f", most {figure(most)} %"
            yield Bar(
                label,
                value / 100,
                f"{_text(profile, key, value)}{end}",
                None if most is None else most / 100,
            )


def _memory_bar(profile: Profile, card_memory_bytes: int | None) -> Iterator[Bar]:
    used = profile.memory_bytes
    if used is not None and card_memory_bytes and used <= card_memory_bytes:
        text = f"{format_size(used)} of {format_size(card_memory_bytes)}"
        yield Bar("memory", used / card_memory_bytes, text)


def _text(profile: Profile, key: str, value: float) -> str:
    """A figure and, if it is known, how it differs between runs."""
    spread = profile.runs.spread.get(key)
    text = amount(key, value) if spread is None else amount_between_runs(key, value, spread)
    return text + _ENDINGS.get(key, "")


def _facts(profile: Profile, *, has_bar: bool) -> Iterator[Fact]:
    resources = profile.resources

    def texts(*keys: tuple[str, str]) -> str:
        found = ((key, words, getattr(resources, key)) for key, words in keys)
        return ", ".join(
            f"{_text(profile, key, value)}{words}"
            for key, words, value in found
            if value is not None
        )

    most = (
        () if has_bar and "memory_mib" not in profile.runs.spread else (("memory_mib", " at most"),)
    )
    lines = {
        "memory": texts(*most, ("memory_mean_mib", " on average")),
        "power": texts(("power_w", " on average"), ("power_max_w", " at most")),
        "energy": texts(("energy_j", " of one run")),
        "duration": texts(("duration_s", " of one run")),
        **{
            name: texts((f"{key}_tx_gb_per_s", " sent"), (f"{key}_rx_gb_per_s", " received"))
            for name, key in _TRAFFIC
        },
    }
    yield from (Fact(label, text) for label, text in lines.items() if text)


def _origin(profile: Profile, *, deviates: bool) -> Iterator[Fact]:
    """Runs, samples, GPU, driver, date and source."""
    resources, runs = profile.resources, profile.runs
    if runs.count:
        what = (
            "; ± is the standard deviation between them, where it does not round to 0"
            if deviates
            else ""
        )
        yield Fact("runs", f"{runs.count}{what}")
    if runs.percentile_95:
        yield Fact("95th percentile", _percentiles(runs.percentile_95))
    driver = f"driver {resources.driver}" if resources.driver else None
    where = ", ".join(filter(None, (resources.measured_on, driver, resources.date)))
    if where:
        yield Fact("measured on", printable(where))
    if resources.samples is not None:
        yield Fact("samples", str(resources.samples))
    if resources.source:
        yield Fact("source", printable(resources.source))


def _percentiles(percentiles: Mapping[str, float]) -> str:
    """Those that say most, and how many more the file has."""
    shown = [
        f"{words} {amount(key, percentiles[key])}"
        for key, words in _MOST_TELLING.items()
        if key in percentiles
    ]
    more = len(percentiles) - len(shown)
    rest = f"{more} {'more ' if shown else ''}in the file, or with --json" if more else ""
    return "; ".join(filter(None, [", ".join(shown), rest]))
