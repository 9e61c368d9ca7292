"""Nsight Compute's CSV, as its versions print it, becomes the counters of a profile."""

import pytest

from gpulaunch.errors import UsageError
from gpulaunch.measure.logs.nsight import METRICS, NcuCounters, read_ncu
from gpulaunch.records import replace

SECTORS, HIT, INSTRUCTIONS = METRICS
HINT = f"ncu --csv --metrics {','.join(METRICS)} COMMAND counts what is needed"
HEADER = [
    "ID",
    "Process ID",
    "Process Name",
    "Host Name",
    "Kernel Name",
    "Context",
    "Stream",
    "Block Size",
    "Grid Size",
]
HEADER += ["Device", "CC", "Section Name", "Metric Name", "Metric Unit", "Metric Value"]
BEFORE = (
    '==PROF== Connected to process 7 (/job)\n==PROF== Profiling "f": 0%....100% - 1 passes\nepoch '
    '1, "half of a quote\n'
)
AFTER = "==PROF== Disconnected from process 7\n"


def line(*cells: object) -> str:
    """Return a line of CSV as ncu writes it: everything between quotes."""
    return ",".join(f'"{cell}"' for cell in cells) + "\n"


def details(*kernels: dict[str, tuple[str, str]], columns: list[str] = HEADER) -> str:
    """Return the details page: a row for each metric of each kernel.

    A metric has its unit and its value.
    """
    text = BEFORE + line(*columns)
    for number, metrics in enumerate(kernels):
        for name, (unit, value) in metrics.items():
            known = {
                "ID": number,
                "Process ID": 7,
                "Kernel Name": f"void f<{number}>(int, float *)",
            }
            known |= {"Metric Name": name, "Metric Unit": unit, "Metric Value": value}
            text += line(*(known.get(column, "x") for column in columns))
    return text + AFTER


ONE = {
    SECTORS: ("sector", "6,000,000"),
    HIT: ("%", "75.50"),
    INSTRUCTIONS: ("inst", "40,000,000"),
}
WANT = NcuCounters(150.0, 75.5, 32, 1)


def without(*names: str) -> dict[str, tuple[str, str]]:
    """Return a kernel without some of its metrics."""
    return {name: cell for name, cell in ONE.items() if name not in names}


@pytest.mark.parametrize(
    "text",
    [
        details(ONE),
        "\ufeff" + details(ONE).replace("\n", "\r\n"),
        details(ONE, columns=["ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value"]),
        details(ONE | {"Executed Instructions": ("inst", "9")}),
    ],
    ids=["details", "dos", "few columns", "other metrics"],
)
def test_table(text: str) -> None:
    """A row for each metric is read, whatever stands around and beside."""
    assert read_ncu(text, "ncu.csv") == WANT


@pytest.mark.parametrize(
    ("metric", "unit", "value"),
    [
        (SECTORS, "Msector", "6.00"),
        (SECTORS, "", "6000000"),
        (INSTRUCTIONS, "Kinst", "40,000"),
        (SECTORS, "sector", "6e6"),
    ],
)
def test_units(metric: str, unit: str, value: str) -> None:
    """Units may have an SI prefix: --print-units auto is what ncu does unasked."""
    assert read_ncu(details(ONE | {metric: (unit, value)}), "ncu.csv") == WANT


def test_several_kernels() -> None:
    """Counts are added up, and the hit rate is the mean by sectors."""
    small = {SECTORS: ("", "2,000,000"), HIT: ("%", "15.50"), INSTRUCTIONS: ("", "10,000,000")}
    assert read_ncu(details(ONE, small), "ncu.csv") == NcuCounters(160.0, 60.5, 32, 2)
    tables = details(ONE) + details(small).replace(BEFORE, "")  # an ID counts anew in each table
    assert read_ncu(tables, "ncu.csv") == NcuCounters(160.0, 60.5, 32, 2)


def test_kernel_that_does_not_use_the_cache() -> None:
    """A kernel of 0 sectors has no hit rate, and needs none."""
    idle = ONE | {SECTORS: ("sector", "0"), HIT: ("%", "n/a")}
    assert read_ncu(details(ONE, idle), "ncu.csv") == replace(
        WANT, llc_accesses_per_kilo_instruction=75.0, kernels=2
    )


def test_rate_slightly_past_all() -> None:
    """A hit rate slightly over 100 %, which comes of several replays, is taken for 100 %."""
    assert read_ncu(details(ONE | {HIT: ("%", "100.62")}), "ncu.csv").llc_hit_rate_percentage == 100


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("", ": no table of Nsight Compute with the metrics of a kernel"),
        (line(*HEADER), ": no table of Nsight Compute with the metrics of a kernel"),
        (details(without(SECTORS)), f": the kernel of ID 0 has no {SECTORS}"),
        (details(ONE, without(HIT)), f": the kernel of ID 1 has no {HIT}"),
        (details(ONE | {INSTRUCTIONS: ("", "0")}), ": 1 kernels executed 0 warp instructions"),
    ],
    ids=["empty", "header", "one metric", "not of one kernel", "no instructions"],
)
def test_what_is_missing(text: str, want: str) -> None:
    """What is missing is named, and the hint is the command that counts it."""
    with pytest.raises(UsageError) as caught:
        read_ncu(text, "ncu.csv")
    assert (caught.value.message, caught.value.hint) == (f"ncu.csv{want}", HINT)


@pytest.mark.parametrize(
    ("metric", "unit", "value", "want"),
    [
        (SECTORS, "sector", "6.000.000", f"{SECTORS} is '6.000.000', not a number as in English"),
        (HIT, "%", "n/a", f"{HIT} is 'n/a', not a number as in English"),
        (HIT, "%", "75,50", f"{HIT} is '75,50', not 0 to 100 %"),
        (SECTORS, "Mbyte", "6", f"{SECTORS} has the unit 'Mbyte', not a known one"),
        (HIT, "", "0.7", f"{HIT} has the unit '', not a known one"),
    ],
)
def test_wrong_figures(metric: str, unit: str, value: str, want: str) -> None:
    """A figure that cannot be is an error with its line, and so is one of another language."""
    number = {SECTORS: 5, HIT: 6}[metric]
    with pytest.raises(UsageError) as caught:
        read_ncu(details(ONE | {metric: (unit, value)}), "ncu.csv")
    assert caught.value.message == f"ncu.csv:{number}: {want}"


@pytest.mark.parametrize(
    ("row", "want"),
    [
        (line("0", "7", "f"), "ncu.csv:8: a row of 3 cells under 15 columns"),
        (line("total", *HEADER[1:]), "ncu.csv:8: ID 'total' is not a number"),
        ('"' + "x" * 200_000, "ncu.csv:8: field larger than field limit (131072)"),
    ],
    ids=["short", "no number", "no end"],
)
def test_damaged_rows(row: str, want: str) -> None:
    """A row that is none is an error with its line."""
    with pytest.raises(UsageError) as caught:
        read_ncu(details(ONE).removesuffix(AFTER) + row, "ncu.csv")
    assert caught.value.message == want
