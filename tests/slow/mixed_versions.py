"""Launches of several versions on one table, some of them killed: no GPU twice, none lost.

Run: python tests/slow/mixed_versions.py [--launches N] REVISION...

Each launch is of this tree or of one of the revisions of git, drawn anew; it waits for 1 to 4 of
the 8 GPUs of a described machine. A third of the launchers are killed, whose jobs go on, and a
tenth get TERM. Now and then each version shows the table. Every job takes a flock for each of its
GPUs: who has to wait until somebody else lets go of one has met a second owner (many_leases.py). At
the end all GPUs have to be free, as every version shows them. What was counted is printed as JSON;
the exit status is 1 if anything was wrong.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import many_leases

DGX = many_leases.DGX
TREE = Path(__file__).parents[2]
OWN = """
echo "$GPULAUNCH_LEASE" >> "$FLOCKS/leases"
gpus=${CUDA_VISIBLE_DEVICES//,/ }
for gpu in $gpus; do
    file=$FLOCKS/gpu-$gpu
    eval "exec $((20 + gpu))<>$file"
    before=$(<"$file")
    flock $((20 + gpu))
    [ "$before" = "$(<"$file")" ] || echo "GPU $gpu" >> "$FLOCKS/overlaps"
done
sleep "$SECONDS_HELD"
for gpu in $gpus; do
    file=$FLOCKS/gpu-$gpu
    echo $(($(<"$file") + 1)) > "$file"
    flock -u $((20 + gpu))
done
"""
"""The job: it counts in the file of each GPU before it lets go of its flock."""


class Versions:
    """The versions, and the one table on which they launch.

    Args:
        home: an empty directory.
        revisions: those of git besides this tree.
    """

    def __init__(self, home: Path, revisions: list[str]) -> None:
        self.site = many_leases.Site(home)
        self.paths = {"this tree": TREE}
        for revision in revisions:
            path = self.paths[revision] = home / revision
            words = ["git", "-C", str(TREE), "worktree", "add", "-q", "--detach"]
            subprocess.run([*words, str(path), revision], check=True)

    def command(self, version: str, *arguments: str) -> dict[str, object]:
        """Return what subprocess needs to run gpulaunch of a version."""
        variables = {"PYTHONPATH": str(self.paths[version]), "FLOCKS": str(self.site.flocks)}
        return {
            "args": [sys.executable, "-m", "gpulaunch", *arguments],
            "env": self.site.launcher.environment | variables,
            "cwd": self.site.flocks,
        }

    def remove(self) -> None:
        """Remove the worktrees of the revisions."""
        for path in list(self.paths.values())[1:]:
            words = ["git", "-C", str(TREE), "worktree", "remove", "--force", str(path)]
            subprocess.run(words, check=True)

    def launch(self, seed: int) -> Counter[str]:
        """Launch once, with a signal or without; return what happened."""
        chance, counted = random.Random(seed), Counter()
        version = chance.choice(list(self.paths))
        job = ("--", "bash", "-c", OWN)
        command = self.command(version, *DGX, "--wait", "-n", str(chance.randint(1, 4)), *job)
        command["env"] |= {"SECONDS_HELD": f"{chance.random() * 0.5:.3f}"}  # type: ignore[operator]
        process = subprocess.Popen(**command, stderr=subprocess.PIPE, text=True)
        number = chance.choice([*3 * [signal.SIGKILL], signal.SIGTERM, *6 * [None]])
        if number is not None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(2 * chance.random())
            process.send_signal(number)
            counted["signals"] += 1
        _, said = process.communicate()
        if process.returncode not in (0, *(() if number is None else (-number, 128 + number))):
            print(f"{version}: {process.returncode}: {said}", file=sys.stderr, flush=True)
            counted["wrong"] += 1
        if chance.random() < 0.1:
            other = chance.choice(list(self.paths))
            counted["wrong"] += self.shown(other) is None
        return counted + Counter({version: 1})

    def shown(self, version: str) -> dict[str, object] | None:
        """Return the table as a version shows it; None if it fails."""
        command = self.command(version, "status", *DGX, "--json")
        done = subprocess.run(**command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{version}: status: {done.stderr}", file=sys.stderr, flush=True)
            return None
        return json.loads(done.stdout)


def watched(versions: Versions, count: int) -> Counter[str]:
    """Launch so often, wait until all jobs have ended, and return what was counted."""
    chance, counted = random.Random(20211114), Counter()
    with ThreadPoolExecutor(many_leases.AT_ONCE) as pool:
        for found in pool.map(versions.launch, [chance.getrandbits(64) for _ in range(count)]):
            counted += found
    # What killed launchers left behind ends by itself; a launch of all GPUs waits for it.
    last = versions.command("this tree", *DGX, "--wait-timeout", "60s", "-n", "8", "--", "true")
    counted["wrong"] += subprocess.run(**last, check=False).returncode != 0
    for version in versions.paths:
        table = versions.shown(version) or {}
        counted["lost"] += sum(not gpu["free"] for gpu in table.get("gpus", ()))
        counted["wrong"] += len([*table.get("leases", ()), *table.get("queue", ())])
    counted["leases"] = len((versions.site.flocks / "leases").read_text().split())
    counted["overlaps"] = versions.site.overlaps()
    return counted


def main() -> None:
    """Print what was counted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--launches", type=int, default=400)
    parser.add_argument("revisions", nargs="+", metavar="REVISION")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        os.chmod(home, 0o755)
        versions = Versions(Path(home), options.revisions)
        try:
            counted = watched(versions, options.launches)
        finally:
            versions.remove()
    print(json.dumps(counted))
    sys.exit(any(counted[name] for name in ("overlaps", "lost", "wrong")))


if __name__ == "__main__":
    main()
