"""`gpulaunch help [COMMAND]`, and the short help of `gpulaunch --help`."""

import importlib
from collections.abc import Iterable, Sequence

from gpulaunch.cli.arguments import Parser
from gpulaunch.cli.commands import COMMANDS, OTHER_NAMES
from gpulaunch.cli.options import Option, launch_options
from gpulaunch.cli.output import prepare_stdout
from gpulaunch.errors import UsageError, quoted

_COMMANDS = {
    "jobs": "run docker batch free logs attach wait reserve",
    "what is there": "status top topo history doctor",
    "knowing a job before it runs": "profile plan simulate",
    "the machine, and past one machine": "setup drain undrain cluster mcp completion help",
}
"""Titles of groups with their commands; those that are in no group come last."""

_OPTIONS = {
    "the job": "profile set pattern bandwidth_sensitive name",
    "how many GPUs, and which": (
        "gpus policy bandwidth_model memory gpu_model only exclude require nvlink min_bandwidth "
        "numa apart_from host_bandwidth single_node one_per_node min_utility utility_weights"
    ),
    "waiting, and the end": (
        "wait wait_timeout queue after when detach terminal time_limit leftovers notify"
    ),
    "sharing a GPU": ("share guest sm memory_bandwidth sm_percentage share_with objective"),
    "how it runs": "bind_cpu visible rank_map ignore_engine uuid topology",
    "looking first, and afterwards": (
        "dry_run explain json record record_to json_status_fd quiet verbose help version"
    ),
}
"""Titles of groups with the names of their options; those that are in no group come last."""

_USED_MOST = (
    "gpus",
    "profile",
    "wait",
    "time_limit",
    "memory",
    "only",
    "name",
    "share",
    "topology",
    "dry_run",
)

WORDS_WITHOUT_ROWS = {
    "run": "run a command; the word may be left out",
    "docker": "and podman: run, create, start and compose up get GPUs",
}
"""Summaries of words that have no row in the table of commands."""

_EXAMPLES = """\
examples:
  gpulaunch -n 2 -- python train.py      the two GPUs with the best links
  gpulaunch --wait -n 8 -- ./run.sh      all eight, when they are free
  gpulaunch docker run -it IMAGE bash    a container with one GPU
"""

_MORE = """\
all options: gpulaunch help launch     a command: gpulaunch help COMMAND
settings, for files and the environment: gpulaunch help settings"""

_EPILOG = "Options may also be set by GPULAUNCH_* variables and in ~/.config/gpulaunch/config.toml."
_USAGE = (
    "gpulaunch [OPTIONS] -- COMMAND [ARG...]\n"
    "       gpulaunch [OPTIONS] docker run [FLAGS] IMAGE [COMMAND] [ARG...]\n"
    "       gpulaunch COMMAND [OPTIONS]"
)
_ABOUT = "Pick the GPUs whose links suit the job, hold them, run it on them, free them."


def main(arguments: Sequence[str]) -> int:
    """Print the help of a command, of launches, of the settings, or the short one."""
    options = make_parser().parse_args(arguments)
    given = (options.command, options.word)
    words = [OTHER_NAMES.get(word, word) for word in given if word is not None]
    if not words:
        print_help()
    elif words[0] in ("launch", "podman", *WORDS_WITHOUT_ROWS):
        make_launch_parser().print_help()
    elif words == ["settings"]:
        _print_settings()
    elif words[0] in COMMANDS:
        return _print_command_help(words)
    else:
        from gpulaunch.files.nearest import did_you_mean  # late: for mistakes only

        topics = ("launch", "settings", "podman", *WORDS_WITHOUT_ROWS, *COMMANDS)
        meant = did_you_mean(words[0], topics)
        raise UsageError(f"unknown command {quoted(words[0])}{meant}", "see 'gpulaunch --help'")
    return 0


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser("gpulaunch help", "Print the help of a command.")
    parser.add_argument(
        "command",
        metavar="COMMAND",
        nargs="?",
        help="a command; launch: all options of a launch; settings: their names",
    )
    parser.add_argument(
        "word", metavar="WORD", nargs="?", help="one of a command's words, such as cluster map"
    )
    return parser


def _print_command_help(words: Sequence[str]) -> int:
    """Let a command print its own help."""
    command = COMMANDS[words[0]]
    own_main = importlib.import_module(command.module or f"gpulaunch.cli.{words[0]}").main
    arguments = [*words[1:], "--help"]
    return int(own_main(arguments, None) if command.runs_a_command else own_main(arguments))


def print_help() -> None:
    """Print the usage, the options that are used most, all commands, and examples."""
    parser = Parser("gpulaunch", _ABOUT, _USAGE, add_help=False, epilog=f"{_EXAMPLES}\n{_MORE}")
    words = policy_words()
    group = parser.add_argument_group("options that are used most")
    for option in _by_name(_USED_MOST):
        add_option(group, option, words)
    text = parser.format_help()
    begin = text.index("\noptions that are used most")
    print(f"{text[:begin]}\n{_command_groups()}\n{text[begin:]}", end="")


def make_launch_parser() -> Parser:
    """Return the parser that prints every option of a launch, in groups."""
    usage = "\n".join(_USAGE.splitlines()[:2])
    parser = Parser("gpulaunch", _ABOUT, usage, add_help=False, epilog=_EPILOG)
    words = policy_words()
    for title, names in _groups(_OPTIONS, [option.name for option in launch_options()]).items():
        group = parser.add_argument_group(title)
        for option in (option for option in launch_options() if option.name in names):
            add_option(group, option, words)
    return parser


def _print_settings() -> None:
    """Print the name of each setting, and the variable that sets it."""
    from gpulaunch.launch.settings import SETTINGS  # late: for this word only

    prepare_stdout()
    width = max(map(len, SETTINGS))
    print(
        "setting in config.toml, and the variable (docs/reference/settings.md says what they do):"
    )
    for name in SETTINGS:
        print(f"  {name:<{width}}  GPULAUNCH_{name.upper()}")


def _by_name(names: Iterable[str]) -> list[Option]:
    """Return the first option of each name."""
    return [next(option for option in launch_options() if option.name == name) for name in names]


def _groups(table: dict[str, str], known: Iterable[str]) -> dict[str, list[str]]:
    """Return the names in each group that there are, and in the last one those of no group."""
    known = list(dict.fromkeys(known))
    groups = {
        title: [name for name in names.split() if name in known] for title, names in table.items()
    }
    grouped = {name for names in groups.values() for name in names}
    groups["others"] = [name for name in known if name not in grouped]
    return {title: names for title, names in groups.items() if names}


def add_option(group: object, option: Option, words: dict[str, str]) -> None:
    """Add an option to a group of argparse's, for its help only."""
    text = option.help.format(**words)
    if option.metavar is None:
        group.add_argument(*option.flags, action="store_true", help=text)  # type: ignore[attr-defined]
    else:
        group.add_argument(*option.flags, metavar=option.metavar, help=text)  # type: ignore[attr-defined]


def policy_words() -> dict[str, str]:
    """Return the texts for {policies} and {waiting_policies} in the help of options."""
    from gpulaunch.decide.placement.policies import DEFAULT_POLICY, POLICIES

    others = [name for name in POLICIES if name != DEFAULT_POLICY]
    waiting = [name for name, policy in POLICIES.items() if policy.waits_for_utility]
    words = {
        "policies": ", ".join([f"{DEFAULT_POLICY} (default)", *others]),
        "waiting_policies": " or ".join(waiting),
    }
    return {key: text.replace("_", "-") for key, text in words.items()}


def _command_groups() -> str:
    """Return one line for each command, in groups: its word, its arguments and its summary."""
    from textwrap import wrap

    summaries = {
        row.word: (f"{row.word} {row.arguments}".rstrip(), row.summary) for row in COMMANDS.values()
    }
    summaries |= {word: (word, summary) for word, summary in WORDS_WITHOUT_ROWS.items()}
    lines = []
    for title, words in _groups(_COMMANDS, summaries).items():
        lines.append(f"{title}:")
        for word in words:
            shown, summary = summaries[word]
            first, *others = wrap(summary, 62)
            lines.append(f"  {shown:<12} {first}")
            lines += [f"  {'':<12} {other}" for other in others]
        lines.append("")
    return "\n".join(lines[:-1])
