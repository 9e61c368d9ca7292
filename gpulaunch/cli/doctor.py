"""`gpulaunch doctor`: report what works here, and what does not.

Each part that launches need is checked by itself.
"""

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gpulaunch.cli.arguments import Parser, add_json, add_topology
from gpulaunch.cli.output import print_json
from gpulaunch.containers.asked import AskedContainer
from gpulaunch.containers.engine import NO_WAY, QUESTION_S, EngineClient, describe_way
from gpulaunch.containers.engines import all_engines
from gpulaunch.decide.request import Unfit
from gpulaunch.errors import FailedError, GpulaunchError, nearest, printable
from gpulaunch.history.line import taken
from gpulaunch.launch.cluster_engines import read_place
from gpulaunch.launch.free import reason_to_end
from gpulaunch.launch.options import SETTINGS, Options
from gpulaunch.launch.outside_use import find_strays
from gpulaunch.launch.read_container import choose_way
from gpulaunch.launch.read_sharing import what_can_be_shared
from gpulaunch.launch.surroundings import shown_machine, shown_settings, shown_table
from gpulaunch.leases.drain import drains_by_gpu
from gpulaunch.leases.table import Snapshot
from gpulaunch.machine.driver import Finding
from gpulaunch.machine.drivers import DRIVERS
from gpulaunch.machine.find import Machine, ask_apart, load_driver, read_health
from gpulaunch.machine.gpu import gpus_named, gpus_text
from gpulaunch.process.system import owner_of, pids_of_program, user_name
from gpulaunch.records import as_dict, replace
from gpulaunch.sharing import mps_daemon as mps
from gpulaunch.sharing.mps_directories import CONTROL

if TYPE_CHECKING:
    from gpulaunch.machine.gpu import Gpu
    from gpulaunch.machine.topology import Topology


def main(arguments: Sequence[str]) -> int:
    """Print the findings; the exit status is 1 if one is a problem."""
    options = make_parser().parse_args(arguments)
    findings = (diagnose_health if options.health else diagnose)(options.topology)
    if options.json:
        print_json({"findings": [as_dict(finding) for finding in findings]})
    else:
        from gpulaunch.cli.screen import Grid, Text, draw

        colours = {"ok": "green", "warning": "yellow", "problem": "red"}
        table = Grid("", "part", "found")
        for finding in findings:
            found = Text(printable(finding.text))
            if finding.hint:
                found.append(f"\n{printable(finding.hint)}", "dim")
            state = Text(finding.state, colours[finding.state])
            table.add_row(state, finding.subject, found)
        draw(table, sys.stdout)
    return int(any(finding.state == "problem" for finding in findings))


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(
        "gpulaunch doctor",
        "Look at what launches stand on: GPUs, allocation table, container engines.",
    )
    add_topology(parser)
    parser.add_argument(
        "--health",
        action="store_true",
        help="only the health of the GPUs; exits 1 if one of them is barred or left out",
    )
    add_json(parser)
    return parser


def diagnose(topology: str | None) -> list[Finding]:
    """Check every part and return the findings; nothing is taken or changed.

    Args:
        topology: value of --topology, or None.

    Raises:
        UsageError: the settings are wrong.
    """
    ask_apart()
    settings = shown_settings(topology)
    machine: list[Machine] = []
    findings = _run_check("GPUs", lambda _: _check_gpus(topology, machine))
    described = bool(machine and machine[0].key)
    if machine and not described:
        findings += _check_driver(machine[0].topology)
    if machine and (described or mps.program()):
        findings += _check_sharing(machine[0])
    findings += _run_check(
        "state directory", lambda warn: _check_state_directory(settings, described, warn)
    )
    if problem := taken():
        findings.append(Finding("history", "problem", problem, "root can remove it"))
    findings += _check_variables()
    if machine and not described:
        findings += _run_check("health", lambda _: _check_health(settings, machine[0]))
    first, *others = all_engines()
    for engine in (first, *filter(_is_present, others)):
        found = _check_engine(engine, settings, machine)
        findings += found if engine is first else map(_for_another_engine, found)
    if machine:
        findings += _run_check("cluster engine", lambda _: _check_cluster_engine(machine[0]))
        findings += _run_check("containers", lambda _: _check_abandoned(settings, machine[0]))
    return findings


def _ignore_warning(text: str) -> None:
    """Drop a warning that another check reports."""


_PREFIX = "GPULAUNCH_"
_NO_SETTINGS = ("STATE_DIR", "PROFILE_DIR", "LEASE", "GPU_COUNT", "BATCH")


def _check_variables() -> list[Finding]:
    """Find variables that look like settings and are not read."""
    known = [*map(str.upper, SETTINGS), *_NO_SETTINGS]
    found = []
    for name in sorted(os.environ):
        own = name.removeprefix(_PREFIX)
        if own in (name, *known) or own.startswith("EVENT"):  # what --notify runs has several
            continue
        near = " or ".join(_PREFIX + one for one in nearest(own, known))
        text = f"{printable(name)} is no setting{f': did you mean {near}?' if near else ''}"
        found.append(Finding("settings", "warning", text))
    return found


def diagnose_health(topology: str | None) -> list[Finding]:
    """Check the health of the GPUs alone, which takes little time.

    Args:
        topology: value of --topology, or None.

    Raises:
        UsageError: the settings are wrong.
    """
    ask_apart()
    settings = shown_settings(topology)

    def check(_: Callable[[str], None]) -> list[Finding]:
        left_out: list[str] = []
        machine = shown_machine(topology, left_out.append)
        hint = "look for it in 'dmesg' (Xid), then reset it or boot"
        found = [Finding("health", "problem", text, hint) for text in dict.fromkeys(left_out)]
        return found + _check_health(settings, machine)

    return _run_check("health", check)


def _check_health(settings: Options, machine: Machine) -> list[Finding]:
    """Find the GPUs that are barred, drained, in wrong use, or have something to be known."""
    names = {gpu.uuid: gpu.name for gpu in machine.topology.gpus}
    hint = "'nvidia-smi -q' and 'dmesg' tell more; most often a reset or a boot helps"
    found = []
    for one in read_health(machine):
        found += [
            Finding(
                "health", "problem", f"GPU {names[one.uuid]} is granted to nobody: {text}", hint
            )
            for text in one.problems
        ]
        found += [
            Finding("health", "warning", f"GPU {names[one.uuid]}: {text}") for text in one.warnings
        ]
    seen = _snapshot(settings, machine)
    for stray in find_strays(machine.topology, machine.outside, seen.leases):
        text = f"GPU {names[stray.uuid]} is in use by {stray.who} (pid {stray.pids[0]})"
        hint = f"'gpulaunch free {stray.stray}' ends the job"
        found.append(Finding("leases", "problem", text, hint))
    if seen.drained:
        for uuid, drain in drains_by_gpu(machine.topology, seen.drained).items():
            name = names[uuid]
            text = f"GPU {name} is {drain.text}"
            found.append(Finding("health", "warning", text, f"'gpulaunch undrain {name}'"))
    count = gpus_text(len(names))
    known = "only described" if machine.key else "nothing wrong, as far as the driver tells"
    return found or [Finding("health", "ok", f"{count}: {known}")]


def _snapshot(settings: Options, machine: Machine) -> Snapshot:
    """Return what the table has of a machine; another check reports what is wrong with it."""
    table = shown_table(settings, described=machine.key is not None, warn=_ignore_warning)
    return table.peek(problems=[]).of(machine)


def _for_another_engine(finding: Finding) -> Finding:
    """Make a warning of a problem that an engine has only if somebody uses it for GPUs."""
    if finding.state == "problem":
        return replace(finding, state="warning")
    return finding


_RIGHTS = "'sudo gpulaunch setup' makes a directory that is root's and everybody's"


def _run_check(
    subject: str, check: Callable[[Callable[[str], None]], list[Finding]]
) -> list[Finding]:
    """Return what a check finds; its warnings, and an error that ends it, become problems."""
    warned: list[Finding] = []
    try:
        found = check(lambda text: warned.append(Finding(subject, "problem", text, _RIGHTS)))
    except GpulaunchError as problem:
        found = [Finding(subject, "problem", problem.message, problem.hint)]
    return found + warned


def _check_gpus(topology: str | None, machine: list[Machine]) -> list[Finding]:
    """Check that the machine can be read, and append it to `machine`."""
    found = shown_machine(topology, _ignore_warning, use=True)
    machine.append(found)
    models = ", ".join(sorted({gpu.model for gpu in found.topology.gpus}))
    text = f"{found.topology.name}: {gpus_text(len(found.topology.gpus))} ({models})"
    source = ", described" if found.key else f", by {found.topology.source}"
    return [Finding("GPUs", "ok", text + source)]


def _check_driver(topology: "Topology") -> list[Finding]:
    """Check the driver, without the cache, and MPS if the driver has it."""
    driver = load_driver(topology.driver)

    def check(_: Callable[[str], None]) -> list[Finding]:
        version = driver.version() or "its version is unknown"
        return [Finding("driver", "ok", version), *driver.diagnose()]

    found = _run_check(topology.source, check)
    return found + _check_mps() if DRIVERS[topology.driver].mps else found


def _check_mps() -> list[Finding]:
    """Find the control program of CUDA MPS and its running daemons."""
    program = mps.program()
    if not program:
        text = f"{CONTROL} is not on PATH, so no GPU can be shared"
        return [
            Finding(
                "MPS",
                "warning",
                text,
                "it comes with the driver: install its package of compute utilities",
            )
        ]
    running = [
        f"pid {pid}, {owner_of(pid)}" for pid in pids_of_program(CONTROL) if mps.is_daemon(pid)
    ]
    return [Finding("MPS", "ok", f"{program}; {'; '.join(running) or 'not running'}")]


def _check_sharing(machine: Machine) -> list[Finding]:
    """Find the GPUs that can be shared, and why the others cannot."""
    offer = what_can_be_shared(machine)
    if isinstance(offer, Unfit):
        return [
            Finding(
                "sharing",
                "warning",
                f"no GPU can be shared: {offer.reason}",
                "launches get GPUs of their own",
            )
        ]
    gpus: dict[str, list[Gpu]] = {}
    for gpu in machine.topology.gpus:
        gpus.setdefault(offer.unfit.get(gpu.uuid, ""), []).append(gpu)
    fit = gpus.pop("", [])
    texts = [f"{gpus_named(some)} cannot be shared: {why}" for why, some in gpus.items()]
    if fit:
        texts.insert(0, f"{gpus_named(fit)} can be shared with --share")
    return [Finding("sharing", "ok" if fit else "warning", "; ".join(texts))]


def _check_state_directory(
    settings: Options, described: bool, warn: Callable[[str], None]
) -> list[Finding]:
    """Check that the state directory can be read and written."""
    table = shown_table(settings, described=described, warn=warn)
    problems: list[FailedError] = []
    seen = table.peek(problems=problems)
    table.draft().close()
    owner = user_name(os.stat(table.directory + "/").st_uid)
    leases = f"{len(seen.leases)} lease{'' if len(seen.leases) == 1 else 's'}"
    return [
        Finding(
            "state directory",
            "ok",
            f"{table.directory}, of {owner}: {leases}, {len(seen.tickets)} waiting",
        ),
        *(Finding("state directory", "problem", one.message, one.hint) for one in problems),
    ]


def _is_present(engine: type[EngineClient]) -> bool:
    """Return whether there is something at an engine's address, or a problem to tell of."""
    try:
        return engine.usual().exists()
    except GpulaunchError:
        return True


def _check_engine(
    engine: type[EngineClient], settings: Options, machine: list[Machine]
) -> list[Finding]:
    """Check that an engine answers, and how GPUs get into its containers."""
    return _run_check(engine.title, lambda _: _ask_engine(engine, settings, machine))


def _ask_engine(
    engine: type[EngineClient], settings: Options, machine: list[Machine]
) -> list[Finding]:
    """Return what an engine answers, and how GPUs get into its containers.

    Raises:
        GpulaunchError: it does not answer.
    """
    program, client = engine.program, engine.usual()
    if not client.exists():
        return [
            Finding(
                engine.title,
                "warning",
                f"none at {client.address}, so 'gpulaunch {program} run' will not work",
                f"start it, or set {engine.address_variable}; other launches do without",
            )
        ]
    info = client.within(QUESTION_S).info()
    found = [Finding(engine.title, "ok", f"{info.version} at {client.address}")]
    if not machine:
        return found
    offered = client.ways_into(info, machine[0].topology)
    container = AskedContainer(f"{program} run", "")
    try:
        way = choose_way(client, info, machine[0], settings, container, _ignore_warning)
    except GpulaunchError as problem:
        return [*found, Finding("GPUs in containers", "problem", problem.message, problem.hint)]
    return [*found, _check_way(offered, machine[0], settings, way)]


def _check_abandoned(settings: Options, machine: Machine) -> list[Finding]:
    """Find leases of containers that no process watches any more."""
    seen = _snapshot(settings, machine)
    findings = []
    for lease in seen.leases:
        if lease.id in seen.unlocked:
            reason = reason_to_end(lease)
            why = reason or "its launcher and companion are gone, and its container goes on"
            findings.append(
                Finding(
                    "containers",
                    "problem" if reason else "warning",
                    f"lease {lease.id} ({user_name(lease.user_id)}): {why}",
                    f"'gpulaunch free {lease.id}' ends it",
                )
            )
    return findings


def _check_way(offered: list[str], machine: Machine, settings: Options, way: str) -> Finding:
    """Check that the chosen way into containers is one that the engine offers."""
    topology = machine.topology
    if way == NO_WAY:
        text = f"{topology.name} is only described: its GPUs get into no container"
        return Finding("GPUs in containers", "ok", text)
    shown = describe_way(way, topology.driver)
    others = ", ".join(describe_way(one, topology.driver) for one in offered if one != way)
    if way not in offered:
        text = (
            f"{settings.origin('container_gpus')}: this engine does not seem to offer {shown}, but "
            f"{others or 'no way at all'}"
        )
        return Finding("GPUs in containers", "problem", text, "force none, or one that is offered")
    text = f"by {shown}"
    text += f", as {settings.origin('container_gpus')} says" if settings.container_gpus else ""
    text += f"; also offered: {others}" if others else ""
    return Finding("GPUs in containers", "ok", text)


def _check_cluster_engine(machine: Machine) -> list[Finding]:
    """Check that a job of a cluster engine cannot reach other GPUs than its own."""
    place = read_place(os.environ)
    if place is None:
        return []
    subject, names = "cluster engine", place.grant.names if place.grant else None
    if names is None:
        return [Finding(subject, "ok", f"{place.title}, which names no GPUs as granted")]
    granted, count = gpus_text(len(names)), len(machine.topology.gpus)
    if len(names) >= count:
        return [Finding(subject, "ok", f"{place.title}: {granted}, and no other is within reach")]
    return [
        Finding(
            subject,
            "warning",
            f"{place.title}: {granted} granted, {count} within reach: nothing keeps a job off the "
            "others but CUDA_VISIBLE_DEVICES",
            "its administrator sets ConstrainDevices=yes in cgroup.conf"
            if place.engine == "slurm"
            else None,
        )
    ]
