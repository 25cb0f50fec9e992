"""The verdict's page in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest

from draftlab.report.verdict_page import page
from draftlab.serving.costs import from_probes
from tests.chromium import complaints, contrast, opened, requested
from tests.serving.test_verdict import CURVE, FACTS, curve_table, decide, probes, table

BACKGROUND = "return getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    file = tmp_path_factory.mktemp("verdict") / "verdict.html"
    rows = pd.concat([curve_table(), table(0.5, option="lookup_first")])
    found = decide(rows, from_probes(probes(), 100), FACTS | {"learnt": CURVE}, rate=2.0)
    file.write_text(page(found))
    with opened(file) as chrome:
        yield chrome


def test_it_loads_without_an_error_and_asks_nobody(browser: Any) -> None:
    assert complaints(browser) == []
    sent = requested(browser)
    assert sent
    assert [url for url in sent if not url.startswith(("file:", "data:"))] == []
    images = browser.find_elements("tag name", "img")
    assert len(images) == 4
    assert all(browser.execute_script("return arguments[0].naturalWidth", image) > 0 for image in images)


@pytest.mark.parametrize("width", [420, 1400])
def test_nothing_is_cut_off_at_the_width_of_a_phone_and_of_a_screen(browser: Any, width: int) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
    )
    assert browser.execute_script("return window.innerWidth") == width
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    wide = [
        part.get_attribute("aria-label")
        for part in browser.find_elements("css selector", ".scroll")
        if part.size["width"] > width
    ]
    assert wide == []


def test_the_keyboard_reaches_the_content_the_tables_and_the_theme(browser: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    seen = []
    browser.find_element("tag name", "body").send_keys(Keys.TAB)
    for _ in range(20):
        reached = browser.switch_to.active_element
        seen.append(reached.get_attribute("aria-label") or reached.text)
        reached.send_keys(Keys.TAB)
    assert seen[0] == "Skip to the content"
    for name in ("Options", "Dark", "Table of options", "Table of loads", "Table of categories", "Table of ceilings"):
        assert name in seen, seen


def test_light_and_dark_both_have_contrast(browser: Any) -> None:
    before = browser.execute_script(BACKGROUND)
    assert contrast(browser) >= 4.5
    theme = browser.find_element("id", "theme")
    assert theme.get_attribute("aria-pressed") == "false"
    theme.click()
    assert browser.execute_script(BACKGROUND) != before
    assert contrast(browser) >= 4.5
    assert theme.get_attribute("aria-pressed") == "true"
