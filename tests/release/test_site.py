"""The site in a real browser: `.ci/site` builds it, `.ci/browser` brings Chromium and Selenium.

Pictures of a few pages are left in build/screenshots.
"""

import shutil
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

BUILD = Path(__file__).parents[2] / "build"
SITE = BUILD / "site"
PAGES = sorted(str(page.relative_to(SITE)) for page in SITE.rglob("*.html"))
WIDTHS = (1280, 390)
SHOWN = (
    *("index.html", "guides/containers.html", "results/reproductions.html"),
    *("reference/profiles.html", "reference/settings.html", "explanation/placement.html"),
)
"""Pages of which pictures are taken: the front page, code, and wide tables."""

FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)

PROBLEMS = """
const wide = [...document.querySelectorAll("article *")]
    .filter(one => one.getBoundingClientRect().right > innerWidth + 1)
    .filter(one => !one.closest(".table-wrapper, pre"))
    .map(one => `beyond the right edge: ${one.outerHTML.slice(0, 80)}`);
const scrolls = document.documentElement.scrollWidth > innerWidth ? ["scrolls sideways"] : [];
const images = [...document.images]
    .filter(one => !one.complete || !one.naturalWidth)
    .map(one => `no image: ${one.src}`);
const elsewhere = performance.getEntriesByType("resource")
    .filter(one => !one.name.startsWith(location.origin))
    .map(one => `from elsewhere: ${one.name}`);
return [...wide, ...scrolls, ...images, ...elsewhere];
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Chrome]":
    """Return a headless Chromium."""
    reason = "Selenium is not installed: .ci/browser brings it"
    webdriver = pytest.importorskip("selenium.webdriver", reason=reason)
    driver = shutil.which("chromedriver")
    if driver is None:
        pytest.skip("chromedriver is not installed: .ci/browser brings it")
    options = webdriver.ChromeOptions()
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield browser
    browser.quit()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Serve the site, and return its address."""
    if not PAGES:
        pytest.skip("there is no site: .ci/site builds it")

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE))) as server:
        Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("width", WIDTHS)
def test_pages(browser: "Chrome", address: str, width: int) -> None:
    """Every page fits the window, shows its images, and needs no other host; no script fails."""
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    (BUILD / "screenshots").mkdir(exist_ok=True)
    problems = []
    for page in PAGES:
        browser.get(f"{address}/{page}")
        found = [*browser.execute_script(PROBLEMS), *browser.get_log("browser")]
        problems += [f"{page}: {problem}" for problem in found]
        if page in SHOWN:
            name = page.replace("/", "-").replace(".html", f"-{width}.png")
            browser.save_screenshot(str(BUILD / "screenshots" / name))
    assert problems == []


@pytest.mark.parametrize("served", [True, False], ids=["served", "from a folder"])
def test_search(browser: "Chrome", address: str, served: bool) -> None:
    """The search finds the page of a setting, also where the site is a folder on a disk."""
    from selenium.webdriver.support.wait import WebDriverWait

    browser.get(f"{address if served else SITE.as_uri()}/search.html?q=leftover_timeout")
    results = WebDriverWait(browser, 60).until(
        lambda there: there.find_elements("css selector", "#search-results li a")
    )
    assert "Settings" in [result.text for result in results]
