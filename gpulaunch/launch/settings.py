"""The settings of a launch, and the sources of their values.

The sources are, in this order, the command line, the environment, the profile, the user's file and
the host's file.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping

from gpulaunch.typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpulaunch.decide.placement.utility import Weights
    from gpulaunch.profiles.pattern import Pattern

from gpulaunch.containers.ways import WAYS
from gpulaunch.errors import FieldError, UsageError, printable, quoted
from gpulaunch.files.data_files import config_directory
from gpulaunch.files.document import Document, read_document
from gpulaunch.files.duration import parse_duration
from gpulaunch.files.size import parse_size
from gpulaunch.launch.given import Given
from gpulaunch.leases.publish import PUBLISHED
from gpulaunch.leases.share import OBJECTIVES
from gpulaunch.records import Record

QUEUES = ("backfill", "fifo")
"""Orders of the queue."""

VISIBLE = ("all", "own", "ranks")
"""What a rank sees of its step's GPUs: all with its own first, its own, or all in rank order."""

SYSTEM_CONFIG = "/etc/gpulaunch/config.toml"


class Setting(Record):
    """A value with its origin.

    Attributes:
        value: the value; None if no source has one.
        origin: text for messages, such as "--memory 9GiB", "GPULAUNCH_GPUS=9" or
            "config.toml: gpus".
    """

    value: Any
    origin: str


def _parse_gpus(text: str) -> int | str | range:
    """Return a number, "all", or the numbers in a range such as "2-4"."""
    least, dash, most = text.partition("-")
    if not dash or not (least.isdigit() and most.isdigit() and text.isascii()):
        return _parse_count(text)
    if int(least) > int(most):
        raise UsageError(f"{quoted(text)} is no range of numbers of GPUs such as 2-4")
    return range(int(_parse_count(least)), int(most) + 1)


def _parse_count(text: str) -> int | str:
    if text == "all":
        return text
    if not text.removeprefix("-").isdigit() or not text.isascii():
        raise UsageError(f"{quoted(text)} is neither a number of GPUs nor 'all'")
    count = int(text)
    if count < 1:
        raise UsageError(f"{count} GPUs requested: at least 1 is needed")
    return count


def one_of(names: Iterable[str], subject: str) -> Callable[[str], str]:
    """Return a parser of one of several names, written with - or _; its errors list the names."""

    def parse(text: str) -> str:
        name = text.replace("-", "_")
        if name not in names:
            from gpulaunch.files.nearest import did_you_mean  # late: for mistakes only

            known = [name.replace("_", "-") for name in sorted(names)]
            raise UsageError(
                f"unknown {subject} {quoted(text)}{did_you_mean(text, known)}",
                "known are " + ", ".join(known),
            )
        return name

    return parse


# Imported late: what shows something reads few settings.


def _parse_policy(text: str) -> str:
    from gpulaunch.decide.placement.policies import POLICIES

    return one_of(POLICIES, "policy")(text)


def _parse_bandwidth_model(text: str) -> str:
    from gpulaunch.decide.placement.effective import BANDWIDTH_MODELS

    return one_of(BANDWIDTH_MODELS, "bandwidth model")(text)


def _parse_pattern(text: str) -> "Pattern":
    from gpulaunch.profiles.pattern_file import load_pattern

    return load_pattern(text)


def _number_parser(least: float, most: float, unit: str) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            plain = text.removesuffix("%").rstrip() if unit == "%" else text
            number = float(plain if plain.isascii() and "_" not in plain else "no number")
        except ValueError:
            raise UsageError(
                f"{quoted(text)} is no number of {unit}" if unit else f"{quoted(text)} is no number"
            ) from None
        if not least <= number <= most:
            raise UsageError(f"{number:.10g} is not within {least:g} to {most:.7g} {unit}".rstrip())
        return number

    return parse


def _parse_percentage(text: str) -> int:
    number = _number_parser(1.0, 100.0, "%")(text)
    if number != int(number):
        raise UsageError(f"{quoted(text)} is no whole number of %")
    return int(number)


def _parse_weights(text: str) -> "Weights":
    from gpulaunch.decide.placement.utility import weights_of

    try:
        communication, interference, fragmentation = map(float, text.split(","))
    except ValueError:
        raise UsageError(f"{quoted(text)} is not three weights such as 1,1,1") from None
    return weights_of(communication, interference, fragmentation)


def _parse_two_weights(text: str) -> tuple[float, float]:
    try:
        throughput, energy = map(_number_parser(0.0, 10.0, ""), text.split(","))
    except (UsageError, ValueError):
        throughput = energy = 0.0
    if not throughput and not energy:
        raise UsageError(
            f"{quoted(text)} is not two weights such as 2,1, 0 to 10 each and not both 0"
        )
    return throughput, energy


def _parse_directory(text: str) -> str:
    if not os.path.isabs(text):
        raise UsageError(f"{quoted(text)} is no absolute path")
    return os.path.normpath(text)


def _parse_names(text: str) -> list[str]:
    return text.split(",")


def _parse_switch(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise UsageError(f"{quoted(text)} is neither true nor false")


def _parse_share(text: str) -> bool | int:
    """Return a switch, or the part of a GPU in percent: 50 for "1/2", "0.5", "50%" and "50 %"."""
    part = re.fullmatch(r"(\d{0,4}\.?\d{1,6})(?:/(\d{1,4})| ?(%))?", text, re.ASCII)
    if part is None or text in ("0", "1"):
        try:
            return _parse_switch(text)
        except UsageError:
            raise UsageError(f"{quoted(text)} is no part of a GPU such as 1/2 or 50%") from None
    of = 100 if part[3] else int(part[2] or 1)
    percentage = round(100 * float(part[1]) / of, 6) if of else 0.0  # 0.29 is 28.999... of 100
    if not 1 <= percentage <= 100:
        raise UsageError(f"{quoted(text)} is not within 1 % to 100 % of a GPU")
    return int(percentage)


SETTINGS: dict[str, Callable[[str], Any]] = {
    "profile": str,
    "gpus": _parse_gpus,
    "all_gpus": _parse_count,
    "policy": _parse_policy,
    "pattern": _parse_pattern,
    "bandwidth_sensitive": _parse_switch,
    "bandwidth_model": _parse_bandwidth_model,
    "memory": parse_size,
    "gpu_model": str,
    "only": _parse_names,
    "exclude": _parse_names,
    "require": _parse_names,
    "nvlink": _parse_switch,
    "min_bandwidth": _number_parser(0.0, 1e6, "GB/s"),
    "numa": one_of(("any", "strict"), "way to treat NUMA nodes"),
    "single_node": _parse_switch,
    "one_per_node": _parse_switch,
    "apart_from": _parse_names,
    "host_bandwidth": _number_parser(0.0, 1e6, "GB/s"),
    "min_utility": _number_parser(0.0, 1.0, ""),
    "utility_weights": _parse_weights,
    "share": _parse_share,
    "guest": _parse_switch,
    "sm": _number_parser(0.0, 100.0, "%"),
    "memory_bandwidth": _number_parser(0.0, 100.0, "%"),
    "sm_percentage": _parse_percentage,
    "share_with": _parse_names,
    "objective": one_of(OBJECTIVES, "objective"),
    "product_weights": _parse_two_weights,
    "throughput_tolerance_percentage": _number_parser(0.0, 100.0, "%"),
    "sm_bound_percentage": _number_parser(0.0, 1e4, "%"),
    "memory_bandwidth_bound_percentage": _number_parser(0.0, 1e4, "%"),
    "memory_bound_percentage": _number_parser(0.0, 100.0, "%"),
    "slowdown_bound_percentage": _number_parser(0.0, 1e4, "%"),
    "share_memory_headroom": _number_parser(0.0, 100.0, "%"),
    "mps_directory": _parse_directory,
    "mps_timeout": parse_duration,
    "bind_cpu": _parse_switch,
    "uuid": _parse_switch,
    "topology": str,
    "terminal": _parse_switch,
    "wait": _parse_switch,
    "wait_timeout": parse_duration,
    "time_limit": parse_duration,
    "idle_after": parse_duration,
    "idle_limit": parse_duration,
    "grace": parse_duration,
    "leftover_timeout": parse_duration,
    "leftovers": one_of(("keep", "end"), "treatment of left-over processes"),
    "queue": one_of(QUEUES, "queue"),
    "ignore_programs": _parse_names,
    "table": one_of(("host", "private"), "table"),
    "publish": one_of(PUBLISHED, "part of a command"),
    "record": _parse_switch,
    "history": _parse_switch,
    "notify": str,
    "container_gpus": one_of(WAYS, "way into a container"),
    "ignore_engine": _parse_switch,
    "rank_map": str,
    "visible": one_of(VISIBLE, "part of a step's GPUs"),
}
"""Parsers of the settings' texts, by name in a configuration file; in the environment the names are
in capitals after GPULAUNCH_.
"""


class Settings:
    """The chain of sources of a launch's settings.

    Args:
        given: values on the command line or in the call, by name.
        environment: environment variables.
    """

    def __init__(self, given: Mapping[str, Given], environment: Mapping[str, str]) -> None:
        self._given = given
        self.environment = environment
        user_config = os.path.join(config_directory(), "config.toml")
        self._configs = [
            read_document(path) for path in (user_config, SYSTEM_CONFIG) if os.path.exists(path)
        ]
        for config in self._configs:
            _check_keys(config)
        self._defaults: dict[str, Setting] = {}

    def distance(self, name: str) -> int:
        """Return how far a value's source is from the command that the user types.

        It is 0 for the command line or the call, 1 for the environment, and 2 for any other source
        or none.
        """
        if name in self._given:
            return 0
        return 1 if self.environment.get(_variable_name(name)) else 2

    def get(self, name: str, profile: object = None) -> Setting:
        """Return the first value in the chain.

        Args:
            name: a key of SETTINGS.
            profile: value in the profile, or None.
        """
        variable = _variable_name(name)
        if name in self._given:
            given = self._given[name]
            origin = f"{given.option} {given.text}" if name != "topology" else ""
            # Behind --share, 1 is a whole GPU; in files and variables 1 and 0 are a switch.
            whole = name == "share" and given.text in ("0", "1")
            text = f"{given.text}/1" if whole else given.text
            return Setting(_parse(name, text, given.option), origin)
        if self.environment.get(variable):
            origin = f"{variable}={self.environment[variable]}"
            return Setting(_parse(name, self.environment[variable], origin), origin)
        if profile is not None:
            return Setting(profile, "profile")
        for config in self._configs:
            if name in config.data:
                return _read_config(name, config)
        return self._defaults.get(name, Setting(None, ""))

    def set_default(self, name: str, setting: Setting) -> None:
        """Let a setting count that no source has."""
        self._defaults[name] = setting


def _variable_name(name: str) -> str:
    return f"GPULAUNCH_{name.upper()}"


def _parse(name: str, text: str, origin: str) -> Any:  # noqa: ANN401
    if not text:
        raise UsageError(f"{origin} has an empty value")
    try:
        return SETTINGS[name](text)
    except UsageError as problem:
        raise UsageError(f"{printable(origin)}: {problem.message}", problem.hint) from None


def _read_config(name: str, config: Document) -> Setting:
    value = config.data[name]
    if isinstance(value, list):
        value = ",".join(map(str, value))
    try:
        return Setting(SETTINGS[name](str(value)), f"{config.path}: {name}")
    except UsageError as problem:
        raise config.error(FieldError((name,), f"{name}: {problem.message}")) from None


def _check_keys(config: Document) -> None:
    for key in config.data:
        if key not in SETTINGS:
            from gpulaunch.files.nearest import did_you_mean  # late: for mistakes only

            meant = did_you_mean(key, SETTINGS) or ": 'gpulaunch help settings' lists them"
            raise config.error(FieldError((key,), f"unknown setting {quoted(key)}{meant}"))
