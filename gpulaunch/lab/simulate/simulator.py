"""The simulator as a Python API: `gpulaunch.Simulator` and `gpulaunch.generate_trace`."""

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gpulaunch.decide.decide import decide
from gpulaunch.decide.decision import Grant, Request, State, Wait, select_gpus
from gpulaunch.errors import UsageError, WouldWaitError, quoted
from gpulaunch.files.document import read_document, shipped_directory
from gpulaunch.lab.simulate.event_loop import Rules, simulate
from gpulaunch.lab.simulate.generate import GENERATORS
from gpulaunch.lab.simulate.machines import SimulatedJob
from gpulaunch.lab.simulate.measures import Replay, measure
from gpulaunch.lab.simulate.time_model import MODELS, yardstick_of
from gpulaunch.launch.job_file import Entry, load_jobs, read_jobs
from gpulaunch.launch.options import QUEUES, Options, one_of
from gpulaunch.launch.read_launch import read_request
from gpulaunch.launch.surroundings import Surroundings, shown_machine
from gpulaunch.machine.driver import OutsideUse
from gpulaunch.machine.find import Machine
from gpulaunch.placement.policies import DEFAULT_POLICY, POLICIES, Placement
from gpulaunch.placement.problem import Scores
from gpulaunch.profiles.catalog import load_profile
from gpulaunch.profiles.pattern_file import load_pattern
from gpulaunch.profiles.profile import Profile
from gpulaunch.records import Record, replace

SIMULATED_MODELS = ("cut", "mapa")
"""Bandwidth models of the simulator; measurements of a machine are not in its description."""

# Requests are read once for all runs, by a policy that uses everything a job says. Each run then
# sets its own policy.
_READ_WITH = next(name for name, policy in POLICIES.items() if policy.waits_for_utility)

_log = logging.getLogger("gpulaunch")


def generate_trace(generator: str, seed: int = 0, count: int = 300) -> dict[str, Any]:
    """Draw a trace of random jobs.

    Args:
        generator: "uniform" (the mix of MAPA, SC'21) or "poisson" (that of topology-aware
            scheduling, SC'17); docs/guides/simulate.md has their distributions.

    Returns:
        What a file of jobs says: under "job" a list of tables, under "profile" the profiles that
        they name, if any.

    Raises:
        UsageError: there is no such generator.

    Example:
        >>> gpulaunch.generate_trace("uniform", seed=1, count=1)["job"][0]["name"]
        'inception-v3'
    """
    jobs = list(GENERATORS[one_of(GENERATORS, "generator")(generator)](seed, count))
    needed = {job["profile"] for job in jobs if "profile" in job}
    if not needed:
        return {"job": jobs}
    path = os.path.join(shipped_directory("generators"), f"{generator}.toml")
    known = read_document(path).data["profile"]
    return {
        "profile": {name: table for name, table in known.items() if name in needed},
        "job": jobs,
    }


class Trace(Record):
    """The jobs of a file or a program, in order."""

    jobs: tuple[SimulatedJob, ...]


class TraceReader:
    """A reader of jobs that reads identical ones only once."""

    def __init__(
        self, profiles: Mapping[str, Profile], machine: Machine, warn: Callable[[str], None]
    ) -> None:
        self._profiles = profiles
        self._around = Surroundings(machine, None, None)
        self._warn = warn
        self._known: dict[object, tuple[Request, Profile]] = {}

    def read(self, number: int, entry: Entry) -> SimulatedJob:
        """Read one job; the number is its place in the file."""
        request, profile = self.request(entry)
        duration_s = entry.own.get("duration_s", profile.resources.duration_s)
        if not duration_s:
            raise entry.where.error(None, f"job {quoted(entry.name)}: nobody says its duration_s")
        return SimulatedJob(
            id=number,
            name=entry.name,
            request=replace(request, name=entry.own.get("name")),
            arrival_s=float(entry.own.get("arrival_s", 0.0)),
            duration_s=float(duration_s),
            communication_share=profile.communication_share,
            split_slowdown=profile.split_slowdown,
        )

    def request(self, entry: Entry) -> tuple[Request, Profile]:
        """Read one job's request, and its profile."""
        common = dict(entry.settings)
        least = common.pop("min_utility", None)  # it differs for almost every job
        said = tuple(sorted(common.items()))
        request, profile = self._read_once(said, entry, common)
        if request.sharing:  # others see its name
            request, profile = self._read_once((said, entry.name), entry, common)
        if least is not None:
            request = replace(request, least_utility=float(least))
        return request, profile

    def _read_once(
        self, key: object, entry: Entry, common: Mapping[str, str]
    ) -> tuple[Request, Profile]:
        if key not in self._known:
            try:
                self._known[key] = self._read(entry, common)
            except UsageError as problem:
                raise entry.where.error(None, problem.message, problem.hint) from None
        return self._known[key]

    def _read(self, entry: Entry, common: Mapping[str, str]) -> tuple[Request, Profile]:
        name = common.get("profile")
        given = {key: (key, value) for key, value in common.items()}
        if name is None:
            profile = Profile()
        elif name in self._profiles:
            profile = self._profiles[name]
        else:
            profile = load_profile(name)
        options = Options({**given, "policy": ("policy", _READ_WITH)}, os.environ)
        command: Sequence[str] = entry.own.get("command") or (entry.name,)
        request = read_request(
            options, profile, self._around, command, name=entry.own.get("name"), warn=self._warn
        )
        if request.least_gpus:
            raise UsageError(f"{options.origin('gpus')}: a simulated job has one number")
        return _with_slowdowns(request, profile, self._profiles), profile


def _with_slowdowns(request: Request, profile: Profile, brought: Mapping[str, Profile]) -> Request:
    """Return the request with the job's slowdowns beside profiles of the file."""
    if not profile.name:
        return request
    own = profile.slowdowns
    met = {
        name: (own.get(name, 0.0), other.slowdowns.get(profile.name, 0.0))
        for name, other in brought.items()
    }
    slowdowns = {
        **request.slowdowns,
        **{name: pair for name, pair in met.items() if any(pair)},
    }
    return replace(request, slowdowns=slowdowns)


class Simulator:
    """A machine on which jobs are placed and replayed, and nothing is launched.

    It makes the launcher's own decisions (docs/guides/simulate.md). It remembers them, so several
    replays on one machine are fastest with one simulator.

    Args:
        topology: name or file of a described machine; None for this machine.
        warn: called with each warning; by default they are logged.

    Attributes:
        topology: the machine: its `gpus` and `links`, and `to_networkx()`.

    Raises:
        UsageError: there is no such description, or it is wrong.
        FailedError: this machine's GPUs cannot be read.

    Example:
        >>> simulator = gpulaunch.Simulator("dgx1-v100")
        >>> trace = simulator.read_trace(gpulaunch.generate_trace("uniform", seed=1))
        >>> for policy in ("baseline", "preserve"):
        ...     print(f"{policy}: {simulator.replay(trace, policy).makespan_s:.0f} s")
        baseline: 2659 s
        preserve: 2199 s
    """

    def __init__(
        self, topology: str | None = None, *, warn: Callable[[str], None] = _log.warning
    ) -> None:
        self._warn = warn
        self._machine = shown_machine(topology, warn)
        self.topology = self._machine.topology

    def read_trace(self, trace: "str | os.PathLike[str] | Mapping[str, Any]") -> Trace:
        """Read jobs as they would be launched on this machine, with the same settings.

        Args:
            trace: a file of jobs (docs/guides/simulate.md), or the content of such a file:
                `{"job": [{"gpus": 2, "duration_s": 60.0}, ...]}`, with "profile" if jobs need it.

        Returns:
            The jobs, for this simulator's `replay`.

        Raises:
            UsageError: a job is wrong, or has no run time.
        """
        file = read_jobs(trace) if isinstance(trace, Mapping) else load_jobs(os.fspath(trace))
        reader = TraceReader(file.profiles, self._machine, self._warn)
        return Trace(tuple(reader.read(number, entry) for number, entry in enumerate(file.entries)))

    def replay(
        self,
        trace: Trace,
        policy: str = DEFAULT_POLICY,
        *,
        machines: int = 1,
        queue: str = "backfill",
        time_models: Iterable[str] = ("bandwidth",),
        bandwidth_model: str | None = None,
        lasting: bool = False,
        tick_s: float = 0.0,
    ) -> Replay:
        """Replay a trace under one policy.

        Args:
            queue: "backfill", in which jobs pass others that they do not delay, "fifo", or
                "first_fit", in which a job starts as soon as it fits, whoever it delays.
            time_models: models that make jobs take longer than they say: any of "bandwidth",
                "interference" and "sharing".
            bandwidth_model: "cut" or "mapa", by which the policy chooses; None for its usual one.
            lasting: a job stays as slow as its worst neighbours have made it after they have left.
            tick_s: the scheduler acts at multiples of this only, and starts no job in a tick in
                which another ends; 0: it acts at once. This, `lasting` and "first_fit" are rules of
                the published simulator of topo-aware-sc17.

        Returns:
            When and where each job ran, and measures of the whole.

        Raises:
            UsageError: a job can never run on this machine, or a name is unknown.
        """
        if machines < 1:
            raise UsageError(f"{machines} machines requested: at least 1 is needed")
        name = one_of(POLICIES, "policy")(policy)
        rules = Rules(
            name,
            _read_model(bandwidth_model or POLICIES[name].bandwidth_model),
            machines,
            queue=one_of((*QUEUES, "first_fit"), "queue")(queue),
            time_models=tuple(map(one_of(MODELS[1:], "time model"), time_models)),
            lasting=lasting,
            tick_s=tick_s,
        )
        stays = simulate(self.topology, trace.jobs, rules)
        return measure(self.topology, stays, rules)

    def place(
        self,
        job: Mapping[str, Any],
        policy: str = DEFAULT_POLICY,
        *,
        busy: Iterable[int] = (),
        bandwidth_model: str | None = None,
    ) -> Placement:
        """Choose GPUs for one job.

        Args:
            job: a job as in a trace, such as `{"gpus": 3, "pattern": "ring"}`, even without
                duration.
            busy: indices of GPUs that others have.
            bandwidth_model: "cut" or "mapa", by which the policy chooses; None for its usual one.

        Returns:
            The GPUs in rank order, with their scores.

        Raises:
            WouldWaitError: too few GPUs are left that would do.
            UsageError: the idle machine could not run the job either, or the job is wrong.

        Example:
            >>> gpulaunch.Simulator("dgx1-v100").place({"gpus": 3}, busy=[0, 1]).gpus
            (4, 6, 7)
        """
        name = one_of(POLICIES, "policy")(policy)
        model = _read_model(bandwidth_model or POLICIES[name].bandwidth_model)
        entry = read_jobs({"job": [job]}).entries[0]
        request, _ = TraceReader({}, self._machine, self._warn).request(entry)
        request = replace(request, policy=name, bandwidth_model=model)
        outside = tuple(
            OutsideUse(gpu.uuid, "given as busy")
            for gpu in select_gpus(self.topology, map(str, busy), "busy")
        )
        decision = decide(request, State(self.topology, outside=outside))
        if isinstance(decision, Grant):
            return decision.placement
        raise (WouldWaitError if isinstance(decision, Wait) else UsageError)(decision.reason)

    def scores(
        self, gpus: Sequence[int], *, pattern: str = "ring", bandwidth_model: str = "cut"
    ) -> Scores:
        """Return the scores of a set of GPUs of the idle machine.

        Args:
            gpus: indices of the GPUs, in rank order.
            pattern: communication pattern of their ranks: a name such as "all-to-all", or a file
                (docs/reference/patterns.md).
            bandwidth_model: "cut" or "mapa".

        Returns:
            Bandwidths in GB/s and the other figures of policies; None where there is no such score.

        Raises:
            UsageError: there are no such GPUs, or a name is unknown.

        Example:
            >>> gpulaunch.Simulator("dgx1-v100").scores([0, 2, 3]).aggregate_bandwidth
            125.0
        """
        found = tuple(gpu.index for gpu in select_gpus(self.topology, map(str, gpus), "gpus"))
        if not found or len(set(found)) < len(found):
            raise UsageError(f"gpus: {list(gpus)} are not one GPU or several different ones")
        yardstick = yardstick_of(self.topology, _read_model(bandwidth_model))
        return yardstick.scores(load_pattern(pattern), found)


def _read_model(name: str) -> str:
    return one_of(SIMULATED_MODELS, "bandwidth model")(name)
