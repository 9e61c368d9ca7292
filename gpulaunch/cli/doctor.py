"""`gpulaunch doctor`: report what works here, and what does not.

Each part that launches need is checked by itself.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

from gpulaunch.cli.arguments import Parser, add_json, add_topology
from gpulaunch.cli.output import print_json
from gpulaunch.containers.create import AskedContainer
from gpulaunch.containers.engine import (
    NO_WAY,
    QUESTION_S,
    EngineClient,
    ForbiddenError,
    LateError,
    NoAnswerError,
    describe_way,
)
from gpulaunch.containers.engines import ENGINES
from gpulaunch.decide.decision import Unfit
from gpulaunch.errors import FailedError, GpulaunchError, counted, nearest, printable
from gpulaunch.history.line import taken
from gpulaunch.launch.options import SETTINGS, Options
from gpulaunch.launch.read_container import choose_way
from gpulaunch.launch.read_sharing import what_can_be_shared
from gpulaunch.launch.surroundings import find_strays, open_table, read_surroundings, shown_settings
from gpulaunch.leases.environment import MPS_CONTROL
from gpulaunch.machine.driver import DRIVERS, Finding
from gpulaunch.machine.find import Machine, ask_apart, load_driver, read_health
from gpulaunch.machine.gpu import Gpu, gpus_named, gpus_text
from gpulaunch.process.system import owner_of, pids_of_program, user_name
from gpulaunch.records import as_dict, replace
from gpulaunch.sharing import mps_daemon as mps

_PREFIX = "GPULAUNCH_"
_NO_SETTINGS = ("STATE_DIR", "PROFILE_DIR", "LEASE", "GPU_COUNT", "BATCH")
_RIGHTS = "'sudo gpulaunch setup' makes a directory that is root's and everybody's"


def main(arguments: Sequence[str]) -> int:
    """Print the findings; the exit status is 1 if one is a problem."""
    options = make_parser().parse_args(arguments)
    ask_apart()
    settings = shown_settings(options.topology)
    if options.health:
        findings = list(_run("health", _check_health_alone(settings)))
    else:
        findings = list(_diagnose(settings))
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


def _diagnose(settings: Options) -> Iterator[Finding]:
    """Check every part; nothing is taken or changed."""
    machine, described = None, False
    try:
        machine = read_surroundings(settings, lambda _: None, may_hide=True).machine
    except GpulaunchError as problem:
        yield Finding("GPUs", "problem", problem.message, problem.hint)
    else:
        described, topology = machine.key is not None, machine.topology
        models = ", ".join(sorted({gpu.model for gpu in topology.gpus}))
        source = "described" if described else f"by {topology.source}"
        text = f"{topology.name}: {gpus_text(len(topology.gpus))} ({models}), {source}"
        yield Finding("GPUs", "ok", text)
        if not described:
            yield from _run(topology.source, _check_driver(topology.driver))
        if described or mps.program():
            yield _sharing_finding(machine)
    warnings: list[str] = []
    checked = _check_state_directory(settings, machine, described, warnings.append)
    yield from _run("state directory", checked)
    for warning in warnings:
        yield Finding("state directory", "problem", warning, _RIGHTS)
    if whose := taken():
        yield Finding("history", "problem", whose, "root can remove it")
    yield from _check_variables()
    if machine and not described:
        yield from _run("health", _check_health(machine))
    yield from _check_engines(settings, machine)


def _run(subject: str, check: Iterable[Finding]) -> Iterator[Finding]:
    """Yield what a check finds; an error that ends it becomes a problem."""
    try:
        yield from check
    except GpulaunchError as problem:
        yield Finding(subject, "problem", problem.message, problem.hint)


def _check_driver(name: str) -> Iterator[Finding]:
    """Check the driver, without the cache, and the control program of CUDA MPS if it has that."""
    driver = load_driver(name)
    yield Finding("driver", "ok", driver.version() or "its version is unknown")
    yield from driver.diagnose()
    program = mps.program()
    if DRIVERS[name].mps and program:
        pids = [pid for pid in pids_of_program(MPS_CONTROL) if mps.is_daemon(pid)]
        running = "; ".join(f"pid {pid}, {owner_of(pid)}" for pid in pids)
        yield Finding("MPS", "ok", f"{program}; {running or 'not running'}")
    elif DRIVERS[name].mps:
        text = f"{MPS_CONTROL} is not on PATH, so no GPU can be shared"
        hint = "it comes with the driver: install its package of compute utilities"
        yield Finding("MPS", "warning", text, hint)


def _sharing_finding(machine: Machine) -> Finding:
    offer = what_can_be_shared(machine)
    if isinstance(offer, Unfit):
        text = f"no GPU can be shared: {offer.reason}"
        return Finding("sharing", "warning", text, "launches get GPUs of their own")
    gpus: dict[str, list[Gpu]] = {}
    for gpu in machine.topology.gpus:
        gpus.setdefault(offer.unfit.get(gpu.uuid, ""), []).append(gpu)
    fit = gpus.pop("", [])
    texts = [f"{gpus_named(some)} cannot be shared: {why}" for why, some in gpus.items()]
    if fit:
        texts.insert(0, f"{gpus_named(fit)} can be shared with --share")
    return Finding("sharing", "ok" if fit else "warning", "; ".join(texts))


def _check_state_directory(
    settings: Options, machine: Machine | None, described: bool, warn: Callable[[str], None]
) -> Iterator[Finding]:
    table = open_table(private=described or settings.table == "private", warn=warn)
    problems: list[FailedError] = []
    seen = table.peek(problems=problems)
    table.draft().close()
    owner = user_name(os.stat(table.directory + "/").st_uid)
    leases = counted(len(seen.leases), "lease")
    text = f"{table.directory}, of {owner}: {leases}, {len(seen.tickets)} waiting"
    yield Finding("state directory", "ok", text)
    for problem in problems:
        yield Finding("state directory", "problem", problem.message, problem.hint)
    if machine:
        for stray in find_strays(machine.topology, machine.outside, seen.of(machine).leases):
            gpu = next(gpu.name for gpu in machine.topology.gpus if gpu.uuid == stray.uuid)
            text = f"GPU {gpu} is in use by {stray.who} (pid {stray.pids[0]})"
            hint = f"'gpulaunch free {stray.stray}' ends the job"
            yield Finding("leases", "problem", text, hint)


def _check_variables() -> Iterator[Finding]:
    known = [*map(str.upper, SETTINGS), *_NO_SETTINGS]
    for name in sorted(os.environ):
        own = name.removeprefix(_PREFIX)
        if own in (name, *known) or own.startswith("EVENT"):  # what --notify runs has several
            continue
        near = " or ".join(_PREFIX + one for one in nearest(own, known))
        text = f"{printable(name)} is no setting{f': did you mean {near}?' if near else ''}"
        yield Finding("settings", "warning", text)


def _check_health_alone(settings: Options) -> Iterator[Finding]:
    """Check the health of the GPUs, and name those that are left out, which takes little time."""
    left_out: list[str] = []
    machine = read_surroundings(settings, left_out.append, may_hide=True, use=False).machine
    hint = "look for it in 'dmesg' (Xid), then reset it or boot"
    for text in dict.fromkeys(left_out):
        yield Finding("health", "problem", text, hint)
    yield from _check_health(machine)


def _check_health(machine: Machine) -> list[Finding]:
    """Find the GPUs that are barred, or have something to be known."""
    names = {gpu.uuid: gpu.name for gpu in machine.topology.gpus}
    hint = "'nvidia-smi -q' and 'dmesg' tell more; most often a reset or a boot helps"
    found = []
    for one in read_health(machine):
        gpu = f"GPU {names[one.uuid]}"
        for text in one.problems:
            barred = f"{gpu} is granted to nobody: {text}"
            found.append(Finding("health", "problem", barred, hint))
        found += [Finding("health", "warning", f"{gpu}: {text}") for text in one.warnings]
    count = gpus_text(len(names))
    known = "only described" if machine.key else "nothing wrong, as far as the driver tells"
    return found or [Finding("health", "ok", f"{count}: {known}")]


def _check_engines(settings: Options, machine: Machine | None) -> Iterator[Finding]:
    """Check the engines; what keeps another than the first from working is only a warning."""
    for place, load in enumerate(dict.fromkeys(ENGINES.values())):
        engine = load()
        for finding in _run(engine.title, _check_engine(engine, settings, machine, place == 0)):
            is_problem = place > 0 and finding.state == "problem"
            yield replace(finding, state="warning") if is_problem else finding


def _check_engine(
    engine: type[EngineClient], settings: Options, machine: Machine | None, is_first: bool
) -> Iterator[Finding]:
    program, client = engine.program, engine.usual()
    try:
        info = client.within(QUESTION_S).info()
    except (ForbiddenError, LateError):
        raise
    except NoAnswerError:
        text = f"none at {client.address}, so 'gpulaunch {program} run' will not work"
        hint = f"start it, or set {engine.address_variable}; other launches do without"
        if is_first:
            yield Finding(engine.title, "warning", text, hint)
        return
    yield Finding(engine.title, "ok", f"{info.version} at {client.address}")
    if machine:
        offered = client.ways_into(info, machine.topology)
        container = AskedContainer(f"{program} run", "")
        try:
            way = choose_way(client, info, machine, settings, container, lambda _: None)
            yield _way_finding(offered, machine, settings, way)
        except GpulaunchError as problem:
            yield Finding("GPUs in containers", "problem", problem.message, problem.hint)


def _way_finding(offered: list[str], machine: Machine, settings: Options, way: str) -> Finding:
    subject, topology = "GPUs in containers", machine.topology
    if way == NO_WAY:
        text = f"{topology.name} is only described: its GPUs get into no container"
        return Finding(subject, "ok", text)
    shown, origin = describe_way(way, topology.driver), settings.origin("container_gpus")
    if way not in offered:
        names = ", ".join(describe_way(one, topology.driver) for one in offered)
        text = f"{origin}: this engine does not seem to offer {shown}, but {names or 'no way'}"
        return Finding(subject, "problem", text, "force none, or one that is offered")
    return Finding(subject, "ok", f"by {shown}" + (f", as {origin} says" if origin else ""))
