"""The script `gpulaunch`, and `python -m gpulaunch`."""

import _signal  # type: ignore[import-not-found]  # the signal module is half of a start-up
import os
import sys

# Until there is something to tidy up, Ctrl-C just ends this, and before anything else is loaded:
# Python would print where in our imports it came.
if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)


def main() -> None:
    """Run the command line and exit with its status."""
    try:
        _run()
    # Half of an installation, a disk that fails: an import may raise nearly anything.
    except Exception as problem:  # noqa: BLE001
        text = f"gpulaunch: error: cannot load gpulaunch or Python's own library: {problem}\n"
        os.write(2, os.fsencode(text))
        os._exit(125)


def _run() -> None:
    if os.path.basename(sys.argv[0]) == "nvidia-docker":  # a link: it stands for that command
        sys.argv.insert(1, "nvidia-docker")
    import gc

    gc.disable()  # saves 1.5 ms of imports; a launch makes no cycles (docs/decisions/start-up.md)
    from gpulaunch.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
