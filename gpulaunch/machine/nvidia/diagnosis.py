"""The results of `gpulaunch doctor` about NVIDIA GPUs."""

from gpulaunch.machine.cpuset import format_cpuset
from gpulaunch.machine.driver import Finding
from gpulaunch.machine.nvidia.nvml import PROHIBITED
from gpulaunch.machine.nvidia.probe import NvmlReading, explain_empty, probe

_ALWAYS_LINKED = ("SXM", "HBM3", "B200", "B300", "GH200")
"""Parts of the names of cards that come on boards with NVLink."""


def diagnose() -> list[Finding]:
    """Read NVML anew and return the findings, also about calls that it does not answer.

    Raises:
        FailedError: there is no NVML, no driver, or no GPU in service.
    """
    reading = probe()
    found = [
        Finding("GPUs", "problem", text, "look for it in 'dmesg' (Xid), then reset it or boot")
        for text in reading.problems
    ]
    if reading.empty:
        found.append(Finding("GPUs", "warning", *explain_empty(reading.empty)))
    instances = [gpu for gpu in reading.topology.gpus if gpu.mig]
    if instances:
        profiles = ", ".join(f"{gpu.name} {gpu.mig.profile}" for gpu in instances if gpu.mig)
        found.append(
            Finding(
                "MIG",
                "ok",
                f"{len(instances)} instance{'' if len(instances) == 1 else 's'}: {profiles}",
            )
        )
    return [
        *found,
        *_report_compute_modes(reading),
        *_report_nvlinks(reading),
        *_report_unanswered(reading),
    ]


def _report_compute_modes(reading: NvmlReading) -> list[Finding]:
    """Report compute modes that restrict the use of a card."""
    found = []
    for card, mode in reading.compute_modes.items():
        text = f"GPU {card}: {mode}"
        if mode == PROHIBITED:
            hint = f"'nvidia-smi -i {card} -c DEFAULT' lets jobs use it"
            found.append(Finding("compute mode", "warning", text, hint))
        else:
            found.append(Finding("compute mode", "ok", text))
    return found


def _report_nvlinks(reading: NvmlReading) -> list[Finding]:
    """Report NVLinks that are down.

    If none is up at all, the cards may just have no bridge, unless they are made for one.
    """
    linked = {card: (up, down) for card, (up, down) in reading.nvlinks.items() if up or down}
    if not linked:
        return []
    if not any(up for up, _ in linked.values()):
        meant = any(word in gpu.model for gpu in reading.topology.gpus for word in _ALWAYS_LINKED)
        hint = (
            "is the fabric manager running? 'systemctl status nvidia-fabricmanager'"
            if meant
            else None
        )
        return [Finding("NVLink", "warning" if meant else "ok", "no link is up", hint)]
    found = []
    for card, (_, down) in linked.items():
        if down:
            links = f"{'link' if len(down) == 1 else 'links'} {', '.join(map(str, down))}"
            hint = (
                f"'nvidia-smi nvlink -s -i {card}' and 'dmesg' tell more; jobs are placed by the "
                "links that are up"
            )
            found.append(Finding("NVLink", "warning", f"GPU {card}: {links} down", hint))
    return found or [Finding("NVLink", "ok", "every link is up")]


def _report_unanswered(reading: NvmlReading) -> list[Finding]:
    """Report the calls that NVML did not answer, one line each, with their GPUs."""
    gpus: dict[tuple[str, str], set[int]] = {}
    for call in reading.unanswered:
        if not call.usual:
            gpus.setdefault((call.call, call.why), set()).add(call.gpu)
    return [
        Finding(
            "NVML",
            "warning",
            f"{call} tells nothing of GPU {format_cpuset(frozenset(about))}: {why}",
            "what it would tell is taken for unknown; a newer driver may know it",
        )
        for (call, why), about in gpus.items()
    ]
