"""The report of `simulate --report`: the terminal's figures, and pictures of what came of jobs."""

import json
import re
from base64 import b64encode
from html import unescape
from tempfile import NamedTemporaryFile
from xml.etree import ElementTree as ET

import gpulaunch
from gpulaunch.cli.simulate import INDEX, lanes_of, replays_document, replays_rows, report_files
from gpulaunch.files.write import document_text
from gpulaunch.lab.simulate.event_loop import Rules, simulate
from gpulaunch.lab.simulate.measures import Replay, measure
from gpulaunch.lab.simulate.read_simulation import read_trace
from gpulaunch.launch.job_file import load_jobs
from gpulaunch.launch.surroundings import shown_machine
from gpulaunch.records import replace

HOSTILE = "<script>alert(1)</script> \"'&amp; $\\frac$ ]]> \x1b[31m\x07"
SVG = "{http://www.w3.org/2000/svg}"


def job(name="vgg16", *, gpus=2) -> str:
    """Make a job of a file."""
    return f"""
[[job]]
name = {json.dumps(name)}
pattern = 'ring'
gpus = {gpus}
arrival_s = 0.0
duration_s = 20.0
"""


def replayed(text: str, *policies: str) -> list[Replay]:
    """Replays of a file's text."""
    machine = shown_machine("dgx1-v100", print)
    with NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        jobs = read_trace(load_jobs(file.name), machine, print).jobs
    rules = [Rules(one, "cut", 1, time_models=("bandwidth",)) for one in policies]
    return [
        measure(machine.topology, simulate(machine.topology, jobs, one), one, None) for one in rules
    ]


def test_jobs_in_lanes() -> None:
    """Of jobs that share a GPU no two overlap in a lane."""
    (replay,) = replayed(job(gpus=1) * 5, "preserve")
    spans = [(0, 9), (3, 5), (5, 12), (9, 10), (12, 13)]
    shared = [
        replace(one, gpus=(0,), started_s=from_s, ended_s=to_s)
        for one, (from_s, to_s) in zip(replay.jobs, spans, strict=True)
    ]
    assert lanes_of(shared) == [0, 1, 1, 0, 0]


def test_page_has_the_terminals_figures_and_the_pictures() -> None:
    """The page has the title and the tables of the terminal, and each picture inside."""
    text = document_text(gpulaunch.generate_trace("uniform", 1, 6))
    paper = replayed(text, "baseline", "preserve")
    files = report_files(paper)
    page = files[INDEX].decode()
    title, how, *tables = replays_rows(replays_document(paper))
    cells = [unescape(cell) for cell in re.findall(r"<td>(.*?)</td>", page)]
    assert cells == [cell for _, rows in tables for row in rows for cell in row]
    assert (re.search("<h1>(.*?)</h1>", page)[1], how in page) == (title, True)
    pictures = [b64encode(files[name]).decode() for name in files if name != INDEX]
    assert re.findall(r'<img alt="" src="data:image/svg\+xml;base64,(.*?)">', page) == pictures


def test_hostile_names() -> None:
    """A job's name is text, whatever it is: escaped, control characters visible, no formula."""
    files = report_files(replayed(job(HOSTILE) + job("a" * 300), "preserve"))
    shown = "".join(ET.fromstring(files["timeline.svg"]).itertext())
    visible = HOSTILE.replace("\x1b", "\\x1b").replace("\x07", "\\x07")
    assert f"0 {visible}" in shown
    assert "<script" not in files[INDEX].decode()
