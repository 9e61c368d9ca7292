"""`gpulaunch profile --scan`, `--scan-nccl-log`, `--import-ncu`: read files, run nothing."""

import re
import sys
from collections.abc import Mapping, Sequence

from gpulaunch.cli.output import prepare_stdout, print_json, say, warn
from gpulaunch.errors import UsageError, printable, quoted
from gpulaunch.files.document import read_text
from gpulaunch.launch.options import Given
from gpulaunch.measure.measured_launch import Outcome, Sections
from gpulaunch.measure.measured_runs import rounded
from gpulaunch.measure.update_profile import check_own, keep
from gpulaunch.profiles.pattern import PATTERNS, is_whole
from gpulaunch.profiles.profile import is_askable
from gpulaunch.profiles.profile_file import own_profile_file
from gpulaunch.records import Record, as_dict
from gpulaunch.typing import Any

MOST_CSV_BYTES = 1 << 28


class Target(Record):
    """The profile that is written.

    Attributes:
        path: path of its file.
        name: name of a new profile.
    """

    path: str
    name: str


def target_of(given: Given) -> Target:
    """Return the profile to be written: -o FILE, else the user's own of --name.

    Raises:
        UsageError: neither is given.
    """
    if "output" not in given and "name" not in given:
        raise UsageError(
            "nobody says where the profile is to go", "-o FILE, or --name NAME for one of your own"
        )
    path = given["output"][1] if "output" in given else own_profile_file(given["name"][1])
    if path == "-":
        raise UsageError("-o -: stdout belongs to the job")
    name = given["name"][1] if "name" in given else re.sub(r"\.toml$", "", path.rpartition("/")[2])
    if path and not is_askable(name):
        raise UsageError(f"{quoted(name)} is no name for a profile", "--name gives it another")
    return Target(path, name)


class Read(Record):
    """The findings from a file.

    Attributes:
        document: document for --json.
        lines: lines for people.
        sections: sections of the profile.
        warnings: warnings of one line each.
    """

    document: Mapping[str, Any]
    lines: Sequence[str]
    sections: Sections
    warnings: Sequence[str] = ()


def main(mode: str, given: Given, target: Target | None) -> int:
    """Read a file, print the findings, and write those that belong into a profile.

    Args:
        mode: "scan", "scan_nccl_log" or "import_ncu".
        given: options by name.
        target: profile to write; None for none.
    """
    prepare_stdout()
    if target:
        check_own(target.path)
    found = _READ[mode](given[mode][1])
    for line in found.warnings:
        warn(line)
    if "json" in given:
        print_json(found.document)
    else:
        print("\n".join(found.lines))
    if target:
        for line in keep(target.path, target.name, Outcome(found.sections, 0, guessed=True), ()):
            warn(line)
        if not found.sections:
            warn(f"nothing for a profile was found, and nothing is written to {target.path}")
        elif "quiet" not in given:
            say("info", f"written to {target.path}")
    return 0


def _scan(path: str) -> Read:
    from gpulaunch.scan.source_files import read_sources
    from gpulaunch.scan.sources import scan_sources
    from gpulaunch.show.scan import scan_document, scan_lines

    sources = read_sources(path)
    scan = scan_sources(sources.files, sources.unread, sys.stdlib_module_names)
    document = scan_document(scan)
    return Read(
        document,
        scan_lines(document),
        _communication_section(document, f"source scan of {path}"),
        scan.warnings,
    )


def _scan_nccl_log(path: str) -> Read:
    from gpulaunch.files.log_file import log_lines
    from gpulaunch.measure.logs.nccl_log import read_nccl_log
    from gpulaunch.measure.logs.nccl_traffic import communication
    from gpulaunch.show.nccl import nccl_document, nccl_lines

    name = printable(path)
    log = read_nccl_log(log_lines(path))
    found = communication(log, name)
    document = nccl_document(log, found, name)
    sections = _communication_section(document, f"NCCL log {name}")
    if found.message_bytes:
        sections["communication"]["message_bytes"] = rounded(found.message_bytes)
    if found.edges and is_whole(found.edges, found.ranks):
        sections["communication"]["edges"] = [list(edge) for edge in found.edges]
    return Read(document, nccl_lines(document), sections)


def _import_ncu(path: str) -> Read:
    from gpulaunch.measure.logs.nsight import read_ncu

    counters = read_ncu(read_text(path, MOST_CSV_BYTES), printable(path))
    figures = as_dict(counters)
    kernels, missing = figures.pop("kernels"), figures.pop("missing")
    known = {key: value for key, value in figures.items() if value is not None}
    lines = [f"{key.replace('_', ' ')}: {value:.4g}" for key, value in known.items()]
    warnings = [f"{printable(path)}: no {metric}, so an occupancy is unknown" for metric in missing]
    section = {
        key: value if isinstance(value, int) else rounded(value) for key, value in known.items()
    }
    source = f"Nsight Compute, {kernels} kernels, {printable(path)}"
    return Read(
        {**figures, "kernels": kernels, "missing": list(missing)},
        [f"{kernels} kernels", *lines],
        {"counters": {**section, "source": source}},
        warnings,
    )


def _communication_section(document: Mapping[str, Any], source: str) -> Sections:
    section: Sections = {"confidence": document["confidence"], "source": source}
    # That nothing was found is no reason to place a job as if nothing communicated.
    silent = document["pattern"] == "none" and document["confidence"] != "certain"
    if document["pattern"] in PATTERNS and not silent:
        section["pattern"] = document["pattern"]
    if document["sensitive"] is not None and not silent:
        section["bandwidth_sensitive"] = document["sensitive"]
    # A section that says nothing but its source is not worth writing.
    return {"communication": section} if len(section) > 2 else {}


_READ = {"scan": _scan, "scan_nccl_log": _scan_nccl_log, "import_ncu": _import_ncu}
