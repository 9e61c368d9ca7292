"""Build hook: the wheel has each shipped TOML file also in JSON, which a launch reads faster."""

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent


class CompiledProfiles(BuildHookInterface):
    """Puts NAME.json beside each NAME.toml of profiles/ in the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the JSON files under build/ and include them in a wheel that is no editable one."""
        if version == "editable":
            return
        sys.path.insert(0, str(ROOT))
        from gpulaunch.files.document import compiled_text
        from gpulaunch.files.toml import parse_toml

        for path in sorted((ROOT / "profiles").rglob("*.toml")):
            relative = path.relative_to(ROOT / "profiles").with_suffix(".json")
            compiled = Path(self.directory).parent / "build" / "profiles" / relative
            compiled.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_text()
            compiled.write_text(compiled_text(text, parse_toml(str(path), text)))
            build_data["force_include"][str(compiled)] = f"gpulaunch/_profiles/{relative}"
