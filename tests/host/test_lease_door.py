"""`-o docker=lease`: what a job's scripts make by docker gets GPUs of the job's lease."""

import signal
import subprocess
import sys

from conftest import until
from engine import IMAGE
from test_docker import DESCRIBED, Host, host

__all__ = ["host"]

HERE = ("-n", "2", "-o", "docker=lease", "--")
GPUS = "ls /dev | grep nvidia | tr '\\n' ' '"


def script(*lines: str) -> tuple[str, ...]:
    return (*HERE, "sh", "-c", "; ".join(lines))


def docker_run(flags: str) -> str:
    return f'docker run --rm {flags} {IMAGE} sh -c "{GPUS}"; echo'


def test_containers_of_a_script_see_gpus_of_its_lease(host: Host) -> None:
    """However they ask for GPUs they get those of the lease; who asks for none gets none."""
    flags = ("--gpus all", "--device nvidia.com/gpu=all", "--gpus 1", "--gpus device=3", "")
    done = host.run(*script(*map(docker_run, flags)))
    assert done.returncode == 0, done.stderr
    both = "nvidia0 nvidia3 "
    assert done.stdout.splitlines() == [both, both, "nvidia0 ", "nvidia3 ", ""]
    assert host.launcher.records() == []


def test_more_than_the_lease_has_is_refused(host: Host) -> None:
    """The client says why, also where a container of the lease has the GPUs already."""
    held = f"docker run -d --gpus 2 --name held {IMAGE} sleep 100"
    lines = (docker_run("--gpus 3"), held, docker_run("--gpus 1"), "docker rm -f held")
    errors = host.run(*script(*lines)).stderr.splitlines()
    of_lease = [line.partition("gpulaunch: ")[2] for line in errors if "gpulaunch: " in line]
    assert len(of_lease) == 2
    assert of_lease[0].startswith("3 GPUs requested: lease ")
    assert of_lease[1] == "1 GPU requested: 0 of 2 are free, 2 are leased."


def test_what_was_removed_frees_its_gpus(host: Host) -> None:
    """Whether it has run or not, and by whatever name it was started."""
    again = docker_run("--gpus all")
    make = f"set -e; docker create --name NAME --gpus all {IMAGE} sleep 100 >&2"
    unstarted = (make.replace("NAME", "made"), "docker rm made >&2", again)
    begin = "docker start begun >&2"
    by_name = (make.replace("NAME", "begun"), begin, "docker rm -f begun >&2", again)
    done = host.run(*script(*unstarted, *by_name))
    assert (done.returncode, done.stdout.split()) == (0, ["nvidia0", "nvidia3"] * 2), done.stderr


def test_gpulaunch_in_the_script_goes_by_the_same_lease(host: Host) -> None:
    """What has a lease by another door gets no second one."""
    done = host.run(*script(f'gpulaunch docker run --rm --gpus all {IMAGE} sh -c "{GPUS}"'))
    assert (done.returncode, done.stdout) == (0, "nvidia0 nvidia3 ")


def test_a_program_with_the_sdk(host: Host) -> None:
    """A program that talks to docker by its SDK needs no other line."""
    program = (
        "import docker; print(docker.from_env().containers.run("
        f"{IMAGE!r}, ['sh', '-c', {GPUS!r}], remove=True, device_requests="
        "[docker.types.DeviceRequest(count=-1, capabilities=[['gpu']])]))"
    )
    done = host.run(*HERE, sys.executable, "-c", program)
    assert (done.returncode, done.stdout) == (0, "b'nvidia0 nvidia3 '\n"), done.stderr


def test_the_door_outlives_its_launcher(host: Host) -> None:
    """After the launcher was killed containers still get GPUs of the lease, which is theirs then.

    The container that the script leaves keeps its own lease; the door goes with the script's.
    """
    left = f"docker run -d --gpus 1 --name left {IMAGE} sleep 100"
    words = script("echo $DOCKER_HOST; read _", docker_run("--gpus all"), left)
    with host.start(*words, stdin=subprocess.PIPE) as job:
        address = job.stdout.readline().strip()
        job.send_signal(signal.SIGKILL)
        job.wait()
        job.stdin.write("\n")
        job.stdin.flush()
        assert job.stdout.readline() == "nvidia0 nvidia3 \n"
        job.stdin.close()
        assert job.stderr.read() == ""
    until(lambda: [lease["gpus"] for lease in host.leases()] == [[0]])
    until(lambda: host.plain("--host", address, "ps").returncode != 0)
    assert host.engine.inspect("left")["Config"]["Labels"]["io.gpulaunch.gpus"] == DESCRIBED[0]
    host.do("rm", "-f", "left")
    host.await_free()


def test_where_there_is_no_engine_nothing_changes(host: Host) -> None:
    """A machine's setting harms no job on it: without an engine of its own there is no door."""
    for address in ("unix:///nowhere/docker.sock", "tcp://192.0.2.1:2375"):
        host.environment["DOCKER_HOST"] = address
        done = host.run(*HERE, "sh", "-c", "echo $DOCKER_HOST")
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{address}\n", "")
