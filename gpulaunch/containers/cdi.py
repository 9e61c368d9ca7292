"""Specifications of the Container Device Interface, as far as they name GPUs."""

import os

_MOST_CHARACTERS = 16 << 20


def find_cdi_devices(directories: tuple[str, ...], kind: str, uuids: set[str]) -> set[str]:
    """Return the UUIDs that CDI specifications name, for engines that do not list them.

    Args:
        directories: where the engine looks for specifications.
        kind: the GPUs' kind, such as nvidia.com/gpu.
        uuids: UUIDs to look for.
    """
    found: set[str] = set()
    for directory in directories:
        try:
            names = os.listdir(directory)
        except OSError:
            continue
        for name in names:
            path = os.path.join(directory, name)
            if not name.endswith((".json", ".yaml")) or not os.path.isfile(path):
                continue
            try:
                with open(path, errors="replace") as file:
                    text = file.read(_MOST_CHARACTERS)
            except OSError:
                continue
            if kind in text:
                found |= {uuid for uuid in uuids if uuid in text}
    return found
