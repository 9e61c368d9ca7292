"""The standard library's parser of TOML, under its name also for Python 3.10, which lacks it."""
# pure: decides on plain values

import sys

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["tomllib"]
