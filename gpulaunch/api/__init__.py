"""The Python interface; the package itself has its names."""
