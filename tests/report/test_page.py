"""The page: complete, self-contained, harmless, and working in a real browser."""

import html
import itertools
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from draftlab.errors import UserError
from draftlab.report import figures, ledger, published, tables, tidy
from draftlab.report import page as report_page
from draftlab.report.figures import style
from tests.chromium import complaints, contrast, opened, requested
from tests.synthetic import TABLES

HOSTILE = [
    "<script>window.hacked = 1</script>",
    "\x1b[31mred\x1b[0m",
    "\u202eright to left",
    "<img src=x onerror='window.hacked = 1'>",
    "a\nb",
]

SHOWN = ("osd_online", "osd_speedup_theory", "mdss_region")


def _run(folder: Path, known: published.Published) -> Path:
    """A finished run of synthetic tables."""
    for name in SHOWN:
        rows = TABLES[name]({"method": {"online": 0.2}})
        folder.mkdir(parents=True, exist_ok=True)
        rows.to_csv(folder / f"{name}.csv", index=False)
        derived = tidy.derive(name, rows)
        tables.write(name, derived, "laptop", folder / "figures" / name)
        style.save(figures.figure(name, derived, "laptop", known), folder / "figures" / name)
        for cell in ("spider", "gsm8k", "no_longer_of_it"):
            record = folder / "cells" / name / cell / "run.json"
            record.parent.mkdir(parents=True)
            record.write_text(
                json.dumps(
                    {
                        "settings": {
                            "dataset": cell,
                            "learning_rate": 0.002,
                            "a_long_name": {"of_a_setting_in_another": 1},
                        },
                        "digest": "d1gest",
                        "machine": {"processor": HOSTILE[0]},
                    }
                )
            )
        (folder / "cells" / f"{name}.txt").write_text("spider\ngsm8k\n")
    kinds = itertools.cycle(("accepted", "rejected", "target"))
    tokens = [{"token": text, "kind": kind} for text, kind in zip(HOSTILE, kinds, strict=False)]
    view = {"dataset": "spider", "request_id": "r1", "prompt": "".join(HOSTILE), "draft_len": 5}
    (folder / "tokens.json").write_text(json.dumps(view | {"before": tokens, "after": tokens[1:]}))
    ledger.judge_claims(known, ledger.read_tables(folder), "laptop").to_csv(folder / "claims.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def page(tmp_path_factory, known) -> Path:
    folder = _run(tmp_path_factory.mktemp("results") / "laptop", known)
    report_page.write(folder, "laptop", folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def text(page) -> str:
    return page.read_text(encoding="utf-8")


def test_everything_is_in_the_page(known, text):
    for name in SHOWN:
        assert f'id="{name}"' in text
        assert f"results/laptop/{name}.csv" in text
    assert text.count("data:image/png;base64,") == len(SHOWN) + 1
    for word in (
        "d1gest",
        "learning_rate",
        "0.002",
        "same direction",
        "inconsistent in print",
        "One request, token by token",
        "3 tokens: 2 drafted and accepted, 1 by the target; 2 rejected",
    ):
        assert word in text
    assert "no_longer_of_it" not in text
    assert (
        '<p class="finding"><b>The online draft overtakes a briefly distilled one</b>: over the last fifth of the stream alpha is'
        in text
    )
    parts = r"(\d+) recomputed from .*, (\d+) computed by .*, (\d+) measured with models"
    counts = [int(count) for count in re.search(parts, text).groups()]
    assert all(count > 0 for count in counts[:2])
    reproduced = re.search(r'data-verdict="reproduced"><b>(\d+)</b>', text)[1]
    assert sum(counts) == int(reproduced)
    assert "corrected for the number of comparisons" in text
    assert re.search(
        r"Of the \d+ verdicts that rest on an interval, chance alone would on average make at most \d", text
    )
    rows = len(known.numbers) + len(known.statements)
    assert text.count('<td class="note">') >= rows


def test_the_best_of_a_row_is_bold_as_the_caption_says(text):
    assert "bold: best of its row" in text
    assert re.search(r"<td><b>[\d.]+</b> \[[\d.]+, [\d.]+\]</td>", text)
    assert "&lt;b&gt;" not in text


def test_small_and_self_contained(text):
    assert len(text.encode()) < 5_000_000
    markup = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r"""(?:src|href)=["'](?!data:|#)""", markup)
    assert "default-src 'none'" in text


def test_text_of_requests_is_harmless(text):
    assert "<script>window.hacked" not in text
    assert "<img src=x" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert r"\u001b[31mred" in text
    assert r"\u202eright to left" in text


def test_a_run_without_extras_still_has_a_page(page, tmp_path):
    bare = tmp_path / "laptop"
    bare.mkdir()
    for file in ("osd_online.csv", "claims.csv"):
        shutil.copy(page.parent / file, bare)
    report_page.write(bare, "laptop", tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "There are no run records for this table" in text
    assert "token by token" not in text


def test_a_table_that_is_no_experiments_of_the_run_is_left_out(page, tmp_path):
    """As of an experiment whose file was deleted or renamed."""
    bare = tmp_path / "laptop"
    shutil.copytree(page.parent, bare)
    for file in (bare / "mdss_region.csv", *(bare / "figures").glob("mdss_region.*")):
        shutil.copy(file, file.with_name(file.name.replace("mdss_region", "mine")))
    for experiments, shown in (((), SHOWN), (("osd_online",), ["osd_online"])):
        assert list(ledger.read_tables(bare, experiments)) == sorted(shown)
        report_page.write(bare, "laptop", tmp_path / "report.html", experiments=experiments)
        text = (tmp_path / "report.html").read_text()
        assert [name for name in (*SHOWN, "mine") if f'id="{name}"' in text] == list(shown)


def test_a_table_is_remade_with_all_that_the_run_was_given(page, tmp_path):
    bare = tmp_path / "mine"
    bare.mkdir()
    for file in ("osd_online.csv", "claims.csv"):
        shutil.copy(page.parent / file, bare)
    report_page.write(bare, "laptop", tmp_path / "report.html", ["scale=laptop", "raw=/my data", "name=mine"])
    text = html.unescape((tmp_path / "report.html").read_text())
    command = re.search(r"Remake it with <code>(.*?)</code>", text)[1]
    config = shlex.split(command)[5:]
    assert shlex.split(command)[3:5] == ["results/mine/osd_online.csv", "--config"]
    assert config == ["scale=laptop", "raw=/my data", "name=mine"]
    assert "Would an adapted draft help?" not in text


def test_the_tokens_that_an_earlier_run_showed_are_left_out(page, text, tmp_path):
    """They belong to ``osd_offline``, which this run has not."""
    assert 'id="tokens"' in text
    report_page.write(page.parent, "laptop", tmp_path / "report.html", experiments=("osd_online",))
    assert 'id="tokens"' not in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_what_is_missing_or_broken_is_named(page, tmp_path):
    with pytest.raises(UserError, match=r"claims.csv: no such file"):
        report_page.write(tmp_path, "laptop", tmp_path / "report.html")
    shutil.copy(page.parent / "claims.csv", tmp_path)
    with pytest.raises(UserError, match="no tables"):
        report_page.write(tmp_path, "laptop", tmp_path / "report.html")
    shutil.copy(page.parent / "osd_online.csv", tmp_path)
    (tmp_path / "tokens.json").write_text('{"before": []}')
    with pytest.raises(UserError, match="not a token view: dataset"):
        report_page.write(tmp_path, "laptop", tmp_path / "report.html")


# --- in a browser ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(page):
    with opened(page) as chrome:
        yield chrome


def _visible(browser, column=0):
    cells = browser.find_elements("css selector", f"#ledger tbody tr td:nth-child({column + 1})")
    return [cell.text for cell in cells]


def _choose(browser, name, value):
    browser.execute_script(
        "const f = document.getElementById(arguments[0]); f.value = arguments[1]; f.dispatchEvent(new Event('input', {bubbles: true}))",
        f"filter-{name}",
        value,
    )


def _press(browser, selector):
    """Press a button or a link with the keyboard, and let the page answer."""
    from selenium.webdriver.common.keys import Keys

    browser.find_element("css selector", selector).send_keys(Keys.ENTER)
    browser.execute_async_script("setTimeout(arguments[0], 200)")


def test_no_error_no_request_and_a_fast_first_paint(browser, page):
    assert complaints(browser) == []
    sent = requested(browser)
    assert page.as_uri() in sent
    assert [url for url in sent if not url.startswith(("file:", "data:"))] == []
    paints = browser.execute_script("return performance.getEntriesByType('paint').map(entry => entry.startTime)")
    assert paints
    assert max(paints) < 1000
    assert browser.execute_script("return window.hacked") is None


def test_filters_and_clearing(browser):
    _choose(browser, "verdict", "inconsistent in print")
    assert set(_visible(browser, 6)) == {"≠ inconsistent in print"} or set(_visible(browser, 6)) == {
        "inconsistent in print"
    }
    count = browser.find_element("id", "filter-count").text
    _choose(browser, "paper", "MDSS")
    assert browser.find_element("id", "filter-count").text.startswith("0 of")
    _choose(browser, "paper", "OSD")
    assert browser.find_element("id", "filter-count").text == count
    _choose(browser, "text", "arena")
    shown = browser.find_element("id", "filter-count").text
    assert 0 < int(shown.split()[0]) < int(count.split()[0])
    _press(browser, "#filters button[type=reset]")
    shown = browser.find_element("id", "filter-count").text.split()
    assert shown[0] == shown[2]


def test_counts_lead_to_their_rows(browser):
    expected = browser.find_element("css selector", '[data-verdict="contradicts"] b').text
    _press(browser, '[data-verdict="contradicts"]')
    assert browser.find_element("id", "filter-count").text.startswith(f"{expected} of")
    _press(browser, "#filters button[type=reset]")


def test_a_link_leads_where_it_says_though_figures_load_late(browser):
    """Every figure's place is known before it is there."""
    unsized = [img for img in browser.find_elements("tag name", "img") if not img.get_attribute("height")]
    assert browser.find_elements("tag name", "img")
    assert not unsized
    browser.execute_script("document.getElementById('tokens').scrollIntoView({behavior: 'instant'})")
    browser.execute_async_script("setTimeout(arguments[0], 400)")
    assert abs(browser.execute_script("return document.getElementById('tokens').getBoundingClientRect().top")) < 120


def test_keyboard_reaches_the_content_and_sorts(browser):
    from selenium.webdriver.common.keys import Keys

    browser.get(browser.current_url.split("#")[0])
    browser.find_element("tag name", "body").send_keys(Keys.TAB)
    assert browser.switch_to.active_element.text == "Skip to the content"
    _press(browser, "#ledger thead th:nth-child(4) [role=button]")
    assert (
        browser.find_element("css selector", "#ledger thead th:nth-child(4)").get_attribute("aria-sort") == "ascending"
    )


def test_light_and_dark_both_have_contrast(browser):
    before = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert contrast(browser) >= 4.5
    browser.find_element("id", "theme").click()
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") != before
    assert contrast(browser) >= 4.5


def test_a_narrow_screen_scrolls_only_inside_tables(browser):
    """At 320 pixels, the width at which a page must still reflow (WCAG 2.1, 1.4.10)."""
    screen = {"width": 320, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    try:
        browser.execute_script("""
            for (const details of document.querySelectorAll("details")) details.open = true;
            for (const article of document.querySelectorAll("article")) article.style.contentVisibility = "visible";
        """)
        assert browser.execute_script("return document.documentElement.scrollWidth") == 320
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
