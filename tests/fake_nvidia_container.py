#!/usr/bin/python3 -I
"""NVIDIA's container runtime and its hook, on GPUs that a CDI specification describes.

engine.py copies this file under the names of both. They do what Docker and a job can see of the
real ones: GPUs named in the container's NVIDIA_VISIBLE_DEVICES appear in it.
"""

import json
import os
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SPECIFICATION = HERE.parent / "cdi" / "nvidia.json"
CALLS = HERE.parent / "hook.jsonl"


def visible(config: dict[str, Any]) -> str:
    """Return NVIDIA_VISIBLE_DEVICES of a container."""
    return dict(variable.split("=", 1) for variable in config["process"]["env"]).get(
        "NVIDIA_VISIBLE_DEVICES", ""
    )


def edits(names: str) -> list[dict[str, Any]]:
    """Return what CDI would do to a container for GPUs named by index, UUID or as all."""
    if names in {"", "void", "none"}:
        return []
    known = {
        device["name"]: device["containerEdits"]
        for device in json.loads(SPECIFICATION.read_text())["devices"]
    }
    return [known[name] for name in names.split(",")]


def runtime(arguments: list[str]) -> None:
    """Add the GPUs to what runc is told, and be runc."""
    if "create" in arguments:
        file = Path(arguments[arguments.index("--bundle") + 1], "config.json")
        config = json.loads(file.read_text())
        devices = config["linux"].setdefault("devices", [])
        for edit in edits(visible(config)):
            config["process"]["env"] += edit["env"]
            for node in edit["deviceNodes"]:
                devices.append(
                    {key: node[key] for key in ("path", "type", "major", "minor")}
                    | {"fileMode": 0o666}
                )
        file.write_text(json.dumps(config))
    os.execvp("runc", ["runc", *arguments])


def hook() -> None:
    """Make the GPUs' nodes in a container about to start, and write down that it was asked for."""
    state = json.load(sys.stdin)
    config = json.loads(Path(state["bundle"], "config.json").read_text())
    with CALLS.open("a") as calls:
        calls.write(json.dumps({"id": state["id"], "visible": visible(config)}) + "\n")
    root = Path(f"/proc/{state['pid']}/root", config["root"]["path"].lstrip("/"))
    os.umask(0)
    for edit in edits(visible(config)):
        for node in edit["deviceNodes"]:
            with suppress(FileExistsError):  # the runtime was there before
                device = os.makedev(node["major"], node["minor"])
                os.mknod(root / node["path"].lstrip("/"), stat.S_IFCHR | 0o666, device)


def main() -> None:
    """Do what the name of this file says."""
    is_runtime = Path(sys.argv[0]).name == "nvidia-container-runtime"
    runtime(sys.argv[1:]) if is_runtime else hook()


if __name__ == "__main__":
    main()
