"""Nsight Compute's CSV, as its versions print it, becomes the counters of a profile."""

import time

import pytest

from gpulaunch.errors import UsageError
from gpulaunch.measure.logs.nsight import METRICS, NcuCounters, read_ncu
from gpulaunch.records import as_list, replace

SECTORS, HIT, INSTRUCTIONS, ACHIEVED, THEORETICAL, DURATION = METRICS
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


def raw(units: dict[str, str], *kernels: dict[str, str]) -> str:
    """Return the raw page: a column for each metric, the units in a row of their own."""
    text = BEFORE + line("ID", "Process ID", "Kernel Name", "launch__grid_size", *units)
    text += line("", "", "", "", *units.values())
    for number, values in enumerate(kernels):
        text += line(number, 7, "g(int)", "4,096", *(values[name] for name in units))
    return text


ONE = {
    SECTORS: ("sector", "6,000,000"),
    HIT: ("%", "75.50"),
    INSTRUCTIONS: ("inst", "40,000,000"),
    ACHIEVED: ("%", "32.70"),
    THEORETICAL: ("%", "93.75"),
    DURATION: ("us", "1,234.56"),
}
UNITS = {name: unit for name, (unit, _) in ONE.items()}
VALUES = {name: value for name, (_, value) in ONE.items()}
WANT = NcuCounters(150.0, 75.5, 32, 32.7, 93.75, 1)


def without(*names: str, kernel: dict[str, tuple[str, str]] = ONE) -> dict[str, tuple[str, str]]:
    """Return a kernel without some of its metrics."""
    return {name: cell for name, cell in kernel.items() if name not in names}


def near(got: NcuCounters) -> NcuCounters:
    """Round the counters, so that a float's noise makes no difference."""
    return NcuCounters(
        *(round(value, 9) if isinstance(value, float) else value for value in as_list(got))
    )


@pytest.mark.parametrize("text", [details(ONE), raw(UNITS, VALUES)], ids=["details", "raw"])
def test_pages(text: str) -> None:
    """The details page and the raw page say the same."""
    assert near(read_ncu(text, "ncu.csv")) == WANT


@pytest.mark.parametrize(
    "change",
    [("\n", "\r\n"), ("==PROF==", "==WARNING=="), ("", "")],
    ids=["dos", "warning", "as is"],
)
def test_surroundings(change: tuple[str, str]) -> None:
    """DOS line ends, a byte order mark, and text of ncu and the job around the table do no harm."""
    assert near(read_ncu("\ufeff" + details(ONE).replace(*change), "ncu.csv")) == WANT


@pytest.mark.parametrize(
    "columns",
    [
        [
            *HEADER,
            "Rule Name",
            "Rule Type",
            "Rule Description",
            "Estimated Speedup Type",
            "Estimated Speedup",
        ],
        [name for name in HEADER if name not in {"Block Size", "Grid Size", "Device", "CC"}],
        ["ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value"],
    ],
    ids=["with rules", "of 2019", "few"],
)
def test_columns_of_other_versions(columns: list[str]) -> None:
    """Columns go by their names: there may be more, fewer and others."""
    assert near(read_ncu(details(ONE, columns=columns), "ncu.csv")) == WANT


def test_names_on_the_details_page() -> None:
    """Sections name the same figures otherwise: those are taken, too."""
    names = {
        HIT: "L2 Hit Rate",
        INSTRUCTIONS: "Executed Instructions",
        ACHIEVED: "Achieved Occupancy",
    }
    names |= {THEORETICAL: "Theoretical Occupancy", DURATION: "Duration"}
    kernel = {names.get(name, name): cell for name, cell in ONE.items()}
    assert near(read_ncu(details(kernel, kernel), "ncu.csv")) == replace(WANT, kernels=2)


def test_own_name_counts_first() -> None:
    """A metric under its own name counts before another name for it, wherever it stands."""
    other = {"Achieved Occupancy": ("%", "99.99")}
    assert near(read_ncu(details(ONE | other), "ncu.csv")) == WANT
    assert near(read_ncu(details(other | ONE), "ncu.csv")) == WANT


def test_sectors_by_operation() -> None:
    """Where sectors were counted by operation only, all four together are all of them."""
    parts = {"read": "4,000,000", "write": "1,500,000", "atom": "400,000", "red": "100,000"}
    kernel = {
        f"lts__t_sectors_op_{name}.sum": ("sector", value) for name, value in parts.items()
    } | without(SECTORS)
    assert near(read_ncu(details(kernel), "ncu.csv")) == WANT
    with pytest.raises(UsageError, match=r"without lts__t_sectors\.sum"):
        read_ncu(details(without("lts__t_sectors_op_red.sum", kernel=kernel)), "ncu.csv")


def test_german() -> None:
    """Where commas stand before decimals, points stand between thousands."""
    swap = str.maketrans(",.", ".,")
    kernel = {name: (unit, value.translate(swap)) for name, (unit, value) in ONE.items()}
    assert near(read_ncu(details(kernel), "ncu.csv")) == WANT


@pytest.mark.parametrize(
    "other", [{SECTORS: "6.000.000"}, {HIT: "75,50"}, {DURATION: "1.234,56"}, {HIT: "7,5"}]
)
def test_one_figure_tells(other: dict[str, str]) -> None:
    """One figure that can be read in one way only tells how all others are meant."""
    told = {SECTORS: ("", "6000"), HIT: ("%", "75"), INSTRUCTIONS: ("", "40.000")}
    told |= {name: ("", value) for name, value in other.items()}
    got = read_ncu(details(told), "ncu.csv")
    sectors = 6_000_000 if SECTORS in other else 6000
    assert got.llc_accesses_per_kilo_instruction == pytest.approx(1000 * sectors / 40_000)


@pytest.mark.parametrize("thousands", [" ", "\u00a0", "\u202f", "'"])
def test_other_thousands(thousands: str) -> None:
    """Blanks and apostrophes may stand between thousands."""
    kernel = {name: (unit, value.replace(",", thousands)) for name, (unit, value) in ONE.items()}
    assert near(read_ncu(details(kernel), "ncu.csv")) == WANT


def test_what_may_be_either_is_english() -> None:
    """Where no figure tells, a comma stands between thousands."""
    kernel = {SECTORS: ("", "6,000"), HIT: ("%", "75"), INSTRUCTIONS: ("", "40,000")}
    assert read_ncu(details(kernel), "ncu.csv").llc_accesses_per_kilo_instruction == pytest.approx(
        150
    )


def test_two_languages() -> None:
    """Figures that cannot be of one language are an error that names both."""
    text = details(ONE | {HIT: ("%", "75,5")})
    with pytest.raises(UsageError) as caught:
        read_ncu(text, "ncu.csv")
    assert (
        caught.value.message
        == "ncu.csv:6: '75,5' has a decimal comma, '6,000,000' in line 5 is written as in English"
    )


@pytest.mark.parametrize(
    ("metric", "unit", "value"),
    [
        (SECTORS, "Msector", "6.00"),
        (SECTORS, "", "6000000"),
        (INSTRUCTIONS, "Minst", "40.00"),
        (INSTRUCTIONS, "Kinst", "40,000"),
        (DURATION, "nsecond", "1,234,560"),
        (DURATION, "ms", "1.23456"),
        (DURATION, "second", "0.00123456"),
        (SECTORS, "sector", "6e6"),
    ],
)
def test_units(metric: str, unit: str, value: str) -> None:
    """Units may have an SI prefix: --print-units auto is what ncu does unasked."""
    other = {name: (unit, value) for name, (unit, value) in ONE.items()}
    other |= {ACHIEVED: ("%", "12.70"), DURATION: ("us", "3,703.68")}
    got = near(read_ncu(details(ONE | {metric: (unit, value)}, other), "ncu.csv"))
    assert got == replace(WANT, kernels=2, warp_occupancy_percentage=17.7)


def test_several_kernels() -> None:
    """Counts are added up, the hit rate is the mean by sectors, an occupancy the mean by time."""
    small = {
        SECTORS: ("sector", "2,000,000"),
        HIT: ("%", "15.50"),
        INSTRUCTIONS: ("inst", "10,000,000"),
        ACHIEVED: ("%", "12.70"),
        THEORETICAL: ("%", "43.75"),
        DURATION: ("us", "3,703.68"),
    }
    got = near(read_ncu(details(ONE, small), "ncu.csv"))
    assert got == NcuCounters(160.0, 60.5, 32, 17.7, 56.25, 2)
    values = [{name: value for name, (_, value) in kernel.items()} for kernel in (ONE, small)]
    assert near(read_ncu(raw(UNITS, *values), "ncu.csv")) == got


def test_processes_and_tables() -> None:
    """An ID counts anew in each process and in each table: those are other kernels."""
    again = details(ONE).replace('"7"', '"8"').replace(BEFORE, "").split("\n", 1)[1]
    assert read_ncu(details(ONE) + again, "ncu.csv").kernels == 2
    assert read_ncu(details(ONE) + details(ONE).replace(BEFORE, ""), "ncu.csv").kernels == 2


@pytest.mark.parametrize("nothing", ["n/a", "nan", "", "N/A"])
def test_kernel_that_does_not_use_the_cache(nothing: str) -> None:
    """A kernel of 0 sectors has no hit rate, and needs none."""
    idle = ONE | {SECTORS: ("sector", "0"), HIT: ("%", nothing)}
    got = near(read_ncu(details(ONE, idle), "ncu.csv"))
    assert (got.llc_accesses_per_kilo_instruction, got.llc_hit_rate_percentage) == (75.0, 75.5)
    assert read_ncu(details(idle), "ncu.csv").llc_hit_rate_percentage == 0


@pytest.mark.parametrize(
    ("names", "missing", "occupancy"),
    [
        ([ACHIEVED], (ACHIEVED,), None),
        ([ACHIEVED, THEORETICAL], (ACHIEVED, THEORETICAL), None),
        ([DURATION], (ACHIEVED, THEORETICAL, DURATION), None),
    ],
)
def test_occupancy_is_not_needed(
    names: list[str], missing: tuple[str, ...], occupancy: float | None
) -> None:
    """Occupancy without its metric or its time is unknown, and what was not asked for is named."""
    kernel = without(*names)
    got = read_ncu(details(kernel, kernel), "ncu.csv")
    assert (got.warp_occupancy_percentage, got.missing, got.llc_hit_rate_percentage) == (
        occupancy,
        missing,
        75.5,
    )


def test_one_kernel_needs_no_time() -> None:
    """The occupancy of a single kernel is its own, whatever time it takes."""
    assert near(read_ncu(details(without(DURATION)), "ncu.csv")) == WANT


def test_rate_slightly_past_all() -> None:
    """A hit rate slightly over 100 %, which comes of several replays, is taken for 100 %."""
    assert read_ncu(details(ONE | {HIT: ("%", "100.62")}), "ncu.csv").llc_hit_rate_percentage == 100


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("", "ncu.csv: no table of Nsight Compute: no row with ID and Kernel Name"),
        ('{"ID": 3}\n', "ncu.csv: no table of Nsight Compute: no row with ID and Kernel Name"),
        (line(*HEADER), "ncu.csv: a table of Nsight Compute without any kernel"),
        (
            line(
                "Process ID",
                "Kernel Name",
                "Invocations",
                "Section Name",
                "Metric Name",
                "Metric Unit",
                "Average",
            ),
            "ncu.csv: a summary of Nsight Compute (--print-summary), which has no single kernels",
        ),
        (details(without(SECTORS, HIT)), f"ncu.csv: 1 kernels without {SECTORS} and {HIT}"),
        (details(without(INSTRUCTIONS)), f"ncu.csv: 1 kernels without {INSTRUCTIONS}"),
        (details(ONE, without(HIT)), f"ncu.csv:11: kernel 'void f<1>(int, float *)' has no {HIT}"),
        (
            details(ONE | {INSTRUCTIONS: ("inst", "n/a")}),
            f"ncu.csv:5: kernel 'void f<0>(int, float *)' has no {INSTRUCTIONS}",
        ),
    ],
    ids=[
        "empty",
        "json",
        "header",
        "summary",
        "two metrics",
        "one metric",
        "not of one kernel",
        "not counted",
    ],
)
def test_what_is_missing(text: str, want: str) -> None:
    """What is missing is named, and the hint is the command that counts it."""
    with pytest.raises(UsageError) as caught:
        read_ncu(text, "ncu.csv")
    assert (caught.value.message, caught.value.hint) == (want, HINT)


@pytest.mark.parametrize(
    ("metric", "unit", "value", "want"),
    [
        (SECTORS, "sector", "many", f"ncu.csv:5: {SECTORS} is 'many', not a number from 0"),
        (SECTORS, "sector", "-1", f"ncu.csv:5: {SECTORS} is '-1', not a number from 0"),
        (
            INSTRUCTIONS,
            "inst",
            "1e999",
            f"ncu.csv:7: {INSTRUCTIONS} is '1e999', not a number from 0",
        ),
        (SECTORS, "Mbyte", "6", f"ncu.csv:5: {SECTORS} has the unit 'Mbyte', which is not known"),
        (HIT, "%", "755", f"ncu.csv:6: {HIT} is '755 %', not 0 to 100 %"),
        (HIT, "ratio", "0.7", f"ncu.csv:6: {HIT} is '0.7 ratio', not 0 to 100 %"),
        (
            INSTRUCTIONS,
            "inst",
            "0",
            "ncu.csv: 1 kernels executed 0 warp instructions: there is nothing to count by",
        ),
    ],
)
def test_wrong_figures(metric: str, unit: str, value: str, want: str) -> None:
    """A figure that cannot be is an error with its line."""
    with pytest.raises(UsageError) as caught:
        read_ncu(details(ONE | {metric: (unit, value)}), "ncu.csv")
    assert caught.value.message == want


@pytest.mark.parametrize(
    ("row", "want"),
    [
        (line("0", "7", "f"), "ncu.csv:11: a row of 3 cells under 15 columns"),
        (line("total", *HEADER[1:]), "ncu.csv:11: ID 'total' is no number"),
        ('"' + "x" * 200_000, "ncu.csv:11: field larger than field limit (131072)"),
    ],
    ids=["short", "no number", "no end"],
)
def test_damaged_rows(row: str, want: str) -> None:
    """A row that is none is an error with its line."""
    with pytest.raises(UsageError) as caught:
        read_ncu(details(ONE).removesuffix(AFTER) + row, "ncu.csv")
    assert caught.value.message == want


@pytest.mark.parametrize("kernels", [4000])
def test_many_rows(kernels: int) -> None:
    """Six rows of each of thousands of kernels are read, in half a millisecond for each kernel."""
    text = details(*[ONE] * kernels)
    began = time.process_time()
    got = read_ncu(text, "ncu.csv")
    assert (got.kernels, time.process_time() - began < kernels * 0.0005) == (kernels, True)
