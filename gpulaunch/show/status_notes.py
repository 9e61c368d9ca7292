"""Lines of `gpulaunch status` and `top` on what is to be known beside the tables."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from gpulaunch.errors import printable
from gpulaunch.leases.who_has_what import age
from gpulaunch.show import Document
from gpulaunch.show.status_cells import idle_text, job_names, short_ids
from gpulaunch.show.terminal import Text

_MOST_PROBLEMS = 5


def job_notes(document: Document, now: datetime) -> list[Text]:
    """Return lines on jobs: left over, held by a container, idle, or choosy."""
    names, ids, leases = job_names(document), short_ids(document), document["leases"]
    lines = []
    for lease in leases:
        name, way_out = names[lease["id"]], f"'gpulaunch free {ids[lease['id']]}'"
        if lease["left_over_pids"]:
            lines.append(_left_over_note(lease, name, way_out, now))
        if note := _container_note(lease, name, way_out):
            lines.append(note)
        if idle := idle_text(lease, now):
            lines.append(f"{name} of {printable(lease['user'])} has been {idle}")
    lines += [
        f"{names[ticket['id']]} is choosy about its GPUs, so others may pass it"
        for ticket in document["queue"]
        if ticket["choosy"]
    ]
    return [Text(line, "yellow") for line in lines]


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


def _left_over_note(lease: Document, name: str, way_out: str, now: datetime) -> str:
    """Return which processes hold GPUs after their job, for how long, and to what use."""
    about = [f"pid {', '.join(map(str, lease['left_over_pids']))}"]
    if lease["left_over_since"]:
        about.append(f"for {age(lease['left_over_since'], now)}")
    if lease["left_over_uses_gpus"] is not None:
        about.append("using its GPUs" if lease["left_over_uses_gpus"] else "without using its GPUs")
    return (
        f"{name} has ended, but a left-over process keeps its GPUs ({', '.join(about)}): "
        f"{way_out} ends it"
    )


def _container_note(lease: Document, name: str, way_out: str) -> str:
    """Return why a job keeps GPUs whose container does not run, or whose engine does not answer."""
    if lease["container_problem"]:
        return (
            f"{name} keeps its GPUs until its engine reports on its container: "
            f"{lease['container_problem']}"
        )
    if lease["container_state"] in (None, "running"):
        return ""
    note = f"{name} keeps its GPUs: container {printable(lease['container_name'])} "
    if lease["container_state"] == "exited":
        return f"{note}has ended, and a restart policy may start it again: {way_out} ends that"
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
