"""The job of a cluster engine that a launch is part of, and its part of a lease's document."""
# pure: decides on plain values

from gpulaunch.files.fields import FieldTable, ListOf
from gpulaunch.leases.record_fields import decode
from gpulaunch.records import Record

_MOST_RANKS = 1 << 31


class EngineJob(Record):
    """The job, or the step of a job, of a cluster engine that a launch is part of.

    Attributes:
        engine: name of the engine, such as "slurm".
        id: id of the job or step there, such as "4711.0".
        user_id: the user whose job it is; not in the document, as a lease's owner is not.
        rank: number of the launch's rank in the step, or None.
        local_rank: its number among the step's ranks on this node.
        ranks: number of the step's ranks on this node.
        group: UUIDs of the GPUs of all these ranks, in the order of local ranks; empty if the GPUs
            are not divided among ranks.
        shared: whether the engine gives the GPUs to several jobs at once.
        bound: whether the engine has said which rank uses which GPU.
        node: name of the launch's node there; empty if the engine does not tell it.
    """

    engine: str
    id: str
    user_id: int
    rank: int | None = None
    local_rank: int = 0
    ranks: int = 1
    group: tuple[str, ...] = ()
    shared: bool = False
    bound: bool = False
    node: str = ""

    @property
    def title(self) -> str:
        """Engine and id, as in messages."""
        return f"{self.engine} {self.id}"

    @property
    def is_divided(self) -> bool:
        """Whether the ranks of the step on this node divide GPUs among themselves."""
        return self.ranks > 1 and not self.bound

    def is_elsewhere(self, other: "EngineJob") -> bool:
        """Return whether another rank of this step is on another node, with the same table."""
        # Another step or engine may have another name for this very node.
        same = (self.title, self.user_id) == (other.title, other.user_id)
        return same and bool(self.node and other.node) and self.node != other.node


_FIELDS: FieldTable = {
    "engine": str,
    "id": str,
    "rank": (0, _MOST_RANKS),
    "local_rank": (0, _MOST_RANKS),
    "ranks": (1, _MOST_RANKS),
    "group": ListOf(str),
    "shared": bool,
    "bound": bool,
    "node": str,
}


def parse_engine_job(document: object, user_id: int) -> EngineJob:
    """Return the engine job in a lease's document; unknown keys are ignored.

    Raises:
        FieldError: it is no such document.
    """
    return decode(
        EngineJob, document, _FIELDS, needed=("engine", "id"), certain=_FIELDS, user_id=user_id
    )
