"""Docker's flags as data: those that take a value, and those that are switches.

The tables are the union over the docker clients 20.10 to 29.7 (docker/cli,
cli/command/container/opts.go and run.go, cli/flags/options.go). tests/command/test_docker_client.py
compares them with the installed client.
"""
# pure: decides on plain values

from gpulaunch.containers.command import FlagTable, Grammar

DOCKER = Grammar(
    program="docker",
    global_flags=FlagTable.of(
        switches="-D --debug -h --help --tls --tlsverify -v --version",
        valued="--config -c --context -H --host -l --log-level --tlscacert --tlscert --tlskey",
    ),
    run_flags=FlagTable.of(
        switches="""
            -d --detach --disable-content-trust --help --init -i --interactive --no-healthcheck
            --oom-kill-disable --privileged -P --publish-all -q --quiet --read-only --rm --sig-proxy
            -t --tty --use-api-socket
        """,
        valued="""
            --add-host --annotation -a --attach --blkio-weight --blkio-weight-device --cap-add
            --cap-drop --cgroup-parent --cgroupns --cidfile --cpu-count --cpu-percent --cpu-period
            --cpu-quota --cpu-rt-period --cpu-rt-runtime -c --cpu-shares --cpus --cpuset-cpus
            --cpuset-mems --detach-keys --device --device-cgroup-rule --device-read-bps
            --device-read-iops --device-write-bps --device-write-iops --dns --dns-opt --dns-option
            --dns-search --domainname --entrypoint -e --env --env-file --expose --gpus --group-add
            --health-cmd --health-interval --health-retries --health-start-interval
            --health-start-period --health-timeout -h --hostname --io-maxbandwidth --io-maxiops --ip
            --ip6 --ipc --isolation --kernel-memory -l --label --label-file --link --link-local-ip
            --log-driver --log-opt --mac-address -m --memory --memory-reservation --memory-swap
            --memory-swappiness --mount --name --net --net-alias --network --network-alias
            --oom-score-adj --pid --pids-limit --platform -p --publish --pull --restart --runtime
            --security-opt --shm-size --stop-signal --stop-timeout --storage-opt --sysctl --tmpfs
            --ulimit -u --user --userns --uts -v --volume --volume-driver --volumes-from -w
            --workdir
        """,
    ),
    start_flags=FlagTable.of(
        switches="-a --attach -h --help -i --interactive",
        valued="--checkpoint --checkpoint-dir --detach-keys -s --signal -t --time --timeout",
    ),
    compose_flags=FlagTable.of(
        switches="--all-resources --compatibility --dry-run --help --verbose --version -v",
        valued="""
            --ansi --env-file -f --file --parallel --profile --progress --project-directory -p
            --project-name
        """,
    ),
    compose_up_flags=FlagTable.of(
        switches="""
            --abort-on-container-exit --abort-on-container-failure --always-recreate-deps
            --attach-dependencies --build -d --detach --dry-run --force-recreate -h --help --menu
            --no-build --no-color --no-deps --no-log-prefix --no-recreate --no-start --quiet-build
            --quiet-pull --remove-orphans -V --renew-anon-volumes --timestamps --wait -w --watch -y
            --yes
        """,
        valued="""
            --attach --exit-code-from --no-attach --pull --scale -t --timeout --wait-timeout
        """,
    ),
    compose_run_flags=FlagTable.of(
        switches="""
            --build -d --detach --dry-run -h --help -i --interactive -T --no-TTY --no-tty --no-deps
            -q --quiet --quiet-build --quiet-pull --remove-orphans --rm -P --service-ports
            --use-aliases
        """,
        valued="""
            --cap-add --cap-drop --entrypoint -e --env --env-from-file -l --label --name -p
            --publish --pull -u --user -v --volume -w --workdir
        """,
    ),
)
