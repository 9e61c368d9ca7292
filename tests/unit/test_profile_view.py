"""`gpulaunch profiles show NAME`, as text and as `--svg FILE`: what stands there, and that it can be read."""

import io
import os
import re
import subprocess
import sys
from itertools import combinations
from math import hypot
from pathlib import Path
from xml.etree import ElementTree as ET

import pexpect
import pytest
from conftest import SCRIPT, Launcher
from rich.console import Console

from gpulaunch.errors import printable
from gpulaunch.profiles.catalog import find_profile, load_profile, profile_names
from gpulaunch.profiles.demand import CurvePoint
from gpulaunch.profiles.pattern import PATTERNS
from gpulaunch.profiles.profile import Profile, parse_profile
from gpulaunch.show.profile.amount import amount, amount_between_runs, said
from gpulaunch.show.profile.picture import profile_svg
from gpulaunch.show.profile.svg_width import cut_to, lines_of, width_of
from gpulaunch.show.profile.text import profile_text
from gpulaunch.show.profile.text_bar import bar_lines, drawn
from gpulaunch.show.profile.text_graph import matrix_lines
from gpulaunch.show.profile.text_plot import plot_lines
from gpulaunch.show.profile.view import Bar, Fact, Graph, Plot, ProfileView, sketch
from gpulaunch.show.profile.words import view_of
from gpulaunch.show.tables import profiles_table
from gpulaunch.show.terminal import draw

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = 'a"b<&>]]>\\c\x1b[31m\n\x00\u202e\udcff'
LONG = "A" * 300

PATTERN_ONLY = {
    "name": "vgg16",
    "description": "VGG-16, data-parallel training in Caffe on ImageNet",
    "communication": {
        "pattern": "ring",
        "bandwidth_sensitive": True,
        "collective_calls_per_iteration": 160001,
        "source": "mapa-sc21 2.3, Figure 5b (sensitivity, calls per GPU and iteration)",
    },
}
RESOURCES = {
    "memory_mib": 14120,
    "memory_mean_mib": 13800.5,
    "memory_is_reservation": True,
    "sm_utilization_percentage": 63.2,
    "sm_utilization_max_percentage": 88.1,
    "sm_occupancy_percentage": 41,
    "memory_bandwidth_utilization_percentage": 38.3,
    "memory_bandwidth_utilization_max_percentage": 71,
    "utilization": "time-active",
    "time_active_percentage": 91.4,
    "idle_percentage": 6.2,
    "power_w": 248.2,
    "power_max_w": 301,
    "power_cap_percentage": 0,
    "energy_j": 20870,
    "duration_s": 84.1,
    "pcie_tx_gb_per_s": 0.21,
    "pcie_rx_gb_per_s": 1.7,
    "nvlink_tx_gb_per_s": 12.2,
    "nvlink_rx_gb_per_s": 12.4,
    "samples": 420,
    "incomplete": True,
    "measured_on": "Tesla V100-SXM2-16GB",
    "driver": "550.54.15",
    "date": "2025-03-02",
    "source": "gpulaunch profile --runs 5",
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
    "scaling": {"parameter": "size", "profiles": {"1": "resnet50-1x", "4": "resnet50-4x"}},
    "communication": {
        "pattern": "ring",
        "edges": [[0, 1, 12.4], [0, 3, 11.9], [1, 2, 12.1], [1, 3, 0.8], [2, 3, 12.0]],
        "bandwidth_sensitive": True,
        "weight": 4,
        "collective_calls_per_iteration": 161,
        "message_bytes": 26214400,
        "time_percentage": 18.5,
        "split_slowdown_percentage": 22,
        "confidence": "guess",
        "source": "NVLink counters before and after the run",
    },
    "sensitivity": {
        "best_gb_per_s": 50,
        "worst_gb_per_s": 12,
        "best_s": 0.412,
        "worst_s": 0.717,
        "iterations": 100,
        "slowdown_percentage": 74,
        "measured_on": "Tesla V100-SXM2-16GB",
        "source": "gpulaunch profile --sensitivity",
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
        "knee_percentage": 60,
        "measured_on": "Tesla V100-SXM2-16GB",
        "source": "gpulaunch profile --sweep",
    },
    "classification": {"intensity": "memory", "source": "its curve"},
    "counters": {
        "llc_accesses_per_kilo_instruction": 52.1,
        "llc_hit_rate_percentage": 61,
        "bytes_per_access": 32,
        "warp_occupancy_percentage": 41,
        "theoretical_warp_occupancy_percentage": 50,
        "measured_on": "Tesla V100-SXM2-16GB",
        "source": "Nsight Compute 2024.3",
    },
    "collocation": {
        "slowdown_percentage": {"vgg16": 32, "kripke-4x": 4.5},
        "source": "10 runs on one socket",
    },
    "shared_gpu": {
        "slowdown_percentage": {"memory-load": 148, "link-load": 0},
        "predicted_from": "vgg16",
        "measured_on": "Tesla V100-SXM2-16GB",
        "source": "gpulaunch profile --pair synthetic",
    },
    "placement": {
        "min_bandwidth_gb_per_s": 25,
        "min_utility": 0.5,
        "single_node": True,
        "host_gb_per_s": 3,
    },
    "sharing": {"share": True, "sm_percentage": 40},
}


def every_pair(ranks: int) -> list[list[float]]:
    """A graph in which each rank exchanges something with every other."""
    return [[a, b, 1 + (a * 7 + b * 13) % 11 / 3] for a, b in combinations(range(ranks), 2)]


def curve(shares: list[float], throughput: list[float], **more: object) -> dict:
    return {
        "name": "j",
        "sm_curve": {"sm_percentage": shares, "throughput": throughput, "source": "s", **more},
    }


def hostile(text: str) -> dict:
    """Every text that a profile can have."""
    return {
        "name": text,
        "description": text,
        "base": text,
        "command": ["python", text],
        "scaling": {"parameter": text, "profiles": {"2": text}},
        "communication": {"pattern": "chain", "source": text},
        "resources": {
            **RESOURCES,
            "measured_on": text,
            "driver": text,
            "date": text,
            "source": text,
        },
        "runs": {"count": 2, "spread": {"power_w": 1}, "percentile_95": {"power_w": 1}},
        "sm_curve": {
            "sm_percentage": [50],
            "throughput": [1],
            "unit": text,
            "knee_percentage": 60,
            "source": text,
        },
        "collocation": {"slowdown_percentage": {text: 3}, "source": text},
        "shared_gpu": {"slowdown_percentage": {text: 3}, "predicted_from": text, "source": text},
        "sensitivity": {"best_s": 1, "worst_s": 2, "measured_on": text, "source": text},
        "counters": {"warp_occupancy_percentage": 20, "measured_on": text, "source": text},
        "classification": {"intensity": "compute", "source": text},
    }


DOCUMENTS = {
    "pattern only": PATTERN_ONLY,
    "full": FULL,
    "name only": {"name": "unheard-of"},
    "16 ranks": {"name": "wide", "communication": {"edges": every_pair(16), "source": "s"}},
    "40 ranks": {"name": "wide", "communication": {"edges": every_pair(40), "source": "s"}},
    "100 ranks": {"name": "wide", "communication": {"edges": every_pair(100), "source": "s"}},
    "a million GPUs": {
        "name": "j",
        "gpus": 1 << 20,
        "communication": {"pattern": "all_to_all", "source": "s"},
    },
    "one point": curve([50], [30.0]),
    "100 points": curve(
        [*range(1, 101)], [1000 * (1 - 0.97**i) for i in range(1, 101)], knee_percentage=100
    ),
    "falls": curve([10, 25, 50, 75, 90], [5, 9, 7, 8, 3], knee_percentage=0.1),
    "tiny and huge": curve([0.001, 100], [1e-300, 1e15], unit="1/s"),
    "no traffic": {"name": "j", "communication": {"pattern": "none", "source": "s"}},
    "rates only": {
        "name": "j",
        "sensitivity": {"best_gb_per_s": 9, "slowdown_percentage": -3, "source": "s"},
    },
    **{
        pattern: {"name": "j", "gpus": 12, "communication": {"pattern": pattern, "source": "s"}}
        for pattern in PATTERNS
        if pattern != "none"
    },
    **{
        f"any {pattern}": {"name": "j", "communication": {"pattern": pattern, "source": "s"}}
        for pattern in ("stencil_2d", "stencil_3d")
    },
}
UNCHECKED = {  # a view is safe whatever may be in a file
    "hostile": hostile(HOSTILE),
    "long": hostile(LONG),
    "wordy": hostile("many words of text " * 20),
}
PROFILES = {
    **{name: (load_profile(name), find_profile(name)) for name in profile_names()},
    **{name: (parse_profile(document), "/p/job.toml") for name, document in DOCUMENTS.items()},
    **{name: (Profile(document), "/p/job.toml") for name, document in UNCHECKED.items()},
}
EVERY = pytest.mark.parametrize(("profile", "path"), PROFILES.values(), ids=PROFILES)


def view(profile: Profile, path: str = "/p/job.toml") -> ProfileView:
    """As it is shown where the card's memory is known."""
    return view_of(profile, path, 16160 << 20)


def lines(
    profile: Profile, width: int = 80, *, plain: bool = False, path: str = "/p/job.toml"
) -> list[str]:
    stream = io.StringIO()
    draw(profile_text(view(profile, path), width, plain=plain), stream)
    return stream.getvalue().splitlines()


# Text

GOLDEN_FULL = """\
resnet50-dgx: ResNet-50, batch 32 per GPU
file             /p/job.toml
command          python train.py --note 'two words'
GPUs             4
base             gmm
variants         batch=1
measured sizes   size 1: resnet50-1x, 4: resnet50-4x
warning: incomplete: the job failed, or sampling broke off before its end
warning: memory is what an allocator set aside; the job may need less, so it
rules no GPU out
warning: the latest 2 runs do not fit these figures: measure again
warning: the pattern is a guess
warning: slowdowns beside others on one GPU are predicted: those of the nearest
profile, vgg16

── use of one GPU ──────────────────────────────────────────────────────────────
SM utilization    ████████████████████▉········│···  63.2 % ± 1.2 %, most 88.1 %
SM occupancy      █████████████▌···················  41 %
memory bandwidth  ████████████▋··········│·········  38.3 %, most 71 %
time active       ██████████████████████████████▏··  91.4 % of the time
idle samples      ██·······························  6.2 % of the samples
power cap active  ·································  0 %
memory            ████████████████████████████▉····  13.79 GiB of 15.78 GiB
averages over the run; a line marks the maximum; in an idle sample no kernel ran
at all; utilization: share of the time in which a kernel ran, and in which
memory was accessed (NVML); not the share of SMs, nor of bandwidth
memory           13.48 GiB on average
power            248.2 W ± 3.1 W on average, 301 W at most
energy           20.87 kJ of one run
duration         84.1 s of one run
PCIe             0.21 GB/s sent, 1.7 GB/s received
NVLink           12.2 GB/s sent, 12.4 GB/s received
runs             5; ± is the standard deviation between them, where it does not
                 round to 0
95th percentile  duration 86 s, SM utilization 65 %
measured on      Tesla V100-SXM2-16GB, driver 550.54.15, 2025-03-02
samples          420
source           gpulaunch profile --runs 5

── communication ───────────────────────────────────────────────────────────────
rank       0       1       2       3
   0       x ██ 12.4       · ██ 11.9
   1 ██ 12.4       x ██ 12.1 ░░  0.8
   2       · ██ 12.1       x ██   12
   3 ██ 11.9 ░░  0.8 ██   12       x
GB in both directions together: ░░ to 3.1, ▒▒ to 6.2, ▓▓ to 9.3, ██ to 12.4
pattern          ring (guess)
measured         0-1 12.4 GB, 1-2 12.1 GB, 2-3 12 GB, 0-3 11.9 GB, 1-3 0.8 GB
sensitive        yes: faster links make it faster
collectives      161 calls of one GPU per iteration
message size     25 MiB, average of a collective call
waiting          18.5 % of its time, for its links on the best GPUs
split            22 % longer with its GPUs on several sockets
weight           4 of each edge of the job graph
source           NVLink counters before and after the run

── throughput over the share of SMs ────────────────────────────────────────────
throughput, images/s
500 ┤                                   ⢀⣀●⣀⣀⣀⣀⣀⣀⣠⠤⠤⠤⠤●⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤●
    │                         ⣀⣀⡠⠤⠴●⠒⠋⠉⠉⠉ ┊             ⡀  ⠄  ⠃
    │                    ⢀⣠⠴⠒●⠁           ┊       ⡀  ⠂  ⠁
    │                ⢀⡠●⠊⠉                ┊ ⠄  ⠃
250 ┤             ⣀⠤⠚⠁             ⡀  ⠂  ⠁┊
    │         ⢀⡠⠖●           ⠄  ⠃         ┊
    │      ●⠤⠚⠁     ⡀  ⠂  ⠁               ┊
    │         ⠄  ⠃                        ┊
  0 ┤⡀  ⠆  ⠁                              ┊
    └──────────────────────────────────────────────────────────────
     0           20          40           60          80        100 % of the SMs
                               knee: 60 % ▲
dotted: throughput in proportion to the SMs
knee             60 % of the SMs keep 95 % of the best throughput
measured on      Tesla V100-SXM2-16GB
source           gpulaunch profile --sweep

── sensitivity to placement ────────────────────────────────────────────────────
best placement   █████████████████████████▉···················  0.412 s, 50 GB/s
worst placement  █████████████████████████████████████████████  0.717 s, 12 GB/s
time of an iteration
slowdown         74 % longer on the worst placement than on the best
timed            100 iterations
measured on      Tesla V100-SXM2-16GB
source           gpulaunch profile --sensitivity

── slowdown beside others on one socket ────────────────────────────────────────
vgg16      ████████████████··································  32 %
kripke-4x  ██▎···············································  4.5 %
how much longer it takes; a full bar is 100 %
source           10 runs on one socket

── slowdown beside others on one GPU ───────────────────────────────────────────
memory-load  ██████████████████████████████████████████████████  148 %
link-load    ··················································  0 %
how much longer it takes; a full bar is 148 %
predicted from   vgg16
measured on      Tesla V100-SXM2-16GB
source           gpulaunch profile --pair synthetic

── what it asks for ────────────────────────────────────────────────────────────
bandwidth        25 GB/s at least
utility          0.5 at least, 0 to 1
host memory      3 GB/s moved by the process of each GPU
machines         all GPUs in one
sharing          shares GPUs
SMs              40 % where it shares a GPU

── counters and class ──────────────────────────────────────────────────────────
SM warps    ███████████████████▎···│·······················  41 %, possible 50 %
cache hits  ████████████████████████████▋··················  61 %
SM warps: average share of the warps that the SMs can hold
class            memory-intensive
class by         its curve
cache            52.1 accesses per 1,000 warp instructions, 32 B each
measured on      Tesla V100-SXM2-16GB
source           Nsight Compute 2024.3
"""

GOLDEN_PATTERN = """\
vgg16: VGG-16, data-parallel training in Caffe on ImageNet
file          /p/job.toml
not recorded  average SM utilization, average memory-bandwidth utilization,
              maximum memory; without, the job shares no GPU

── communication ───────────────────────────────────────────────────────────────
drawn for 4 ranks, as an example
rank  0  1  2  3
   0  x ██  · ██
   1 ██  x ██  ·
   2  · ██  x ██
   3 ██  · ██  x
pattern       ring
ranks         0 - 1 - 2 - 3 - 0
sensitive     yes: faster links make it faster
collectives   160001 calls of one GPU per iteration
source        mapa-sc21 2.3, Figure 5b (sensitivity, calls per GPU and
              iteration)
"""

GOLDEN_PLAIN = """\
j
file          /p/job.toml
not recorded  average SM utilization, average
              memory-bandwidth utilization, maximum memory;
              without, the job shares no GPU

-- throughput over the share of SMs ------------------------
throughput (its unit is not recorded)
10 +          :
   |          o*****                    .
   |        **:     *****o**********o.
   |      **  :             .  .     **
 5 +    o*    :       .  .             **
   |          :    .  .                 **
   |         .: .                         o
   |   .  .   :
 0 +.         :
   +-------------------------------------------
    0       20       40      60       80    100 % of the SMs
              ^ knee: 25 %
dotted: throughput in proportion to the SMs
knee          25 % of the SMs keep 95 % of the best
              throughput
source        s
"""


def test_everything_recorded_is_shown():
    """A fully measured profile: bars with maxima and spread, their meaning, matrix, curve, sources, warnings."""
    got = "\n".join(lines(PROFILES["full"][0])) + "\n"
    assert got == GOLDEN_FULL


def test_profile_of_a_pattern():
    """A profile that knows how the job talks and nothing else: the pattern as an example, and what is not recorded."""
    got = "\n".join(lines(PROFILES["pattern only"][0])) + "\n"
    assert got == GOLDEN_PATTERN


def test_curve_in_ascii():
    """Where the encoding has no blocks, a curve that falls is drawn with ASCII signs."""
    got = (
        "\n".join(lines(PROFILES["falls"][0].but(sm_curve={"knee_percentage": 25}), 60, plain=True))
        + "\n"
    )
    assert got == GOLDEN_PLAIN


def test_nothing_but_a_name():
    """Of a profile that has only a name the name is shown, its file, and what is missing."""
    assert lines(PROFILES["name only"][0]) == [
        "unheard-of",
        "file          /p/job.toml",
        "not recorded  average SM utilization, average memory-bandwidth utilization,",
        "              maximum memory; without, the job shares no GPU",
    ]


@EVERY
@pytest.mark.parametrize("width", [48, 80, 120])
def test_text_fits(profile, path, width):
    """No line is wider than the terminal, unless a word of the profile alone is nearly as long."""
    wide = [line for line in lines(profile, width, path=path) if len(line) > width]
    assert [line for line in wide if max(map(len, line.split())) < 25] == []


@EVERY
def test_text_is_safe(profile, path):
    """Nothing that a profile says reaches the terminal as a control character."""
    assert [line for line in lines(profile, path=path) if not line.isprintable()] == []


@EVERY
def test_ascii_everywhere(profile, path):
    """With ASCII asked for, every sign is ASCII."""
    assert [line for line in lines(profile, plain=True, path=path) if not line.isascii()] == []


@EVERY
def test_every_source_is_shown(profile, path):
    """Each section's source is shown."""
    view_facts = [fact.text for section in view(profile, path).sections for fact in section.facts]
    sources = [
        value["source"]
        for value in profile.document.values()
        if isinstance(value, dict) and "source" in value
    ]
    assert [source for source in sources if printable(source) not in view_facts] == []


@pytest.mark.parametrize(
    ("utilization", "meaning"),
    [
        ("share", "share of the SMs, and of the DRAM bandwidth, in use"),
        (
            "time-active",
            "share of the time in which a kernel ran, and in which memory was accessed",
        ),
        (None, "whether of SMs and bandwidth or of time is not recorded"),
    ],
)
@pytest.mark.parametrize("sampled", [True, False])
def test_meaning_of_utilization(utilization, meaning, sampled):
    """What utilization means is said in words, and by what it was measured only where we have sampled it."""
    figures = {
        "sm_utilization_percentage": 3.0,
        "utilization": utilization,
        "measured_on": "simulated GPU of 24 SMs",
    }
    note = (
        view(Profile({"name": "j", "resources": figures | ({"samples": 9} if sampled else {})}))
        .sections[0]
        .note
    )
    instrument = {"share": " (GPM)", "time-active": " (NVML)", None: ""}[utilization]
    assert (
        (f"{meaning}{instrument}" in note, "(" in note) == (True, bool(instrument))
        if sampled
        else (True, False)
    )


def test_example_ranks():
    """A pattern is drawn for the profile's GPUs; as an example for so many that it shows where those are unknown."""
    sections = {
        name: view(PROFILES[name][0]).sections[0]
        for name in ("pattern only", "a million GPUs", "ring", "any stencil_2d", "any stencil_3d")
    }
    assert {name: (section.graph.ranks, section.note) for name, section in sections.items()} == {
        "pattern only": (4, "drawn for 4 ranks, as an example"),
        "a million GPUs": (4, "drawn for 4 ranks, as an example"),
        "ring": (12, ""),
        "any stencil_2d": (6, "drawn for 6 ranks, as an example"),
        "any stencil_3d": (8, "drawn for 8 ranks, as an example"),
    }


def test_pattern_as_files_have_it():
    """A pattern is called as in a file."""
    assert view(PROFILES["any stencil_3d"][0]).sections[0].facts[0].text == "stencil_3d"


def test_deviations():
    """A deviation has the digits and the unit of its value, and is left out where it rounds to 0."""
    resources = {
        "sm_utilization_percentage": 70.75,
        "pcie_tx_gb_per_s": 3,
        "power_w": 610,
        "memory_mean_mib": 6000,
        "energy_j": 20870,
        "duration_s": 101.4,
    }
    spread = {
        "sm_utilization_percentage": 0.04738,
        "pcie_tx_gb_per_s": 2.465e-06,
        "power_w": 0.004,
        "memory_mean_mib": 7.071,
        "energy_j": 112,
        "duration_s": 3.3,
    }
    section = view(
        Profile({"name": "j", "resources": resources, "runs": {"count": 5, "spread": spread}})
    ).sections[0]
    assert [bar.text for bar in section.bars] == ["70.75 % ± 0.05 %"]
    assert [tuple(fact[:2]) for fact in section.facts] == [
        ("memory", "5.859 GiB ± 0.007 GiB on average"),
        ("power", "610 W on average"),
        ("energy", "20.87 kJ ± 0.11 kJ of one run"),
        ("duration", "1 min 41 s ± 3 s of one run"),
        ("PCIe", "3 GB/s sent"),
        ("runs", "5; ± is the standard deviation between them, where it does not round to 0"),
    ]


@pytest.mark.parametrize(
    ("key", "value", "deviation", "want"),
    [
        ("power_w", 610, 0.4, "610.0 W ± 0.4 W"),
        ("power_w", 1610, 0.4, "1610 W"),
        ("sm_utilization_percentage", 0, 0, "0 %"),
        ("sm_utilization_percentage", 0, 2, "0 % ± 2 %"),
        ("samples", 420, 1.5, "420.0 ± 1.5"),
        ("message_bytes", 2048, 1024, "2 KiB ± 1 KiB"),
        ("duration_s", 4000, 100, "1 h 06 min ± 2 min"),
        ("duration_s", 1200, 100, "20 min ± 2 min"),
        ("duration_s", 1200, 10, "20 min"),
        ("power_w", 2e-300, 1, "2e-300 W ± 1 W"),
    ],
)
def test_amount_between_runs(key, value, deviation, want):
    """Value and deviation have as many digits behind the point as each other."""
    assert amount_between_runs(key, value, deviation) == want


@pytest.mark.parametrize(
    ("percentiles", "want"),
    [
        ({"power_w": 300, "duration_s": 86}, "duration 86 s, power 300 W"),
        (
            {"power_w": 300, "energy_j": 1, "samples": 3},
            "power 300 W; 2 more in the file, or with --json",
        ),
        ({"energy_j": 1}, "1 in the file, or with --json"),
    ],
)
def test_percentiles(percentiles, want):
    """Of 95th percentiles those that say most are shown, and how many more there are."""
    facts = view(Profile({"name": "j", "runs": {"percentile_95": percentiles}})).sections[0].facts
    assert facts == (Fact("95th percentile", want),)


@pytest.mark.parametrize("width", range(30, 60))
def test_no_figure_without_its_unit(width):
    """No line begins with a unit."""
    text = lines(PROFILES["full"][0], width)
    units = ("%", "GB/s", "W", "kJ", "s", "GiB", "MiB", "B")
    assert [
        line for line in text if line.split(" ")[-1] and line.split()[0].strip(",;") in units
    ] == []


def test_path_is_never_broken():
    """A file's path stands on one line beside its label, however long it is and whatever it holds."""
    path = "/home/somebody/a folder/" + "deep/" * 20 + "job.toml"
    assert lines(PROFILES["name only"][0], 48, path=path)[1] == f"file          {path}"


def test_card_memory():
    """Memory has a bar against the card's where that is known, and a line without it; a card too small is another."""
    profile = Profile({"name": "j", "resources": {"memory_mib": 8080}})
    found = {
        card: view_of(profile, "", card and card << 20).sections[0] for card in (16160, None, 100)
    }
    assert [(bar.label, bar.share, bar.text) for bar in found[16160].bars] == [
        ("memory", 0.5, "7.891 GiB of 15.78 GiB")
    ]
    assert [(found[card].bars, found[card].facts[0].text) for card in (None, 100)] == [
        ((), "7.891 GiB at most")
    ] * 2


@pytest.mark.parametrize(
    ("share", "mark", "unicode", "ascii_only"),
    [
        (0.0, None, "········", "--------"),
        (0.001, None, "▏·······", "#-------"),
        (0.5, None, "████····", "####----"),
        (0.55, None, "████▍···", "####----"),
        (1.0, None, "████████", "########"),
        (7.0, None, "████████", "########"),
        (0.25, 0.8, "██····│·", "##----|-"),
        (0.5, 0.5, "████│···", "####|---"),
        (1.0, 1.0, "███████│", "#######|"),
    ],
)
def test_bar(share, mark, unicode, ascii_only):
    """A bar is as long as its share in eighths of a column, never empty above 0, and a line marks the maximum."""
    bars = {plain: drawn(Bar("", share, "", mark), 8, plain=plain) for plain in (False, True)}
    assert {plain: "".join(part for part, _ in parts) for plain, parts in bars.items()} == {
        False: unicode,
        True: ascii_only,
    }


def test_bars_line_up():
    """Bars of a section begin and end in the same columns, and a label that is too long is cut."""
    got = [
        line.plain
        for line in bar_lines([Bar("a", 0.5, "5 %"), Bar("b" * 40, 1, "10 %")], 48, plain=False)
    ]
    assert got == [
        "a                         ████████········  5 %",
        f"{'b' * 23}…  ████████████████  10 %",
    ]


def graph(*edges: tuple[int, int, float], ranks: int = 4, unit: str | None = None) -> Graph:
    return Graph(ranks, edges, unit)


@pytest.mark.parametrize(
    ("drawn_graph", "want"),
    [
        (graph(), "no rank talks to another"),
        (graph((0, 1, 1), (1, 2, 1), (2, 3, 1), (0, 3, 1)), "0 - 1 - 2 - 3 - 0"),
        (graph((0, 2, 9), (1, 2, 1), (1, 3, 1)), "0 - 2 - 1 - 3"),
        (graph((0, 1, 1), ranks=2), "0 - 1"),
        (graph((0, 1, 1), (0, 2, 1), (0, 3, 1)), "0 with each of 1 to 3"),
        (Graph(5, PATTERNS["all_to_all"].edges(5)), "each rank with every other"),
        (
            graph((0, 1, 1), (0, 2, 1), (1, 2, 1), (3, 4, 1), (4, 5, 1), (3, 5, 1), ranks=6),
            "0-1, 0-2, 1-2, 3-4, 3-5, 4-5",
        ),
        (
            graph((0, 1, 1.5), (0, 2, 20), (0, 3, 3), (2, 3, 1), unit="GB"),
            "0-2 20 GB, 0-3 3 GB, 0-1 1.5 GB, 2-3 1 GB",
        ),
        (
            Graph(12, PATTERNS["stencil_2d"].edges(12), shape="grid"),
            "4 x 3 grid, each with its neighbours",
        ),
        (
            Graph(8, PATTERNS["stencil_3d"].edges(8), shape="block"),
            "2 x 2 x 2 block, each with its neighbours",
        ),
        (Graph(8, PATTERNS["stencil_3d"].edges(8)), "0-1, 0-2, 0-4, 1-3, 1-5, 2-3 and 6 more"),
    ],
    ids=str,
)
def test_sketch(drawn_graph, want):
    """A graph in a line: a ring or a chain as a way, a star and all-to-all in words, else the heaviest pairs."""
    assert sketch(drawn_graph) == want


def test_matrix():
    """Cells are the darker the more goes between two ranks, with figures where they fit, and a legend."""
    edges = ((0, 1, 4.0), (0, 2, 1.0), (1, 2, 2.5))
    got = {
        width: [
            line.plain
            for line in matrix_lines(graph(*edges, ranks=3, unit="GB"), width, plain=False)
        ]
        for width in (80, 16, 12)
    }
    legend = "GB in both directions together: ░░ to 1, ▒▒ to 2, ▓▓ to 3, ██ to 4"
    short = ["GB in both", "directions", "together: ░░ to", "1, ▒▒ to 2, ▓▓", "to 3, ██ to 4"]
    assert got == {
        80: [
            "rank      0      1      2",
            "   0      x ██   4 ░░   1",
            "   1 ██   4      x ▓▓ 2.5",
            "   2 ░░   1 ▓▓ 2.5      x",
            legend,
        ],
        16: ["rank  0  1  2", "   0  x ██ ░░", "   1 ██  x ▓▓", "   2 ░░ ▓▓  x", *short],
        12: [],
    }


@pytest.mark.parametrize(
    ("most", "top"),
    [(472, 500), (1000, 1000), (1001, 1200), (0.3, 0.3), (9.9, 10), (1e-300, 1e-300)],
)
def test_top_of_the_axis(most, top):
    """The axis of throughput ends at a round number at or above all points."""
    assert Plot((CurvePoint(50, most / 2), CurvePoint(100, most)), "").top == pytest.approx(top)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("name", ["one point", "100 points", "falls", "tiny and huge", "full"])
def test_plot_has_a_frame(name, plain):
    """Every curve keeps within its axes: nine rows of the same length, and each point is drawn."""
    shown = view(PROFILES[name][0])
    (plot,) = [section.plot for section in shown.sections if section.plot]
    got = [line.plain for line in plot_lines(plot, 80, plain=plain)]
    rows = [line for line in got if re.match(r" *\S* [┤│+|]", line) and "---" not in line][:9]
    assert (len(rows), len({len(row) for row in rows})) == (9, 1)
    marks = sum(row.count("o" if plain else "●") for row in rows)
    assert marks == (len(plot.points) if len(plot.points) <= 20 else 0)


@pytest.mark.parametrize(
    ("key", "value", "want"),
    [
        ("sm_utilization_percentage", 63.21, "63.21 %"),
        ("memory_mib", 2048, "2 GiB"),
        ("message_bytes", 26214400, "25 MiB"),
        ("power_w", 148.16, "148.2 W"),
        ("energy_j", 999, "999 J"),
        ("energy_j", 12467.54, "12.47 kJ"),
        ("duration_s", 0.4123, "0.4123 s"),
        ("duration_s", 184, "3 min 04 s"),
        ("nvlink_tx_gb_per_s", 12.2, "12.2 GB/s"),
        ("samples", 420, "420"),
    ],
)
def test_amount(key, value, want):
    """A figure has the unit that its key ends with."""
    assert amount(key, value) == want


def test_said():
    """A key is said without its unit, and abbreviations as people write them."""
    assert [said(key) for key in ("sm_utilization_percentage", "pcie_tx_gb_per_s", "samples")] == [
        "SM utilization",
        "PCIe sent",
        "samples",
    ]


# Picture


def test_widths_of_letters():
    """Letters are taken to be at least as wide as those of DejaVu Sans, and lines no more than 5 % wider."""
    pytest.importorskip("matplotlib")
    from matplotlib.font_manager import FontProperties, findfont
    from matplotlib.ft2font import FT2Font

    sentence = "mapa-sc21 2.3, Figure 5b (sensitivity, calls per GPU and iteration)"
    for weight in ("normal", "bold"):
        font = FT2Font(findfont(FontProperties(family="DejaVu Sans", weight=weight)))
        font.set_size(1000, 72)
        real = {
            letter: font.load_char(ord(letter)).linearHoriAdvance / 65536e3
            for letter in map(chr, range(32, 127))
        }
        taken = {letter: width_of(letter, 1, bold=weight == "bold") for letter in real}
        if weight == "normal":
            assert [letter for letter in real if real[letter] > taken[letter] + 1e-3] == []
        assert (
            1
            <= width_of(sentence, 1, bold=weight == "bold")
            / sum(real[letter] for letter in sentence)
            < 1.05
        )


def test_lines_in_a_picture():
    """Lines are full, but leave no word alone on the last; a long word goes on, a path after a slash."""
    text = "one two three four five six seven eight"
    assert lines_of(text, 170, 10) == ["one two three four five six", "seven eight"]
    assert lines_of("average of a collective call", 134, 10) == ["average of a", "collective call"]
    path = "/home/somebody/profiles/measured/job.toml"
    assert lines_of(path, 160, 10) == ["/home/somebody/profiles/", "measured/job.toml"]
    assert lines_of("A" * 12, 36, 10) == ["AAAAA", "AAAAA", "AA"]
    assert cut_to("A" * 12, 36, 10) == "AAA…"
    assert lines_of("", 36, 10) == []


def picture(profile: Profile, path: str = "/p/job.toml") -> ET.Element:
    return ET.fromstring(profile_svg(view(profile, path)))


def text_frame(text: ET.Element) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of a text, as far as one can tell without the font."""
    size, x, y = (float(text.get(name)) for name in ("font-size", "x", "y"))
    width = width_of(text.text or "", size, bold=text.get("font-weight") == "bold")
    left = x - {"start": 0, "middle": width / 2, "end": width}[text.get("text-anchor")]
    return left, y - 0.75 * size, left + width, y + 0.2 * size


def overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def extents(svg: ET.Element) -> list[tuple[float, ...]]:
    """What every drawn element covers."""
    found = [text_frame(text) for text in svg.iter(f"{SVG}text")]
    for rect in svg.iter(f"{SVG}rect"):
        if rect.get("x"):
            x, y, width, height = (float(rect.get(name)) for name in ("x", "y", "width", "height"))
            found.append((x, y, x + width, y + height))
    for line in svg.iter(f"{SVG}line"):
        x1, y1, x2, y2 = (float(line.get(name)) for name in ("x1", "y1", "x2", "y2"))
        found.append((min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)))
    for circle in svg.iter(f"{SVG}circle"):
        x, y, r = (float(circle.get(name)) for name in ("cx", "cy", "r"))
        found.append((x - r, y - r, x + r, y + r))
    for line in svg.iter(f"{SVG}polyline"):
        found += [
            (x, y, x, y)
            for x, y in (map(float, point.split(",")) for point in line.get("points").split())
        ]
    return found


@EVERY
def test_everything_is_within_the_picture(profile, path):
    """Nothing reaches beyond the picture's edge."""
    svg = picture(profile, path)
    _, _, width, height = map(float, svg.get("viewBox").split())
    assert [e for e in extents(svg) if e[0] < 0 or e[1] < 0 or e[2] > width or e[3] > height] == []


@EVERY
def test_everything_is_within_its_panel(profile, path):
    """What belongs to a section lies in its panel, and panels keep apart."""
    sections = [
        group for group in picture(profile, path).iter(f"{SVG}g") if group.get("class") == "section"
    ]
    panels = []
    for section in sections:
        x, y, width, height = (
            float(section.find(f"{SVG}rect").get(name)) for name in ("x", "y", "width", "height")
        )
        panels.append((x, y, x + width, y + height))
        outside = [
            e
            for e in extents(section)
            if e[0] < x or e[1] < y or e[2] > x + width or e[3] > y + height
        ]
        assert outside == []
    assert len(panels) == len(view(profile, path).sections)
    assert [pair for pair in combinations(panels, 2) if overlap(*pair)] == []


@EVERY
def test_no_card_alone_in_half_a_row(profile, path):
    """A section has the whole width, or another beside it."""
    groups = [
        group for group in picture(profile, path).iter(f"{SVG}g") if group.get("class") == "section"
    ]
    frames = [group.find(f"{SVG}rect") for group in groups]
    assert sum(float(frame.get("width")) < 500 for frame in frames) != 1


def test_two_columns():
    """Bars of a GPU take the whole width; after them each section goes to the column that is shorter so far."""
    sections = [
        group
        for group in picture(PROFILES["full"][0]).iter(f"{SVG}g")
        if group.get("class") == "section"
    ]
    lefts = [float(section.find(f"{SVG}rect").get("x")) for section in sections]
    assert lefts == [28, 28, 438, 438, 28, 438, 28, 28]


@EVERY
def test_no_text_lies_on_another(profile, path):
    """Labels keep apart."""
    texts = list(picture(profile, path).iter(f"{SVG}text"))
    pairs = combinations([(text_frame(text), text.text) for text in texts], 2)
    assert [(a[1], b[1]) for a, b in pairs if overlap(a[0], b[0])] == []


@EVERY
def test_no_text_lies_on_a_bar(profile, path):
    """Labels and figures stand beside their bars or above them."""
    svg = picture(profile, path)
    bars = [
        frame
        for group in svg.iter(f"{SVG}g")
        if group.get("class") == "bar"
        for frame in extents(group)
    ]
    texts = [text_frame(text) for text in svg.iter(f"{SVG}text")]
    assert [(text, bar) for text in texts for bar in bars if overlap(text, bar)] == []


@EVERY
def test_picture_needs_nothing_else(profile, path):
    """A picture has a light ground, our elements only, whatever the profile says, and comes out the same each time."""
    first, again = (profile_svg(view(profile, path)) for _ in range(2))
    svg = ET.fromstring(first)
    known = {"svg", "title", "g", "rect", "line", "text", "circle", "polyline"}
    assert {element.tag.removeprefix(SVG) for element in svg.iter()} <= known
    assert svg.find(f"{SVG}rect").get("fill") == "#ffffff"
    assert first == again


def test_picture_says_what_the_text_says():
    """Every title, warning and figure of the text stands in the picture, too."""
    shown = view(PROFILES["full"][0])
    said_there = " ".join(text.text for text in picture(PROFILES["full"][0]).iter(f"{SVG}text"))
    bars = [
        text for section in shown.sections for bar in section.bars for text in (bar.label, bar.text)
    ]
    facts = [fact.text for section in shown.sections for fact in section.facts]
    wanted = [
        shown.name,
        *(section.title for section in shown.sections),
        *shown.warnings,
        *bars,
        *facts,
    ]
    words = set(said_there.split())
    assert [text for text in wanted if not set(text.split()) <= words] == []


def test_text_of_many_lines():
    """A fact of more lines than anybody reads is cut in the picture, and ends in an ellipsis there."""
    profile = parse_profile({"name": "j", "communication": {"source": "word " * 1000}})
    texts = [text.text for text in picture(profile).iter(f"{SVG}text")]
    assert [text.split()[0] for text in texts[-12:]] == ["word"] * 11 + ["…"]


def test_line_for_each_edge():
    """There is a line for each edge and a circle for each rank; measured edges differ in thickness and have figures."""
    svg = picture(PROFILES["full"][0])
    edges = [element for element in svg.iter(f"{SVG}line") if element.get("class") == "edge"]
    assert [(edge.find(f"{SVG}title").text, edge.get("stroke-width")) for edge in edges] == [
        ("ranks 1 and 3: 0.8 GB", "1.3"),
        ("ranks 0 and 3: 11.9 GB", "4.8"),
        ("ranks 2 and 3: 12 GB", "4.9"),
        ("ranks 1 and 2: 12.1 GB", "4.9"),
        ("ranks 0 and 1: 12.4 GB", "5"),
    ]
    (matrix,) = [group for group in svg.iter(f"{SVG}g") if group.get("class") == "matrix"]
    figures = [text.text for text in matrix.iter(f"{SVG}text") if "." in text.text]
    assert sorted(figures) == ["0.8", "0.8", "11.9", "11.9", "12.1", "12.1", "12.4", "12.4"]


@pytest.mark.parametrize(
    ("pattern", "rows"), [("chain", 1), ("stencil_2d", 4), ("stencil_3d", 4), ("ring", 7)]
)
def test_shape_of_a_pattern(pattern, rows):
    """A chain lies on a line, a stencil on a grid or a block, anything else on a circle."""
    circles = picture(PROFILES[pattern][0]).iter(f"{SVG}circle")
    assert len({circle.get("cy") for circle in circles}) == rows


@pytest.mark.parametrize("ranks", range(2, 33))
@pytest.mark.parametrize("pattern", ["stencil_2d", "stencil_3d"])
def test_no_rank_hides_another(pattern, ranks):
    """Ranks of a stencil keep apart."""
    document = {"name": "j", "gpus": ranks, "communication": {"pattern": pattern, "source": "s"}}
    circles = picture(Profile(document)).iter(f"{SVG}circle")
    places = [tuple(float(circle.get(name)) for name in ("cx", "cy", "r")) for circle in circles]
    assert [
        (a, b) for a, b in combinations(places, 2) if hypot(a[0] - b[0], a[1] - b[1]) < a[2] + b[2]
    ] == []


# The list


def listed(*documents: dict, width: int | None = None, encoding: str = "utf-8") -> list[str]:
    """As printed to a pipe, or for so many columns."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    table = profiles_table([parse_profile(document) for document in documents])
    Console(file=stream, width=width).print(table) if width else draw(table, stream)
    stream.seek(0)
    return stream.read().splitlines()


VARIED = {
    "name": "kripke",
    "description": "Kripke, deterministic transport of particles",
    "communication": {"pattern": "stencil_3d", "source": "s"},
    "variants": {"batch=1": {"gpus": 2}},
    "scaling": {"parameter": "size", "profiles": {"1": "kripke-1x"}},
}


def test_list_in_a_pipe():
    """A pipe gets a line for each profile, as long as what it says, and one with all that may be asked of it."""
    resources = {"memory_mib": 621, "sm_utilization_percentage": 26.56, "source": "s"}
    assert listed(VARIED, {"name": "kripke-1x", "resources": resources}) == [
        "name       pattern     sensitive   memory   SM %  BW %  description",
        "─" * 67,
        "kripke     stencil_3d  -                -      -     -  Kripke, deterministic transport of particles",
        "  @batch=1, @size=1 is kripke-1x",
        "kripke-1x  -           -          621 MiB  26.56     -",
    ]


def test_list_at_a_narrow_terminal():
    """Where a description has no room beside the figures it stands below them in full, as do all variants."""
    assert listed(VARIED, width=60, encoding="ascii") == [
        "name    pattern     sensitive  memory  SM %  BW %",
        "-" * 49,
        "kripke  stencil_3d  -               -     -     -",
        "  Kripke, deterministic transport of particles",
        "  @batch=1, @size=1 is kripke-1x",
    ]


def test_list_beside_the_figures():
    """Where there is some room a description goes on below itself."""
    got = listed(VARIED | {"description": "word " * 19 + "end"}, width=95)
    assert [line.rstrip() for line in got[2:]] == [
        "kripke  stencil_3d  -               -     -     -  word word word word word word word word word",
        f"{'':51}word word word word word word word word word",
        f"{'':51}word end",
        "  @batch=1, @size=1 is kripke-1x",
    ]


def test_list_at_a_terminal(launcher: Launcher) -> None:
    """At 80 columns no line is longer or ends in a blank, and each profile's description is there in full."""
    child = pexpect.spawn(
        str(SCRIPT), ["profiles"], env=launcher.environment, dimensions=(50, 80), timeout=60
    )
    shown = re.sub(r"\x1b\[[0-9;]*m", "", child.read().decode()).splitlines()
    child.close()
    assert [line for line in shown if len(line) > 80 or line != line.rstrip()] == []
    words = " ".join(" ".join(shown).split())
    assert [name for name in profile_names() if load_profile(name).description not in words] == []


# The command


@pytest.fixture
def full(tmp_path: Path) -> str:
    from gpulaunch.files.write import document_text

    path = tmp_path / "full.toml"
    path.write_text(document_text(FULL))
    return str(path)


def test_show_to_a_pipe(launcher: Launcher, full: str) -> None:
    """To a pipe it prints 80 columns without a control code."""
    done = launcher.run("profiles", "show", full)
    want = GOLDEN_FULL.replace("/p/job.toml", full)
    assert (done.returncode, done.stdout) == (0, want)


def test_narrow_pipe(launcher: Launcher, full: str) -> None:
    """COLUMNS says how wide a pipe is."""
    launcher.environment["COLUMNS"] = "60"
    done = launcher.run("profiles", "show", full)
    assert [
        line for line in done.stdout.splitlines() if len(line.rstrip()) > 60 and full not in line
    ] == []


def test_pipe_without_unicode(launcher: Launcher, full: str) -> None:
    """Where stdout takes ASCII only, everything is drawn in ASCII."""
    launcher.environment["PYTHONIOENCODING"] = "ascii"
    done = launcher.run("profiles", "show", full)
    assert (done.returncode, done.stdout.isascii(), "\\u" in done.stdout) == (0, True, False)
    assert "####" in done.stdout


@pytest.mark.parametrize("no_colour", [False, True])
def test_colours(launcher: Launcher, full: str, no_colour: bool) -> None:
    """A terminal gets colours, unless NO_COLOR is set."""
    environment = (
        launcher.environment | {"TERM": "xterm-256color"} | ({"NO_COLOR": "1"} if no_colour else {})
    )
    child = pexpect.spawn(
        str(SCRIPT), ["profiles", "show", full], env=environment, dimensions=(50, 80), timeout=60
    )
    shown = child.read().decode()
    child.close()
    assert child.exitstatus == 0
    assert bool(re.search(r"\x1b\[(\d+;)*3\d", shown)) is not no_colour
    assert "SM utilization" in shown


def test_picture_of_a_profile(launcher: Launcher, full: str, tmp_path: Path) -> None:
    """`--svg FILE` writes the picture and prints nothing; the card's memory is that of a described machine."""
    done = launcher.run("profiles", "show", full, "--svg", str(tmp_path / "out.svg"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    texts = [text.text for text in ET.parse(tmp_path / "out.svg").iter(f"{SVG}text")]
    assert "13.79 GiB of 15.78 GiB" in texts


def test_picture_without_matplotlib() -> None:
    """`--svg` needs no optional package."""
    code = (
        "import sys\nfrom gpulaunch.cli.profiles import main\n"
        "main(['show', 'vgg16', '--svg', '-'])\nassert 'matplotlib' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert ET.fromstring(done.stdout).tag == f"{SVG}svg"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--svg", "x.svg"), "--svg goes with 'gpulaunch profiles show', without --json"),
        (
            ("check", "vgg16", "--svg", "x.svg"),
            "--svg goes with 'gpulaunch profiles show', without --json",
        ),
        (
            ("show", "vgg16", "--json", "--svg", "x.svg"),
            "--svg goes with 'gpulaunch profiles show', without --json",
        ),
        (("show", "vgg16", "--svg", ""), "--svg has an empty value"),
    ],
)
def test_where_svg_belongs(launcher: Launcher, arguments: tuple[str, ...], message: str) -> None:
    """--svg asks for a picture of one profile."""
    done = launcher.run("profiles", *arguments)
    assert (done.returncode, done.stderr) == (2, f"gpulaunch: error: {message}\n")
