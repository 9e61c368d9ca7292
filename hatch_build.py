"""Build hook: the wheel has what a launch reads faster than shipped TOML files.

That is each of them in JSON, and the tables of machines of up to 8 GPUs. Tables of 16 would take
10 s a machine to make, and the shipped ones that are not all linked alike are made up.
"""

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent


class CompiledProfiles(BuildHookInterface):
    """Puts NAME.json, and perhaps NAME.tables, beside each NAME.toml of profiles/ in the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the files under build/ and include them in a wheel that is no editable one."""
        if version == "editable":
            return
        sys.path.insert(0, str(ROOT))
        from gpulaunch.files.document import compiled_text
        from gpulaunch.files.toml import parse_toml

        for path in sorted((ROOT / "profiles").rglob("*.toml")):
            text = path.read_text()
            contents = {".json": compiled_text(text, parse_toml(str(path), text)).encode()}
            if path.is_relative_to(ROOT / "profiles" / "machines"):
                contents |= _tables(path)
            for suffix, content in contents.items():
                relative = path.relative_to(ROOT / "profiles").with_suffix(suffix)
                compiled = Path(self.directory).parent / "build" / "profiles" / relative
                compiled.parent.mkdir(parents=True, exist_ok=True)
                compiled.write_bytes(content)
                build_data["force_include"][str(compiled)] = f"gpulaunch/_profiles/{relative}"


def _tables(path: Path) -> dict[str, bytes]:
    """Return the content of the file with a machine's tables by its suffix, if it has some."""
    from gpulaunch.decide.placement.expected import DEFAULT_SIZES
    from gpulaunch.decide.placement.fabric import MAPPED_GPUS, Fabric
    from gpulaunch.decide.placement.tables import tabulate, to_bytes
    from gpulaunch.machine.catalog import load_described_machine

    fabric = Fabric(load_described_machine(str(path))[0])
    if not fabric.has_tables or len(fabric.gpus) > MAPPED_GPUS:
        return {}
    tabulate(fabric, DEFAULT_SIZES)
    return {".tables": to_bytes(fabric)}
