"""Which machine a record of the allocation table is about."""
# pure: decides on plain values

from gpulaunch.records import Record


class TableKey(Record):
    """Which machine's GPUs a record is about: a described machine. This machine's own have no key (None).

    Attributes:
        name: of the described machine.
        digest: of its description.
        file: its description, so that a launch inside a lease finds it again.
    """

    name: str
    digest: str
    file: str


def same_table(a: TableKey | None, b: TableKey | None) -> bool:
    """Whether two keys mean the same machine, wherever its description lies; None is this machine's own GPUs."""
    return a is b is None or (
        a is not None and b is not None and (a.name, a.digest) == (b.name, b.digest)
    )
