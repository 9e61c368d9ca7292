"""`gpulaunch profile show NAME`: keys with units in the order of the table; and the list."""

import io

import pytest
from rich.console import Console

from gpulaunch.profiles.keys import Resources
from gpulaunch.profiles.profile import Profile
from gpulaunch.show.profile import amount, profile_text

HOSTILE = 'a"b<&>]]>\\c\x1b[31m\n\x00\u202e\udcff'
LONG = "A" * 300

RESOURCES = {
    "memory_mib": 14120,
    "memory_is_reservation": True,
    "sm_utilization_percentage": 63.2,
    "sm_occupancy_percentage": 41,
    "memory_bandwidth_utilization_percentage": 38.3,
    "utilization": "time-active",
    "time_active_percentage": 91.4,
    "power_w": 248.2,
    "energy_j": 20870,
    "duration_s": 84.1,
    "incomplete": True,
    "measured_on": "Tesla V100-SXM2-16GB",
    "source": "gpulaunch profile measure --runs 5",
}
SHARES = [10, 20, 30, 40, 50, 60, 80, 100]
FULL = {
    "version": 1,
    "name": "resnet50-dgx",
    "description": "ResNet-50, batch 32 per GPU",
    "base": "gmm",
    "gpus": 4,
    "command": ["python", "train.py", "--note", "two words"],
    "variants": {"batch=1": {"gpus": 2}},
    "communication": {
        "pattern": "ring",
        "edges": [[0, 1, 12.4], [0, 3, 11.9], [1, 2, 12.1], [1, 3, 0.8], [2, 3, 12.0]],
        "bandwidth_sensitive": True,
        "weight": 4,
        "collective_calls_per_iteration": 161,
        "time_percentage": 18.5,
        "split_slowdown_percentage": 22,
        "confidence": "guess",
        "source": "NVLink counters before and after the run",
    },
    "resources": RESOURCES,
    "runs": {
        "count": 5,
        "misfits": 2,
        "spread": {"sm_utilization_percentage": 1.2, "power_w": 3.1},
        "percentile_95": {"sm_utilization_percentage": 65, "duration_s": 86},
    },
    "sm_curve": {
        "sm_percentage": SHARES,
        "throughput": [110, 215, 310, 390, 430, 455, 470, 472],
        "unit": "images/s",
        "measured_on": "Tesla V100-SXM2-16GB",
        "source": "gpulaunch profile measure --sweep",
    },
    "collocation": {
        "slowdown_percentage": {"vgg16": 32, "kripke-4x": 4.5},
        "source": "10 runs on one socket",
    },
}


def hostile(text: str) -> dict:
    """Return a profile with this text in every place that takes text."""
    return {
        "name": text,
        "description": text,
        "base": text,
        "command": ["python", text],
        "scaling": {"parameter": text, "profiles": {"2": text}},
        "resources": {
            **RESOURCES,
            "measured_on": text,
            "source": text,
        },
        "runs": {"count": 2, "spread": {"power_w": 1}, "percentile_95": {"power_w": 1}},
        "sm_curve": {
            "sm_percentage": [50],
            "throughput": [1],
            "unit": text,
            "source": text,
        },
        "collocation": {"slowdown_percentage": {text: 3}, "source": text},
    }


PROFILES = {  # a view is safe whatever may be in a file, so these are not checked
    "full": Profile(FULL),
    "name only": Profile({"name": "unheard-of"}),
    "hostile": Profile(hostile(HOSTILE)),
    "long": Profile(hostile(LONG)),
}
EVERY = pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)


def lines(profile: Profile, width: int = 80, path: str = "/p/job.toml") -> list[str]:
    """Return what a terminal of so many columns shows."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    console = Console(file=stream, highlight=False, markup=False, width=width)
    console.print(profile_text(profile, path), crop=False)
    stream.seek(0)
    return [line.rstrip() for line in stream.read().splitlines()]


@pytest.mark.parametrize(
    ("key", "value", "want"),
    [
        (Resources.memory_mib, 2048, "2 GiB"),
        (Resources.power_w, 148.16, "148.2 W"),
        (Resources.energy_j, 999, "999 J"),
        (Resources.energy_j, 12467.54, "12.47 kJ"),
        (Resources.duration_s, 0.4123, "0.4123 s"),
        (Resources.duration_s, 184, "3 min 04 s"),
        (Profile.placement.section.host_gb_per_s, 12.2, "12.2 GB/s"),
    ],
)
def test_amount(key, value, want):
    """A number has the unit of its row or of its name's end."""
    assert amount(key, value) == want


GOLDEN_FULL = """\
resnet50-dgx: ResNet-50, batch 32 per GPU
file: /p/job.toml

what                            value
────────────────────────────────────────────────────────────────────────────────
version                         1
base                            gmm
GPUs                            4
command                         python train.py --note 'two words'
variants                        batch=1

communication: how its GPUs talk to each other
pattern                         ring
edges                           0-1 12.4 GB, 1-2 12.1 GB, 2-3 12 GB, 0-3 11.9
                                GB, 1-3 0.8 GB
bandwidth sensitive             yes
weight of edges                 4
collective calls per iteration  161
time waiting for links          18.5 %
split slowdown                  22 %
confidence                      guess
source                          NVLink counters before and after the run

collocation: how it does beside others on one socket (topo-aware-sc17 4.2)
slowdown                        vgg16: 32 %, kripke-4x: 4.5 %
source                          10 runs on one socket

resources: what it uses of one GPU when it runs there alone
memory                          13.79 GiB
memory is reservation           yes
SM utilization                  63.2 % (sd 1.2 %, p95 65 %)
SM occupancy                    41 %
memory bandwidth                38.3 %
utilization                     time-active
time active                     91.4 %
power                           248.2 W (sd 3.1 W)
energy                          20.87 kJ
duration                        84.1 s (p95 86 s)
incomplete                      yes
measured on                     Tesla V100-SXM2-16GB
source                          gpulaunch profile measure --runs 5

runs: how these figures differ between runs; each is called as in [resources]
count                           5
misfits                         2

sm_curve: its throughput over the share of SMs (cd-search-ics18 Figure 7,
mps-sharing-2024 Figure 1)
throughput                      images/s by share of the SMs: 10 %: 110, 20 %:
                                215, 30 %: 310, 40 %: 390, 50 %: 430, 60 %: 455,
                                80 %: 470, 100 %: 472
measured on                     Tesla V100-SXM2-16GB
source                          gpulaunch profile measure --sweep
"""


def test_everything_recorded_is_shown():
    """A fully measured profile: figures, spread, edges, curve and sources."""
    assert "\n".join(lines(PROFILES["full"])) + "\n" == GOLDEN_FULL


def test_nothing_but_a_name():
    """A profile with only a name shows the name, its file, and what is missing."""
    assert lines(PROFILES["name only"])[-2:] == [
        "not recorded  average SM utilization, average memory-bandwidth utilization,",
        "              maximum memory; without, the job shares no GPU",
    ]


@EVERY
@pytest.mark.parametrize("width", [40, 80])
def test_text_fits_and_is_safe(profile: Profile, width: int) -> None:
    """No line exceeds the terminal, and nothing that a profile says is a control character."""
    shown = lines(profile, width)
    assert [line for line in shown if len(line) > width or not line.isprintable()] == []


def test_path_is_never_broken() -> None:
    """A file's path is on one line, however long it is and whatever it holds."""
    path = "/home/somebody/a folder/" + "deep/" * 20 + "job.toml"
    assert lines(PROFILES["name only"], 48, path=path)[1] == f"file: {path}"
