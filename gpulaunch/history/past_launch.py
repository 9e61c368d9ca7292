"""The PastLaunch record: one launch in the history; and which one a user means."""
# pure: decides on plain values

from collections.abc import Callable, Iterable

from gpulaunch.errors import FieldError, UsageError, quoted
from gpulaunch.leases.record import NO_PROCESS, check_version, decode, rules_of
from gpulaunch.process import Process
from gpulaunch.records import Record

LEAST_CHARACTERS = 4
"""A shorter text is not the beginning of an id: it would often fit by chance."""


class PastLaunch(Record):
    """One launch: what it asked for, what it got, how it ended.

    Attributes:
        id: id of its lease; empty as long as it has none.
        user_id: owner of the file that the line stands in; it is not in the line itself.
        command: argv; what is published of it, where others may read the history.
        described: whether `topology` is a described machine.
        gpus: names of its GPUs as `gpulaunch status` shows them, in rank order; empty as long as
            it has none.
        count: number of GPUs that it asks for; 0 if it takes all.
        bandwidth_sensitive: whether faster links make it faster; None if unknown.
        sm_percentage: its part of the GPUs' SMs if it shares them, or None.
        submitted_s: when it was launched, in seconds since 1970.
        exit_status: exit status of gpulaunch as a shell shows it, 0-255; None as long as it runs.
        time_limit_s: seconds after which it is ended, or None.
        log: file of its output if it was detached, or None.
        terminal: socket of the program that holds its terminal, or None.
        after: launches that it comes after, as `--after` names them.
        table: directory of the table that its lease is in; None in lines of earlier versions.
    """

    key: str
    user_id: int
    submitted_s: float
    id: str = ""
    name: str | None = None
    command: tuple[str, ...] = ()
    directory: str = ""
    topology: str = ""
    described: bool = False
    gpus: tuple[str, ...] = ()
    count: int = 0
    profile: str | None = None
    pattern: str | None = None
    bandwidth_sensitive: bool | None = None
    sm_percentage: int | None = None
    started_s: float | None = None
    ended_s: float | None = None
    exit_status: int | None = None
    time_limit_s: float | None = None
    launcher: Process = NO_PROCESS
    boot_id: str = ""
    log: str | None = None
    terminal: str | None = None
    after: tuple[str, ...] = ()
    table: str | None = None

    @property
    def duration_s(self) -> float | None:
        """Seconds that it had its GPUs; None if it never had any, or its end is unknown."""
        if self.started_s is None or self.ended_s is None:
            return None
        return max(0.0, self.ended_s - self.started_s)

    @property
    def gpu_hours(self) -> float:
        """GPUs times hours, by its part of the SMs where it shared; 0.0 if its end is unknown."""
        part = 1.0 if self.sm_percentage is None else self.sm_percentage / 100
        return len(self.gpus) * part * (self.duration_s or 0.0) / 3600


_TIME = (0.0, 2.5e11)  # year 9892: later ones have no date
_RULES = rules_of(
    PastLaunch,
    without=("user_id",),
    count=(0, 1 << 31),
    sm_percentage=(1, 100),
    submitted_s=_TIME,
    started_s=_TIME,
    ended_s=_TIME,
    exit_status=(0, 255),
)


def parse_past_launch(document: object, user_id: int) -> PastLaunch:
    """Return the launch of a line of HistoryLine, of this version or another.

    Raises:
        FieldError: it is no such document, or needs a later version.
    """
    check_version(document)
    launch = decode(
        PastLaunch,
        document,
        _RULES,
        needed=("key", "submitted_s"),
        user_id=user_id,
    )
    if not launch.key.isalnum():
        raise FieldError(("key",), f"key: {launch.key!r} is no key of a launch")
    return launch


def find_past(
    text: str,
    launches: Iterable[PastLaunch],
    is_running: Callable[[PastLaunch], bool] = lambda _: False,
) -> PastLaunch:
    """Return the newest launch of a name; else the one whose lease or key begins so.

    A launch in the foreground may have the name of a detached one. As long as that one runs, it is
    the one that is meant.

    Args:
        text: a name; or the id of a lease or a key, or its first 4 characters or more.
        launches: the history, in the order of its beginning.
        is_running: returns whether a launch without an end runs.

    Raises:
        UsageError: there is none, or the beginning of an id fits several.
    """
    launches = list(launches)
    named = [launch for launch in launches if launch.name == text]
    if named:
        detached = [one for one in named if one.log is not None and one.exit_status is None]
        return next((one for one in reversed(detached) if is_running(one)), named[-1])
    fitting = []
    if len(text) >= LEAST_CHARACTERS:
        fitting = [one for one in launches if one.id.startswith(text) or one.key.startswith(text)]
    if not fitting:
        raise UsageError(
            f"no job of yours is called {quoted(text)}", "'gpulaunch history' lists them"
        )
    if len(fitting) > 1:
        ids = ", ".join(one.id or one.key for one in fitting)
        raise UsageError(f"{quoted(text)} may be any of {ids}", "give more of its id")
    return fitting[0]
