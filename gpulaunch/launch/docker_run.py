"""Docker's client at a door of this process, where its containers get their leases.

There is a door for programs, too (api/docker_sdk.py), and one for what runs in a lease.
"""

import json
import os
import re
from _thread import allocate_lock
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from gpulaunch.containers import DOCKER_VARIABLE
from gpulaunch.containers.container import (
    HOST_VARIABLES,
    LEASE_LABEL,
    PROJECT_LABEL,
    VISIBLE,
    Container,
    container_labels,
    container_variables,
    service_of,
)
from gpulaunch.containers.create import (
    AskedContainer,
    asked_container,
    asked_gpus,
    check_sharing,
    with_gpus,
    with_mps,
)
from gpulaunch.containers.docker.client import DockerClient
from gpulaunch.containers.docker.line import TLS_VARIABLES, DockerLine, socket_of
from gpulaunch.containers.door import Document, Door, NotHereError
from gpulaunch.containers.engine import NO_WAY
from gpulaunch.containers.flags import without_secrets
from gpulaunch.decide.decision import Refuse, Wait
from gpulaunch.decide.needs import admitted_gpus
from gpulaunch.errors import FailedError, GpulaunchError, UsageError, call_failed, printable
from gpulaunch.launch.container_leases import ContainerKeeper, ContainerLeases
from gpulaunch.launch.launch import Events, Launch, preview
from gpulaunch.launch.options import Options
from gpulaunch.launch.read_container import (
    has_lease,
    read_container_launch,
    read_container_start,
    shares,
)
from gpulaunch.launch.read_launch import read_launch
from gpulaunch.launch.surroundings import open_table
from gpulaunch.leases.record_file import is_alive
from gpulaunch.leases.wake import wait_until_dead
from gpulaunch.machine.topology import DEFAULT_DRIVER
from gpulaunch.process.apart import GivenUpError
from gpulaunch.process.ending import Companion
from gpulaunch.process.job import Job
from gpulaunch.process.system import this_process
from gpulaunch.records import replace

_REPLACES = "com.docker.compose.replace"
_HIDDEN = (*HOST_VARIABLES, *TLS_VARIABLES)  # from docker's client


class DockerPorter(ContainerLeases):
    """Takes a lease for each container with GPUs that is made or started at a door.

    Porter documents create() and start().

    Args:
        line: docker's command line; None for a program that talks to the engine itself.
        fills: whether a program's container that says nothing of GPUs gets some, as docker run's.
        forks: whether leases may have companions, as of ContainerLeases.
        only_looks: whether nothing is made or started: the client is sent away once its launch is
            known.

    Attributes:
        launch: the launch of the last container that needs a lease, or None.
        problem: why that got no GPUs, or None.

    Raises:
        FailedError: the engine does not answer: then docker's client is not started.
    """

    def __init__(
        self,
        options: Options,
        client: DockerClient,
        events: Events,
        line: DockerLine | None = None,
        *,
        fills: bool = False,
        forks: bool = True,
        only_looks: bool = False,
    ) -> None:
        is_of_many = line is None or line.is_compose
        super().__init__(options, this_process(), events, follows=is_of_many, forks=forks)
        self.client = client
        self._title = line.title if line else "docker run"
        self._command = without_secrets(line.argv) if line else None
        self._alias = line.alias if line else None
        self._fills = fills or not is_of_many
        self._nv_gpu = os.environ.get("NV_GPU", "") if self._fills else ""
        # A program may outlive many an engine.
        self._info = client.info() if line else None
        self._turn, self._only_looks = allocate_lock(), only_looks
        self.launch: Launch | None = None
        self._fresh: dict[str, ContainerKeeper] = {}
        self.problem: GpulaunchError | None = None

    def create(self, document: Document, gone: int, send: Callable[[Document], str | None]) -> None:
        """Take the lease of a container that is to be made."""
        # Containers of one project may name one GPU: each has to see the lease of the one before.
        in_turn = PROJECT_LABEL in (document.get("Labels") or {})
        with self._noting_problems(), self._turn if in_turn else nullcontext():
            self._create(document, gone, send)

    @contextmanager
    def _noting_problems(self) -> Iterator[None]:
        try:
            yield
        except GivenUpError:
            raise ConnectionAbortedError from None
        except GpulaunchError as problem:
            self.problem = problem
            raise

    def _create(
        self, document: Document, gone: int, send: Callable[[Document], str | None]
    ) -> None:
        try:
            labels = document.get("Labels") or {}
            if self._is_of_a_lease(labels):
                return
            container = asked_container(document, self._title)
            image = self.client.image(container.image)
            asked = asked_gpus(document, container, self._nv_gpu, image, self._alias)
        except (TypeError, AttributeError):  # it is no request, as the engine will say
            return
        if asked is None and not self._fills:
            return
        if PROJECT_LABEL in labels:  # compose is not attached to it alone
            container = replace(container, attached=False)
        info = self._info or self.client.info()
        launch = read_container_launch(
            self.options,
            self.client,
            info,
            container,
            asked,
            image,
            self._command or (*self._title.split(), container.image),
            name=self.options.name or service_of(labels),
            warn=self.warn,
        )
        if launch is None:
            if asked and asked.nothing and not asked.text.startswith(VISIBLE):
                send(with_gpus(document, (), NO_WAY, DEFAULT_DRIVER, {}, {}))
            return
        if shares(launch):
            user = image.user if image else None
            ids = os.geteuid(), os.getegid()
            check_sharing(document, container, *ids, user, info.security)
        launch = self._among_its_project(launch, labels)
        self._look(launch)
        if image is None:
            self._foresee(launch)
            raise NotHereError(container.image)
        keeper, made = self.take(launch, gone), None
        try:
            made = send(self._filled(document, container, keeper))
        finally:
            if made is None:
                keeper.release()
            else:
                self._fresh[made] = keeper

    def _is_of_a_lease(self, labels: Mapping[str, str]) -> bool:
        """Return whether a container comes from another door, as one in the lease around that."""
        lease_id = labels.get(LEASE_LABEL)
        if lease_id is None:
            return False
        leases = open_table(private=True, warn=self.warn).peek().leases
        return any(one.id == lease_id and one.user_id == os.geteuid() for one in leases)

    def _foresee(self, launch: Launch) -> None:
        """Refuse what would not get its GPUs now, before its image is pulled."""
        decision, _ = preview(launch, self.warn)
        if isinstance(decision, Refuse) or (isinstance(decision, Wait) and not launch.wait):
            raise self.events.refusal(launch, decision)

    def _filled(
        self, document: Document, container: AskedContainer, keeper: ContainerKeeper
    ) -> Document:
        """Return the request with the GPUs of its lease."""
        lease, gpus = keeper.lease, keeper.grant.gpus
        way, uuids = self.way_inside(keeper)
        driver = keeper.launch.machine.topology.driver
        variables = container_variables(container.variables, gpus, driver, lease.id, lease.share)
        labels = container_labels(gpus, lease.id, lease.share, later=not container.runs)
        found = with_gpus(document, uuids, way, driver, variables, labels)
        return with_mps(found, lease.share) if lease.share else found

    def start(self, container: str, gone: int, send: Callable[[], str | None]) -> None:
        """Take the lease of a container that was made under one and has none any more."""
        self.end_reserve()  # what is started first comes after all that is made
        with self._noting_problems():
            found = None if container in self._fresh else self.client.container(container)
            if keeper := self._fresh.pop(found.id if found else container, None):
                self.begins_to_run(keeper)
            elif found and found.lease_id and found.uuids:
                self._renew(found, gone, send)

    def removed(self) -> None:
        """Free what was taken for containers that were made here and are gone by now."""
        for container, keeper in [*self._fresh.items()]:
            # Another thread may find that at the same time.
            if keeper.followed.has_ended() and self._fresh.pop(container, None) is not None:
                keeper.release()

    def take(self, launch: Launch, gone: int | None = None) -> ContainerKeeper:
        """Take the lease of a container, after those of others that have been removed."""
        self.removed()
        return super().take(launch, gone)

    def _renew(self, container: Container, gone: int, send: Callable[[], str | None]) -> None:
        if has_lease(container, self.client, open_table(private=True, warn=self.warn)):
            return
        launch = read_container_start(
            self.options,
            self.client,
            container,
            self._command or (*self._title.split(), container.name),
            name=self.options.name or container.service,
            warn=self.warn,
        )
        self._look(launch)
        keeper, started = self.take(launch, gone), None
        try:
            started = send()
        finally:
            if started is None:
                keeper.release()
            else:
                self.begins_to_run(keeper)

    def _look(self, launch: Launch) -> None:
        self.launch = launch
        if self._only_looks:
            raise GivenUpError

    def _among_its_project(self, launch: Launch, labels: Mapping[str, str]) -> Launch:
        """Return the launch of a container of compose, inside of a lease of its project if need be.

        What takes the place of another container gets the GPUs of that one, since compose makes the
        new one first. Containers that name the same GPUs, or all of them, have them together.
        """
        request = launch.request
        if PROJECT_LABEL not in labels:
            return launch
        made_under = self.client.of_project(labels[PROJECT_LABEL])
        known = {*made_under, *made_under.values()}
        leases = [
            lease
            for lease in self.table_of(launch).peek().of(launch.machine).leases
            if lease.user_id == os.geteuid() and known & {lease.id, lease.container}
        ]
        replaced = made_under.get(labels.get(_REPLACES, ""))
        for lease in leases:
            if lease.id == replaced and (request.gpus or 0) <= len(lease.uuids):
                return replace(launch, within=lease)
        topology = launch.machine.topology
        admitted = {gpu.uuid for gpu in admitted_gpus(request, topology, launch.within)}
        if request.gpus not in (None, len(admitted)):
            return launch
        fitting = [lease for lease in leases if admitted <= {*lease.uuids}]
        # The innermost one: those around it have given their GPUs away.
        found = max(fitting, key=lambda lease: len(lease.ancestors), default=None)
        return replace(launch, within=found) if found else launch


def door_of_lease(path: str, environment: Mapping[str, str]) -> dict[str, str | None]:
    """Open a door that lives as long as a lease; return the variables that lead a job there.

    A companion serves it, so that it outlives the launcher as the lease may.

    Args:
        path: path of the lease's record.

    Returns:
        No variables where there is no engine on this machine.

    Raises:
        FailedError: no socket can be made.
        OSError: no process can be made.
    """
    try:
        engine = DockerClient.usual()
    except GpulaunchError:  # another machine's
        return {}
    if not os.path.exists(engine.address):
        return {}
    door, porters = Door(engine.address), []

    def serve() -> None:
        os.environ.update(environment)
        # A container of a job's waits without a word, and its client with it.
        porters.append(DockerPorter(Options({}, os.environ), engine, Events()))
        door.serve(porters[0])

    def stay(_: bytes) -> None:
        while is_alive(path):
            wait_until_dead([path])
        door.close()
        porters[0].release()

    Companion(stay, door.fileno(), serve)
    door.leave()
    return {**dict.fromkeys(TLS_VARIABLES), DOCKER_VARIABLE: door.address}


def run_docker(
    options: Options, line: DockerLine, events: Events
) -> tuple[int, GpulaunchError | None]:
    """Run docker's client at a door of this process, where its containers get their leases.

    Returns:
        Its wait status, and why the last container got no GPUs, if it did not.

    Raises:
        TimedOutError: it ran longer than its limit, or its GPUs were idle for too long.
    """
    porter = DockerPorter(options, DockerClient(socket_of(line)), events, line)
    if line.is_compose and options.wait:
        name, launch = read_project_launch(options, line, porter.warn)
        if launch and launch.wait and not porter.client.of_project(name):
            porter.reserve(launch)
    door = Door(porter.client.address)
    status = 0
    try:
        job = Job(keep=None, before_signal=porter.before_signal)
        porter.process = job.process
        door.serve(porter)
        job.start(line.argv_at_door, {**dict.fromkeys(_HIDDEN), DOCKER_VARIABLE: door.address})
        status = porter.run_to_end(job)
    finally:
        door.close()
        porter.release(in_order=os.WIFEXITED(status))
    porter.raise_if_ended()
    return status, porter.problem


def first_launch(options: Options, line: DockerLine, events: Events) -> Launch:
    """Return the launch of the first container that docker's client asks for; none is made.

    Raises:
        SystemExit: docker has refused the command line, and has said so.
        UsageError: it asks for none that gets GPUs.
    """
    import subprocess  # late: few launches are only looked at

    client = DockerClient(socket_of(line))
    porter = DockerPorter(options, client, events, line, only_looks=True)
    door = Door(porter.client.address)
    door.serve(porter)
    environment = {key: value for key, value in os.environ.items() if key not in _HIDDEN}
    try:
        done = subprocess.run(  # noqa: S603  the user's own command line
            line.argv_at_door,
            env={**environment, DOCKER_VARIABLE: door.address},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
    except OSError as problem:
        raise call_failed(line.argv[0], problem) from None
    finally:
        door.close()
    if porter.launch:
        return porter.launch
    if porter.problem:
        raise porter.problem
    if done.returncode:
        os.write(2, done.stderr)
        raise SystemExit(done.returncode)
    shown = printable(" ".join(line.argv[:3]))
    raise UsageError(f"'{shown}' takes no GPUs here, so there is nothing to decide")


_OF_GPUS = frozenset({"gpu", "nvidia"})
_WHO = "the services' GPUs:"

Service = Mapping[str, Any]


def read_project_launch(
    options: Options, line: DockerLine, warn: Callable[[str], None]
) -> tuple[str, Launch | None]:
    """Return the name of a project, and the launch of all its containers that ask for GPUs.

    Of compose's own reading of the project only device requests and `gpus` count here; a container
    that gets GPUs in another way asks for them when it is made.

    Raises:
        SystemExit: the project is wrong, which docker has told.
        FailedError: docker compose prints something else.
    """
    import subprocess  # late: few projects wait

    done = subprocess.run(  # noqa: S603
        [*line.argv[: line.at], "config", "--format", "json"], stdout=subprocess.PIPE, check=False
    )
    if done.returncode:
        raise SystemExit(done.returncode)
    try:
        project = json.loads(done.stdout)
        name, services = str(project["name"]), dict(project["services"])
        number, named = _needed(services, line)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise FailedError("docker compose config prints no project") from None
    if not number and not named:
        return name, None
    # What `all` means is said by our own options and settings; each named GPU is needed once.
    wanted = options
    if number != "all":
        wanted = options.but(gpus=(_WHO, str(int(number) + len(named))))
    else:
        wanted.set_default("gpus", options.all_gpus or "all", _WHO)
    if named:
        wanted = wanted.but(require=(_WHO, ",".join(named)))
    launch = read_launch(wanted, without_secrets(line.argv), name=options.name or name, warn=warn)
    return name, replace(launch, recorded_in=None)


def _needed(services: Mapping[str, Service], line: DockerLine) -> tuple[int | str, list[str]]:
    """Return how many GPUs services count, or "all", and which ones they name."""
    words = line.argv[line.at + 1 :]
    scaled = {}
    for word in words:
        if found := re.fullmatch(r"(.+)=(\d+)", word):
            scaled[found[1]] = int(found[2])
    todo = [word for word in words if word in services] or list(services)
    if line.word == "compose run":
        todo = todo[:1]
    concerned: dict[str, None] = {}
    number: int | str = 0
    named: dict[str, None] = {}
    while todo:
        name = todo.pop()
        if name in concerned or name not in services:
            continue
        concerned[name] = None
        service = services[name]
        todo += service.get("depends_on") or ()
        replicas = service.get("scale", (service.get("deploy") or {}).get("replicas", 1))
        for request in _gpu_requests(service):
            count = request.get("count", -1)
            if request.get("device_ids"):
                named |= dict.fromkeys(request["device_ids"])
            elif count in (-1, "all") or number == "all":
                number = "all"
            else:
                number = int(number) + int(count) * scaled.get(name, int(replicas or 0))
    return number, list(named)


def _gpu_requests(service: Service) -> list[Mapping[str, Any]]:
    """Return the requests for GPUs in `deploy` and `gpus` of a service."""
    gpus = service.get("gpus") or []
    reserved: Any = service
    for key in ("deploy", "resources", "reservations"):
        reserved = reserved.get(key) or {}
    devices = reserved.get("devices") or ()
    found = [one for one in devices if not _OF_GPUS.isdisjoint(one.get("capabilities") or ())]
    return [*([{"count": -1}] if gpus == "all" else gpus), *found]
