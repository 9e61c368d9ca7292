"""`gpulaunch profiles show NAME` and `--svg FILE`: keys with units in table order; and the list."""

import io
import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from gpulaunch.errors import FieldError, printable
from gpulaunch.profiles.catalog import find_profile, load_profile, profile_names
from gpulaunch.profiles.keys import Key, Part, Resources, Section, flag, number, percentage, table
from gpulaunch.profiles.profile import Profile, check_profile, parse_profile
from gpulaunch.show.profile.picture import profile_svg
from gpulaunch.show.profile.table import profiles_table
from gpulaunch.show.profile.text import profile_text
from gpulaunch.show.profile.view import NO_BREAK, ProfileView, Row, amount, label_of, view_of
from gpulaunch.show.terminal import bar, draw

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
    "memory_is_reservation": True,
    "sm_utilization_percentage": 63.2,
    "sm_occupancy_percentage": 41,
    "memory_bandwidth_utilization_percentage": 38.3,
    "utilization": "time-active",
    "time_active_percentage": 91.4,
    "power_w": 248.2,
    "power_cap_percentage": 0,
    "energy_j": 20870,
    "duration_s": 84.1,
    "incomplete": True,
    "measured_on": "Tesla V100-SXM2-16GB",
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
        "time_percentage": 18.5,
        "split_slowdown_percentage": 22,
        "confidence": "guess",
        "source": "NVLink counters before and after the run",
    },
    "sensitivity": {
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
    """Return a graph in which each rank exchanges something with every other."""
    return [[a, b, 1 + (a * 7 + b * 13) % 11 / 3] for a, b in combinations(range(ranks), 2)]


def curve(shares: list[float], throughput: list[float], **more: object) -> dict:
    return {
        "name": "j",
        "sm_curve": {"sm_percentage": shares, "throughput": throughput, "source": "s", **more},
    }


def hostile(text: str) -> dict:
    """Return a profile with this text in every place that takes text."""
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
        "shared_gpu": {"slowdown_percentage": {text: 3}, "predicted_from": text, "source": text},
        "sensitivity": {"slowdown_percentage": 1, "measured_on": text, "source": text},
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
    "one point": curve([50], [30.0]),
    "100 points": curve([*range(1, 101)], [1000 * (1 - 0.97**i) for i in range(1, 101)]),
    "falls": curve([10, 25, 50, 75, 90], [5, 9, 7, 8, 3]),
    "tiny and huge": curve([0.001, 100], [1e-300, 1e15], unit="1/s"),
    "no traffic": {"name": "j", "communication": {"pattern": "none", "source": "s"}},
    "rates only": {
        "name": "j",
        "sensitivity": {"slowdown_percentage": -3, "source": "s"},
    },
}
UNCHECKED = {  # a view is safe whatever may be in a file
    "hostile": hostile(HOSTILE),
    "long": hostile(LONG),
    "wordy": hostile("many words of text " * 20) | {"collocation": {}, "shared_gpu": {}},
}
PROFILES = {
    **{name: (load_profile(name), find_profile(name)) for name in profile_names()},
    **{name: (parse_profile(document), "/p/job.toml") for name, document in DOCUMENTS.items()},
    **{name: (Profile(document), "/p/job.toml") for name, document in UNCHECKED.items()},
}
EVERY = pytest.mark.parametrize(("profile", "path"), PROFILES.values(), ids=PROFILES)


def view(profile: Profile, path: str = "/p/job.toml") -> ProfileView:
    """Return the view of a profile where the memory of its GPU is known."""
    return view_of(profile, path, 16160 << 20)


def lines(
    profile: Profile, width: int = 80, *, encoding: str = "utf-8", path: str = "/p/job.toml"
) -> list[str]:
    """Return what a terminal of so many columns shows."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="backslashreplace")
    console = Console(file=stream, highlight=False, markup=False, width=width)
    console.print(profile_text(view(profile, path)), crop=False)
    stream.seek(0)
    return stream.read().splitlines()


def every_row(rows: tuple[Row, ...]) -> Iterator[Row]:
    """Yield rows, and those within them."""
    for row in rows:
        yield row
        yield from every_row(row.inner)


# The view


def set_keys(section: type[Section], document: dict[str, Any]) -> list[Key[Any]]:
    """Return the keys of a section that a document sets, in the order of the table."""
    return [key for name, key in section.keys.items() if name in document]


def test_every_key_has_a_row_in_the_order_of_the_table():
    """Each section has a row for each key it sets, in order, but for keys in another's row."""
    shown = {section.label: section for section in view(PROFILES["full"][0]).sections}
    assert list(shown) == [
        name for name, key in Profile.keys.items() if isinstance(key, Part) and name in FULL
    ]
    with_others = {"sm_curve": ["sm_percentage", "unit"], "runs": ["spread", "percentile_95"]}
    for name, section in shown.items():
        keys = set_keys(Profile.keys[name].section, FULL[name])
        want = [label_of(key) for key in keys if key.name not in with_others.get(name, ())]
        assert [row.label for row in section.inner] == want


def made_up(monkeypatch: pytest.MonkeyPatch, name: str, key: Key[Any]) -> None:
    """Declare a key in [resources], as a line in its class does."""
    key.__set_name__(Resources, name)
    monkeypatch.setattr(Resources, name, key, raising=False)
    monkeypatch.setitem(Resources.keys, name, key)


def test_made_up_field(monkeypatch):
    """A key declared in a section is checked, in the reference, and shown."""
    made_up(monkeypatch, "warm_up_s", number(0, 100, "time before the first iteration"))
    made_up(monkeypatch, "nvdec_percentage", percentage("share of time that decodes video"))
    made_up(monkeypatch, "is_warm", flag("whether it was warm"))
    made_up(monkeypatch, "part_power_w", table((0.0, 1e3), "power by part"))
    resources = {
        "warm_up_s": 12.5,
        "nvdec_percentage": 25,
        "is_warm": False,
        "part_power_w": {"fan": 5, "cores": 20},
        "source": "s",
    }
    wrong = {"name": "j", "resources": resources | {"warm_up_s": 101}}
    with pytest.raises(FieldError, match="warm_up_s: 101 is not within 0 to 100"):
        check_profile(wrong)
    profile = parse_profile({"name": "j", "resources": resources})
    assert lines(profile)[-8:] == [
        "resources: what it uses of one GPU when it runs there alone",
        "source        s",
        "warm up       12.5 s",
        "nvdec         ━━━━━───────────────  25 %",
        "is warm       no",
        "part power    a full bar is 20 W",
        "  fan         ━━━━━───────────────  5 W",
        "  cores       ━━━━━━━━━━━━━━━━━━━━  20 W",
    ]


@pytest.mark.parametrize(
    ("key", "value", "want"),
    [
        (Resources.sm_utilization_percentage, 63.21, "63.21 %"),
        (Resources.memory_mib, 2048, "2 GiB"),
        (Profile.communication.section.edges, 1.5, "1.5 GB"),
        (Resources.power_w, 148.16, "148.2 W"),
        (Resources.energy_j, 999, "999 J"),
        (Resources.energy_j, 12467.54, "12.47 kJ"),
        (Resources.duration_s, 0.4123, "0.4123 s"),
        (Resources.duration_s, 184, "3 min 04 s"),
        (Profile.placement.section.host_gb_per_s, 12.2, "12.2 GB/s"),
    ],
)
def test_amount(key, value, want):
    """A number has the unit of its row or of its name's end, joined by an unbreakable space."""
    assert amount(key, value) == want.replace(" ", NO_BREAK)


def test_labels():
    """A key is called by its name without the unit, or by its label."""
    keys = ("sm_utilization_percentage", "power_cap_percentage")
    assert [label_of(Resources.keys[key]) for key in keys] == [
        "SM utilization",
        "time at the power cap",
    ]


def test_numbers_beside_others():
    """Spread and percentile stand beside their figure, no more precise, also if it is missing."""
    resources = {
        "sm_utilization_percentage": 70.75,
        "power_w": 610,
        "energy_j": 20870,
    }
    spread = {
        "sm_utilization_percentage": 0.04738,
        "energy_j": 112,
        "duration_s": 3.3,
    }
    runs = {"count": 5, "spread": spread, "percentile_95": {"sm_utilization_percentage": 71}}
    shown = view(Profile({"name": "j", "resources": resources, "runs": runs}))
    assert [row.text.replace(NO_BREAK, " ") for row in shown.sections[0].inner] == [
        "70.75 % (± 0.05 %, p95 71 %)",
        "610 W",
        "20.87 kJ (± 110 J)",
        "not recorded (± 3.3 s)",
    ]
    assert [(section.label, len(section.inner)) for section in shown.sections] == [
        ("resources", 4),
        ("runs", 1),
    ]


def test_memory_of_the_gpu():
    """Memory has a bar against its GPU's, if that is known and not too small."""
    profile = Profile({"name": "j", "resources": {"memory_mib": 8080}})
    found = {}
    for card in (16160, None, 100):
        row = view_of(profile, "", card and card << 20).sections[0].inner[0]
        found[card] = row.text.replace(NO_BREAK, " "), row.share
    assert found == {
        16160: ("7.891 GiB of 15.78 GiB", 0.5),
        None: ("7.891 GiB", None),
        100: ("7.891 GiB", None),
    }


def test_bars():
    """A share of 100 % has a bar; percentages that may be more have one only in a table."""
    shares = {row.label: row.share for row in every_row(view(PROFILES["full"][0]).sections)}
    labels = (
        "time waiting for links",
        "split slowdown",
        "share of the SMs",
        "vgg16",
        "memory-load",
    )
    assert [shares[label] for label in labels] == [0.185, None, 0.4, 0.32, 1.0]


def test_table_of_nothing():
    """A table without a number is shown as none."""
    profile = Profile({"name": "j", "collocation": {"slowdown_percentage": {}, "source": "s"}})
    assert lines(profile)[-2:] == ["slowdown      none", "source        s"]


@EVERY
def test_every_source_is_shown(profile, path):
    """Each section's source is shown."""
    shown = {
        row.text
        for section in view(profile, path).sections
        for row in section.inner
        if row.label == "source"
    }
    sources = [
        value["source"]
        for value in profile.document.values()
        if isinstance(value, dict) and "source" in value
    ]
    assert [source for source in sources if printable(source) not in shown] == []


# The terminal

GOLDEN_FULL = """\
resnet50-dgx: ResNet-50, batch 32 per GPU
file                            /p/job.toml
version                         1
base                            gmm
GPUs                            4
command                         python train.py --note 'two words'
variants                        batch=1

communication: how its GPUs talk to each other
pattern                         ring
edges                           0-1 12.4 GB, 1-2 12.1 GB, 2-3 12 GB,
                                0-3 11.9 GB, 1-3 0.8 GB
  rank     0     1     2     3
     0     -  12.4     -  11.9
     1  12.4     -  12.1   0.8
     2     -  12.1     -    12
     3  11.9   0.8    12     -
bandwidth sensitive             yes
weight of edges                 4
collective calls per iteration  161
time waiting for links          ━━━━────────────────  18.5 %
split slowdown                  22 %
confidence                      guess
source                          NVLink counters before and after the run

sensitivity: how it does on the best and on the worst placement of a machine
(mapa-sc21 2.3)
slowdown                        74 %
measured on                     Tesla V100-SXM2-16GB
source                          gpulaunch profile --sensitivity

placement: what it needs of its GPUs; that is decided, not measured, so it has
no source
min bandwidth                   25 GB/s
min utility                     0.5
single node                     yes
host memory traffic             3 GB/s

collocation: how it does beside others on one socket (topo-aware-sc17 4.2)
slowdown                        a full bar is 100 %
  vgg16                         ━━━━━━──────────────  32 %
  kripke-4x                     ━───────────────────  4.5 %
source                          10 runs on one socket

shared_gpu: how it does beside others on one GPU, through MPS; goes before
[collocation] where GPUs are shared
slowdown                        a full bar is 148 %
  memory-load                   ━━━━━━━━━━━━━━━━━━━━  148 %
  link-load                     ────────────────────  0 %
predicted from                  vgg16
measured on                     Tesla V100-SXM2-16GB
source                          gpulaunch profile --pair synthetic

resources: what it uses of one GPU when it runs there alone
memory                          ━━━━━━━━━━━━━━━━━───  13.79 GiB of 15.78 GiB
memory is reservation           yes
SM utilization                  ━━━━━━━━━━━━━───────  63.2 % (± 1.2 %, p95 65 %)
SM occupancy                    ━━━━━━━━────────────  41 %
memory bandwidth                ━━━━━━━━────────────  38.3 %
utilization                     time-active
time active                     ━━━━━━━━━━━━━━━━━━──  91.4 %
power                           248.2 W (± 3.1 W)
time at the power cap           ────────────────────  0 %
energy                          20.87 kJ
duration                        84.1 s (p95 86 s)
incomplete                      yes
measured on                     Tesla V100-SXM2-16GB
source                          gpulaunch profile --runs 5

runs: how these figures differ between runs; each is called as in [resources]
count                           5
misfits                         2

sharing: whether it is to share GPUs
share                           yes
share of the SMs                ━━━━━━━━────────────  40 %

sm_curve: its throughput over the share of SMs (cd-search-ics18 Figure 7,
mps-sharing-2024 Figure 1)
throughput                      by share of the SMs
  10 %                          ━━━━━───────────────  110 images/s
  20 %                          ━━━━━━━━━───────────  215 images/s
  30 %                          ━━━━━━━━━━━━━───────  310 images/s
  40 %                          ━━━━━━━━━━━━━━━━━───  390 images/s
  50 %                          ━━━━━━━━━━━━━━━━━━──  430 images/s
  60 %                          ━━━━━━━━━━━━━━━━━━━─  455 images/s
  80 %                          ━━━━━━━━━━━━━━━━━━━━  470 images/s
  100 %                         ━━━━━━━━━━━━━━━━━━━━  472 images/s
measured on                     Tesla V100-SXM2-16GB
source                          gpulaunch profile --sweep

classification: what is said of a job whose curve and counters nobody has
(cd-search-ics18 4.1)
intensity                       memory
source                          its curve

counters: a profiler's counters
LLC accesses per kilo instruction
                                52.1
LLC hit rate                    ━━━━━━━━━━━━────────  61 %
bytes per access                32
warp occupancy                  ━━━━━━━━────────────  41 %
theoretical warp occupancy      ━━━━━━━━━━──────────  50 %
measured on                     Tesla V100-SXM2-16GB
source                          Nsight Compute 2024.3

scaling: profiles of the same job at several problem sizes
parameter                       size
profiles
  1                             resnet50-1x
  4                             resnet50-4x
"""

GOLDEN_NARROW = """\
j
file                  /p/job.toml

resources: what it uses of one GPU when
it runs there alone
memory                13.79 GiB of
                      15.78 GiB
memory is reservation
                      yes
SM utilization        63.2 % (+- 1.2 %,
                      p95 65 %)
SM occupancy          41 %
memory bandwidth      38.3 %
utilization           time-active
time active           91.4 %
power                 248.2 W (+- 3.1 W)
time at the power cap
                      0 %
energy                20.87 kJ
duration              84.1 s (p95 86 s)
incomplete            yes
measured on           Tesla
                      V100-SXM2-16GB
source                gpulaunch profile
                      --runs 5

runs: how these figures differ between
runs; each is called as in [resources]
count                 5
misfits               2
"""


def test_everything_recorded_is_shown():
    """A fully measured profile: bars, spread, matrix, curve, sources and warnings."""
    assert "\n".join(lines(PROFILES["full"][0])) + "\n" == GOLDEN_FULL


def test_narrow_terminal_in_ascii():
    """At 40 columns without Unicode: no bars, texts below their labels where these are too long."""
    profile = Profile({"name": "j", "resources": RESOURCES, "runs": FULL["runs"]})
    assert "\n".join(lines(profile, 40, encoding="ascii")) + "\n" == GOLDEN_NARROW


def test_nothing_but_a_name():
    """A profile with only a name shows the name, its file, and what is missing."""
    assert lines(PROFILES["name only"][0]) == [
        "unheard-of",
        "file          /p/job.toml",
        "not recorded  average SM utilization, average memory-bandwidth utilization,",
        "              maximum memory; without, the job shares no GPU",
    ]


@EVERY
@pytest.mark.parametrize("width", [40, 80, 120])
def test_text_fits(profile, path, width):
    """No line exceeds the terminal or ends in a blank, unless a word is nearly as long."""
    shown = lines(profile, width, path=path)
    wide = [line for line in shown if len(line) > width]
    assert [line for line in wide if max(map(len, line.split())) < 17] == []
    assert [line for line in shown if line != line.rstrip()] == []


@EVERY
def test_text_is_safe(profile, path):
    """Nothing that a profile says reaches the terminal as a control character."""
    assert [line for line in lines(profile, path=path) if not line.isprintable()] == []


@EVERY
def test_ascii_everywhere(profile, path):
    """Where only ASCII can be printed, all signs of ours are ASCII."""
    shown = lines(profile, encoding="ascii", path=path)
    ours = re.compile(r"\\(u2501|u2500|xb1|xa0)")
    assert [line for line in shown if ours.search(line)] == []


@pytest.mark.parametrize("width", range(30, 60))
def test_no_figure_without_its_unit(width):
    """No line begins with a unit."""
    starts = [
        line.split()[0].strip(",;()") for line in lines(PROFILES["full"][0], width) if line.strip()
    ]
    assert set(starts) & {"%", "GB/s", "W", "kJ", "s", "GiB", "MiB", "B", "GB"} == set()


def test_path_is_never_broken():
    """A file's path is on one line beside its label, however long it is and whatever it holds."""
    path = "/home/somebody/a folder/" + "deep/" * 20 + "job.toml"
    assert lines(PROFILES["name only"][0], 48, path=path)[1] == f"file          {path}"


@pytest.mark.parametrize(
    ("share", "unicode", "ascii_only"),
    [
        (0.0, "────────", "--------"),
        (0.001, "━───────", "#-------"),
        (0.5, "━━━━────", "####----"),
        (1.0, "━━━━━━━━", "########"),
        (7.0, "━━━━━━━━", "########"),
    ],
)
def test_bar(share, unicode, ascii_only):
    """A bar is as long as its share, and never empty above 0."""
    assert [bar(share, 8, plain=plain).plain for plain in (False, True)] == [unicode, ascii_only]


def test_matrix():
    """Edges have a matrix where it fits, and their heaviest pairs in words everywhere."""
    edges = [[0, 1, 4.0], [0, 2, 1.0], [1, 2, 2.5]]
    profile = Profile({"name": "j", "communication": {"edges": edges}})
    assert lines(profile, 60)[-5:] == [
        "edges         0-1 4 GB, 1-2 2.5 GB, 0-2 1 GB",
        "  rank    0    1    2",
        "     0    -    4    1",
        "     1    4    -  2.5",
        "     2    1  2.5    -",
    ]
    assert view(PROFILES["40 ranks"][0]).sections[0].inner[0].drawing is None
    assert lines(PROFILES["40 ranks"][0])[-3:] == [
        "edges         0-5 4.333 GB, 0-16 4.333 GB, 0-27 4.333 GB, 0-38 4.333 GB,",
        "              1-7 4.333 GB, 1-18 4.333 GB and 774 more",
        "source        s",
    ]


def test_styles():
    """Title and names of sections are bold, and so are the heaviest pairs of a matrix."""
    edges = [[0, 1, 4.0], [0, 2, 1.0], [1, 2, 2.5]]
    document = {"name": "j", "description": "words " * 9, "communication": {"edges": edges}}
    console = Console(file=io.StringIO(), width=40, force_terminal=True, color_system="standard")
    console.print(profile_text(view(Profile(document))), crop=False)
    shown = console.file.getvalue()
    assert re.findall(r"\x1b\[1m(.*?)\x1b", shown) == [
        "j: words words words words words words",
        "words words words",
        "communication",
    ]
    assert re.findall(r"\x1b\[1;36m *(.*?)\x1b", shown) == ["4", "4"]


# The picture


def texts(svg: str) -> list[str]:
    """Return all texts of a picture."""
    found = ET.fromstring(svg).iter(f"{SVG}text")
    return ["".join(text.itertext()).replace(NO_BREAK, " ") for text in found]


@pytest.mark.parametrize(
    "name",
    [
        "full",
        "name only",
        "100 points",
        "tiny and huge",
        "16 ranks",
        "100 ranks",
        "hostile",
        "wordy",
    ],
)
def test_picture_says_what_the_terminal_says(name):
    """Titles, warnings, labels and values of all rows stand in the picture."""
    shown = view(PROFILES[name][0])
    words = set(" ".join(texts(profile_svg(shown))).split())
    rows = [
        *shown.rows,
        *shown.sections,
        *(row for section in shown.sections for row in section.inner),
    ]
    wanted = [
        shown.title,
        *(text for row in rows for text in (row.label, row.text)),
    ]
    words |= {word.removesuffix(":") for word in words}
    short = [
        word for text in wanted for word in text.replace(NO_BREAK, " ").split() if len(word) < 30
    ]
    assert [word for word in short if word not in words] == []


def test_picture_is_the_same_each_time():
    """A profile gives the same bytes, with a figure for each matrix cell and the curve's axes."""
    first, again = (profile_svg(view(PROFILES["full"][0])) for _ in range(2))
    assert first == again
    found = texts(first)
    assert sorted(text for text in found if text in ("11.9", "12.4")) == ["11.9"] * 2 + ["12.4"] * 2
    assert {"share of the SMs, %", "throughput, images/s"} <= set(found)
    assert "110 images/s" not in found  # the curve is a line, not rows


# The list


def listed(*documents: dict, width: int | None = None, encoding: str = "utf-8") -> list[str]:
    """Return the list's lines as printed to a pipe, or for so many columns."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    own, *benchmarks = [parse_profile(document) for document in documents]
    table = profiles_table([("what people run", [own]), ("benchmarks", benchmarks)])
    Console(file=stream, width=width).print(table) if width else draw(table, stream)
    stream.seek(0)
    return [line.rstrip() for line in stream.read().splitlines()]


VARIED = {
    "name": "kripke",
    "description": "Kripke, deterministic transport of particles",
    "communication": {"pattern": "stencil_3d", "source": "s"},
    "variants": {"batch=1": {"gpus": 2}},
    "scaling": {"parameter": "size", "profiles": {"1": "kripke-1x"}},
}


def test_list_in_a_pipe():
    """A pipe gets a line per profile, as long as its text, and one with all that can be asked."""
    resources = {"memory_mib": 621, "sm_utilization_percentage": 26.56, "source": "s"}
    estimated = {"estimated": ["sm_utilization_percentage"]}
    assert listed(VARIED, {"name": "kripke-1x", "resources": resources | estimated}) == [
        "name       pattern     sensitive   memory    SM %  BW %  description",
        "─" * 80,
        "what people run",
        (
            "kripke     stencil_3d                                    Kripke, deterministic "
            "transport of particles"
        ),
        f"{'':57}@batch=1, @size=1 is kripke-1x",
        "benchmarks",
        "kripke-1x                         621 MiB  ~26.56",
        "~ estimated",
    ]


def test_list_at_a_narrow_terminal():
    """Columns without room are named below; where that is not enough, each cell has a line."""
    assert listed(VARIED, width=48, encoding="ascii") == [
        "name    memory  SM %  BW %  description",
        "-" * 48,
        "what people run",
        "kripke                      Kripke,",
        "                            deterministic",
        "                            transport of",
        "                            particles",
        "                            @batch=1, @size=1 is",
        "                            kripke-1x",
        "no room for: pattern",
    ]
    assert listed(VARIED, width=25, encoding="ascii")[2:5] == [
        "name: kripke",
        "pattern: stencil_3d",
        "description: Kripke,",
    ]
