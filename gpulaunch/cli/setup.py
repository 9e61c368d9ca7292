"""`gpulaunch setup`: a state directory for good, as root; or a program called nvidia-docker."""

import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress

from gpulaunch.cli.arguments import Parser, add_topology
from gpulaunch.cli.output import warn
from gpulaunch.decide.request import select_gpus
from gpulaunch.errors import FailedError, UsageError, call_failed, counted
from gpulaunch.history.line import COMMON
from gpulaunch.launch.open_table import TMPFILES, set_up
from gpulaunch.launch.surroundings import shown_machine, shown_settings, shown_table
from gpulaunch.leases.directory import SET_UP
from gpulaunch.leases.drain import MOST_REASON_CHARACTERS, remove_drain, write_drain
from gpulaunch.leases.table import Table
from gpulaunch.leases.wake import WAKE, ring
from gpulaunch.machine.find import Machine
from gpulaunch.machine.gpu import Gpu, gpus_named

_NVIDIA_DOCKER = "nvidia-docker"


def setup(arguments: Sequence[str]) -> int:
    """Make the state directory, and say where; or make the link."""
    parser = setup_parser()
    options = parser.parse_args(arguments)
    if options.history and options.nvidia_docker:
        parser.error("--history and --nvidia-docker are two calls")
    if options.history:
        from gpulaunch.history.line import set_up_history  # late: not for the table

        set_up_history()
        print(f"{COMMON} holds the history of all users' launches from now on")
        return 0
    if options.nvidia_docker:
        print(_link(sys.argv[0]))
        return 0
    set_up(warn)
    print(f"{SET_UP} holds the allocation table from now on; {TMPFILES} makes it at every boot")
    return 0


def setup_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(
        "gpulaunch setup",
        f"Make {SET_UP}, the allocation table of all users, now and after every boot.",
    )
    parser.add_argument(
        "--nvidia-docker",
        action="store_true",
        help="only make a program nvidia-docker beside gpulaunch: its containers get leases (needs "
        "no root where you may write)",
    )
    parser.add_argument(
        "--history",
        action="store_true",
        help=f"only make {COMMON}, where all users' launches get their lines of the history, so "
        "that 'gpulaunch history --everyone' shows them (as root)",
    )
    return parser


def _link(program: str) -> str:
    """Make the link nvidia-docker beside a program; return what to print.

    Raises:
        FailedError: there is another program of that name, or the link cannot be made.
    """
    if os.path.basename(program) != "gpulaunch":
        raise UsageError(
            f"--nvidia-docker makes a link to the program gpulaunch, but this is {program}"
        )
    link = os.path.join(os.path.dirname(os.path.abspath(program)), _NVIDIA_DOCKER)
    if not os.path.lexists(link):
        try:
            os.symlink(os.path.basename(program), link)
        except OSError as problem:
            raise call_failed(link, problem) from None
    elif not os.path.islink(link) or os.path.realpath(link) != os.path.realpath(program):
        raise FailedError(
            f"{link} is there already, and is not gpulaunch's",
            "remove it, or have an earlier directory of PATH with gpulaunch in it",
        )
    found = shutil.which(_NVIDIA_DOCKER)
    if found != link:
        warn(f"PATH finds {found or 'no nvidia-docker'}, not {link}")
    return f"{link} is gpulaunch now: 'nvidia-docker run' leases the GPUs of its container"


def drain(arguments: Sequence[str]) -> int:
    """Drain GPUs: jobs that run there go on, and no other begins."""
    machine, table, gpus, reason = _read(drain_parser(), arguments)
    for gpu in gpus:
        write_drain(table.directory, gpu.uuid, machine.key, reason)
    uuids = {gpu.uuid for gpu in gpus}
    busy = [lease for lease in table.peek(problems=[]).of(machine).leases if uuids & {*lease.uuids}]
    note = f"; {counted(len(busy), 'job')} on {'them' if gpus[1:] else 'it'} may finish"
    print(f"drained {gpus_named(gpus)} of {machine.topology.name}{note if busy else ''}")
    return 0


def undrain(arguments: Sequence[str]) -> int:
    """Put GPUs into service again, and wake who waits for them."""
    machine, table, gpus, _ = _read(undrain_parser(), arguments)
    back = [gpu for gpu in gpus if remove_drain(table.directory, gpu.uuid, machine.key)]
    others = [gpu for gpu in gpus if gpu not in back]
    if others:
        warn(f"{gpus_named(others)} of {machine.topology.name}: not drained")
    if back:
        # The first that waits is enough: whoever cannot start wakes the next.
        for ticket in table.peek(problems=[]).of(machine).tickets[:1]:
            with suppress(OSError):
                ring(table.directory, ticket.id, WAKE)
        print(f"{gpus_named(back)} of {machine.topology.name} in service again")
    return 0


def drain_parser() -> Parser:
    """Return the parser of drain's command line."""
    parser = Parser(
        "gpulaunch drain",
        "Take GPUs out of service until 'gpulaunch undrain', or the next boot; what runs there "
        "goes on. For root, or the owner of the state directory.",
    )
    parser.add_argument("--reason", metavar="TEXT", default="", help="what others are told")
    return _with_gpus(parser)


def undrain_parser() -> Parser:
    """Return the parser of undrain's command line."""
    return _with_gpus(
        Parser(
            "gpulaunch undrain",
            "Put GPUs into service again that 'gpulaunch drain' took out of it.",
        )
    )


def _with_gpus(parser: Parser) -> Parser:
    parser.add_argument("gpus", metavar="GPU", nargs="+", help="index, card:instance, or UUID")
    add_topology(parser)
    return parser


def _read(parser: Parser, arguments: Sequence[str]) -> tuple[Machine, Table, list[Gpu], str]:
    """Return the machine, its table, the named GPUs and the reason."""
    options = parser.parse_args(arguments)
    reason = getattr(options, "reason", "")
    if len(reason) > MOST_REASON_CHARACTERS:
        raise UsageError(
            f"--reason: {len(reason)} characters, {MOST_REASON_CHARACTERS} are allowed"
        )
    machine = shown_machine(options.topology, warn)
    settings = shown_settings(options.topology)
    table = shown_table(settings, described=machine.key is not None, warn=warn)
    names = [name for word in options.gpus for name in word.split(",")]
    return machine, table, list(select_gpus(machine.topology, names, "GPU")), reason
