"""The README's picture shows the scene that stands in it as text."""

import html
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "docs"))

import picture  # noqa: E402


def test_picture() -> None:
    """docs/picture.svg has the words of the scene, which tests/command/test_demo.py plays."""
    drawn = re.sub(r"<style>.*?</style>|<[^>]+>", " ", picture.PICTURE.read_text(), flags=re.DOTALL)
    words = html.unescape(drawn).split()
    assert words == f"{picture.COMMAND} {picture.shown()}".split()


def test_asks_nobody() -> None:
    """The picture names no other host but that of its format, so it shows without a network."""
    addresses = re.findall(r"https?://[^\s\"']+", picture.PICTURE.read_text())
    assert set(addresses) <= {"http://www.w3.org/2000/svg", "https://www.textualize.io"}
