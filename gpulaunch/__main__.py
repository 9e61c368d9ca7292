"""The script `gpulaunch`, and `python -m gpulaunch`."""

import gc


def main() -> None:
    """Run the command line and exit with its status."""
    gc.disable()  # saves 1.5 ms of imports; a launch makes no cycles (docs/decisions/start-up.md)
    from gpulaunch.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
