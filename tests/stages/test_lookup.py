"""The stage of prompt lookup: its counts are those of replay, its rules are tuned on the stream, costs are the model's."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from draftlab.engine.length_rules import RULES, schedule
from draftlab.engine.recording import load_pass
from draftlab.engine.replay import replay
from draftlab.engine.replay_lengths import BlockCounts, cut, draft_everywhere, while_at_least
from draftlab.engine.replay_suffixes import continue_everywhere, first_or_else
from draftlab.files.json_files import write_json
from draftlab.models import load_model
from draftlab.models.lookup import Lookup
from draftlab.stages import lookup
from draftlab.stages._stage import Bench


def inputs(results, distilled="draft"):
    models, answers = results / "models", results / "answers"
    drafts = {"before": models / "draft", "distilled": models / distilled}
    return lookup.Inputs(drafts=drafts, train=answers / "toy.train", held_out=answers / "toy.eval")


def test_every_draft_by_every_rule(results):
    settings = lookup.Settings(dataset="toy", depth=4, tuning=20)
    rows, facts = lookup.run(settings, inputs(results, "target"), Bench(Path()))
    assert set(rows["contender"]) == {"lookup", "before", "distilled", "lookup_first"} == set(facts)
    held_out, model = load_pass(results / "answers/toy.eval"), load_model(results / "models/draft")
    for name, draft in {"before": model, "lookup": Lookup(model)}.items():
        fixed = rows.query(f"contender == '{name}' and rule == 'fixed' and draft_len == 3")
        assert fixed["blocks"].tolist() == replay(draft, held_out, 3).blocks.tolist()
    itself = rows[rows["contender"] == "distilled"]
    assert facts["distilled"]["tuned"] >= 3, "the target drafts for itself"
    sums = itself.groupby("rule")[["blocks", "accepted", "drafted", "emitted", "cost", "steps"]].sum()
    assert sums.loc["oracle", "accepted"] == sums.loc["oracle", "drafted"]
    longest = itself[(itself["rule"] == "fixed") & (itself["draft_len"] == 4)][["blocks", "drafted"]].sum()
    assert longest["blocks"] == sums.loc["oracle", "blocks"]
    assert longest["drafted"] > sums.loc["oracle", "drafted"]
    expected = sums["blocks"] + 0.15 * sums["drafted"] + 0.05 * sums["steps"]
    assert sums["cost"].to_dict() == pytest.approx(expected.to_dict())
    alone = rows[rows["contender"] == "lookup"]
    assert (alone.loc[alone["rule"] != "oracle", "steps"] == 0).all()
    least = facts["before"]["confident"]
    assert (rows.query("contender == 'before' and rule == 'confident'")["threshold"] == least).all()


def test_every_rule_is_tuned_on_the_stream(results):
    # A token more costs much, so that it matters where a block ends.
    settings = lookup.Settings(dataset="toy", depth=4, tuning=20, length_rules=lookup.EVERY, verify_cost=[0.3])
    rows, facts = lookup.run(settings, inputs(results), Bench(Path()))
    stream, held_out = (load_pass(results / f"answers/toy.{split}") for split in ("train", "eval"))
    model = load_model(results / "models/draft")
    tuning, measured = (draft_everywhere(model, passed, 4) for passed in (stream.take(range(20)), held_out))
    for rule, score in RULES.items():
        least = facts["distilled"][rule]
        speeds = [
            lookup.speed(cut(tuning, while_at_least(score(tuning, tuning), threshold), asks=True), settings)
            for threshold in lookup.THRESHOLDS
        ]
        assert speeds[lookup.THRESHOLDS.index(least)] == max(speeds)
        expected = cut(measured, while_at_least(score(tuning, measured), least), asks=True)
        own = rows[(rows["contender"] == "distilled") & (rows["rule"] == rule)]
        assert own["blocks"].tolist() == expected.blocks.tolist()
        assert own["steps"].tolist() == expected.steps.tolist()
        assert (own["threshold"] == least).all()
    scheduled = rows[(rows["contender"] == "distilled") & (rows["rule"] == "schedule")]
    assert scheduled["drafted"].tolist() == cut(measured, schedule(4, 4)).drafted.tolist()
    alone = rows[(rows["contender"] == "lookup") & (rows["rule"] != "oracle")]
    assert (alone["steps"] == 0).all(), "lookup takes no steps of a model"
    assert set(alone["rule"]) == {"fixed", "tuned", *RULES}


def test_a_rule_and_its_threshold_come_from_the_stream_alone(results, monkeypatch):
    stream = sum(load_pass(results / "answers/toy.train").lengths[:5])
    held_out = sum(load_pass(results / "answers/toy.eval").lengths)
    seen = []

    def known(passed, drafted):
        """High where a token is accepted; elsewhere low along the stream, and middling along the held-out answers."""
        seen.append((sum(passed.lengths), sum(drafted.lengths)))
        other = 0.1 if sum(drafted.lengths) == stream else 0.5
        return np.where(np.arange(drafted.depth) < drafted.accepted[:, None], 0.9, other)

    monkeypatch.setitem(RULES, "confident", known)
    _, facts = lookup.run(lookup.Settings(dataset="toy", depth=2, tuning=5), inputs(results), Bench(Path()))
    assert set(seen) == {(stream, stream), (stream, held_out)}
    assert facts["distilled"]["confident"] == 0.15, "the least that separates them along the stream"


def test_suffix_decoding_remembers_the_answers_of_the_stream(results):
    settings = lookup.Settings(
        dataset="toy", depth=3, tuning=20, suffixes=True, remembers=[5, 99], length_rules=["joint"]
    )
    rows, facts = lookup.run(settings, inputs(results), Bench(Path()))
    stream, held_out = (load_pass(results / f"answers/toy.{split}") for split in ("train", "eval"))
    tuning, measured = (continue_everywhere(passed, stream.answers, 3) for passed in (stream.take(range(20)), held_out))
    model = draft_everywhere(load_model(results / "models/draft"), held_out, 3)
    takes = measured.found[:, 0] & (measured.confidence[:, 0] >= 0.5)
    joined = first_or_else(measured, model, takes)
    assert 0 < takes.sum() < len(takes)

    def blocks(contender, rule, draft_len=3):
        own = rows.query(f"contender == '{contender}' and rule == '{rule}' and draft_len == {draft_len}")
        return own["blocks"].tolist(), own["drafted"].tolist(), own["steps"].tolist()

    def counted(found):
        return found.blocks.tolist(), found.drafted.tolist(), found.steps.tolist()

    for length in (1, 3):
        alone = np.minimum(measured.fixed(length), measured.without_model())
        assert blocks("suffix", "fixed", length) == counted(cut(measured, alone))
        assert blocks("suffix_first", "fixed", length) == counted(cut(joined, joined.fixed(length)))
    least = facts["suffix_first"]["joint"]
    assert blocks("suffix_first", "joint") == counted(
        cut(joined, while_at_least(joined.confidence.cumprod(1), least), asks=True)
    )
    assert (rows.loc[rows["contender"] == "suffix", "steps"] == 0).all()
    speeds = [
        lookup.speed(cut(tuning, np.minimum(tuning.fixed(k), tuning.without_model())), settings) for k in (1, 2, 3)
    ]
    assert speeds[facts["suffix"]["tuned"] - 1] == max(speeds), "tuned on answers that do not remember themselves"
    few = continue_everywhere(held_out, stream.answers[:5], 3)
    part = rows[(rows["contender"] == "suffix_part") & (rows["draft_len"] == 3)]
    assert part["blocks"].tolist() == cut(few, few.without_model()).blocks.tolist()
    assert part["answers"].unique().tolist() == [5], "the stream has fewer than 99"
    known = rows.groupby("contender")["answers"].first()
    learnt = ["distilled", "lookup_first", "suffix", "suffix_first"]
    assert (known[learnt] == len(stream.answers)).all()
    assert (known[["lookup", "before"]] == 0).all()
    fewer = settings.model_copy(update={"suffixes": False, "remembers": []})
    without, _ = lookup.run(fewer, inputs(results), Bench(Path()))
    same = rows[~rows["contender"].str.startswith("suffix")].reset_index(drop=True)
    assert same.equals(without)


def test_a_call_costs_what_was_measured_for_its_tokens():
    calls = np.array([[3, 0, 0, 0, 0], [0, 1, 2, 0, 1]])
    zero = np.zeros(2, dtype=np.int64)
    blocks = BlockCounts(calls, zero, zero, np.array([0, 10]), zero, zero, zero)
    settings = lookup.Settings(dataset="toy", cost_ratio=0.1, verify_cost=[0.6, 0.7])
    assert lookup.cost(blocks, settings) == pytest.approx([3, 1.6 + 2 * 1.7 + 1.9 + 1])
    assert lookup.cost(blocks, lookup.Settings(dataset="toy", cost_ratio=0)) == pytest.approx([3, 4 + 9 * 0.15])


def test_a_draft_that_was_distilled_on_a_part_of_the_stream_has_not_learnt_the_rest(results, tmp_path):
    """``osd_offline`` may have learnt from its first requests alone; suffix decoding remembers all."""
    shutil.copytree(results / "models/draft", tmp_path / "draft")
    settings = lookup.Settings(dataset="toy", depth=2, tuning=5, suffixes=True)
    places = inputs(results)
    places = places.model_copy(update={"drafts": places.drafts | {"distilled": tmp_path / "draft"}})
    for requests, learnt in ((None, 48), (30, 30), (0, 48), (99, 48)):
        if requests is not None:
            write_json(tmp_path / "run.json", {"settings": {"requests": requests}})
        rows, _ = lookup.run(settings, places, Bench(tmp_path))
        known = rows.groupby("contender")["answers"].first()
        assert known.to_dict() == {
            "lookup": 0, "before": 0, "distilled": learnt, "lookup_first": learnt, "suffix": 48, "suffix_first": 48,
        }  # fmt: skip
