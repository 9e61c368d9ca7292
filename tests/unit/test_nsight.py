"""Nsight Compute's CSV, as its versions print it, becomes the counters of a profile."""

import pytest
from values import cases

from gpulaunch.errors import UsageError
from gpulaunch.lab.measure.logs.nsight import METRICS, NcuCounters, read_ncu
from gpulaunch.records import replace

SECTORS, HIT, INSTRUCTIONS = METRICS
HINT = f"ncu --csv --metrics {','.join(METRICS)} COMMAND counts what is needed"
HEADER = [
    *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream"),
    *("Block Size", "Grid Size", "Device", "CC", "Section Name"),
    *("Metric Name", "Metric Unit", "Metric Value"),
]
BEFORE = (
    '==PROF== Connected to process 7 (/job)\n==PROF== Profiling "f": 0%....100% - 1 passes\nepoch '
    '1, "half of a quote\n'
)
AFTER = "==PROF== Disconnected from process 7\n"


def line(*cells: object) -> str:
    """Return a line of CSV as ncu writes it: everything between quotes."""
    return ",".join(f'"{cell}"' for cell in cells) + "\n"


def details(*kernels: dict[str, tuple[str, str]], columns: list[str] = HEADER) -> str:
    """Return the details page: a row for each metric, with unit and value, of each kernel."""
    text = BEFORE + line(*columns)
    for number, metrics in enumerate(kernels):
        for name, (unit, value) in metrics.items():
            known = {"ID": number, "Process ID": 7, "Kernel Name": "void f<1>(int, float *)"}
            known |= {"Metric Name": name, "Metric Unit": unit, "Metric Value": value}
            text += line(*(known.get(column, "x") for column in columns))
    return text + AFTER


ONE = {
    SECTORS: ("sector", "6,000,000"),
    HIT: ("%", "75.50"),
    INSTRUCTIONS: ("inst", "40,000,000"),
}
WHOLE = details(ONE).removesuffix(AFTER)
WANT = NcuCounters(150.0, 75.5, 32, 1)


def without(*names: str) -> dict[str, tuple[str, str]]:
    """Return a kernel without some of its metrics."""
    return {name: cell for name, cell in ONE.items() if name not in names}


TWO = details(ONE, ONE | {SECTORS: ("sector", "0"), HIT: ("%", "n/a")})
TABLES = {
    "a page as from DOS": ("\ufeff" + details(ONE).replace("\n", "\r\n"), WANT),
    "few columns": (details(ONE, columns=["ID", *HEADER[4:5], *HEADER[-3:]]), WANT),
    "millions": (details(ONE | {SECTORS: ("Msector", "6.00")}), WANT),
    "thousands": (details(ONE | {INSTRUCTIONS: ("Kinst", "40,000")}), WANT),
    "an exponent": (details(ONE | {SECTORS: ("sector", "6e6")}), WANT),
    "past all by replays": (
        details(ONE | {HIT: ("%", "100.62")}),
        replace(WANT, llc_hit_rate_percentage=100),
    ),
    "a kernel that does not use the cache": (
        TWO,
        replace(WANT, llc_accesses_per_kilo_instruction=75.0, kernels=2),
    ),
}


@cases(TABLES, "text", "want")
def test_table(text: str, want: NcuCounters) -> None:
    """A row for each metric is read, whatever stands around, with the units that ncu chooses."""
    assert read_ncu(text, "ncu.csv") == want


def test_several_kernels() -> None:
    """Counts are added up, and the hit rate is the mean by sectors."""
    small = {SECTORS: ("", "2,000,000"), HIT: ("%", "15.50"), INSTRUCTIONS: ("", "10,000,000")}
    assert read_ncu(details(ONE, small), "ncu.csv") == NcuCounters(160.0, 60.5, 32, 2)
    tables = details(ONE) + details(small).replace(BEFORE, "")  # an ID counts anew in each table
    assert read_ncu(tables, "ncu.csv") == NcuCounters(160.0, 60.5, 32, 2)


NO_NUMBER = "not a number as in English"


BROKEN = {
    "only a header": (line(*HEADER), ": no table of Nsight Compute with the metrics of a kernel"),
    "no sectors": (details(without(SECTORS)), f": the kernel of ID 0 has no {SECTORS}"),
    "a kernel without": (details(ONE, without(HIT)), f": the kernel of ID 1 has no {HIT}"),
    "another language": (
        details(ONE | {SECTORS: ("sector", "6.000.000")}),
        f":5: {SECTORS} is '6.000.000', {NO_NUMBER}",
    ),
    "no number": (details(ONE | {HIT: ("%", "n/a")}), f":6: {HIT} is 'n/a', {NO_NUMBER}"),
    "too much": (details(ONE | {HIT: ("%", "75,50")}), f":6: {HIT} is '75,50', not 0 to 100 %"),
    "a unit": (details(ONE | {HIT: ("", "0.7")}), f":6: {HIT} has the unit '', not a known one"),
    "no ID": (WHOLE + line("total", *HEADER[1:]), ":8: ID 'total' is not a number"),
    "a long cell": (WHOLE + '"' + "x" * 200_000, ":8: field larger than field limit (131072)"),
}


@cases(BROKEN, "text", "want")
def test_what_cannot_be_read(text: str, want: str) -> None:
    """What is missing, damaged or impossible is named with its line, or with what counts it."""
    with pytest.raises(UsageError) as caught:
        read_ncu(text, "ncu.csv")
    assert caught.value.message == f"ncu.csv{want}"
    assert (caught.value.hint == HINT) == want.startswith(": ")
