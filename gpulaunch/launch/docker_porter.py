"""The porter at docker's door, who takes leases for containers, and the door in a lease."""

import os
from _thread import allocate_lock
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

from gpulaunch.containers.asked import VISIBLE, AskedContainer, container_variables
from gpulaunch.containers.docker import ADDRESS_VARIABLE
from gpulaunch.containers.docker.client import DockerClient
from gpulaunch.containers.docker.create import (
    asked_container,
    asked_gpus,
    canonical,
    check_sharing,
    with_gpus,
    with_mps,
)
from gpulaunch.containers.docker.line import TLS_VARIABLES
from gpulaunch.containers.door import Document, Door, NotHereError
from gpulaunch.containers.engine import NO_WAY, Info
from gpulaunch.containers.life import (
    LEASE_LABEL,
    PROJECT_LABEL,
    Container,
    container_labels,
    service_of,
)
from gpulaunch.decide.decision import Refuse, Wait
from gpulaunch.decide.needs import admitted_gpus
from gpulaunch.errors import GpulaunchError
from gpulaunch.launch.assess import preview
from gpulaunch.launch.container_leases import ContainerKeeper, ContainerLeases
from gpulaunch.launch.launch import Events, Launch
from gpulaunch.launch.options import Options
from gpulaunch.launch.read_container import (
    has_lease,
    read_container_launch,
    read_container_start,
    shares,
)
from gpulaunch.launch.surroundings import open_table
from gpulaunch.leases.record_file import is_alive
from gpulaunch.leases.wake import wait_until_dead
from gpulaunch.machine.drivers import DEFAULT_DRIVER
from gpulaunch.process.apart import GivenUpError
from gpulaunch.process.companion import Companion
from gpulaunch.process.identity import Process
from gpulaunch.process.system import this_process
from gpulaunch.records import replace

_REPLACES = "com.docker.compose.replace"


class DockerPorter(ContainerLeases):
    """Takes a lease for each container with GPUs that is made or started at a door.

    Porter documents create() and start(), ContainerLeases the arguments that are not here.

    Args:
        title: words of the command whose client comes, such as "docker run".
        command: its command line, for others to see; None for the title and the image.
        fills: whether a container that says nothing of GPUs gets some.
        alias: name of a program that chooses NVIDIA's runtime, or None.
        info: the engine's description of itself; None to ask for it with each container.
        only_looks: whether nothing is made or started: the client is sent away once its launch is
            known.

    Attributes:
        client: our own client of the engine.
        launch: the launch of the last container that needs a lease, or None.
        problem: why that got no GPUs, or None.
    """

    def __init__(
        self,
        options: Options,
        client: DockerClient,
        title: str,
        command: Sequence[str] | None,
        process: Process,
        events: Events,
        *,
        fills: bool,
        follows: bool,
        alias: str | None = None,
        forks: bool = True,
        watches: bool = False,
        info: Info | None = None,
        only_looks: bool = False,
    ) -> None:
        super().__init__(process, events, follows=follows, forks=forks, watches=watches)
        self._options, self.client, self._title = options, client, title
        self._command, self._fills, self._alias = command, fills, alias
        self._info, self._turn, self._only_looks = info, allocate_lock(), only_looks
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
            document = canonical(document)
            if self._has_lease_already(document):
                return
            container = asked_container(document, self._title)
            image = self.client.image(container.image)
            nv_gpu = os.environ.get("NV_GPU", "") if self._fills else ""
            asked = asked_gpus(document, container, nv_gpu, image, self._alias)
        except (TypeError, AttributeError):  # it is no request, as the engine will say
            return
        if PROJECT_LABEL in (document.get("Labels") or {}):  # compose is not attached to it alone
            container = replace(container, attached=False)
        if asked is None and not self._fills:
            return
        launch = read_container_launch(
            self._options,
            self.client,
            self._info or self.client.info(),
            container,
            asked,
            image,
            self._command or (*self._title.split(), container.image),
            name=self._options.name or service_of(document.get("Labels") or {}),
            warn=self.warn,
        )
        if launch is None:
            if asked and asked.nothing and not asked.text.startswith(VISIBLE):
                send(with_gpus(document, (), NO_WAY, DEFAULT_DRIVER, {}, {}))
            return
        if shares(launch):
            user = image.user if image else None
            security = (self._info or self.client.info()).security
            ids = os.geteuid(), os.getegid()
            check_sharing(document, container, self.client.title, *ids, user, security)
        launch = self._among_its_project(launch, document)
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

    def _has_lease_already(self, document: Document) -> bool:
        """Return whether a container comes from another door, as one in the lease around that."""
        lease_id = (document.get("Labels") or {}).get(LEASE_LABEL)
        if lease_id is None:
            return False
        leases = open_table(described=True, warn=self.warn).peek().leases
        return any(one.id == lease_id and one.user_id == os.geteuid() for one in leases)

    def _filled(
        self, document: Document, container: AskedContainer, keeper: ContainerKeeper
    ) -> Document:
        """Return the request with the GPUs of its lease."""
        launch, lease, gpus = keeper.launch, keeper.lease, keeper.grant.gpus
        assert launch.container  # noqa: S101  for the type checker
        way, driver = launch.container.way, launch.machine.topology.driver
        if way == NO_WAY:
            name = launch.machine.topology.name
            self.warn(f"{name} is only described: its GPUs get into no container")
        uuids = [gpu.uuid for gpu in gpus] if way != NO_WAY else []
        variables = container_variables(container, gpus, driver, lease.id, lease.share)
        labels = container_labels(gpus, lease.id, lease.share, later=not container.runs)
        found = with_gpus(document, uuids, way, driver, variables, labels)
        if lease.share is None:
            return found
        return with_mps(found, lease.share)

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
            if keeper.followed.has_ended():
                self._fresh.pop(container, None)
                keeper.release()

    def take(self, launch: Launch, gone: int | None = None) -> ContainerKeeper:
        """Take the lease of a container, after those of others that have been removed."""
        self.removed()
        return super().take(launch, gone)

    def _renew(self, container: Container, gone: int, send: Callable[[], str | None]) -> None:
        if has_lease(container, self.client, open_table(described=True, warn=self.warn)):
            return
        launch = read_container_start(
            self._options,
            self.client,
            container,
            self._command or (*self._title.split(), container.name),
            name=self._options.name or container.service,
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

    def _foresee(self, launch: Launch) -> None:
        """Refuse what would not get its GPUs now, before its image is pulled."""
        decision, _ = preview(launch, self.warn)
        if isinstance(decision, Refuse) or (isinstance(decision, Wait) and not launch.wait):
            raise self.events.refusal(launch, decision)

    def _among_its_project(self, launch: Launch, document: Document) -> Launch:
        """Return the launch of a container of compose, inside of a lease of its project if need be.

        What takes the place of another container gets the GPUs of that one, since compose makes the
        new one first. Containers that name the same GPUs, or all of them, have them together.
        """
        labels = document.get("Labels") or {}
        project, request = labels.get(PROJECT_LABEL), launch.request
        if not project:
            return launch
        made_under = self.client.of_project(project)
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
        environment: variables that the job gets besides.

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
    if not engine.exists():
        return {}
    door, porters = Door(engine.address), []

    def serve() -> None:
        os.environ.update(environment)
        options, process = Options({}, os.environ), this_process()
        # A container of a job's waits without a word, and its client with it.
        porters.append(
            DockerPorter(
                *(options, engine, "docker run", None, process, Events()), fills=False, follows=True
            )
        )
        door.serve(porters[0])

    def stay(_: bytes) -> None:
        while is_alive(path):
            wait_until_dead([path])
        door.close()
        porters[0].release()

    Companion(stay, door.fileno(), serve)
    door.leave()
    return {**dict.fromkeys(TLS_VARIABLES), ADDRESS_VARIABLE: door.address}
