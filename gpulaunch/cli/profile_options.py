"""The options of `gpulaunch profile`: its own, and those of a launch."""

from gpulaunch.cli.arguments import LaunchParser, written
from gpulaunch.launch.options import OPTIONS, Given, OnOff, Option
from gpulaunch.typing import Any

_OWN: tuple[Option[Any], ...] = (
    Option(
        str,
        "-o --output FILE",
        "write or change this profile (default: your own of that --name)",
        name="output",
    ),
    Option(
        str,
        "--name TEXT",
        "what the profile and the job are called (default: that of FILE)",
        name="name",
    ),
    Option(
        str,
        "--runs N",
        "run the job so often; says how runs differ, and their 95th percentiles",
        name="runs",
    ),
    OnOff(
        "--sensitivity",
        "run it on the best and on the worst GPUs: do its links matter?",
        name="sensitivity",
    ),
    Option(
        str,
        "--sweep PERCENT,...",
        "run it with these shares of the SMs under MPS: how many it needs",
        name="sweep",
    ),
    Option(
        str,
        "--pair OTHER|synthetic",
        "run it beside another profile's job: how much slower it gets",
        name="pair",
    ),
    Option(
        str,
        "--iterations-from REGEX",
        "what it prints of its progress: one group, a number",
        name="iterations_from",
    ),
    Option(
        str,
        "--slice TIME",
        "with --iterations-from: so much of each run is enough (default 30s)",
        name="slice",
    ),
    Option(
        str,
        "--scan PATH",
        "read its source, a file or a folder, for who talks to whom",
        name="scan",
    ),
    Option(
        str,
        "--scan-nccl-log FILE",
        "read the log of NCCL_DEBUG=INFO, best with NCCL_DEBUG_SUBSYS=INIT,COLL,GRAPH",
        name="scan_nccl_log",
    ),
    Option(str, "--import-ncu FILE", "read counters from Nsight Compute's CSV", name="import_ncu"),
)
MODES = ("sensitivity", "sweep", "pair", "scan", "scan_nccl_log", "import_ncu")
READING = ("scan", "scan_nccl_log", "import_ncu")
MEASURING = (*MODES, "runs", "iterations_from", "slice")
_NOT_HERE = {"dry_run", "explain", "record", "version", "name"}
_OF_LAUNCH = [row for name, row in OPTIONS.items() if name not in _NOT_HERE]


def make_parser(*, whole: bool = False) -> LaunchParser:
    """Return the parser of the command line.

    Args:
        whole: with the options of a launch, which its help leaves out.
    """
    return LaunchParser(
        (*_OWN, *_OF_LAUNCH) if whole else (*_OWN, OPTIONS["help"]),
        "gpulaunch profile",
        description="Measure a job, or read its source, for its profile; options of a launch "
        "apply, see 'gpulaunch --help'.",
        usage="gpulaunch profile [OPTIONS] -o FILE -- COMMAND [ARG...]\n"
        "       gpulaunch profile -- python SCRIPT.py [ARG...]: scan it, run nothing\n"
        "       gpulaunch profile --scan PATH | --scan-nccl-log FILE | --import-ncu FILE [--json] "
        "[-o FILE]",
    )


def sharing(given: Given) -> list[str]:
    """Return the names of the options that make a launch share its GPUs."""
    return [name for name in ("share", "guest") if is_on(given, name)]


def is_on(given: Given, name: str) -> bool:
    """Return whether a switch of a launch is set on this command line."""
    return name in given and given[name][1] != "false"


def launch_words(given: Given) -> list[str]:
    """Return the options that `profile` does not define, for the launch."""
    ours = {row.name for row in _OWN} - {"name"}
    return written({name: said for name, said in given.items() if name not in ours})
