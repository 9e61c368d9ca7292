"""The completion scripts of the shells: templates beside this file, filled in from the parsers."""

import os
from collections.abc import Callable, Iterator, Mapping
from shlex import quote

from gpulaunch.cli.completion_values import ENGINES, Argument, Value, all_arguments, all_words

Commands = Mapping[str, list[Argument]]


def completion_script(shell: str) -> str:
    """Return the script for "bash", "zsh" or "fish"."""
    path = os.path.join(os.path.dirname(__file__), f"completion.{shell}")
    with open(path, encoding="utf-8") as file:
        template = file.read()
    commands = all_arguments()
    nested = [command for command in commands if " " in command]
    between = " " if shell == "fish" else " | "
    parts = {
        "engines": between.join(ENGINES),
        "nested": between.join(map(quote, nested)),
        **_FILL[shell](commands),
    }
    for mark, text in parts.items():
        template = template.replace(f"@{mark}@", text.rstrip("\n"))
    return template


def _bash(commands: Commands) -> dict[str, str]:
    """Return bash's two tables as arms of `case`: what completes a value, and the options."""
    keys: dict[str, list[str]] = {}
    for command, arguments in commands.items():
        for key, argument in _keys(arguments):
            how = _assignments(argument.value or Value())
            keys.setdefault(how, []).append(quote(f"{command}/{key}"))
    values = "".join(f"        {' | '.join(these)}) {how} ;;\n" for how, these in keys.items())
    options = "".join(
        f"        {quote(command)}) words={quote(' '.join(_flags(arguments)))} ;;\n"
        for command, arguments in commands.items()
    )
    return {"values": values, "options": options}


def _assignments(value: Value) -> str:
    """Return a value as assignments of a shell's variables; ":" for one that nothing completes."""
    fields = {
        "words": " ".join(value.words),
        "names": value.names,
        "shell": value.shell,
        "is_list": "yes" if value.is_list else "",
    }
    return " ".join(f"{name}={quote(text)}" for name, text in fields.items() if text) or ":"


def _keys(arguments: list[Argument]) -> Iterator[tuple[str, Argument]]:
    """Yield arguments with values by their flags, and by 1, 2, ... or + for the words."""
    n = 0
    for argument in arguments:
        if argument.value is None:
            continue
        yield from ((flag, argument) for flag in argument.flags)
        if not argument.flags:
            n += 1
            yield "+" if argument.repeats else str(n), argument


def _flags(arguments: list[Argument]) -> list[str]:
    return [flag for argument in arguments for flag in argument.flags]


def _zsh(commands: Commands) -> dict[str, str]:
    """Return the specifications that zsh's _arguments takes."""
    arms = []
    for command, arguments in commands.items():
        ours = [one for one in arguments if command or one.flags]  # _gpulaunch does the first word
        lines = "".join(f"      {quote(line)}\n" for one in ours for line in _zsh_lines(one))
        arms.append(f"    {quote(command)}) arguments=(\n{lines}    ) ;;\n")
    words = [f"      {quote(f'{_zsh_text(word)}:{text}')}\n" for word, text in all_words().items()]
    return {"arguments": "".join(arms), "commands": "".join(words)}


def _zsh_lines(argument: Argument) -> Iterator[str]:
    """Yield a specification for each flag, or one for a positional argument."""
    value = argument.value
    action = ""
    if value:
        fields = (value.names or "-", value.shell or "-", "yes" if value.is_list else "-")
        action = f":{_zsh_text(argument.metavar)}: _gpulaunch_value {' '.join(fields)} "
        action += " ".join(map(_zsh_text, value.words))
    if not argument.flags:
        yield f"*{action}" if argument.repeats else f"{action}"
    before = "*" if argument.repeats else f"({' '.join(argument.flags)})"
    for flag in argument.flags:
        takes = "" if value is None else "=" if flag.startswith("--") else "+"
        yield f"{before}{flag}{takes}[{_zsh_text(argument.help)}]{action}"


def _zsh_text(text: str) -> str:
    """Return a text with backslashes before what means something in a specification."""
    return "".join(f"\\{character}" if character in "\\:[]" else character for character in text)


def _fish(commands: Commands) -> dict[str, str]:
    """Return a call of fish's complete for each argument."""
    lines = [
        f"complete -c gpulaunch -n '__gpulaunch_at \"\" 1 1' -a {word} -d {_fish_quote(text)}\n"
        for word, text in all_words().items()
    ]
    valued = []
    for command, arguments in commands.items():
        valued += [f"{command}/{key}" for key, one in _keys(arguments) if one.flags]
        lines += [f"complete -c gpulaunch {line}\n" for line in _fish_lines(command, arguments)]
    return {"arguments": "".join(lines), "valued": " ".join(map(_fish_quote, valued))}


def _fish_lines(command: str, arguments: list[Argument]) -> Iterator[str]:
    n = 1
    for one in arguments:
        place = "" if one.flags else f" {n} {99 if one.repeats else n}"
        n += not one.flags
        flags = " ".join(
            f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in one.flags
        )
        condition = _fish_quote(f'__gpulaunch_at "{command}"{place}')
        takes = _fish_value(one) if one.value else ""
        about = f"-d {_fish_quote(one.help)}" if one.flags else ""
        if command or one.flags:  # the first word has its own lines
            yield " ".join(filter(None, ("-n", condition, flags, takes, about)))


def _fish_value(argument: Argument) -> str:
    """Return the options of complete that say what completes a value."""
    value = argument.value or Value()
    words = " ".join(value.words)
    names = f"(__gpulaunch_names {value.names})" if value.names else ""
    asked = " ".join(filter(None, (words, names, _FISH_SHELL.get(value.shell, ""))))
    asked = f"(__gpulaunch_list {asked})" if value.is_list and asked else asked
    files = "-F" if value.shell == "files" else "-f"
    needs = "-r" if argument.flags else ""
    return " ".join(filter(None, (needs, files, f"-a {_fish_quote(asked)}" if asked else "")))


_FISH_SHELL = {
    "commands": "(__fish_complete_command)",
    "directories": "(__fish_complete_directories (commandline -ct))",
    "users": "(__fish_complete_users)",
}


def _fish_quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


_FILL: dict[str, Callable[[Commands], dict[str, str]]] = {
    "bash": _bash,
    "zsh": _zsh,
    "fish": _fish,
}
