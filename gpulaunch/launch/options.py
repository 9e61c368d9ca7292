"""The options of a launch: one table, and the values that they have.

A row gives an option's name, parser, flags, value, group and help. argparse reads the command line
by it (cli/arguments.py), and the help, the completion and the page of settings are made of it. Most
options are settings, too: GPULAUNCH_NAME, `name` in config.toml, and `-o name=value`.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from gpulaunch.errors import FieldError, UsageError, did_you_mean, printable, quoted
from gpulaunch.files.document import Document, config_directory, read_document
from gpulaunch.files.units import parse_duration, parse_size

if TYPE_CHECKING:
    from gpulaunch.placement.problem import Weights
    from gpulaunch.profiles.pattern import Pattern

T = TypeVar("T")

Given = Mapping[str, tuple[str, str]]
"""What a command line or a call says: (flag as written, value as text) by the option's name."""

SYSTEM_CONFIG = "/etc/gpulaunch/config.toml"
QUEUES = ("backfill", "fifo")
"""Orders of the queue."""
VISIBLE = ("all", "own", "ranks")
"""What a rank sees of its step's GPUs: all with its own first, its own, or all in rank order."""
RUNNING = "how it runs"


class Source(IntEnum):
    """Where a value comes from; the first in this order counts."""

    COMMAND = 0
    ENVIRONMENT = 1
    PROFILE = 2
    FILE = 3
    BUILT_IN = 4


# ------------------------------------------------------------------- parsers of values


def parse_gpus(text: str) -> "int | Literal['all'] | range":
    """Return a number, "all", or the numbers in a range such as "2-4"."""
    least, dash, most = text.partition("-")
    if not dash or not (least.isdigit() and most.isdigit() and text.isascii()):
        return parse_count(text)
    if int(least) > int(most):
        raise UsageError(f"{quoted(text)} is no range of numbers of GPUs such as 2-4")
    return range(int(parse_count(least)), int(most) + 1)


def parse_count(text: str) -> "int | Literal['all']":
    """Return a number of GPUs, or "all"."""
    if text == "all":
        return "all"
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
            known = [name.replace("_", "-") for name in sorted(names)]
            raise UsageError(
                f"unknown {subject} {quoted(text)}{did_you_mean(text, known)}",
                "known are " + ", ".join(known),
            )
        return name

    return parse


# Imported late: what shows something reads few settings.


def parse_policy(text: str) -> str:
    """Return the name of a placement policy."""
    from gpulaunch.placement.policies import POLICIES

    return one_of(POLICIES, "policy")(text)


def parse_objective(text: str) -> str:
    """Return the name of a purpose of sharing."""
    from gpulaunch.leases.lease import OBJECTIVES

    return one_of(OBJECTIVES, "objective")(text)


def parse_published(text: str) -> str:
    """Return what others may read of a command."""
    from gpulaunch.leases.record import PUBLISHED

    return one_of(PUBLISHED, "part of a command")(text)


def parse_way(text: str) -> str:
    """Return the name of a way by which GPUs get into a container."""
    from gpulaunch.containers.engine import WAYS

    return one_of(WAYS, "way into a container")(text)


def parse_bandwidth_model(text: str) -> str:
    """Return the name of a model of the bandwidth of a set of GPUs."""
    from gpulaunch.placement.fabric import BANDWIDTH_MODELS

    return one_of(BANDWIDTH_MODELS, "bandwidth model")(text)


def parse_pattern(text: str) -> "Pattern":
    """Return a named communication pattern, or the one in a file."""
    from gpulaunch.profiles.pattern_file import load_pattern

    return load_pattern(text)


def parse_weights(text: str) -> "Weights":
    """Return the three weights of topo-aware's utility."""
    from gpulaunch.decide.decision import weights_of

    try:
        communication, interference, fragmentation = map(float, text.split(","))
    except ValueError:
        raise UsageError(f"{quoted(text)} is not three weights such as 1,1,1") from None
    return weights_of(communication, interference, fragmentation)


def number_within(least: float, most: float, unit: str) -> Callable[[str], float]:
    """Return a parser of a number within a range; a unit of "%" may be written."""

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


def parse_percentage(text: str) -> int:
    """Return a whole number of percent, 1 to 100."""
    number = number_within(1.0, 100.0, "%")(text)
    if number != int(number):
        raise UsageError(f"{quoted(text)} is no whole number of %")
    return int(number)


def parse_utilization(text: str) -> tuple[float, float]:
    """Return the average utilization of SMs and of memory bandwidth, in percent."""
    sm, comma, bandwidth = text.partition(",")
    if not comma:
        raise UsageError(f"{quoted(text)} is not two numbers of % such as 40,25")
    percentage = number_within(0.0, 100.0, "%")
    return percentage(sm), percentage(bandwidth)


def parse_directory(text: str) -> str:
    """Return an absolute path."""
    if not os.path.isabs(text):
        raise UsageError(f"{quoted(text)} is no absolute path")
    return os.path.normpath(text)


def parse_names(text: str) -> list[str]:
    """Return the texts between commas."""
    return text.split(",")


def parse_switch(text: str) -> bool:
    """Return True or False for the words that people write for them."""
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise UsageError(f"{quoted(text)} is neither true nor false")


def parse_share(text: str) -> bool | int:
    """Return a switch, or the part of a GPU in percent: 50 for "1/2", "0.5", "50%" and "50 %"."""
    part = re.fullmatch(r"(\d{0,4}\.?\d{1,6})(?:/(\d{1,4})| ?(%))?", text, re.ASCII)
    if part is None or text in ("0", "1"):
        try:
            return parse_switch(text)
        except UsageError:
            raise UsageError(f"{quoted(text)} is no part of a GPU such as 1/2 or 50%") from None
    of = 100 if part[3] else int(part[2] or 1)
    percentage = round(100 * float(part[1]) / of, 6) if of else 0.0  # 0.29 is 28.999... of 100
    if not 1 <= percentage <= 100:
        raise UsageError(f"{quoted(text)} is not within 1 % to 100 % of a GPU")
    return int(percentage)


# ------------------------------------------------------------------- rows


class Option(Generic[T]):
    """A row of the table; read from Options, the option's value, or None if no source has one.

    Args:
        spec: spellings, the short one first, after a / the one that says false, and the name of its
            value, such as "-n --gpus N" or "--wait/--no-wait"; some options have no spelling.
        names: what completes its value: kinds of `gpulaunch completion --names`, or "files".
        typed: whether only a command line sets it, and no variable or file.
        name: its name where it is not an attribute of Options.
    """

    group = ""

    def __init__(
        self,
        parse: Callable[[str], T],
        spec: str,
        text: str,
        default: T | None = None,
        *,
        names: str = "",
        typed: bool = False,
        name: str = "",
    ) -> None:
        self.parse, self.text, self.names, self.name = parse, text, names, name
        self.default, self.is_setting = default, not typed
        words = spec.split()
        self.value = "" if not words or words[-1].startswith("-") else words.pop()
        self.flags = tuple(word.partition("/")[0] for word in words)
        self.no = "".join(word.partition("/")[2] for word in words)

    def __set_name__(self, owner: type, name: str) -> None:
        """Take the name of the attribute."""
        self.name, self.variable = name, f"GPULAUNCH_{name.upper()}"

    @overload
    def __get__(self, options: None, owner: type) -> "Option[T]": ...

    @overload
    def __get__(self, options: "Options", owner: type) -> T | None: ...

    def __get__(self, options: "Options | None", owner: type) -> object:
        """Return the value, or the row itself if read from the class."""
        return self if options is None else options.find(self)


class DefaultedOption(Option[T]):
    """A row with a value where no source has one."""

    if TYPE_CHECKING:

        @overload
        def __get__(self, options: None, owner: type) -> "DefaultedOption[T]": ...

        @overload
        def __get__(self, options: "Options", owner: type) -> T: ...

        def __get__(self, options: "Options | None", owner: type) -> object:
            """Return the value, or the row itself if read from the class."""


class OnOff(DefaultedOption[bool]):
    """A row without a value on the command line, which is off unless `default` says otherwise."""

    def __init__(
        self, spec: str, text: str, *, default: bool = False, typed: bool = False, name: str = ""
    ) -> None:
        super().__init__(parse_switch, spec, text, default, typed=typed, name=name)


class Options:
    """The options of a launch, from the command line, the environment, a profile and files.

    Raises:
        UsageError: a file has an unknown key; also where a value is read that cannot be parsed.
    """

    profile = Option(
        str,
        "-p --profile NAME|FILE",
        "what is known about the job (see 'gpulaunch profile list')",
        names="profiles files",
    )
    pattern = Option(
        parse_pattern,
        "--pattern NAME|FILE",
        "who talks to whom: all-to-all (default), ring, chain, ... or a graph",
        names="patterns files",
    )
    bandwidth_sensitive = Option(
        parse_switch,
        "--sensitive/--insensitive",
        "faster links make the job faster (default if n > 1), or they do not",
    )
    name = Option(str, "--name TEXT", "what 'gpulaunch status' calls the job", typed=True)
    gpus = Option(
        parse_gpus,
        "-n --gpus N|2-4|all",
        "how many GPUs (default: what the profile says, else 1); 2-4: as many as are free",
    )
    all_gpus = Option(
        parse_count, "N", "how many GPUs docker's --gpus all means, where gpus does not say"
    )
    policy = Option(
        parse_policy,
        "--policy NAME",
        "how to choose: preserve (default), baseline, best-effort, best-fit, greedy, "
        "preserve-paper, topo-aware, topo-aware-drb, topo-aware-p",
        names="policies",
    )
    bandwidth_model = Option(
        parse_bandwidth_model, "NAME", "how fast a set of GPUs is: cut (default), mapa, measured"
    )
    memory = Option(
        parse_size,
        "--memory SIZE",
        "least memory of each GPU, such as 16G; of a job that shares, all it may use",
    )
    gpu_model = Option(
        str, "--gpu-model TEXT", "only GPUs of this product name, in part, or MIG profile"
    )
    only = Option(parse_names, "--only GPU,...", "choose among these GPUs: 0,4-6, 0:1 (MIG), UUIDs")
    exclude = Option(parse_names, "--exclude GPU,...", "do not choose these")
    require = Option(parse_names, "GPU,...", "", typed=True)
    nvlink = OnOff("--nvlink", "only GPUs that NVLink joins")
    min_bandwidth = Option(
        number_within(0.0, 1000000.0, "GB/s"),
        "GB/S",
        "only GPUs with this effective bandwidth or more",
    )
    numa = DefaultedOption(
        one_of(("any", "strict"), "way to treat NUMA nodes"),
        "strict|any",
        "strict: only GPUs of one NUMA node",
        "any",
    )
    min_utility = Option(
        number_within(0.0, 1.0, ""), "0..1", "under this utility, policy topo-aware-p waits"
    )
    utility_weights = Option(
        parse_weights,
        "C,I,F",
        "topo-aware's weights of communication, interference, fragmentation (1,1,1)",
    )
    wait = OnOff(
        "--wait/--no-wait",
        "queue for busy GPUs, in order except for jobs that delay nobody (default: exit with 75)",
    )
    wait_timeout = Option(
        parse_duration, "--wait-timeout TIME", "queue for so long at most, such as 90s, 10m, 1h30m"
    )
    queue = DefaultedOption(
        one_of(QUEUES, "queue"),
        "backfill|fifo",
        "pass others that this does not delay (default), or keep the order",
        "backfill",
    )
    after = Option(
        str,
        "--after NAME,...",
        "wait until jobs of yours have ended with 0 (NAME:any: however they end), then queue",
        names="jobs",
        typed=True,
    )
    detach = OnOff(
        "-d --detach",
        "print the job's name and leave it running, also after logout; it waits for its GPUs",
        typed=True,
    )
    terminal = OnOff(
        "--terminal", "with -d: give the job a terminal to attach to (needs dtach)", typed=True
    )
    time_limit = Option(parse_duration, "--time-limit TIME", "end the job if it runs longer")
    grace = DefaultedOption(
        parse_duration, "TIME", "time between TERM and KILL when a job is ended", 10.0
    )
    leftovers = Option(
        one_of(("keep", "end"), "treatment of left-over processes"),
        "--leftovers keep|end",
        "keep the GPUs for what the job leaves running (default), or end that",
    )
    leftover_timeout = DefaultedOption(
        parse_duration,
        "TIME",
        "a left-over process outside the job's session that has not used its GPUs for so long "
        "keeps them no more",
        600.0,
    )
    idle_after = Option(
        parse_duration, "TIME", "after how long without work on its GPUs a job is told"
    )
    idle_limit = Option(
        parse_duration, "TIME", "end a job, with status 124, after so long without work on its GPUs"
    )
    notify = Option(
        str,
        "--notify COMMAND",
        "run this by sh when the job starts, is idle, ends or fails (GPULAUNCH_EVENT says which)",
        names="commands",
    )
    when = OnOff("--when", "say when the job would probably start, and take nothing", typed=True)
    share = Option(
        parse_share,
        "--share/--exclusive",
        "share GPUs with other jobs of yours through CUDA MPS, if that hurts nobody; =1/2, =0.5 or "
        "=50%: with this part of a GPU's SMs and memory",
    )
    guest = OnOff(
        "--guest", "share, at a lower priority than the other jobs on the GPU", typed=True
    )
    utilization = Option(
        parse_utilization,
        "SM,BANDWIDTH",
        "average use of a GPU's SMs and memory bandwidth in %, of jobs that have no profile",
        typed=True,
    )
    sm_percentage = Option(
        parse_percentage, "PERCENT", "SMs that a job that shares is to have: 1 to 100", typed=True
    )
    objective = Option(
        parse_objective, "NAME", "what sharing is for: throughput (default), energy, product"
    )
    mps_directory = Option(parse_directory, "DIR", "where the MPS daemons have their directories")
    mps_timeout = Option(parse_duration, "TIME", "how long an MPS daemon may take to answer")
    bind_cpu = OnOff("", "run on the CPUs next to the GPUs (default)", default=True)
    visible = Option(
        one_of(VISIBLE, "part of a step's GPUs"),
        "all|own|ranks",
        "of a step with a launch for each rank: all GPUs, the own first (default), own, or ranks",
    )
    rank_map = Option(str, "FILE", "take this rank's core and GPU from a map of all ranks")
    ignore_engine = OnOff("", "go past what Slurm or another cluster engine granted", typed=True)
    ignore_programs = Option(
        parse_names, "NAME,...", "programs whose use of a GPU does not count, such as Xorg"
    )
    container_gpus = Option(parse_way, "cdi|runtime|gpus", "how GPUs get into a container")
    uuid = OnOff("--uuid", "write UUIDs into CUDA_VISIBLE_DEVICES", typed=True)
    topology = Option(
        str,
        "--topology NAME|FILE",
        "a described machine instead of this one, such as dgx1-v100",
        names="machines files",
    )
    docker = DefaultedOption(
        one_of(("engine", "lease"), "way to docker"),
        "engine|lease",
        "lease: containers that the job's scripts make by docker get GPUs of its lease only",
        "engine",
    )
    table = DefaultedOption(
        one_of(("host", "private"), "table"),
        "host|private",
        "private: a container may use a table of its own, where the host's is not mounted",
        "host",
    )
    publish = DefaultedOption(
        parse_published,
        "command|program|nothing",
        "what others can read of a job's command",
        "command",
    )
    dry_run = OnOff("--dry-run", "say what would be decided, and take nothing", typed=True)
    explain = OnOff("--explain", "show the candidates, and why the best won", typed=True)
    json = OnOff("--json", "with --dry-run: print a JSON document", typed=True)
    record = OnOff(
        "--record", "measure what the job uses, and add it to its profile (-p or --name)"
    )
    record_to = Option(str, "FILE", "measure what the job uses, and write that as JSON", typed=True)
    history = OnOff("", "whether each job has a line in the history", default=True)
    json_status_fd = Option(
        str, "FD", "tell there in lines of JSON when the job starts and ends", typed=True
    )
    quiet = OnOff("-q --quiet", "no warnings, and no word on waiting", typed=True)
    verbose = OnOff("-v --verbose", "say which GPUs the job got", typed=True)
    help = OnOff("-h --help", "print the usage and exit", typed=True)
    version = OnOff("-V --version", "print the version and exit", typed=True)

    def __init__(self, given: Given, environment: Mapping[str, str]) -> None:
        self.given, self.environment = given, environment
        user_config = os.path.join(config_directory(), "config.toml")
        self._configs = [
            read_document(path) for path in (user_config, SYSTEM_CONFIG) if os.path.exists(path)
        ]
        for config in self._configs:
            for key in [key for key in config.data if key not in SETTINGS]:
                meant = did_you_mean(key, SETTINGS) or ": 'gpulaunch help settings' lists them"
                raise config.error(FieldError((key,), f"unknown setting {quoted(key)}{meant}"))
        self._profile: dict[str, object] = {}
        self._defaults: dict[str, tuple[object, str]] = {}

    def but(self, **given: tuple[str, str]) -> "Options":
        """Return these options with others given, each as (flag, text)."""
        other = self.with_profile()
        other.given = {**self.given, **given}
        return other

    def with_profile(self, **values: object) -> "Options":
        """Return these options with a profile's values; None leaves an option as it is."""
        other = object.__new__(Options)
        other.__dict__.update(self.__dict__)
        known = {name: value for name, value in values.items() if value is not None}
        other._profile = {**self._profile, **known}
        other._defaults = {**self._defaults}
        return other

    def set_default(self, name: str, value: object, origin: str) -> None:
        """Let a value count for an option that no source has."""
        self._defaults[name] = (value, origin)

    def flag(self, name: str) -> str:
        """Return how an option of the command line was written, for messages."""
        flag, _ = self.given[name]
        return f"{flag} {name}" if flag in ("-o", "--option") else flag

    def source(self, name: str) -> Source:
        """Return where the value of an option comes from."""
        return self._look_up(name)[0]

    def origin(self, name: str) -> str:
        """Return where a value comes from, for messages: "--gpus 9", "GPULAUNCH_GPUS=9", "profile".

        A value of a file has its path and key, and one that nobody said "".
        """
        return self._look_up(name)[1]

    def find(self, option: Option[Any]) -> Any:  # noqa: ANN401  the descriptor knows its type
        """Return an option's value; reading the attribute is this."""
        source, origin, said = self._look_up(option.name)
        if source == Source.COMMAND:
            flag = self.flag(option.name)
            # Behind --share, 1 is a whole GPU; in files and variables 1 and 0 are a switch.
            whole = flag == "--share" and said in ("0", "1")
            return _parse(option, f"{said}/1" if whole else said, flag)
        if source == Source.ENVIRONMENT:
            return _parse(option, said, origin)
        return _read_config(option, said) if source == Source.FILE else said

    def _look_up(self, name: str) -> tuple[Source, str, Any]:
        """Return the source of an option's value, the same for messages, and what stands there.

        That is a text, the document of a file that has the option, or else the value itself.
        """
        option = OPTIONS[name]
        if name in self.given:
            flag, text = self.given[name]
            value = f"={text}" if flag in ("-o", "--option") else f" {text}"
            return Source.COMMAND, f"{self.flag(name)}{value}", text
        said = self.environment.get(option.variable)
        if said and option.is_setting:
            return Source.ENVIRONMENT, f"{option.variable}={said}", said
        if name in self._profile:
            return Source.PROFILE, "profile", self._profile[name]
        for config in self._configs:
            if name in config.data:
                return Source.FILE, f"{config.path}: {name}", config
        value, origin = self._defaults.get(name, (option.default, ""))
        return Source.BUILT_IN, origin, value


OPTIONS: dict[str, Option[Any]] = {
    name: row for name, row in vars(Options).items() if isinstance(row, Option)
}
"""The rows of the table by name."""

_GROUPS = {
    "profile": "the job",
    "gpus": "how many GPUs, and which",
    "wait": "waiting, and the end",
    "share": "sharing a GPU",
    "bind_cpu": RUNNING,
    "dry_run": "looking first, and afterwards",
}
"""Titles of groups in the help, each by the first of its options."""

_group = ""
for _name, _row in OPTIONS.items():
    _row.group = _group = _GROUPS.get(_name, _group)

SETTINGS = {name: row for name, row in OPTIONS.items() if row.is_setting}
"""The options that the environment and files may set."""

TYPED = {
    name: row for name, row in OPTIONS.items() if row.text and not row.flags and not row.is_setting
}
"""The options that only `-o NAME=VALUE` sets."""


def _parse(option: Option[T], text: str, origin: str) -> T:
    if not text:
        raise UsageError(f"{origin} has an empty value")
    try:
        return option.parse(text)
    except UsageError as problem:
        raise UsageError(f"{printable(origin)}: {problem.message}", problem.hint) from None


def _read_config(option: Option[T], config: Document) -> T:
    value = config.data[option.name]
    if isinstance(value, list):
        value = ",".join(map(str, value))
    try:
        return option.parse(str(value))
    except UsageError as problem:
        message = f"{option.name}: {problem.message}"
        raise config.error(FieldError((option.name,), message)) from None
