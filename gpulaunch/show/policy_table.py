"""The table of placement policies in docs/explanation/placement.md."""

from gpulaunch.decide.placement.policies import DEFAULT_POLICY, POLICIES


def policy_table() -> str:
    """Return the policies, what each compares and its source, for docs/explanation/placement.md."""
    default_first = sorted(POLICIES, key=lambda name: name != DEFAULT_POLICY)
    lines = ["| policy | compares, or makes | source |", "|---|---|---|"]
    for name in default_first:
        shown = f"`{name.replace('_', '-')}`"
        if name == DEFAULT_POLICY:
            shown += ", the default"
        lines.append(f"| {shown} | {POLICIES[name].help} | {POLICIES[name].source} |")
    return "\n".join([*lines, ""])
