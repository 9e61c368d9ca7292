"""Lines of `gpulaunch status` and `top` on what is to be known beside the tables."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from gpulaunch.errors import printable
from gpulaunch.leases.who_has_what import age
from gpulaunch.show import Document
from gpulaunch.show.status_cells import describe_job, idle_text
from gpulaunch.show.terminal import Text

_MOST_PROBLEMS = 5


def lease_notes(leases: Sequence[Document], now: datetime) -> list[Text]:
    """Return lines on leases that are left over, wait for their container, or are idle."""
    lines = [_left_over_note(lease, now) for lease in leases if lease["left_over_pids"]]
    lines += [note for lease in leases if (note := _container_note(lease))]
    lines += [
        f"lease {lease['id']} of {printable(lease['user'])} has been {idle}"
        for lease in leases
        if (idle := idle_text(lease, now))
    ]
    return [Text(line, "yellow") for line in lines]


def dependent_notes(document: Document) -> list[Text]:
    """Return a line for each launch that queues only after the end of others."""
    return [
        Text(f"{printable(describe_job(one))} waits for the end of {', '.join(one['after'])}")
        for one in document["dependent"]
    ]


def machine_notes(document: Document, now: datetime) -> Iterator[Text]:
    """Yield lines on what stops all launches, on use outside, GPUs out of service, containers."""
    for problem in document["problems"][:_MOST_PROBLEMS]:
        yield Text(f"nobody can launch: {problem}", "red")
    if len(document["problems"]) > _MOST_PROBLEMS:
        yield Text(f"and {len(document['problems']) - _MOST_PROBLEMS} more such records", "red")
    for gpu in document["gpus"]:
        for job in dict.fromkeys(stray["who"] for stray in gpu["strays"]):
            yield Text(f"GPU {gpu['name']} is in use by {job}", "red")
        if gpu["state"] == "outside" and not gpu["strays"]:
            who = printable(gpu["outside"])
            yield Text(f"GPU {gpu['name']} is in use outside gpulaunch: {who}", "red")
    yield from _service_notes(document["gpus"], now)
    for container in document["containers"]:
        note = running_container_note(container)
        if note:
            yield Text(note, "red" if container["leases"] else "yellow")


def _service_notes(gpus: Sequence[Document], now: datetime) -> list[Text]:
    """Return a line for each GPU that is out of service, or has something to be known."""
    lines: list[Text] = []
    for gpu in gpus:
        name, mark = gpu["name"], gpu["drained"]
        if gpu["problems"]:
            lines.append(
                Text(f"GPU {name} is barred: {printable('; '.join(gpu['problems']))}", "red")
            )
        if mark:
            why = f": {mark['reason']}" if mark["reason"] else ""
            since = age(mark["since"], now)
            lines.append(
                Text(f"GPU {name} is drained by {printable(mark['by'])} for {since}{why}", "yellow")
            )
        if gpu["warnings"]:
            lines.append(Text(f"GPU {name}: {printable('; '.join(gpu['warnings']))}", "yellow"))
    return lines


def _left_over_note(lease: Document, now: datetime) -> str:
    """Return which processes hold a lease after its job, for how long, and to what use."""
    about = [f"pid {', '.join(map(str, lease['left_over_pids']))}"]
    if lease["left_over_since"]:
        about.append(f"for {age(lease['left_over_since'], now)}")
    if lease["left_over_uses_gpus"] is not None:
        about.append("using its GPUs" if lease["left_over_uses_gpus"] else "without using its GPUs")
    return (
        f"lease {lease['id']} is held by a left-over process of a job that has ended "
        f"({', '.join(about)}): 'gpulaunch free {lease['id']}' ends it"
    )


def _container_note(lease: Document) -> str:
    """Return why a lease stays whose container does not run, or whose engine does not answer."""
    if lease["container_problem"]:
        return (
            f"lease {lease['id']} stays until its engine tells of its container: "
            f"{lease['container_problem']}"
        )
    if lease["container_state"] in (None, "running"):
        return ""
    note = f"lease {lease['id']} stays: container {printable(lease['container_name'])} "
    if lease["container_state"] == "exited":
        return (
            f"{note}has ended, and a restart policy, if it has one, may start it: "
            f"'gpulaunch free {lease['id']}' ends that"
        )
    if lease["container_state"] == "created":
        return f"{note}is made, and not started yet"
    return f"{note}is {printable(lease['container_state'])}"


def running_container_note(container: Document) -> str:
    """Return what is to be known of a running container without a lease, beside its GPUs' lines."""
    name, program = container["name"], container["engine"]
    title = container_title(container)
    if container["sees_all"]:
        return f"{title} sees all GPUs"
    gpus = f"GPU{'' if len(container['gpus']) == 1 else 's'} {','.join(container['gpu_names'])}"
    if container["leases"]:
        held = ", ".join(container["leases"])
        return f"{title} has {gpus} beside lease {held}: '{program} stop {name}' ends it"
    if container["made_under"] and not container["is_here"]:
        return (
            f"{title} has {gpus} without a lease: '{program} stop {name}', then "
            f"'gpulaunch {program} start {name}'"
        )
    return ""


def container_title(container: Document) -> str:
    """Return the name of a container and its engine."""
    return f"container {container['name']} ({container['engine']})"
