"""A page in headless Chromium, for tests that need more than its text."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@contextlib.contextmanager
def opened(page: Path) -> Iterator[Any]:
    """A browser that shows ``page``; without a browser the test is skipped."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed (pip install selenium)")
    binary, driver = (
        next(filter(None, map(shutil.which, names)), None)
        for names in (("chromium", "google-chrome", "chromium-browser"), ("chromedriver",))
    )
    if binary is None or driver is None:
        pytest.skip("no Chromium with chromedriver on this machine (apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1280,1000"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        chrome.get(page.as_uri())
        yield chrome
    finally:
        chrome.quit()


def complaints(browser: Any) -> list[Any]:
    """What the page wrote to the console as an error or a warning."""
    return [entry for entry in browser.get_log("browser") if entry["level"] in {"SEVERE", "WARNING"}]


def requested(browser: Any) -> list[str]:
    """The addresses that the page asked for."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]


def contrast(browser: Any) -> float:
    """The smallest ratio of luminances of text and what is behind it, over the body, its verdicts and its sources (WCAG 2)."""
    return float(
        browser.execute_script("""
            const lum = (c) => { const [r, g, b] = c.match(/[0-9.]+/g).map(Number).map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b };
            const pairs = [[document.body, document.body], ...[...document.querySelectorAll('.verdict')].slice(0, 40).map(e => [e, e]), [document.querySelector('.source'), document.body]];
            return Math.min(...pairs.map(([a, b]) => { const x = lum(getComputedStyle(a).color), y = lum(getComputedStyle(b).backgroundColor); return (Math.max(x, y) + .05) / (Math.min(x, y) + .05) }));
        """)
    )
