"""The README's picture shows what the commands in it print."""

import html
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "docs"))

import picture  # noqa: E402

VARIES = (
    (r"\b[0-9a-f]{12}\b", "ID"),
    (r"in [\w ]+ to [\w ]+ min", "SOON"),
    (r"(\s)\d+ s\b", r"\1SINCE"),
    (r"─+", "─"),
    (r"(0,3|8)\s+[\w-]+\s+SINCE", r"\1 USER SINCE"),
)
"""Patterns of what differs from one recording to the next, and what stands for it."""


def _words(svg: str) -> list[str]:
    text = html.unescape(re.sub(r"<style>.*?</style>|<[^>]+>", " ", svg, flags=re.DOTALL))
    text = re.sub(r"\s+", " ", text.replace("\xa0", " "))
    for pattern, stands in VARIES:
        text = re.sub(pattern, stands, text)
    return text.split()


def test_picture(tmp_path):
    """docs/picture.svg has the words that its commands print today."""
    recorded = picture.record(tmp_path)
    assert _words(recorded) == _words(picture.PICTURE.read_text())


def test_asks_nobody():
    """The picture names no other host but that of its format, so it shows without a network."""
    addresses = re.findall(r"https?://[^\s\"']+", picture.PICTURE.read_text())
    assert set(addresses) <= {"http://www.w3.org/2000/svg", "https://www.textualize.io"}
