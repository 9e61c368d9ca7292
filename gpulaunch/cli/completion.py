"""`gpulaunch completion SHELL`: the script by which a shell completes words, made by shtab."""

import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from gpulaunch.cli.arguments import SUPPRESS, Action, ArgumentParser, Parser
from gpulaunch.cli.commands import COMMANDS, GROUPS, OTHER_NAMES, TWO_WORDS
from gpulaunch.cli.help import WORDS_WITHOUT_ROWS, make_launch_parser
from gpulaunch.errors import GpulaunchError, UsageError
from gpulaunch.history.read import RECENT_S, read_history
from gpulaunch.lab.cluster.cluster_file import cluster_names
from gpulaunch.lab.cluster.policies import MAPPING_POLICIES
from gpulaunch.launch.options import OPTIONS, SETTINGS, TYPED
from gpulaunch.launch.surroundings import open_table
from gpulaunch.machine.catalog import machine_names
from gpulaunch.placement.policies import POLICIES
from gpulaunch.profiles.catalog import profile_names
from gpulaunch.profiles.pattern import PATTERNS

if TYPE_CHECKING:
    from gpulaunch.leases.lease import Lease, Ticket

_SHELLS = ("bash", "zsh", "fish")
_MOST_JOBS = 100
_ENGINES = ("docker", "podman", "nvidia-docker")

_COMPLETED_BY = {
    "--cluster": "clusters files",
    "--pair": "profiles files",
    "--user": "users",
    "COMMAND": "topics",
    "DIR": "directories",
    "FILE": "files",
    "ID|NAME": "leases",
    "NAME=VALUE": "settings",
    "NAME|ID": "jobs",
    "PATH": "files",
    "PROFILE": "profiles files",
    "WORD": "words",
    "mapping_policy": "mappings",
}
"""What completes other arguments than a launch's, by their flag or name, or that of their value."""

_OF_SHELL = {
    "bash": {
        "files": 'compgen -f -- "$1"',
        "directories": 'compgen -d -- "$1"',
        "users": 'compgen -u -- "$1"',
    },
    "zsh": {
        "files": "_files",
        "directories": "_files -/",
        "users": "_users",
        "settings": 'compadd -S "" -- ${(f)"$(gpulaunch completion --names settings)"}',
    },
    "fish": {
        "files": "__fish_complete_path (commandline -ct)",
        "directories": "__fish_complete_directories (commandline -ct)",
        "users": "__fish_complete_users",
    },
}
"""What a shell completes by itself."""

_NAMES_OF_SHELL = {
    "bash": 'compgen -W "$(gpulaunch completion --names {} 2>/dev/null)" -- "$1"',
    "zsh": 'compadd -- ${{(f)"$(gpulaunch completion --names {} 2>/dev/null)"}}',
    "fish": "gpulaunch completion --names {} 2>/dev/null",
}

# After -- and after docker a line is another program's.
_OTHERS_LINE = {
    "bash": """
_gpulaunch() {
  local n
  for ((n = 1; n < COMP_CWORD; n++)); do
    case ${COMP_WORDS[n]} in
      --) ((n += 1)) ;;
      @engines@) ;;
      *) continue ;;
    esac
    if declare -F _command_offset >/dev/null; then _command_offset "$n"
    elif ((n == COMP_CWORD)); then COMPREPLY=($(compgen -c -- "${COMP_WORDS[n]}"))
    fi
    return
  done
  _shtab_gpulaunch "$@"
  [[ ${COMPREPLY[0]} != *= ]] || compopt -o nospace
}
complete -o bashdefault -o default -F _gpulaunch gpulaunch
""",
    "zsh": """
_gpulaunch() {
  local n
  for ((n = 2; n < CURRENT; n++)); do
    case $words[n] in
      --) ((n += 1)) ;;
      @engines@) ;;
      *) continue ;;
    esac
    shift $((n - 1)) words; ((CURRENT -= n - 1)); _normal; return
  done
  _shtab_gpulaunch "$@"
}
compdef _gpulaunch gpulaunch
""",
    "fish": """
function _gpulaunch_begin
  set -l tokens (commandline -opc)
  for n in (seq 2 (count $tokens))
    switch $tokens[$n]
      case --
        math $n + 1; return
      case @engines@
        echo $n; return
    end
  end
end
function _gpulaunch_others
  set -l tokens (commandline -opc)
  set -e tokens[1..(math (_gpulaunch_begin) - 1)]
  complete -C (string join ' ' -- (string escape -- $tokens) (commandline -ct))
end
complete -c gpulaunch -n 'string length -q -- (_gpulaunch_begin)' -a '(_gpulaunch_others)'
""",
}


def main(arguments: Sequence[str]) -> int:
    """Print a script, or names for one."""
    options = make_parser().parse_args(arguments)
    if options.names:
        with suppress(GpulaunchError, OSError):  # no names are better than a message on the line
            for name in dict.fromkeys(_NAMES[options.names]()):
                if name == shlex.quote(name):  # the shell would split or read another one
                    print(name)
        return 0
    if options.shell is None:
        raise UsageError("no shell given", f"known are {', '.join(_SHELLS)}")
    print(completion_script(options.shell))
    return 0


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(
        "gpulaunch completion",
        "Print a script by which a shell completes gpulaunch's commands, options and names.",
        epilog='bash, in ~/.bashrc:  eval "$(gpulaunch completion bash)"\n'
        'zsh, in ~/.zshrc, after compinit:  eval "$(gpulaunch completion zsh)"\n'
        "fish:  gpulaunch completion fish > ~/.config/fish/completions/gpulaunch.fish",
    )
    parser.add_argument(
        "shell", metavar="SHELL", nargs="?", choices=_SHELLS, help="bash, zsh or fish"
    )
    parser.add_argument("--names", choices=_NAMES, help=SUPPRESS)  # for the scripts
    return parser


def all_parsers() -> dict[str, Parser]:
    """Return the parser of each command by its words, such as "cluster map"; "" is a launch."""
    parsers: dict[str, Parser] = {"": make_launch_parser()}
    for commands in GROUPS.values():
        for command in commands:
            if command.summary:
                parsers[command.word] = command.make_parser()
    return parsers


def _whole_parser(parsers: Mapping[str, Parser]) -> ArgumentParser:
    """Return one parser of the whole command line: a launch's options, and all commands."""
    summaries = {word: row.summary for word, row in COMMANDS.items()} | WORDS_WITHOUT_ROWS
    summaries |= {name: summaries[word] for name, word in OTHER_NAMES.items()}
    root = ArgumentParser("gpulaunch", parents=[parsers[""]], add_help=False)
    words = root.add_subparsers(metavar="COMMAND", parser_class=ArgumentParser)
    for word, summary in summaries.items():
        nested = [name for name in parsers if name.startswith(f"{word} ")]
        own = parsers.get("" if word == "run" else OTHER_NAMES.get(word, word))
        parents = [own] if own and not nested else []
        below = words.add_parser(word, parents=parents, add_help=False, help=summary)
        if nested:
            more = below.add_subparsers(metavar="WORD", parser_class=ArgumentParser)
        for name in nested:
            about = parsers[name].description
            last = name.rpartition(" ")[2]
            more.add_parser(last, parents=[parsers[name]], add_help=False, help=about)
    return root


def completion_script(shell: str) -> str:
    """Return the script for "bash", "zsh" or "fish"."""
    import shtab

    parsers = all_parsers()
    functions: dict[str, str] = {}
    for parser in parsers.values():
        for action in parser._actions:  # noqa: SLF001  argparse has no other door to them
            if isinstance(action.metavar, str) and action.metavar.islower():
                action.choices = action.metavar.split("|")  # such as keep|end
            by = _completed_by(action)
            if by:
                action.complete = {shell: _function(shell, by, functions)}  # type: ignore[attr-defined]
    preamble = {shell: "\n".join(functions.values())}
    script = shtab.complete(_whole_parser(parsers), shell, preamble=cast("Any", preamble))
    engines = (" " if shell == "fish" else " | ").join(_ENGINES)
    return f"{script}\n{_OTHERS_LINE[shell].replace('@engines@', engines)}"


def _completed_by(action: Action) -> str:
    """Return what completes an argument's value: kinds of names, or what the shell has."""
    if action.nargs == 0 or action.choices:
        return ""
    row = OPTIONS.get(action.dest)
    if row and action.option_strings[-1:] == list(row.flags[-1:]):
        return row.names
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    keys = (*action.option_strings, action.dest, metavar, *metavar.split("|"))
    return next((_COMPLETED_BY[key] for key in keys if key in _COMPLETED_BY), "")


def _function(shell: str, kinds: str, functions: dict[str, str]) -> str:
    """Return the name of a shell function that completes kinds of names; add it to `functions`."""
    name = "_gpulaunch_" + kinds.replace(" ", "_")
    lines = [
        _OF_SHELL[shell].get(kind) or _NAMES_OF_SHELL[shell].format(kind) for kind in kinds.split()
    ]
    if shell == "fish":
        functions[name] = "\n".join([f"function {name}", *lines, "end"])
        return f"({name})"
    functions[name] = "\n".join([f"{name}() {{", *lines, "}"])
    return name


def _jobs() -> Iterator[str]:
    """Yield the names and ids of this user's newest launches."""
    for launch in read_history(within_s=RECENT_S)[: -_MOST_JOBS - 1 : -1]:
        yield from filter(None, (launch.name, launch.id or launch.key))


def _leases() -> Iterator[str]:
    """Yield the names and ids of the leases and tickets that this user may end."""
    snapshot = open_table(private=True, warn=lambda _: None).peek(problems=[])
    records: list[Lease | Ticket] = [*snapshot.leases, *snapshot.tickets]
    for record in records:
        if os.geteuid() in (0, record.user_id):
            yield from filter(None, (record.name, record.id))


def _with_dashes(names: Iterable[str]) -> list[str]:
    return [name.replace("_", "-") for name in names]


_NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "clusters": cluster_names,
    "jobs": _jobs,
    "leases": _leases,
    "machines": machine_names,
    "mappings": partial(_with_dashes, MAPPING_POLICIES),
    "patterns": partial(_with_dashes, PATTERNS),
    "policies": partial(_with_dashes, POLICIES),
    "profiles": profile_names,
    "settings": partial(list, [f"{name}=" for name in (*SETTINGS, *TYPED)]),
    "topics": partial(list, ["launch", "settings", *COMMANDS, *WORDS_WITHOUT_ROWS]),
    "words": partial(list, [name.split()[1] for name, row in TWO_WORDS.items() if row.summary]),
}
