"""The options of a launch, and the reading of a command line.

argparse cannot stop at the first word that is no option, and costs 6 ms of every launch, a quarter
of the whole. So a launch's options are read here, from a table that argparse uses only to print
them (cli/help.py). All other commands use argparse; docs/decisions/start-up.md has what was
measured.
"""

from collections.abc import Iterable, Sequence

from gpulaunch.errors import UsageError, printable, quoted
from gpulaunch.launch.given import Given
from gpulaunch.records import Record
from gpulaunch.typing import TYPE_CHECKING

if TYPE_CHECKING:
    Row = tuple[tuple[str, ...], str, str | None, str] | tuple[tuple[str, ...], str, None, str, str]


class Option(Record):
    """One option of a launch.

    Attributes:
        flags: spellings, the short one first.
        name: name of the setting; several options may have the same.
        metavar: name of its value in the help; None if it takes none.
        help: text for `help launch`; it may contain the words of help.policy_words() in braces.
        sets: value that it stands for if it takes none.
    """

    flags: tuple[str, ...]
    name: str
    metavar: str | None
    help: str
    sets: str = "true"

    @property
    def attaches(self) -> bool:
        """True if a value may be attached by = or follow, though none is needed."""
        return "--share" in self.flags

    @property
    def repeats(self) -> bool:
        """Whether every value counts if it is given several times; otherwise only the last."""
        return self.name == "after"


ROWS: tuple["Row", ...] = (
    (
        ("-p", "--profile"),
        "profile",
        "NAME|FILE",
        "what is known about the job (see 'gpulaunch profile list')",
    ),
    (
        ("-n", "--gpus"),
        "gpus",
        "N|2-4|all",
        "how many GPUs (default: what the profile says, else 1); 2-4: as many as are free",
    ),
    (
        ("--policy",),
        "policy",
        "NAME",
        "how to choose: {policies}",
    ),
    (
        ("--pattern",),
        "pattern",
        "NAME|FILE",
        "who talks to whom: all-to-all (default), ring, chain, ... or a graph",
    ),
    (
        ("--sensitive",),
        "bandwidth_sensitive",
        None,
        "faster links make the job faster (default if n > 1)",
    ),
    (("--insensitive",), "bandwidth_sensitive", None, "they do not", "false"),
    (
        ("--bandwidth-model",),
        "bandwidth_model",
        "NAME",
        "how fast a set of GPUs is: cut (default), mapa, measured",
    ),
    (
        ("--memory",),
        "memory",
        "SIZE",
        "least memory of each GPU, such as 16G; of a job that shares, all it may use",
    ),
    (
        ("--gpu-model",),
        "gpu_model",
        "TEXT",
        "only GPUs of this product name, in part, or MIG profile",
    ),
    (("--only",), "only", "GPU,...", "choose among these GPUs: 0,4-6, 0:1 (MIG), UUIDs"),
    (("--exclude",), "exclude", "GPU,...", "do not choose these"),
    (("--require",), "require", "GPU,...", "these must be among the chosen ones"),
    (("--nvlink",), "nvlink", None, "only GPUs that NVLink joins"),
    (
        ("--min-bandwidth",),
        "min_bandwidth",
        "GB/S",
        "only GPUs with this effective bandwidth or more",
    ),
    (("--numa",), "numa", "strict|any", "strict: only GPUs of one NUMA node"),
    (
        ("--apart-from",),
        "apart_from",
        "JOB,...",
        "keep off the sockets of jobs with this name or profile",
    ),
    (
        ("--host-bandwidth",),
        "host_bandwidth",
        "GB/S",
        "what each GPU's process moves in its socket's memory",
    ),
    (
        ("--single-node",),
        "single_node",
        None,
        "only GPUs of one machine, of a topology that has several",
    ),
    (("--one-per-node",), "one_per_node", None, "each GPU in a machine of its own"),
    (
        ("--min-utility",),
        "min_utility",
        "0..1",
        "under this utility, policy {waiting_policies} waits",
    ),
    (
        ("--utility-weights",),
        "utility_weights",
        "C,I,F",
        "of communication, interference, fragmentation (1,1,1)",
    ),
    (
        ("--share",),
        "share",
        None,
        (
            "share GPUs with other jobs of yours through CUDA MPS, if that hurts nobody; 1/2, 0.5 "
            "or 50%%: with this part of a GPU's SMs and memory"
        ),
    ),
    (("--guest",), "guest", None, "share, at a lower priority than the other jobs on the GPU"),
    (("--exclusive",), "share", None, "GPUs of its own (default)", "false"),
    (
        ("--sm",),
        "sm",
        "PERCENT",
        "average SM utilization, for jobs that share and have no profile",
    ),
    (
        ("--memory-bandwidth",),
        "memory_bandwidth",
        "PERCENT",
        "average memory-bandwidth utilization, likewise",
    ),
    (
        ("--sm-percentage",),
        "sm_percentage",
        "PERCENT",
        "SMs that it is to have when it shares: 1 to 100",
    ),
    (
        ("--share-with",),
        "share_with",
        "PROFILE,...",
        "leave room for these, which are still to come",
    ),
    (
        ("--objective",),
        "objective",
        "NAME",
        "what sharing is for: throughput (default), energy, product",
    ),
    (
        ("-d", "--detach"),
        "detach",
        None,
        "print the job's name and leave it running, also after logout; it waits for its GPUs",
    ),
    (
        ("--terminal",),
        "terminal",
        None,
        "with -d: give the job a terminal to attach to (needs dtach)",
    ),
    (("--no-terminal",), "terminal", None, "do not (default)", "false"),
    (
        ("--wait",),
        "wait",
        None,
        "queue for GPUs that are busy, in order, except for jobs that delay nobody",
    ),
    (("--no-wait",), "wait", None, "do not (default): exit with 75", "false"),
    (
        ("--wait-timeout",),
        "wait_timeout",
        "TIME",
        "queue for so long at most, such as 90s, 10m, 1h30m",
    ),
    (
        ("--queue",),
        "queue",
        "backfill|fifo",
        "pass others that this does not delay (default), or keep the order",
    ),
    (
        ("--after",),
        "after",
        "NAME,...",
        "wait until jobs of yours have ended with 0 (NAME:any: however they end), then queue",
    ),
    (("--time-limit",), "time_limit", "TIME", "end the job if it runs longer"),
    (
        ("--leftovers",),
        "leftovers",
        "keep|end",
        "keep the GPUs for what the job leaves running (default), or end that",
    ),
    (("--bind-cpu",), "bind_cpu", None, "run on the CPUs next to the GPUs (default)"),
    (("--no-bind-cpu",), "bind_cpu", None, "leave the CPUs alone", "false"),
    (
        ("--visible",),
        "visible",
        "all|own|ranks",
        "of a step with a launch for each rank: all GPUs, the own first (default), own, or ranks",
    ),
    (("--rank-map",), "rank_map", "FILE", "take this rank's core and GPU from a map of all ranks"),
    (
        ("--ignore-engine",),
        "ignore_engine",
        None,
        "go past what Slurm or another cluster engine granted",
    ),
    (("--uuid",), "uuid", None, "write UUIDs into CUDA_VISIBLE_DEVICES"),
    (
        ("--topology",),
        "topology",
        "NAME|FILE",
        "a described machine instead of this one, such as dgx1-v100",
    ),
    (("--name",), "name", "TEXT", "what 'gpulaunch status' calls the job"),
    (("--dry-run",), "dry_run", None, "say what would be decided, and take nothing"),
    (("--when",), "when", None, "say when the job would probably start, and take nothing"),
    (("--explain",), "explain", None, "show the candidates, and why the best won (-v: all scores)"),
    (("--json",), "json", None, "with --dry-run: print a JSON document"),
    (
        ("--notify",),
        "notify",
        "COMMAND",
        "run this by sh when the job starts, is idle, ends or fails (GPULAUNCH_EVENT says which)",
    ),
    (
        ("--record",),
        "record",
        None,
        "measure what the job uses, and add it to its profile (-p or --name)",
    ),
    (("--no-record",), "record", None, "do not (default)", "false"),
    (("--record-to",), "record_to", "FILE", "measure what the job uses, and write that as JSON"),
    (
        ("--json-status-fd",),
        "json_status_fd",
        "FD",
        "tell there in lines of JSON when the job starts and ends",
    ),
    (("-q", "--quiet"), "quiet", None, "no warnings, and no word on waiting"),
    (("-v", "--verbose"), "verbose", None, "say which GPUs the job got"),
    (("-h", "--help"), "help", None, "print the usage and exit"),
    (("-V", "--version"), "version", None, "print the version and exit"),
)
"""The options of a launch: the fields of Option, since records would cost each launch 2 %."""


def launch_options() -> list[Option]:
    """Return the options of a launch."""
    return [Option(*row) for row in ROWS]


class Line(Record):
    """A command line, read up to its first word.

    Attributes:
        given: values by option name; the last one wins, unless the option repeats.
        word_at: index of the first argument that is neither an option nor its value; None if there
            is none.
    """

    given: dict[str, Given]
    word_at: int | None


def read_line(arguments: Sequence[str], rows: Iterable["Row"] = ROWS) -> Line:
    """Read options up to the first word: --name value, --name=value, -n3, -n 3 and -qn3.

    Options are never abbreviated.

    Raises:
        UsageError: an option is unknown, lacks its value, or has one that it does not take.
    """
    by_flag = {flag: row for row in rows for flag in row[0]}
    given: dict[str, Given] = {}
    rest = iter(enumerate(arguments))
    for at, argument in rest:
        if not argument.startswith("-") or argument == "-":
            return Line(given, at)
        if argument.startswith("--"):
            name, equals, value = argument.partition("=")
            pairs: list[tuple[str, str | None]] = [(name, value if equals else None)]
        else:
            pairs = _split_letters(argument, by_flag)
        for flag, attached in pairs:
            if flag not in by_flag:
                raise _unknown_option(flag, by_flag)
            option = Option(*by_flag[flag])
            if option.metavar is None:
                text = attached
                if text is None and option.attaches and _is_part(arguments[at + 1 : at + 2]):
                    text = next(rest)[1]
                if text is not None and not option.attaches:
                    raise UsageError(f"{flag} takes no value, but {quoted(text)} is given")
                given[option.name] = Given(flag, option.sets if text is None else text)
            else:
                text = attached if attached is not None else next(rest, (0, None))[1]
                if text is None:
                    raise UsageError(f"{flag} needs a value: {option.metavar}")
                last = given.get(option.name) if option.repeats else None
                given[option.name] = Given(flag, text, (*last.before, last.text) if last else ())
    return Line(given, None)


def _is_part(following: Sequence[str]) -> bool:
    """Return whether the next word is a part of a GPU, such as 1/2, 0.5 or 50%: no command is."""
    return any(
        word[:1] in "0123456789." and set(word) <= set("0123456789./% ") for word in following
    )


def _unknown_option(flag: str, known: Iterable[str]) -> UsageError:
    from gpulaunch.files.nearest import did_you_mean  # late: for mistakes only

    meant = did_you_mean(flag, known) if flag.startswith("--") else ""
    return UsageError(f"unknown option {printable(flag)}{meant}", "see 'gpulaunch help launch'")


def _split_letters(argument: str, by_flag: dict[str, "Row"]) -> list[tuple[str, str | None]]:
    """Split short options in one argument; the first with a value takes the rest of it."""
    pairs: list[tuple[str, str | None]] = []
    for i, letter in enumerate(argument[1:], 2):
        flag = f"-{letter}"
        if flag in by_flag and Option(*by_flag[flag]).metavar is not None:
            return [*pairs, (flag, argument[i:] or None)]
        pairs.append((flag, None))
    return pairs
