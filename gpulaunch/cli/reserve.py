"""`gpulaunch reserve`: hold GPUs for people, or for the steps of a job.

A small process, the keeper, holds them (launch/detached.py).
"""

import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn

from gpulaunch.cli.arguments import LaunchParser
from gpulaunch.cli.launch import Reporter, tell_of
from gpulaunch.cli.output import Document, flush_stdout, print_json, say
from gpulaunch.errors import FailedError, UsageError, quoted
from gpulaunch.launch.detached import hold, session_leader
from gpulaunch.launch.launch import Keeper, visible_gpus
from gpulaunch.launch.options import OPTIONS, Given, OnOff, Option, Options
from gpulaunch.launch.read_launch import read_launch
from gpulaunch.leases.environment import job_environment
from gpulaunch.process import Process
from gpulaunch.process.job import exit_like
from gpulaunch.process.libc import end_with_parent, out_of_the_way
from gpulaunch.process.system import (
    is_cancelled_by_kill,
    iso,
)
from gpulaunch.records import replace

_NAMES = """\
gpus profile policy pattern bandwidth_sensitive memory gpu_model only exclude nvlink wait
wait_timeout uuid topology name notify quiet help"""
"""Options of a launch that a reservation has, too."""

_ROWS: tuple[Option[Any], ...] = (
    Option(str, "--for TIME", "how long, such as 90s, 10m, 1h30m; needed", name="for"),
    OnOff("--keep", "hold them after logout, too, as where CI=true", name="keep"),
    *(OPTIONS[name] for name in _NAMES.split()),
    OnOff("--json", "print a JSON document", name="json"),
)

_DAY_S = 86400.0

_ABOUT = """\
Hold GPUs, and print the variables that tell a shell which ones:
  eval "$(gpulaunch reserve -n 2 --for 2h)"
A launch inside takes its GPUs from these, and other programs see no others.

They are free again after the time of --for, by 'gpulaunch free ID|NAME', or
with the session that this is typed in. The latter not with --keep, nor where
CI=true, since each step of a CI job has a shell of its own: let its last one
run 'gpulaunch free "$GPULAUNCH_LEASE"'."""


def main(arguments: Sequence[str]) -> int:
    """Start the keeper of a reservation, and print what a shell needs to use it."""
    parser = make_parser()
    given, word_at = parser.read(arguments)
    if "help" in given:
        parser.print_help()
        return 0
    if word_at is not None:
        raise UsageError(
            f"'gpulaunch reserve' runs no command, but {quoted(arguments[word_at])} is given"
        )
    if "for" not in given:
        raise UsageError("--for is missing", "gpulaunch reserve -n 2 --for 2h")
    leader = None
    if "keep" not in given and not is_cancelled_by_kill():
        leader = session_leader()
        if leader is None:
            raise UsageError("there is no shell with which it could end", "add --keep")
    if sys.stdout is None:
        raise FailedError("stdout is closed, so nobody could know which GPUs are held")
    # If stdin or stderr is closed, an end of the pipe could get its number: move both away.
    read_end, write_end = map(out_of_the_way, os.pipe())
    # The keeper reads the machine itself, since nothing of NVML survives a fork.
    with_parent = end_with_parent(os.getpid())
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        with_parent()
        _reserve(given, leader, write_end)
    os.close(write_end)
    if os.read(read_end, 1):
        return 0
    status = os.waitpid(pid, 0)[1]  # of the keeper, which has said why
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPIPE:
        os.kill(os.getpid(), signal.SIGPIPE)  # nobody reads our output, either
    return exit_like(status)


def make_parser() -> LaunchParser:
    """Return the parser of the command line."""
    usage = "gpulaunch reserve --for TIME [OPTIONS]"
    return LaunchParser(_ROWS, "gpulaunch reserve", description=_ABOUT, usage=usage)


def _reserve(given: Given, leader: Process | None, parent: int) -> NoReturn:
    limit = given["for"]
    forced = {"time_limit": limit, "share": ("reserve", "false")}
    options = Options({**given, **forced}, os.environ)
    tell = tell_of(options)
    launch = read_launch(options, ["reserve", limit[1]], name=options.name, warn=tell)
    if launch.within and launch.within.share:
        raise UsageError(f"lease {launch.within.id} is shared: nothing in it can be reserved")
    # Nobody watches the use of the GPUs, and nothing is measured: the keeper sleeps.
    launch = replace(launch, idle_after_s=None, recorded_in=None)
    reporter = Reporter(options)
    reporter.concerns(launch)
    hold(launch, reporter, leader, parent, partial(_print, given, leader))


def _print(given: Given, leader: Process | None, keeper: Keeper) -> None:
    """Print what a shell needs to use the GPUs, and say until when they are held."""
    launch, lease, gpus = keeper.launch, keeper.lease, keeper.grant.gpus
    topology = launch.machine.topology
    until_s = time.time() + (lease.time_limit_s or 0)
    document: Document = {
        "lease": lease.id,
        "name": launch.name,
        "topology": topology.name,
        "gpus": [gpu.index for gpu in gpus],
        "uuids": lease.uuids,
        "until": iso(until_s),
        "env": job_environment(
            visible_gpus(launch, keeper.grant),
            driver=topology.driver,
            by_uuid=launch.by_uuid,
            count=len(gpus),
            lease_id=lease.id,
        ),
    }
    if "json" in given:
        print_json(document)
    else:
        for name, value in document["env"].items():
            print(f"export {name}={shlex.quote(value)}")
    flush_stdout()
    if "quiet" in given:
        return
    form = "%H:%M" if (lease.time_limit_s or 0) < _DAY_S else "%Y-%m-%d %H:%M"
    clock = time.strftime(form, time.localtime(until_s))
    ends = f"'gpulaunch free {shlex.quote(launch.name or lease.id)}'"
    ends += " or the end of this session frees them earlier" if leader else " frees them earlier"
    say("info", f"GPUs {keeper.grant.names} of {topology.name} are held until {clock}: {ends}")
