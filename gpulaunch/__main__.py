"""`python -m gpulaunch` is the same as `gpulaunch`."""

from gpulaunch.cli.main import main

if __name__ == "__main__":
    main()
