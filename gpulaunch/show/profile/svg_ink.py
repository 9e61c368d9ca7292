"""Colours of a profile's picture: dark ones tell from white, and from each other without colour by form."""

BLUE = "#1a56b0"
"""What is measured."""

LIGHT = "#dbe8fd"
TRACK = "#e6e8eb"
RULE = "#c5ccd6"
PANEL = "#f7f8fa"
ORANGE = "#a85400"
"""The knee."""

ALARM, ALARM_EDGE = "#fff3d6", "#a85400"
"""Ground and edge of warnings."""
