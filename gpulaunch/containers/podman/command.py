"""Podman's command line, read as podman reads it.

The flags end at the first other word: the image. To find it, one has to know which flags take a
value. The image and all that follows it are left untouched.
"""
# pure: decides on plain values

from collections.abc import Mapping, Sequence

from gpulaunch.containers.container import (
    VISIBLE,
    Asked,
    AskedContainer,
    asked_by_files,
    asked_by_names,
    asked_of_other_maker,
    is_gpu_device,
    without_kinds,
)
from gpulaunch.containers.flags import Flag, read_flags
from gpulaunch.errors import FlagError, UsageError, nearest, printable
from gpulaunch.machine.driver import DRIVERS
from gpulaunch.records import Record, replace

PROGRAM = "podman"
_LAUNCHING = frozenset({("run",), ("create",), ("container", "run"), ("container", "create")})
_STARTING = frozenset({("start",), ("restart",), ("container", "start"), ("container", "restart")})
_COMPOSE_STARTS = frozenset({"create", "restart", "run", "start", "up", "scale", "watch"})


FlagTable = tuple[frozenset[str], frozenset[str]]
"""The flags of one command: switches, which take a value only as --flag=value, and all others."""


def _table(switches: str, valued: str) -> FlagTable:
    return frozenset(switches.split()), frozenset(valued.split())


# Flags of podman itself that may also follow the subcommand.
_ANYWHERE_SWITCHES = "--noout --syslog --trace --transient-store"
_ANYWHERE_VALUED = """
    --cdi-spec-dir --cgroup-manager --cni-config-dir --conmon --cpu-profile --db-backend
    --default-mounts-file --events-backend --hooks-dir --imagestore --log-level --max-workers
    --memory-profile --module --namespace --network-backend --network-cmd-path --network-config-dir
    --ns --out --root --runroot --runtime --runtime-flag --storage-driver --storage-opt --tmpdir
    --volumepath
"""
STORE_FLAGS = frozenset(
    {
        *("--db-backend", "--events-backend", "--imagestore", "--module", "--namespace", "--ns"),
        *("--root", "--runroot", "--storage-driver", "--storage-opt", "--tmpdir"),
        *("--transient-store", "--volumepath"),
    }
)
"""Flags that say in which store podman looks for containers."""

GLOBAL = _table(
    switches=f"{_ANYWHERE_SWITCHES} -D --debug -h --help -r --remote -v --version",
    valued=f"""
        {_ANYWHERE_VALUED} --config -c --connection --context -H --host --identity --ssh
        --tls-ca --tls-cert --tls-key --url
    """,
)
"""Flags before the subcommand."""

RUN = _table(
    switches=f"""
        {_ANYWHERE_SWITCHES} -d --detach --disable-content-trust --env-host --help --http-proxy
        --init -i --interactive --no-healthcheck --no-hostname --no-hosts --oom-kill-disable
        --passwd --privileged -P --publish-all -q --quiet --read-only --read-only-tmpfs
        --replace --rm --rmi --rootfs --sig-proxy --tls-verify -t --tty --unsetenv-all
    """,
    valued=f"""
        {_ANYWHERE_VALUED} --add-host --annotation --arch -a --attach --authfile --blkio-weight
        --blkio-weight-device --cap-add --cap-drop --cert-dir --cgroup-conf --cgroup-parent
        --cgroupns --cgroups --chrootdirs --cidfile --conmon-pidfile --cpu-period --cpu-quota
        --cpu-rt-period --cpu-rt-runtime -c --cpu-shares --cpus --cpuset-cpus --cpuset-mems
        --creds --decryption-key --detach-keys --device --device-cgroup-rule --device-read-bps
        --device-read-iops --device-write-bps --device-write-iops --dns --dns-opt --dns-option
        --dns-search --entrypoint -e --env --env-file --env-merge --expose --gidmap --gpus
        --group-add --group-entry --health-cmd --health-interval --health-log-destination
        --health-max-log-count --health-max-log-size --health-on-failure --health-retries
        --health-start-period --health-startup-cmd --health-startup-interval
        --health-startup-retries --health-startup-success --health-startup-timeout
        --health-timeout --healthcheck-command --healthcheck-interval --healthcheck-retries
        --healthcheck-start-period --healthcheck-timeout -h --hostname --hosts-file --hostuser
        --image-volume --init-ctr --init-path --ip --ip6 --ipc --kernel-memory -l --label
        --label-file --log-driver --log-opt --mac-address -m --memory --memory-reservation
        --memory-swap --memory-swappiness --mount --name --net --network --network-alias
        --oom-score-adj --os --override-arch --override-os --override-variant --passwd-entry
        --personality --pid --pidfile --pids-limit --platform --pod --pod-id-file --preserve-fd
        --preserve-fds -p --publish --pull --rdt-class --requires --restart --retry
        --retry-delay --sdnotify --seccomp-policy --secret --security-opt --shm-size
        --shm-size-systemd --signature-policy --stop-signal --stop-timeout --subgidname
        --subuidname --sysctl --systemd --timeout --tmpfs --tz --uidmap --ulimit --umask
        --unsetenv -u --user --userns --uts --variant -v --volume --volumes-from -w --workdir
    """,
)
"""Flags of run and create together."""

START = _table(
    switches=f"""
        {_ANYWHERE_SWITCHES} --all -a --attach --help -i --interactive -l --latest --running
        --sig-proxy
    """,
    valued=f"{_ANYWHERE_VALUED} --cidfile --detach-keys -f --filter -t --time --timeout",
)
"""Flags of start and restart together."""

UNNAMED = frozenset({"--all", "--cidfile", "-f", "--filter", "-l", "--latest"})
"""Flags of start and restart that choose containers without naming them."""


class PodmanCommand(Record):
    """A command line of podman.

    Attributes:
        subcommand: words such as ("run",) or ("container", "run"); one word for those that neither
            make nor start containers.
        flags: flags of the subcommand, if it makes or starts containers.
        flags_end: index after the last flag, and before the -- that may end them.
    """

    argv: tuple[str, ...]
    global_flags: tuple[Flag, ...] = ()
    subcommand: tuple[str, ...] = ()
    flags: tuple[Flag, ...] = ()
    flags_end: int = 0
    operands: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Program and subcommand, for messages."""
        return " ".join((PROGRAM, *self.subcommand))

    @property
    def launches(self) -> bool:
        """True if it makes a container that can run; otherwise the client only prints something."""
        return self.subcommand in _LAUNCHING and bool(self.operands) and not self.says("--help")

    @property
    def starts(self) -> bool:
        """True if it starts containers that exist already."""
        return (
            self.subcommand in _STARTING and bool(self.operands) and not self.says("-h", "--help")
        )

    def says(self, *names: str) -> bool:
        """Return whether a switch is on; the last one counts."""
        return next((flag.is_on for flag in reversed(self.flags) if flag.name in names), False)

    def values(self, *names: str) -> list[str]:
        """Return the values of a flag, in order."""
        return [flag.value for flag in self.flags if flag.name in names and flag.value is not None]


def read_command(argv: Sequence[str]) -> PodmanCommand:
    """Read a command line of podman.

    Mistakes that podman itself refuses, such as a missing value, are left to it.

    Raises:
        UsageError: a flag is unknown, so that the image cannot be found; start is to start what it
            does not name; or what compose is to do is not built.
    """
    argv = tuple(argv)
    global_flags, begin = _read_flags(argv, 1, GLOBAL, PROGRAM)
    subcommand = argv[begin : begin + 1]
    if subcommand == ("compose",) and _COMPOSE_STARTS & {*argv[begin:]}:
        raise UsageError(
            "'podman compose' is not built: no leases for its containers",
            "launch each container with 'gpulaunch podman run', or call podman without gpulaunch",
        )
    begin += 1
    if subcommand == ("container",):
        more, begin = _read_flags(argv, begin, GLOBAL, PROGRAM)
        if not any(flag.name in ("-h", "--help") for flag in more):
            subcommand += argv[begin : begin + 1]
            begin += 1
        global_flags += more
    command = PodmanCommand(argv, global_flags, subcommand)
    if subcommand in _LAUNCHING:
        flags, at = _read_flags(argv, begin, RUN, command.title)
        operands = argv[at + 1 :] if argv[at : at + 1] == ("--",) else argv[at:]
        return replace(command, flags=flags, flags_end=at, operands=operands)
    if subcommand not in _STARTING:
        return command
    flags, at, operands = (), begin, ()
    while at < len(argv):  # its flags may come among the containers, and after them
        more, at = _read_flags(argv, at, START, command.title)
        flags += more
        if argv[at : at + 1] == ("--",):
            operands += argv[at + 1 :]
            break
        operands += argv[at : at + 1]
        at += 1
    if unnamed := [flag.name for flag in flags if flag.name in UNNAMED]:
        raise UsageError(
            f"{command.title} {unnamed[0]}: which containers that starts, gpulaunch does not know",
            f"name them: gpulaunch {command.title} CONTAINER",
        )
    return replace(command, flags=flags, flags_end=begin, operands=operands)


def _read_flags(
    argv: tuple[str, ...], at: int, table: FlagTable, command: str
) -> tuple[tuple[Flag, ...], int]:
    """Return the flags up to the first other word, and the index after them."""
    switches, valued = table
    known = switches | valued
    flags = tuple(read_flags(argv, at, valued))
    for flag in flags:
        # Of a joined value one can be certain, and podman judges the flag.
        if flag.name not in known and flag.value is None:
            name, hint = printable(flag.name), None
            if name.startswith("--"):
                near = nearest(flag.name, sorted(known))
                meant = f"did you mean {' or '.join(near)}? " if near else ""
                hint = f"{meant}a flag that is new in {PROGRAM} is written {name}=VALUE"
            raise FlagError(f"{command}: unknown flag {name}", hint)
    return flags, flags[-1].end if flags else at


def asked_container(command: PodmanCommand) -> AskedContainer:
    """Return what a run or create command asks for."""
    policy = next(reversed(command.values("--restart")), "no")
    return AskedContainer(
        title=command.title,
        image=command.operands[0],
        attached=not command.says("-d", "--detach"),
        runs=command.subcommand[-1] != "create",
        restart_policy=policy if policy not in ("", "no") else None,
        privileged=command.says("--privileged"),
        variables=tuple(command.values("-e", "--env")),
        files=tuple(value.partition(":")[0] for value in command.values("--device")),
    )


def asked_gpus(command: PodmanCommand, environment: Mapping[str, str]) -> Asked | None:
    """Return the GPUs that the flags of a run or create command ask for; None for no word of any.

    The flags are --gpus, --device and -e NVIDIA_VISIBLE_DEVICES. Podman splits the values of the
    first two at commas, and --gpus names GPUs: --gpus 2 is the GPU with index 2, not two GPUs. No
    variable of an image counts.

    Args:
        environment: environment of this process, from which -e without a value copies.

    Raises:
        UsageError: the flags contradict each other.
    """
    lists = command.values("--gpus")
    devices = [
        value for value in command.values("--device") if any(map(is_gpu_device, value.split(",")))
    ]
    text = " ".join(
        [f"--gpus {value}" for value in lists] + [f"--device {value}" for value in devices]
    )
    if lists and devices:
        raise UsageError(f"{text} both ask for GPUs: say it once")
    for value in devices:
        if not _is_gpus_only(value):
            raise UsageError(f"--device {value}: give the GPUs a --device of their own")
    if lists or devices:
        return asked_by_names(without_kinds(",".join(lists or devices)), text)
    visible = None
    for assignment in command.values("-e", "--env"):
        key, equals, value = assignment.partition("=")
        if key == VISIBLE:
            visible = value if equals else environment.get(VISIBLE)
    if visible is not None:
        return asked_by_names(without_kinds(visible), f"{VISIBLE}={visible}")
    container = asked_container(command)
    mounts = command.values("-v", "--volume")
    return asked_by_files(container.files) or asked_of_other_maker(container, mounts)


def _is_gpus_only(devices: str) -> bool:
    return all(map(is_gpu_device, devices.split(",")))


def with_gpus(
    command: PodmanCommand,
    uuids: Sequence[str],
    driver: str,
    variables: Mapping[str, str],
    labels: Mapping[str, str],
) -> tuple[str, ...]:
    """Return a run or create command for a container that sees these GPUs and no others.

    Everything but its flags about GPUs stays unchanged and in place. What is added comes after the
    user's flags, since of two assignments to one variable or label the last one counts.

    Args:
        uuids: UUIDs of the GPUs, in rank order; empty for a container without GPUs.
    """
    replaced = set()
    for flag in command.flags:
        if flag.name == "--gpus" or (flag.name == "--device" and _is_gpus_only(flag.value or "")):
            replaced |= set(range(flag.begin, flag.end))
    kept = [word for at, word in enumerate(command.argv[: command.flags_end]) if at not in replaced]
    added = []
    for uuid in uuids:
        added += ["--device", f"{DRIVERS[driver].cdi_kind}={uuid}"]
    # An image may say "all", and a hook of NVIDIA's may read it.
    for name, value in {VISIBLE: "void", **variables}.items():
        added += ["-e", f"{name}={value}"]
    for name, value in labels.items():
        added += ["--label", f"{name}={value}"]
    return (*kept, *added, *command.argv[command.flags_end :])
