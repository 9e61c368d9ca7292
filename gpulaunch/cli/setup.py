"""`gpulaunch setup`, `drain` and `undrain`: what is made for all users, and GPUs out of service."""

import os
from collections.abc import Sequence
from contextlib import suppress

from gpulaunch.cli.arguments import Namespace, Parser, add_topology
from gpulaunch.cli.output import warn
from gpulaunch.decide.decision import select_gpus
from gpulaunch.errors import FailedError, UsageError, call_failed, counted
from gpulaunch.history.line import COMMON
from gpulaunch.launch.surroundings import open_table, read_shown
from gpulaunch.leases.directory import MOST_REASON_CHARACTERS, SET_UP, remove_drain, write_drain
from gpulaunch.leases.table import Table
from gpulaunch.leases.wake import WAKE, ring
from gpulaunch.machine.find import Machine
from gpulaunch.machine.gpu import Gpu, gpus_named

_TMPFILES = "/etc/tmpfiles.d/gpulaunch.conf"
_ENTRY = f"""# made by gpulaunch setup: the allocation table, on which all users' launchers agree
d {SET_UP} 1777 root root -
"""


def setup(arguments: Sequence[str]) -> int:
    """Make the state directory for good, or the directory of all users' history."""
    history = setup_parser().parse_args(arguments).history
    if os.geteuid() != 0:
        command = "sudo gpulaunch setup"
        raise UsageError("setup needs root", f"{command} --history" if history else command)
    try:
        if history:
            # On the disk, so it stays; each user's directory is made by his next launch.
            _make_directory(COMMON)
            os.chmod(os.path.dirname(COMMON), 0o755)  # whatever root's umask  # noqa: S103
        else:
            _set_up()
    except OSError as problem:
        raise call_failed(problem.filename, problem) from None
    if history:
        print(f"{COMMON} holds the history of all users' launches from now on")
    else:
        print(
            f"{SET_UP} holds the allocation table from now on; {_TMPFILES} makes it at every boot"
        )
    return 0


def setup_parser() -> Parser:
    """Return the parser of the command line of `gpulaunch setup`."""
    parser = Parser(
        "gpulaunch setup",
        f"Make {SET_UP}, the allocation table of all users, now and after every boot.",
    )
    parser.add_argument(
        "--history",
        action="store_true",
        help=f"only make {COMMON}, where all users' launches get their lines of the history, so "
        "that 'gpulaunch history --everyone' shows them (as root)",
    )
    return parser


def drain(arguments: Sequence[str]) -> int:
    """Drain GPUs: jobs that run there go on, and no other begins."""
    options = drain_parser().parse_args(arguments)
    length = len(options.reason)
    if length > MOST_REASON_CHARACTERS:
        raise UsageError(f"--reason: {length} characters, {MOST_REASON_CHARACTERS} are allowed")
    machine, table, gpus = _named_gpus(options)
    for gpu in gpus:
        write_drain(table.directory, gpu.uuid, machine.key, options.reason)
    uuids = {gpu.uuid for gpu in gpus}
    busy = [lease for lease in table.peek(problems=[]).of(machine).leases if uuids & {*lease.uuids}]
    note = f"; {counted(len(busy), 'job')} on {'them' if gpus[1:] else 'it'} may finish"
    print(f"drained {gpus_named(gpus)} of {machine.topology.name}{note if busy else ''}")
    return 0


def drain_parser() -> Parser:
    """Return the parser of the command line of `gpulaunch drain`."""
    parser = Parser(
        "gpulaunch drain",
        "Take GPUs out of service until 'gpulaunch undrain', or the next boot; what runs there "
        "goes on. For root, or the owner of the state directory.",
    )
    parser.add_argument("--reason", metavar="TEXT", default="", help="what others are told")
    _add_gpus(parser)
    return parser


def undrain(arguments: Sequence[str]) -> int:
    """Put GPUs into service again, and wake who waits for them."""
    machine, table, gpus = _named_gpus(undrain_parser().parse_args(arguments))
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


def undrain_parser() -> Parser:
    """Return the parser of the command line of `gpulaunch undrain`."""
    parser = Parser(
        "gpulaunch undrain", "Put GPUs into service again that 'gpulaunch drain' took out of it."
    )
    _add_gpus(parser)
    return parser


def _add_gpus(parser: Parser) -> None:
    parser.add_argument("gpus", metavar="GPU", nargs="+", help="index, card:instance, or UUID")
    add_topology(parser)


def _named_gpus(options: Namespace) -> tuple[Machine, Table, list[Gpu]]:
    shown, table = read_shown(options.topology, warn, use=False)
    names = ",".join(options.gpus).split(",")
    return shown.machine, table, list(select_gpus(shown.machine.topology, names, "GPU"))


def _set_up() -> None:
    """Make SET_UP now and at every boot."""
    if os.environ.get("GPULAUNCH_STATE_DIR"):
        raise UsageError(
            "GPULAUNCH_STATE_DIR is set, so nobody who has it would use what setup makes"
        )
    if os.path.isdir(SET_UP):
        _make_directory(SET_UP)
    else:
        _make_unless_used(open_table(private=True, warn=warn))
    os.makedirs(os.path.dirname(_TMPFILES), exist_ok=True)
    with open(_TMPFILES, "w") as file:
        file.write(_ENTRY)


def _make_unless_used(table: Table) -> None:
    """Make SET_UP under the lock of the present directory, if no lease or ticket lives there."""
    table.peek()  # asks engines about containers, which is too slow under the lock
    with table.locked() as locked:
        seen = locked.read()
        alive = len(seen.leases) + len(seen.tickets)
        if alive:
            verb = "lease lives" if alive == 1 else "leases live"
            raise FailedError(
                f"{alive} {verb} in {table.directory}",
                "wait for them to end, or see 'gpulaunch status'",
            )
        _make_directory(SET_UP)


def _make_directory(path: str) -> None:
    os.makedirs(path, exist_ok=True)
    os.chown(path, 0, 0)
    # All users write here; sticky, so that none can remove what is another user's.
    os.chmod(path, 0o1777)  # noqa: S103
