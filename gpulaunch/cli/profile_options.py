"""The options of `gpulaunch profile`: its own, and those of a launch."""

from collections.abc import Iterator, Mapping

from gpulaunch.cli.options import ROWS, Option, launch_options
from gpulaunch.launch.given import Given
from gpulaunch.typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpulaunch.cli.arguments import Parser
    from gpulaunch.cli.options import Row

_OWN: "tuple[Row, ...]" = (
    (
        ("-o", "--output"),
        "output",
        "FILE",
        "write or change this profile (default: your own of that --name)",
    ),
    (
        ("--name",),
        "name",
        "TEXT",
        "what the profile and the job are called (default: that of FILE)",
    ),
    (
        ("--runs",),
        "runs",
        "N",
        "run the job so often; says how runs differ, and their 95th percentiles",
    ),
    (
        ("--sensitivity",),
        "sensitivity",
        None,
        "run it on the best and on the worst GPUs: do its links matter?",
    ),
    (
        ("--sweep",),
        "sweep",
        "PERCENT,...",
        "run it with these shares of the SMs under MPS: how many it needs",
    ),
    (
        ("--pair",),
        "pair",
        "OTHER|synthetic",
        "run it beside another profile's job: how much slower it gets",
    ),
    (
        ("--iterations-from",),
        "iterations_from",
        "REGEX",
        "what it prints of its progress: one group, a number",
    ),
    (
        ("--slice",),
        "slice",
        "TIME",
        "with --iterations-from: so much of each run is enough (default 30s)",
    ),
    (("--scan",), "scan", "PATH", "read its source, a file or a folder, for who talks to whom"),
    (
        ("--scan-nccl-log",),
        "scan_nccl_log",
        "FILE",
        "read the log of NCCL_DEBUG=INFO, best with NCCL_DEBUG_SUBSYS=INIT,COLL",
    ),
    (("--import-ncu",), "import_ncu", "FILE", "read counters from Nsight Compute's CSV"),
)
_OWN_OPTIONS = [Option(*row) for row in _OWN]
MODES = ("sensitivity", "sweep", "pair", "scan", "scan_nccl_log", "import_ncu")
READING = ("scan", "scan_nccl_log", "import_ncu")
MEASURING = (*MODES, "runs", "iterations_from", "slice")
_NOT_HERE = {"dry_run", "explain", "json_status_fd", "record", "record_to", "version", "name"}
_OF_LAUNCH = tuple(row for row in ROWS if row[1] not in _NOT_HERE)
_LAUNCH_FLAGS = {flag for row in _OF_LAUNCH for flag in row[0]}
PROFILE_ROWS: "tuple[Row, ...]" = (*_OWN, *_OF_LAUNCH)


def make_parser() -> "Parser":
    """Return the parser that prints the help; read_line reads the command line."""
    from gpulaunch.cli.arguments import Parser
    from gpulaunch.cli.help import make_launch_parser

    parser = Parser(
        "gpulaunch profile",
        "Measure a job, or read its source, for its profile; options of a launch apply, see "
        "'gpulaunch --help'.",
        "gpulaunch profile [OPTIONS] -o FILE -- COMMAND [ARG...]\n"
        "       gpulaunch profile -- python SCRIPT.py [ARG...]: scan it, run nothing\n"
        "       gpulaunch profile --scan PATH | --scan-nccl-log FILE | --import-ncu FILE [--json] "
        "[-o FILE]",
    )
    for option in _OWN_OPTIONS:
        if option.metavar is None:
            parser.add_argument(*option.flags, action="store_true", help=option.help)
        else:
            parser.add_argument(*option.flags, metavar=option.metavar, help=option.help)
    ours = {flag for action in parser.actions() for flag in action.option_strings}
    parser.others = [
        action
        for action in make_launch_parser().actions()
        if action.option_strings[-1] in _LAUNCH_FLAGS - ours
    ]
    return parser


def sharing(given: Mapping[str, Given]) -> list[str]:
    """Return the names of the options that make a launch share its GPUs."""
    return [name for name in ("share", "guest") if is_on(given, name)]


def is_on(given: Mapping[str, Given], name: str) -> bool:
    """Return whether a switch of a launch is set on this command line."""
    return name in given and given[name].text != "false"


def launch_words(given: Mapping[str, Given]) -> Iterator[str]:
    """Yield the options that `profile` does not define, for the launch; the last duplicate wins."""
    ours = {option.name for option in _OWN_OPTIONS} - {"name"}
    takes = {
        flag: option.metavar
        for option in (*launch_options(), *_OWN_OPTIONS)
        for flag in option.flags
    }
    for key, value in given.items():
        if key not in ours:
            if not takes[value.option] and value.text not in ("true", "false"):
                yield f"{value.option}={value.text}"
                continue
            texts = (*value.before, value.text) if takes[value.option] else (None,)
            for text in texts:
                yield value.option
                if text is not None:
                    yield text
