"""`gpulaunch drain GPU` and `gpulaunch undrain GPU`: take GPUs out of service, and back."""

from collections.abc import Sequence
from contextlib import suppress

from gpulaunch.cli.arguments import Parser, add_topology
from gpulaunch.cli.output import warn
from gpulaunch.decide.request import select_gpus
from gpulaunch.errors import UsageError, counted
from gpulaunch.launch.surroundings import shown_machine, shown_settings, shown_table
from gpulaunch.leases.drain import MOST_REASON_CHARACTERS, remove_drain, write_drain
from gpulaunch.leases.table import Table
from gpulaunch.leases.wake import WAKE, ring
from gpulaunch.machine.find import Machine
from gpulaunch.machine.gpu import Gpu, gpus_named


def main(arguments: Sequence[str]) -> int:
    """Drain GPUs: jobs that run there go on, and no other begins."""
    machine, table, gpus, reason = _read(make_parser(), arguments)
    for gpu in gpus:
        write_drain(table.directory, gpu.uuid, machine.key, reason)
    uuids = {gpu.uuid for gpu in gpus}
    busy = [lease for lease in table.peek(problems=[]).of(machine).leases if uuids & {*lease.uuids}]
    note = f"; {counted(len(busy), 'job')} on {'them' if gpus[1:] else 'it'} may finish"
    print(f"drained {gpus_named(gpus)} of {machine.topology.name}{note if busy else ''}")
    return 0


def undrain(arguments: Sequence[str]) -> int:
    """Put GPUs into service again, and wake who waits for them."""
    machine, table, gpus, _ = _read(make_undrain_parser(), arguments)
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


def make_parser() -> Parser:
    """Return the parser of drain's command line."""
    parser = Parser(
        "gpulaunch drain",
        "Take GPUs out of service until 'gpulaunch undrain', or the next boot; what runs there "
        "goes on. For root, or the owner of the state directory.",
    )
    parser.add_argument("--reason", metavar="TEXT", default="", help="what others are told")
    return _with_gpus(parser)


def make_undrain_parser() -> Parser:
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
