"""The key of a machine's records in the allocation table."""
# pure: decides on plain values

from gpulaunch.records import Record


class TableKey(Record):
    """The key of a described machine in the allocation table; this machine's own GPUs have None.

    Attributes:
        name: name of the described machine.
        digest: digest of its description.
        file: path of its description, so that a launch inside a lease finds it again.
    """

    name: str
    digest: str
    file: str


def same_table(a: TableKey | None, b: TableKey | None) -> bool:
    """Return whether two keys mean the same machine, wherever its file is; None is this machine."""
    return a is b is None or (
        a is not None and b is not None and (a.name, a.digest) == (b.name, b.digest)
    )
