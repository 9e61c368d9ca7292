"""A container engine that does not exist: all that a new engine's module needs but its row.

Its client answers from lists.
"""

from gpulaunch.containers.container import Container
from gpulaunch.containers.engine import Info
from gpulaunch.machine.topology import Topology

BOX = Container("b" * 64, "box", "running", False, False, "image", "L", ("GPU-0",))


class Boxes:
    """A client that stands in the registry as its own class.

    Its engine has one list of containers after the other; the last one stays.

    Attributes:
        lists: what it has, from now on.
        told: what it says has happened last, one after the other; the last one stays.
        ended: the containers that it was told to end.
        problem: why it does not describe itself; None if it does.
    """

    title, program = "Box Engine", "boxer"
    cannot_share = None
    address_variable = "BOX_HOST"
    ways = frozenset({"cdi"})
    address = "box:1"

    def __init__(self, *lists: list[Container]) -> None:
        self.lists = [*lists] or [[]]
        self.told = ["start"]
        self.ended: list[Container] = []
        self.problem: Exception | None = None

    def usual(self) -> "Boxes":
        return self

    def known(self, _user_id: int) -> list["Boxes"]:
        return [self]

    def within(self, _seconds: float) -> "Boxes":
        return self

    def info(self) -> Info:
        if self.problem:
            raise self.problem
        return Info("boxer:1", "1.0")

    def ways_into(self, _info: Info, _topology: Topology) -> list[str]:
        return ["cdi", "runtime", "gpus"]

    def image(self, _name: str) -> None:
        return None

    def container(self, name: str) -> Container | None:
        return next((box for box in self.lists[0] if name in (box.id, box.name)), None)

    def container_of(self, lease_id: str, container_id: str | None = None) -> Container | None:
        assert container_id is None
        boxes = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
        return next((box for box in boxes if box.lease_id == lease_id), None)

    def names(self) -> dict[str, str]:
        return {box.id: box.name for box in self.lists[0] if box.state == "running"}

    def last_action(self, *_: object) -> str:
        return self.told.pop(0) if len(self.told) > 1 else self.told[0]

    def pids(self, _container: Container) -> set[int]:
        return set()

    def end(self, container: Container, *_: object) -> None:
        self.ended.append(container)
