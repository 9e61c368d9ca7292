"""A file of jobs as a machine would launch them, for `gpulaunch simulate`."""

import os
from collections.abc import Callable, Mapping, Sequence

from gpulaunch.decide.request import Request
from gpulaunch.errors import UsageError, quoted
from gpulaunch.lab.simulate.machines import SimulatedJob
from gpulaunch.launch.job_file import Entry, JobFile
from gpulaunch.launch.options import Options
from gpulaunch.launch.read_launch import read_request
from gpulaunch.launch.surroundings import Surroundings
from gpulaunch.machine.find import Machine
from gpulaunch.placement.policies import POLICIES
from gpulaunch.profiles.catalog import load_profile
from gpulaunch.profiles.profile import Profile
from gpulaunch.records import Record, replace

# Requests are read once for all runs, by a policy that uses everything a job says. Each run then
# sets its own policy.
_READ_WITH = next(name for name, policy in POLICIES.items() if policy.waits_for_utility)


class Trace(Record):
    """The jobs of a file or a program, in order."""

    jobs: tuple[SimulatedJob, ...]


def read_trace(file: JobFile, machine: Machine, warn: Callable[[str], None]) -> Trace:
    """Return the jobs of a file as they would be launched, with settings and profiles.

    Raises:
        UsageError: a setting is wrong, with path and line; or a job has no run time.
    """
    reader = TraceReader(file.profiles, machine, warn)
    jobs = tuple(reader.read(number, entry) for number, entry in enumerate(file.entries))
    return Trace(jobs)


class TraceReader:
    """A reader of jobs that reads identical ones only once.

    Args:
        profiles: profiles in the file of jobs, by name.
    """

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
