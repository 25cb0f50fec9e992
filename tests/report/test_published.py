"""What the papers print: complete, and copied without a slip."""

import re
import shutil

import pandas as pd
import pytest
import yaml

from draftlab.errors import UserError
from draftlab.report import published


def test_every_number_of_the_reference_is_there(known, shared):
    reference = yaml.safe_load((shared / "reference" / "osd_published.yaml").read_text())["published"]
    ours = known.numbers[known.numbers["paper"] == "OSD"].head(len(reference))
    assert len(reference) == 363
    assert ours["claim"].tolist() == [row["claim"] for row in reference]
    assert ours["value"].tolist() == [row["value"] for row in reference]
    assert ours["source"].tolist() == [row["source"] for row in reference]
    assert ours["caveat"].tolist() == [row.get("caveat", "") for row in reference]


def test_settings_say_what_the_reference_says(known, shared):
    reference = yaml.safe_load((shared / "reference" / "osd_published.yaml").read_text())["published"]
    for settings, row in zip(known.numbers["settings"].head(len(reference)), reference, strict=True):
        printed = "/".join([row["dataset"], row["variant"]]).replace(
            "tinyllama-1.1b/vicuna-33b", "vicuna-33b/tinyllama-1.1b"
        )
        printed = printed.replace("llama-160m/vicuna-7b", "vicuna-7b/llama-160m")
        for key, value in settings.items():
            assert value in printed or key == "pair", (settings, row)


def _leaves(value):
    if isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, (int, float)):
        yield float(value)


def test_every_number_of_the_multidraft_notes_is_there(known, shared):
    text = (shared / "reference" / "multidraft.md").read_text()
    notes = yaml.safe_load(re.search(r"```yaml\n(.*?)```", text, re.DOTALL)[1])
    printed = known.numbers[known.numbers["paper"] != "OSD"]
    settings = {float(v) for row in printed["settings"] for v in row.values() if v.replace(".", "", 1).isdigit()}
    ours = {*printed["value"], *printed["error"], *settings}
    found = list(_leaves(notes))
    assert len(found) > 400
    assert [value for value in found if value not in ours] == []


def test_identities_are_unique_and_every_claim_is_described(known):
    assert known.numbers["claim_id"].is_unique
    assert set(known.numbers["claim"]) == set(known.claims)


def test_curves_are_the_digitised_ones(known, shared):
    reference = pd.read_csv(shared / "reference" / "osd_figure_curves.csv")
    pd.testing.assert_frame_equal(known.curves, reference)
    assert len(known.curve("spider", "osd_online")) == 228


def test_of_selects_by_setting(known):
    found = known.of("T1.alpha_offline", dataset="spider", variant=["original", "ft"])
    assert found["value"].tolist() == [0.28, 0.74, 0.13, 0.33]
    assert known.of("T2.speedup_by_alpha", alpha=0.5)["value"].tolist() == [1.28, 0.95]


def test_the_largest_value_is_asked_for_where_an_entry_says_so(known):
    """A mean over many rows would hide the error of one."""
    rules = [claim.rule for claim in known.claims.values() if claim.rule and claim.rule.largest]
    sides = [part for statement in known.statements.values() for part in statement.comparisons if part.largest]
    assert rules
    assert sides
    assert all(rule.measured({}).left.largest for rule in rules)
    assert all(part.contrast.left.largest for part in sides)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("osd.yaml", "location: Table 1\n", "place: Table 1\n", "T1.alpha_offline"),
        ("osd.yaml", "R.topic_alpha:", "R.other:", "R.topic_alpha"),
        ("statements.yaml", "expect: greater", "expect: bigger", "expect"),
        ("consistency.yaml", "formula: speedup", "formula: [", "not YAML"),
    ],
)
def test_a_broken_file_is_named(tmp_path, file, old, new, message):
    folder = shutil.copytree(published.FOLDER, tmp_path / "published")
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new, 1))
    with pytest.raises(UserError, match=re.escape(message)) as raised:
        published.load(folder)
    assert raised.value.file == folder / file


def test_a_row_that_is_there_twice_is_refused(tmp_path):
    folder = shutil.copytree(published.FOLDER, tmp_path / "published")
    lines = (folder / "osd.csv").read_text().splitlines()
    (folder / "osd.csv").write_text("\n".join([*lines, lines[1]]))
    with pytest.raises(UserError, match="twice"):
        published.load(folder)
