"""The script `gpulaunch`, and `python -m gpulaunch`."""

import gc
import signal


def main() -> None:
    """Run the command line and exit with its status."""
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(
            signal.SIGINT, signal.SIG_DFL
        )  # until there is something to tidy up, Ctrl-C just ends this
    gc.disable()  # saves 1.5 ms of imports; a launch makes no cycles (docs/decisions/start-up.md)
    from gpulaunch.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
