"""The types of parameters and results of the tools of `gpulaunch mcp`.

Their descriptions are what a client's model reads.
"""

# pydantic evaluates annotations at run time, for which gpulaunch.typing is no good.
from typing import Annotated, Any  # noqa: TID251

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from gpulaunch.errors import printable, quoted
from gpulaunch.files.data_files import is_path
from gpulaunch.profiles.layers import read_reference


class AnyDocument(BaseModel, extra="allow"):
    """A JSON document of gpulaunch; it may have more keys than its schema names."""


class StatusDocument(AnyDocument):
    """The GPUs of a machine, who has them, and who waits."""

    topology: str
    gpus: list[dict[str, Any]]
    leases: list[dict[str, Any]]
    queue: list[dict[str, Any]]


class LaunchDocument(AnyDocument):
    """One launch in the history."""

    key: str
    lease: str | None
    name: str | None
    command: list[str]
    directory: str
    gpus: list[str]
    state: Annotated[str, Field(description="waiting, running, ended, killed or unknown")]
    exit_status: Annotated[
        int | None,
        Field(description="the job's own; 75: GPUs busy; 124: over its limit; null: not ended"),
    ]
    submitted_at: str
    started_at: str | None
    ended_at: str | None
    log: str | None


class HistoryDocument(AnyDocument):
    """Launches, the newest last."""

    launches: list[LaunchDocument]
    earlier: Annotated[int, Field(description="how many earlier ones are left out")]


class TopologyDocument(AnyDocument):
    """The GPUs of a machine and the links between each two of them."""

    name: str
    gpus: list[dict[str, Any]]
    links: list[dict[str, Any]]


class DoctorDocument(AnyDocument):
    """Findings about the machine."""

    findings: list[dict[str, str | None]]


class DecisionDocument(AnyDocument):
    """What would be decided about a launch now."""

    decision: Annotated[str, Field(description="grant, wait or refuse")]
    reason: str
    gpus: list[dict[str, Any]]
    policy: str
    scores: dict[str, float | None]
    env: dict[str, str]
    argv: list[str]


class StartDocument(AnyDocument):
    """When a launch would probably start: now if granted, else in a range if that can be told."""

    decision: Annotated[str, Field(description="grant or wait")]
    reason: str
    predicted_start: dict[str, str] | None


class ProfileSummary(BaseModel):
    """The main fields of a profile."""

    name: str
    description: str | None
    gpus: int | None
    pattern: str | None
    bandwidth_sensitive: bool | None
    memory_bytes: int | None


class ProfileList(BaseModel):
    """The profiles that can be named in a launch."""

    profiles: list[ProfileSummary]


class ProfileDocument(AnyDocument):
    """All that a profile says."""

    name: str


class OutputText(BaseModel):
    """The end of a job's output."""

    text: str
    cut: Annotated[bool, Field(description="whether earlier output is left out of its first line")]


def wrong_arguments(problem: BaseException | None) -> str:
    """Return what is wrong with the arguments of a tool, in one line; empty for other problems."""
    errors = problem.errors() if isinstance(problem, ValidationError) else []
    found = [(".".join(map(str, one["loc"])), one["msg"]) for one in errors]
    return printable("; ".join(f"{path}: {_plain(message)}" for path, message in found))


def _plain(message: str) -> str:
    """Return a message of pydantic as one of gpulaunch's."""
    message = message.removeprefix("Value error, ")
    return message[:1].lower() + message[1:]


def _check_profile(name: str) -> str:
    if is_path(read_reference(name).name):
        raise ValueError(f"{quoted(name)} is a file: only names of profiles are taken here")
    return name


_NO_OPTION = "^[^-]"

Command = Annotated[
    list[str],
    Field(min_length=1, description="program and arguments, each as it is; no shell reads them"),
]
Gpus = Annotated[int | str, Field(description="how many: a number, a range such as 2-4, or all")]
Profile = Annotated[
    str, Field(pattern=_NO_OPTION, description="name of a profile"), AfterValidator(_check_profile)
]
Memory = Annotated[str, Field(description="least memory of each GPU, such as 16G")]
Job = Annotated[
    str,
    Field(pattern=_NO_OPTION, description="name of a job, or id of its lease, as launch returns"),
]
NewName = Annotated[
    str, Field(pattern=_NO_OPTION, description="name by which people and you find the job")
]
Directory = Annotated[
    str, Field(description="absolute path to start in; null: the server's directory")
]
TimeLimit = Annotated[str, Field(description="end the job if it runs longer, such as 2h")]
WaitTimeout = Annotated[str, Field(description="give up if it waits longer, such as 10m")]
Wait = Annotated[bool, Field(description="queue for busy GPUs; false: fail if they are busy")]
Seconds = Annotated[
    float, Field(ge=0, le=3600, description="seconds to wait at most; 0: only its state now")
]
LaunchCount = Annotated[int, Field(ge=1, le=1000, description="how many launches")]
LineCount = Annotated[int, Field(ge=1, le=10000, description="how many lines")]
