"""`gpulaunch [OPTIONS] -- COMMAND [ARG...]`: the main job."""

import argparse
import os
from collections.abc import Sequence
from typing import Any

from gpulaunch import launch as launching
from gpulaunch.cli.arguments import Parser, add_json, add_topology
from gpulaunch.cli.output import print_json, print_table, say, warn
from gpulaunch.cli.settings import Settings
from gpulaunch.core import request as requests
from gpulaunch.core.decide import Decision, Grant, Wait
from gpulaunch.core.environment import job_environment
from gpulaunch.core.leases.lease import Lease
from gpulaunch.core.size import format_size
from gpulaunch.core.workload.profile import Profile
from gpulaunch.errors import UsageError, WouldWaitError
from gpulaunch.host.catalog import load_profile
from gpulaunch.host.machine import Machine, find_machine, inherited_lease
from gpulaunch.host.process import exit_like
from gpulaunch.host.system import user_name
from gpulaunch.render.documents import decision_document, decision_lines

_EXIT_STATUS = {"grant": 0, "wait": WouldWaitError.exit_status, "refuse": UsageError.exit_status}
_EXPLAINED = 5

# Settings that stand as text on the command line: option strings, name, what the help calls the value, help.
_VALUES = (
    (("-p", "--profile"), "profile", "NAME|FILE", "what is known about the job ('gpulaunch profiles' lists them)"),
    (("-n", "--gpus"), "gpus", "N|all", "how many GPUs (default: what the profile says, else 1)"),
    (("--policy",), "policy", "NAME", "how to choose: preserve (default), greedy, baseline"),
    (("--pattern",), "pattern", "NAME", "who talks to whom: ring, chain, all-to-all, none"),
    (("--bandwidth-model",), "bandwidth_model", "NAME", "how fast a set of GPUs is: cut (default), mapa"),
    (("--memory",), "memory", "SIZE", "least memory of each GPU, such as 16GiB"),
    (("--gpu-model",), "gpu_model", "TEXT", "only GPUs whose product name contains this"),
    (("--only",), "only", "GPU,...", "choose among these GPUs (index or UUID)"),
    (("--exclude",), "exclude", "GPU,...", "do not choose these"),
)  # fmt: skip
_SWITCHES = (
    ("--sensitive", "bandwidth_sensitive", True, "faster links make the job faster"),
    ("--insensitive", "bandwidth_sensitive", False, "they do not"),
    ("--bind-cpu", "bind_cpu", True, "run on the CPUs next to the GPUs (default)"),
    ("--no-bind-cpu", "bind_cpu", False, "leave the CPUs alone"),
    ("--uuid", "uuid", True, "write UUIDs into CUDA_VISIBLE_DEVICES"),
)


def _parser() -> Parser:
    parser = Parser(
        "gpulaunch",
        "Pick the GPUs whose links suit the job, hold them, run the command on them, free them when it ends.",
        "gpulaunch [OPTIONS] -- COMMAND [ARG...]\n       gpulaunch status|topo|profiles [OPTIONS]",
    )
    for flags, name, metavar, text in _VALUES:
        parser.add_argument(*flags, dest=name, metavar=metavar, help=text)
    for flag, name, value, text in _SWITCHES:
        parser.add_argument(flag, dest=name, action="store_const", const=value, help=text)
    add_topology(parser)
    parser.add_argument("--name", metavar="TEXT", help="what 'gpulaunch status' calls the job")
    parser.add_argument("--dry-run", action="store_true", help="say what would be decided, and take nothing")
    parser.add_argument("--explain", action="store_true", help="show the best candidates, and why the winner won")
    add_json(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="no warnings")
    parser.add_argument("-v", "--verbose", action="store_true", help="say which GPUs the job got")
    parser.add_argument("--version", action="store_true", help="print the version")
    return parser


def first_word(arguments: Sequence[str]) -> int | None:
    """Where the first argument stands that is no option and no option's value; None if there is none."""
    takes_value = {flag for flags, *_ in _VALUES for flag in flags} | {"--topology", "--name"}
    skip = False
    for at, argument in enumerate(arguments):
        if skip:
            skip = False
        elif not argument.startswith("-") or argument == "-":
            return at
        elif argument.startswith("--"):
            skip = argument in takes_value
        else:  # -qn3 or -qn 3: the first letter that takes a value takes the rest, or the next argument
            letters = ["-" + letter for letter in argument[1:]]
            taking = next((i for i, letter in enumerate(letters) if letter in takes_value), None)
            skip = taking == len(letters) - 1
    return None


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the options of a launch; --help and --version print and end here.

    Raises:
        UsageError: an option is unknown or lacks its value.
    """
    options = _parser().parse_args(arguments)
    if options.version:
        from gpulaunch import __version__

        print(f"gpulaunch {__version__}")
        raise SystemExit(0)
    return options


def main(arguments: Sequence[str], command: Sequence[str]) -> int:
    """Run a command on GPUs, or say what would be decided.

    Args:
        arguments: the options.
        command: argv of the job.
    """
    options = parse(arguments)
    if options.json and not options.dry_run:
        raise UsageError("--json needs --dry-run, since stdout belongs to the job", "see 'gpulaunch status --json'")
    tell = _silent if options.quiet else warn
    launch = _launch(options, command, tell)
    if options.dry_run:
        return _dry_run(launch, options, launching.preview(launch, tell))

    def granted(grant: Grant, lease_id: str) -> None:
        if options.explain:
            _explain(launch, grant, to_stderr=True)
        if options.verbose:
            gpus = ",".join(map(str, grant.placement.gpus))
            say("info", f"lease {lease_id}: GPUs {gpus} of {launch.machine.topology.name}: {grant.reason}")

    outcome = launching.run(launch, tell, granted)
    if isinstance(outcome, launching.Ended):
        return exit_like(outcome.status)
    if isinstance(outcome, Wait):
        raise WouldWaitError(outcome.reason, "see 'gpulaunch status' for who has them")
    raise UsageError(outcome.reason)


def _silent(text: str) -> None:
    """Say nothing."""


def _launch(options: argparse.Namespace, command: Sequence[str], tell: launching.Warn) -> launching.Launch:
    settings = Settings(_given(options), os.environ)
    profile_name = settings.get("profile").value
    profile = load_profile(profile_name) if profile_name else Profile(name="")
    machine, within = _machine(options, settings, tell)
    return launching.Launch(
        command=tuple(command),
        request=_request(settings, profile, machine, within),
        machine=machine,
        within=within.id if within else None,
        by_uuid=bool(settings.get("uuid").value),
        bind_cpu=settings.get("bind_cpu").value is not False,
        name=options.name,
    )


def _given(options: argparse.Namespace) -> dict[str, tuple[str, str]]:
    """What the command line says, as (option, text): messages repeat it."""
    given = {}
    for flags, name, *_ in (*_VALUES, (("--topology",), "topology")):
        value = getattr(options, name)
        if value is not None:
            given[name] = (
                f"{flags[-1]} {value}" if name in ("only", "exclude", "memory", "gpu_model") else flags[0],
                value,
            )
    for flag, name, value, _ in _SWITCHES:
        if getattr(options, name) is value:
            given[name] = (flag, str(value))
    return given


def _machine(options: argparse.Namespace, settings: Settings, tell: launching.Warn) -> tuple[Machine, Lease | None]:
    """The machine, and the live lease that this launch runs inside of."""
    lease_id = os.environ.get("GPULAUNCH_LEASE")
    within = inherited_lease(lease_id, tell) if lease_id else None
    if lease_id and not within:
        tell(f"GPULAUNCH_LEASE={lease_id} is no live lease, so this is a launch of its own")
    if within and within.user_id != os.geteuid():
        tell(f"lease {within.id} belongs to {user_name(within.user_id)}, so this is a launch of its own")
        within = None
    described = settings.get("topology").value
    if described is None and within and within.table:
        described = within.table.file
    from_environment = options.topology is None and within is None
    machine = find_machine(described, from_environment=from_environment and described is not None, warn=tell)
    same = within is not None and (machine.key.same_table(within.table) if machine.key else within.table is None)
    return machine, within if same else None


def _request(settings: Settings, profile: Profile, machine: Machine, within: Lease | None) -> requests.Request:
    gpus = settings.get("gpus", profile.gpus).value
    pattern = settings.get("pattern", profile.pattern).value
    sensitive = settings.get("bandwidth_sensitive", profile.bandwidth_sensitive).value
    assumed = [name for name, value in (("pattern", pattern), ("bandwidth_sensitive", sensitive)) if value is None]
    count = 1 if gpus is None else None if gpus == "all" else gpus
    return requests.Request(
        gpus=count,
        pattern=pattern or "all_to_all",
        bandwidth_sensitive=count != 1 if sensitive is None else sensitive,
        policy=settings.get("policy").value or "preserve",
        bandwidth_model=settings.get("bandwidth_model").value or "cut",
        constraints=tuple(_constraints(settings, profile, machine, within)),
        profile=profile.name or None,
        assumed=tuple(assumed),
    )


def _constraints(
    settings: Settings, profile: Profile, machine: Machine, within: Lease | None
) -> list[requests.Constraint]:
    topology = machine.topology
    found = []
    needed = None if profile.memory_is_reservation else profile.memory_bytes
    memory = settings.get("memory", needed)
    if memory.value:
        text = memory.origin
        if text == "profile":
            text = f"profile {profile.name}'s {format_size(memory.value)} of memory"
        found.append(requests.memory(topology, memory.value, text))
    builders: dict[str, Any] = {"gpu_model": requests.model, "only": requests.only, "exclude": requests.exclude}
    for name, build in builders.items():
        setting = settings.get(name)
        if setting.value:
            found.append(build(topology, setting.value, setting.origin))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        found.append(requests.visible(topology, visible))
    return found


def _dry_run(launch: launching.Launch, options: argparse.Namespace, decision: Decision) -> int:
    gpus = launching.granted_gpus(launch, decision) if isinstance(decision, Grant) else []
    environment = job_environment(gpus, by_uuid=launch.by_uuid, lease_id=None) if gpus else {}
    explained = _EXPLAINED if options.explain else 0
    document = decision_document(launch.request, decision, gpus, environment, launch.command, explained)
    if options.json:
        print_json(document)
    else:
        print("\n".join(decision_lines(document)))
        if options.explain and isinstance(decision, Grant):
            _explain(launch, decision, to_stderr=False)
    return _EXIT_STATUS[document["decision"]]


def _explain(launch: launching.Launch, grant: Grant, *, to_stderr: bool) -> None:
    from gpulaunch.render.tables import explanation_table

    print_table(explanation_table(launch.request, grant, _EXPLAINED), to_stderr=to_stderr)
