"""Podman's flags as data: those that take a value, and those that are switches.

The tables are the union over podman 4.3 to 5.6 (cmd/podman/common/create.go, netflags.go, root.go,
containers/run.go, start.go and restart.go), with the aliases and hidden flags that these accept.
tests/command/test_podman_command.py compares them with the installed podman.
"""
# pure: decides on plain values

from gpulaunch.records import Record


class FlagTable(Record):
    """The flags of one command.

    Attributes:
        switches: flags that take a value only as --flag=value.
        valued: flags that always take one, joined or as the next word.
    """

    switches: frozenset[str]
    valued: frozenset[str]


def _table(switches: str, valued: str) -> FlagTable:
    return FlagTable(frozenset(switches.split()), frozenset(valued.split()))


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
