"""`gpulaunch cluster`."""
import importlib
def main(arguments, command=None):
    word, *rest = arguments
    module = importlib.import_module(f"gpulaunch.cli.cluster_{word}")
    return module.main(rest) if command is None else module.main(rest, command)
