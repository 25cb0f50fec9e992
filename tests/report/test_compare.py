"""Two runs are compared column by column; which columns hold measured times is known, not guessed."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from draftlab.cli import main
from draftlab.errors import UserError
from draftlab.report import compare
from draftlab.stages import STAGES

ROWS = {"request_id": [0, 1], "accepted": [3, 4], "seconds": [0.1, 0.2], "draft_seconds": [0.1, 0.2]}


def run(folder, **tables):
    folder.mkdir()
    for name, columns in tables.items():
        pd.DataFrame(columns).to_csv(folder / f"{name}.csv", index=False)
    return folder


def differences(one, two):
    return compare.differences(compare.tables_of(one), compare.tables_of(two))


def test_measured_times_may_differ_and_nothing_else(tmp_path):
    one = run(tmp_path / "one", osd_latency_dataset=ROWS)
    slower = run(tmp_path / "two", osd_latency_dataset=ROWS | {"seconds": [9, 9], "draft_seconds": [9, 9]})
    other = run(tmp_path / "three", osd_latency_dataset=ROWS | {"accepted": [3, 5]}, osd_online=ROWS)
    assert differences(one, slower) == []
    lone, changed = differences(one, other)
    assert (lone.table, lone.column) == ("osd_online", "in one run only")
    assert (changed.column, changed.rows, changed.largest) == ("accepted", 1, 0.2)
    assert "accepted: 1 rows differ, by at most 0.2 of their size" in str(changed)


def test_numbers_that_are_only_written_otherwise_do_not_differ_in_size():
    one, two = pd.Series(["0", "1.0", "inf"]), pd.Series(["0.0", "1.25", "Infinity"])
    assert compare._relative(one, two) == pytest.approx(0.2)
    assert np.isnan(compare._relative(one, two.replace("1.25", "x")))


def test_a_published_run_is_compared_by_its_rows_not_by_its_printed_tables(tmp_path):
    one = run(tmp_path / "one", osd_latency_dataset=ROWS)
    published = run(tmp_path / "two", osd_latency_dataset={"estimate": [1.0]})
    run(published / "data", osd_latency_dataset=ROWS)
    (published / "data/provenance.json").write_text("{}")
    assert differences(one, published) == []


def test_a_hidden_file_is_no_table(tmp_path):
    one, two = (run(tmp_path / name, osd_latency_dataset=ROWS) for name in ("one", "two"))
    (two / "._osd_latency_dataset.csv").write_bytes(b"\x00\x05\x16\x07\xb0")  # as macOS writes it
    assert differences(one, two) == []


def test_tables_of_other_shape_differ(tmp_path):
    one = run(tmp_path / "one", t=ROWS)
    shorter = run(tmp_path / "two", t=pd.DataFrame(ROWS).iloc[:1])
    wider = run(tmp_path / "three", t=ROWS | {"more": [1, 2]})
    turned = run(tmp_path / "four", t=dict(reversed(ROWS.items())))
    found = [str(difference) for other in (shorter, wider, turned) for difference in differences(one, other)]
    assert found == ["t: 2 rows against 1", "t: other columns (more)", "t: columns in another order"]


def test_verdicts_on_times_may_differ(known, tmp_path):
    claims = {
        table: known.numbers["claim_id"][
            known.numbers["claim"].isin([k for k, c in known.claims.items() if c.rule and c.rule.table == table])
        ].iloc[0]
        for table in ("osd_update_cost", "osd_online")
    }
    tables = {
        "osd_update_cost": {"block": [0], "update_seconds": [1.0]},
        "osd_online": {"stream_index": [0], "overlap": [1], "visited": [1]},
    }
    ledgers = [
        {"claim_id": list(claims.values()), "ours": values, "paper": ["OSD", "OSD"]} for values in ([1, 2], [3, 4])
    ]
    one, two = (run(tmp_path / str(i), **tables, claims=ledger) for i, ledger in enumerate(ledgers))
    (found,) = differences(one, two)
    assert (found.table, found.column, found.rows) == ("claims", "ours", 1)


def test_verdicts_and_intervals_are_compared(known, tmp_path):
    timed = known.numbers["claim_id"][
        known.numbers["claim"].isin(
            [k for k, c in known.claims.items() if c.rule and c.rule.table == "osd_update_cost"]
        )
    ].iloc[0]
    columns = ["ours", "ci_low", "ci_high", "verdict"]
    ledger = {  # both runs' values
        "inside": [(2, 1, 3, "undecided"), (2, 1, 4, "contradicts")],
        "below": [(5, 4.5, 6, "undecided"), (7, 6.5, 7, "undecided")],
        "above": [(5, 4.5, 6, "undecided"), (3, 2, 4, "undecided")],
        "beside": [(4.5, 3.5, 5, "same direction"), (3.5, 3, 4, "undecided")],
        "a toy": [(1, 1, 1, "reproduced"), (1, 1, 1, "undecided")],
        timed: [(2, 1, 3, "undecided"), (3, 1, 4, "contradicts")],
    }
    both = (
        pd.DataFrame(values, columns=columns).assign(claim_id=list(ledger))
        for values in zip(*ledger.values(), strict=True)
    )
    times = {"block": [0], "update_seconds": [1.0]}
    runs = [run(tmp_path / str(i), osd_update_cost=times, claims=ledger) for i, ledger in enumerate(both)]
    assert compare.verdicts(*map(compare.tables_of, runs)) == [
        "claims: of 4 estimates with an interval, 1 lie in the other run's interval, and 2 intervals overlap",
        "claims: 3 of 5 verdicts differ",
        "claims: 1 from reproduced to undecided",
        "claims: 1 from same direction to undecided",
        "claims: 1 from undecided to contradicts",
    ]
    assert compare.verdicts({}, {}) == []


def test_every_stage_declares_which_columns_are_times():
    columns = [(stage, name, column) for stage in STAGES for name, column in STAGES[stage].all_columns.items()]
    times = [(stage, name, column.timed) for stage, name, column in columns if name.split("_")[-1] in ("seconds", "ms")]
    assert len(times) > 30
    assert [column for column in times if column[2] is not True] == []


def test_a_column_that_follows_from_times_is_measured():
    counts = [compare.is_measured("beyond_interference", name) for name in ("training_steps", "tokens")]
    assert counts == [True, False]
    tables = {"beyond_three_baselines": True, "osd_latency_dataset": False}  # a draft length set by measured costs
    for table, follows in tables.items():
        assert [compare.is_measured(table, name) for name in ("drafted", "seconds")] == [follows, True]
    assert not compare.is_measured("no_such_experiment", "seconds")


def test_no_tables_is_an_error(tmp_path):
    with pytest.raises(UserError, match="no tables here"):
        compare.tables_of(tmp_path)


def test_the_verb_fails_where_tables_differ(tmp_path, monkeypatch, capsys):
    one, two = run(tmp_path / "one", t=ROWS), run(tmp_path / "two", t=ROWS | {"accepted": [3, 5]})
    monkeypatch.setattr("sys.argv", ["draftlab", "compare", str(one), str(one)])
    main()
    assert "the same apart from measured times" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["draftlab", "compare", str(one), str(two)])
    with pytest.raises(SystemExit, match=r"t: accepted: 1 rows differ[\s\S]*tables that differ: 1;"):
        main()
