"""Leases and the containers that hold them.

A container belongs to its engine, not to the command that started it, so only the engine knows
whether a lease is still needed. docs/decisions/docker.md gives the reason for each part.
"""

import time
from collections.abc import Iterable
from itertools import chain

from gpulaunch.containers.engine import ANSWER_S, QUESTION_S, EngineClient, ForbiddenError
from gpulaunch.containers.engines import engines_of
from gpulaunch.containers.life import START_FOLLOWS_S, Container, Standing
from gpulaunch.errors import FailedError
from gpulaunch.leases.lease import Lease
from gpulaunch.process.system import parse_time

_Asked = dict[tuple[str, str], tuple[EngineClient, str | FailedError]]
"""Engines by title and address: a client with a limit for all its answers together, and the
engine's own id or the reason why it does not answer."""


def standings_of(leases: Iterable[Lease]) -> dict[str, Standing]:
    """Return the known state of the containers of leases, by the leases' ids.

    Each engine gets one chance to answer, however many leases there are: it may be gone, hang, or
    be another user's.
    """
    asked: _Asked = {}
    return {lease.id: _find_standing(lease, asked, QUESTION_S)[0] for lease in leases}


def ended_leases(leases: Iterable[Lease]) -> set[str]:
    """Return the ids of those leases whose containers have certainly all ended.

    Args:
        leases: leases without a process of ours, and without the client that makes the containers.
    """
    ended = set()
    for lease_id, standing in standings_of(leases).items():
        holders = [container for container in standing.containers if container.holds]
        # A start may be under way that a client has asked for at its end.
        if not standing.holds or (holders and all(map(_is_left_unstarted, holders))):
            ended.add(lease_id)
    return ended


def _is_left_unstarted(container: Container) -> bool:
    if not container.is_only_made:
        return False
    try:
        return time.time() - parse_time(container.created_at).timestamp() > START_FOLLOWS_S
    except ValueError:
        return False


def client_of_lease(lease: Lease) -> EngineClient:
    """Return a client of the engine on which a lease's container was launched.

    The engine has ANSWER_S to say that it is the one.

    Raises:
        FailedError: the engine is none of the known ones, or does not answer.
    """
    standing, client = _find_standing(lease, {}, ANSWER_S)
    if client is None:
        raise FailedError(f"lease {lease.id}: {standing.problem}")
    return client


def _find_standing(
    lease: Lease, asked: _Asked, patience_s: float
) -> tuple[Standing, EngineClient | None]:
    """Return a lease's standing, and a client of its engine if that answers."""
    problems = []
    engines = engines_of(lease.engine or "")
    for client in chain.from_iterable(engine.known(lease.user_id) for engine in engines):
        key = client.title, client.address
        if key not in asked:
            limited = client.within(patience_s)
            try:
                asked[key] = limited, limited.info().id
            except FailedError as problem:
                asked[key] = limited, problem
        limited, answer = asked[key]
        if answer == lease.engine:
            try:
                containers = tuple(limited.containers_of(lease.id, lease.container))
                holds = any(container.holds for container in containers)
                return Standing(holds, containers, None), client
            except FailedError as problem:
                answer = problem
                asked[key] = limited, problem
        if isinstance(answer, FailedError):
            problems.append(answer)
    titles = " or ".join(engine.title for engine in engines)
    text = "; ".join(problem.message for problem in problems) or f"its {titles} does not run here"
    forbidden = any(isinstance(problem, ForbiddenError) for problem in problems)
    return Standing(holds=True, containers=(), problem=text, forbidden=forbidden), None
