"""A launch's place in a cluster engine: what was granted to it there, and which rank it is."""

import json
import os
import socket
from collections.abc import Sequence
from itertools import count
from operator import attrgetter
from typing import Any

from gpulaunch.decide.request import Constraint, Request, admit_only, admit_visible
from gpulaunch.errors import FieldError, UsageError, printable
from gpulaunch.files.document import read_text
from gpulaunch.files.fields import FieldTable, checked
from gpulaunch.launch.cluster_engines import EnginePlace, read_place
from gpulaunch.launch.options import Options
from gpulaunch.leases.environment import BATCH_VARIABLE
from gpulaunch.leases.lease import EngineJob, Lease
from gpulaunch.machine.gpu import gpus_text
from gpulaunch.machine.topology import Topology
from gpulaunch.process.system import stat_fields
from gpulaunch.records import Record, replace

_MOST_MAP_BYTES = 16 << 20


_MOST = (0, 1 << 31)
_ROW: FieldTable = {"rank": _MOST, "node": str, "core": _MOST, "gpu": _MOST}


class MappedRank(Record):
    """One rank's row of a map of ranks, as `gpulaunch cluster map` writes it.

    Attributes:
        core: number of its CPU there, as Linux counts them; None for any.
        gpu: index of its GPU there.
    """

    rank: int
    node: str
    core: int | None
    gpu: int


def parse_rank_map(text: str, path: str) -> tuple[MappedRank, ...]:
    """Return the rows of a map in the order of their ranks.

    Args:
        path: path of its file, for messages.

    Raises:
        UsageError: it is no map of ranks, or gives a rank or a GPU twice.
    """
    try:
        ranks = json.loads(text)["ranks"]
        rows = sorted(map(_parse_row, count(), ranks), key=attrgetter("rank"))
    except FieldError as problem:
        row = f"{problem.path[0]}: " if len(problem.path) > 1 else ""
        raise UsageError(f"{path}: {row}{problem.message}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UsageError(f"{path}: no map of ranks, which is JSON with a list 'ranks'") from None
    _check_twice(rows, path)
    return tuple(rows)


def _parse_row(at: int, row: dict[str, Any]) -> MappedRank:
    """Return one row; keys that are unknown here are ignored."""
    known = {key: row[key] for key in _ROW if row.get(key) is not None}
    checked(known, _ROW, required=("rank", "node", "gpu"), where=(f"row {at}",))
    return MappedRank(known["rank"], known["node"], known.get("core"), known["gpu"])


def _check_twice(rows: Sequence[MappedRank], path: str) -> None:
    """Refuse a map that names a rank twice, or gives two ranks one GPU."""
    ranks: set[int] = set()
    holders: dict[tuple[str, int], int] = {}
    for row in rows:
        if row.rank in ranks:
            raise UsageError(f"{path}: rank {row.rank} stands there twice")
        ranks.add(row.rank)
        first = holders.setdefault((row.node, row.gpu), row.rank)
        if first != row.rank:
            raise UsageError(
                f"{path}: ranks {first} and {row.rank} both have GPU {row.gpu} of {row.node}"
            )


class EngineTerms(Record):
    """What an engine says of a launch.

    Attributes:
        constraints: the GPUs that were granted, and those that a map of ranks names.
        visible: what the job sees of its step's GPUs, unless a setting says it.
        core: CPU of the rank by a map; None for any.
        hides: whether the constraints stand for what CUDA_VISIBLE_DEVICES says.
        ranks: number of ranks on this node that divide the GPUs; 1 if none do.
    """

    job: EngineJob
    constraints: tuple[Constraint, ...] = ()
    visible: str = "all"
    core: int | None = None
    hides: bool = False
    ranks: int = 1

    def applied_to(self, request: Request, topology: Topology) -> Request:
        """Return a launch's request with what the engine says of it.

        Raises:
            UsageError: the engine does not tell which GPU it gave.
        """
        constraints = (*request.constraints, *self.constraints)
        if self.job.shared and not self.constraints:
            _check_only_one(self.job, constraints, topology)
        return replace(request, constraints=constraints, engine_job=self.job)


def _check_only_one(job: EngineJob, constraints: Sequence[Constraint], topology: Topology) -> None:
    """Refuse a share of a GPU that nobody names, where there are several."""
    left = [gpu for gpu in topology.gpus if all(gpu.uuid in one.uuids for one in constraints)]
    if len(left) != 1:
        raise UsageError(
            f"{job.title} has a share by MPS, and does not tell on which of {gpus_text(len(left))}",
            "name it: --only GPU",
        )


def read_engine(options: Options, topology: Topology, within: Lease | None) -> EngineTerms | None:
    """Return what the engines around this process say of a launch; None outside of any.

    All that was granted becomes the default number of GPUs, but not in a batch. Inside a lease of
    the same job the launch is an ordinary one, of the GPUs of that lease.

    Args:
        options: options of the launch, which get that default.
        within: the lease that it runs inside of, or None.

    Raises:
        UsageError: nothing was granted here, or a map of ranks does not fit.
    """
    mapped, origin = options.rank_map, options.origin("rank_map")
    if options.ignore_engine:
        if mapped:
            raise UsageError(f"{origin} goes by the rank, which -o ignore_engine=true leaves out")
        return None
    place = read_place(os.environ)
    if place is None:
        if mapped:
            raise UsageError(f"{origin}: no cluster engine tells this process its rank")
        return None
    job = _job_of(place)
    if within is not None and within.is_of(job):
        return EngineTerms(job)
    constraints = [] if place.grant is None else _read_grant(place, topology)
    if mapped and options.share:
        raise UsageError(f"{origin} gives each rank a GPU of its own, without --share")
    if options.share:  # then several ranks may have one GPU
        job = replace(job, ranks=1)
    elif place.grant is not None and options.gpus is None and BATCH_VARIABLE not in os.environ:
        options.set_default("gpus", "all", f"what {place.title} granted")
    terms = EngineTerms(
        job,
        tuple(constraints),
        "ranks" if place.ranks_by == "torchrun" else "all",
        hides=bool(constraints),
        ranks=job.ranks if job.is_divided else 1,
    )
    return _with_rank_map(terms, place, mapped, options, topology) if mapped else terms


def _job_of(place: EnginePlace) -> EngineJob:
    grant, rank = place.grant, place.rank
    step = place.id
    if rank and not rank.step:  # MPICH's mpiexec tells no id: all of its ranks have one parent
        step += f"pid {_parent_of_session()}"
    job = EngineJob(
        engine=place.engine,
        id=printable(step)[:200],
        user_id=os.geteuid(),
        shared=bool(grant and grant.shared),
        node=printable(place.node or "")[:200],
    )
    if rank is None or rank.local_size == 1:
        return job if rank is None else replace(job, rank=rank.number)
    bound = bool(grant and grant.names and len(grant.names) < grant.all)
    return replace(
        job,
        rank=rank.number,
        local_rank=rank.local,
        ranks=rank.local_size,
        bound=bound or job.shared,
    )


def _parent_of_session() -> int:
    """Return the pid of the process that started this session's first one; 0 if it is gone."""
    fields = stat_fields(os.getsid(0))
    return int(fields[1]) if fields else 0


def _read_grant(place: EnginePlace, topology: Topology) -> list[Constraint]:
    """Return the GPUs that an engine granted on this node; empty if it does not tell which.

    Raises:
        UsageError: it granted none, none of this machine's, or those of other nodes.
    """
    grant = place.grant
    title = place.title
    if place.elsewhere:
        raise UsageError(
            f"{title} has its GPUs on {printable(place.elsewhere)}, and this is no task of it",
            "write 'srun gpulaunch ...', or go past it with -o ignore_engine=true",
        )
    if grant is None or grant.names is None:
        return []
    where = f" on {place.node}" if place.node else ""
    if not grant.names:
        raise UsageError(
            f"{title} was granted no GPU{where}",
            f"ask for GPUs: {place.ask}; -o ignore_engine=true goes past that",
        )
    names = ",".join(grant.names)
    found = admit_visible(topology, names)
    if not found.uuids:
        raise UsageError(
            f"{title} was granted GPU {printable(names)}{where}, which is none of the "
            f"{len(topology.gpus)} of {topology.name}"
        )
    return [Constraint(f"what {title} granted", found.uuids)]


def _with_rank_map(
    terms: EngineTerms,
    place: EnginePlace,
    path: str,
    options: Options,
    topology: Topology,
) -> EngineTerms:
    """Return the terms with the rank's GPU and core by a map.

    Raises:
        UsageError: the map does not fit the place of this process.
    """
    rows = parse_rank_map(read_text(path, _MOST_MAP_BYTES), path)
    rank = place.rank
    if rank is None:
        raise UsageError(f"{options.origin('rank_map')}: {place.title} tells this process no rank")
    if options.gpus not in (None, 1, "all"):
        raise UsageError(f"{options.origin('gpus')}: the map in {path} gives each rank one GPU")
    row = next((row for row in rows if row.rank == rank.number), None)
    if row is None:
        raise UsageError(
            f"{path}: rank {rank.number} of {place.title} is not among its {len(rows)}"
        )
    _check_node(row, place, path)
    beside = [one for one in rows if one.node == row.node]
    if len(beside) != rank.local_size or beside[rank.local] != row:
        raise UsageError(
            f"{path}: rank {row.rank} is number {beside.index(row)} of {len(beside)} on "
            f"{row.node}, and number {rank.local} of {rank.local_size} in {place.title}"
        )
    gpus = [_gpu_of(one, terms, topology, path) for one in beside]
    options.set_default("gpus", 1, path)
    if len(beside) == 1:
        own = Constraint(f"rank {row.rank} of {path}", frozenset(gpus))
        return replace(terms, constraints=(*terms.constraints, own), core=row.core)
    job = replace(terms.job, group=tuple(gpus), bound=False)
    return replace(terms, job=job, core=row.core, ranks=len(gpus))


def _check_node(row: MappedRank, place: EnginePlace, path: str) -> None:
    """Refuse a row for another node than this one, by any of its names."""
    host = socket.gethostname()
    names = [name for name in (place.node, host) if name]
    if row.node not in (*names, *(name.partition(".")[0] for name in names)):
        raise UsageError(f"{path}: rank {row.rank} belongs on {row.node}, and runs on {names[0]}")


def _gpu_of(row: MappedRank, terms: EngineTerms, topology: Topology, path: str) -> str:
    """Return the UUID of a row's GPU, which must be one that was granted."""
    text = f"{path}: rank {row.rank}"
    (uuid,) = admit_only(topology, [str(row.gpu)], text).uuids
    for constraint in terms.constraints:
        if uuid not in constraint.uuids:
            raise UsageError(
                f"{text} is to have GPU {row.gpu} of {row.node}, not {constraint.text}"
            )
    return uuid
