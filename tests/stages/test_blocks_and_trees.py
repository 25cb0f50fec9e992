"""Replay of several drafts as stages: what is decoded live among it, what selection costs, shapes of trees, token rates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from draftlab import plan
from draftlab.core.settings import Settings
from draftlab.data.prompts import Prompt
from draftlab.engine import held_out
from draftlab.engine.settings import Answers
from draftlab.errors import UserError
from draftlab.files.checkout import WORKFLOW
from draftlab.files.json_files import write_jsonl
from draftlab.models import load_pair
from draftlab.models.tokenizer import train_tokenizer
from draftlab.serving.profiles import load
from draftlab.stages import _batches, blocks, live, token_rate, trees
from draftlab.stages._stage import Bench
from tests.engine.test_speculate import make, near

COMMON = {"draft_len": 2, "top_k": [5], "requests": 6, "batch": 3, "max_new_tokens": 12, "past_end": True}


def pair_with_prompts(folder: Path, count: int, *more: Prompt) -> live.Inputs:
    """A toy pair, and prompts for it."""
    tokenizer = train_tokenizer([f"word {i} of the text" for i in range(200)], 300)
    target = make(1, vocab=tokenizer.vocab_size)
    prompts = [Prompt(str(i), "toy", "eval", f"word {i}", f"text {i}") for i in range(count)]
    write_jsonl(folder / "eval.jsonl", [*prompts, *more])
    for name, model in {"target": target, "draft": near(target, 0.1)}.items():
        model.save(folder / name)
        tokenizer.save(folder / name)
    return live.Inputs(
        target=folder / "target", draft=folder / "draft", prompts={"toy": folder / "eval.jsonl"},
        answers=Answers(max_new_tokens=12, template="plain"),
    )  # fmt: skip


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> live.Inputs:
    return pair_with_prompts(tmp_path_factory.mktemp("pair"), 6)


def run(inputs: live.Inputs, **changes: object) -> pd.DataFrame:
    settings = blocks.Settings(**(COMMON | {"num_drafts": [2, 3], "draft_temperature": [1.2]} | changes))  # type: ignore[arg-type]
    return blocks.run(settings, inputs, Bench(Path()))[0]


@pytest.fixture(scope="module")
def table(inputs: live.Inputs) -> pd.DataFrame:
    return run(inputs, schemes=["k_seq", "optimal_block", "traversal"], timed=2, ceiling=True)


def test_a_prompt_must_fit_the_draft_too(inputs: live.Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    target, _, tokenizer = load_pair(inputs.target, inputs.draft)
    monkeypatch.setattr(held_out, "load_pair", lambda *_: (target, SimpleNamespace(context_length=12), tokenizer))
    with pytest.raises(UserError, match="no prompt fits the pair's context"):
        held_out.open_work(inputs.target, inputs.draft, inputs.answers, inputs.prompts, requests=6, size=3, after=12)


def test_what_is_asked_beside_leaves_the_rest_as_it_is(inputs: live.Inputs, table: pd.DataFrame) -> None:
    alone = run(inputs, schemes=["k_seq"])
    pd.testing.assert_frame_equal(table[table["scheme"] == "k_seq"][alone.columns].reset_index(drop=True), alone)


def test_a_verifier_without_replay_decodes_the_same_requests_to_their_whole_length(table: pd.DataFrame) -> None:
    found = table[table["scheme"] == "traversal"]
    assert len(found) == 12
    assert (found["emitted"] == 12).all()
    assert (found["blocks"] == found["blocks"].round()).all()
    assert (found["accepted"] <= found["judged"]).all()
    assert found["accepted"].sum() > 0
    assert (found["all_blocks"] == found["blocks"]).all()


def test_two_requests_of_each_batch_are_timed(table: pd.DataFrame) -> None:
    drafted = table[table["scheme"] != "ceiling"]
    assert set(drafted.loc[drafted["timed_blocks"].notna(), "request_id"]) == {0, 1, 3, 4}
    timed = drafted[drafted["timed_blocks"].notna()]
    assert (timed[["draft_seconds", "target_seconds", "transform_seconds", "select_seconds"]] > 0).all(axis=None)
    assert (timed["timed_emitted"] == 12).all()
    assert table.loc[table["scheme"] == "ceiling", "timed_blocks"].isna().all()


def test_the_ceiling_has_the_blocks_of_optimal_block_and_its_own_tokens(table: pd.DataFrame) -> None:
    keys = ["dataset", "request_id", "num_drafts"]
    best, most = (table[table["scheme"] == name].set_index(keys) for name in ("optimal_block", "ceiling"))
    np.testing.assert_allclose(best["blocks"], most["blocks"])
    assert (most["emitted"] > most["blocks"]).all()
    assert (most["emitted"] < 3 * most["blocks"]).all()


def test_quantities_are_the_measures_in_rows(table: pd.DataFrame) -> None:
    found = blocks.quantities(table)
    own = (
        found[(found["scheme"] == "traversal") & (found["num_drafts"] == 3)]
        .groupby("quantity")[["above", "below"]]
        .sum()
    )
    rows = table[(table["scheme"] == "traversal") & (table["num_drafts"] == 3)]
    ratio = own["above"] / own["below"]
    assert ratio["tokens per call"] == pytest.approx(rows["emitted"].sum() / rows["blocks"].sum())
    assert ratio["acceptance"] == pytest.approx(rows["accepted"].sum() / rows["judged"].sum())
    assert ratio["selection, ms"] == pytest.approx(1000 * rows["select_seconds"].sum() / rows["timed_blocks"].sum())
    assert set(found.loc[found["scheme"] == "ceiling", "quantity"]) == {"tokens per call"}


def test_a_log_counts_the_contenders_of_each_batch(inputs: live.Inputs, capsys: pytest.CaptureFixture[str]) -> None:
    """Two numbers of drafts for each scheme, and their ceilings; the batches are counted too."""
    run(inputs, schemes=["optimal_block", "traversal"], ceiling=True)
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(",")[0] for line in said] == ["toy contenders: 6 of 6"] * 2 + ["batches: 2 of 2"]


def test_without_timed_requests_no_quantity_is_a_time(inputs: live.Inputs) -> None:
    found = blocks.quantities(run(inputs, schemes=["k_seq"]))
    assert set(found["quantity"]) == {"acceptance", "tokens per call"}


def test_depths_are_for_what_is_replayed(inputs: live.Inputs) -> None:
    for changes in ({"timed": 1}, {"ceiling": True}):
        with pytest.raises(ValueError, match="by_depth cannot be combined with timed or ceiling"):
            run(inputs, schemes=["k_seq"], by_depth=True, **changes)
    with pytest.raises(UserError, match="traversal is decoded live"):
        run(inputs, schemes=["traversal"], by_depth=True)


def test_shapes_of_trees(inputs: live.Inputs) -> None:
    common = COMMON | {"draft_len": 3, "top_k": 5}
    settings = trees.Settings(**(common | {"nodes": [6, 9], "width": 4, "draft_temperature": 1.2}))  # type: ignore[arg-type]
    rows = trees.run(settings, inputs, Bench(Path()))[0]
    assert set(rows["shape"]) == {
        "sequences", "without replacement", "delayed", "top_k", "sequoia", "confidence", "oracle", "ceiling",
    }  # fmt: skip
    assert len(rows) == 6 * 2 * 8
    sums = rows.groupby(["nodes", "shape"])[["emitted", "blocks"]].sum()
    rate = sums["emitted"] / sums["blocks"]
    for nodes in (6, 9):
        assert rate[nodes, "sequences"] < rate[nodes, "ceiling"]
        assert rate[nodes, "confidence"] < rate[nodes, "oracle"]
        assert rate[nodes, "top_k"] <= rate[nodes, "sequoia"] + 0.1
    assert (rate[9] > rate[6] - 0.05).all()  # the ceiling is an estimate
    several = run(inputs, schemes=["optimal"], num_drafts=[2], draft_len=3)
    kept = rows[(rows["shape"] == "sequences") & (rows["nodes"] == 6)]
    np.testing.assert_allclose(kept["blocks"].to_numpy(), several["blocks"].to_numpy())
    alone = trees.run(settings.model_copy(update={"shapes": ["delayed", "oracle"]}), inputs, Bench(Path()))[0]
    chosen = rows[rows["shape"].isin(["delayed", "oracle"])].reset_index(drop=True)
    pd.testing.assert_frame_equal(alone, chosen)
    assert trees.Settings(**(common | {"nodes": [9, 9], "shapes": ["delayed"] * 2})).nodes == [9]  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="7 nodes are not a whole number"):
        trees.Settings(**(common | {"nodes": [7]}))  # type: ignore[arg-type]


def test_token_rates_are_emitted_over_what_the_blocks_cost(table: pd.DataFrame, tmp_path: Path) -> None:
    table.to_csv(tmp_path / "verifiers.csv", index=False)
    pd.DataFrame(
        {"num_drafts": [2, 3, 3], "plain_seconds": [0.5, 0.5, 0.5], "branches_seconds": [0.6, 0.7, 0.9]}
    ).to_csv(tmp_path / "branches.csv", index=False)
    pd.DataFrame({"draft_probe_seconds": [0.3, 0.1], "draft_probes": [3, 1]}).to_csv(
        tmp_path / "drafting.csv", index=False
    )
    names = ("verifiers", "branches", "drafting")
    files = token_rate.Inputs(**{name: tmp_path / f"{name}.csv" for name in names})
    rows = token_rate.run(token_rate.Settings(profiles=["a100-llama-3-8b"], context=100), files, Bench(tmp_path))[0]
    own = table[(table["scheme"] == "k_seq") & (table["num_drafts"] == 3)]
    select = (own["select_seconds"].sum() + own["transform_seconds"].sum()) / own["timed_blocks"].sum()
    target = load("a100-llama-3-8b").target
    step, verify = (target.step(tokens, tokens, 1, 100) / 1000 for tokens in (1, 7))
    for pair, call, plain in (
        ("inflated", 2 * 0.1 + 0.8 + select, 0.5),
        ("a100-llama-3-8b", 2 * 0.01 * step + verify + select, step),
    ):
        found = rows[(rows["pair"] == pair) & (rows["scheme"] == "k_seq") & (rows["num_drafts"] == 3)]
        assert found["seconds"].sum() == pytest.approx(call * own["blocks"].sum())
        assert found["plain_seconds"].sum() == pytest.approx(plain * own["emitted"].sum())
    ours = rows[(rows["pair"] == "ours") & (rows["scheme"] == "k_seq") & (rows["num_drafts"] == 3)]
    sides = {kind: part["emitted"].sum() / part["seconds"].sum() for kind, part in ours.groupby("kind")}
    parts = own[live.PARTS].sum().sum()
    assert sides["live"] == pytest.approx(own["timed_emitted"].sum() / parts)
    assert sides["projected"] == pytest.approx(
        own["emitted"].sum() / own["blocks"].sum() * own["timed_blocks"].sum() / parts
    )
    assert "ceiling" not in set(rows["scheme"])


def test_blocks_are_drafted_by_the_draft_that_another_experiment_distilled() -> None:
    run = plan.load_run({"scale": "smollm2", "experiments": "mdss_drafts"}, WORKFLOW)
    cell = "results/smollm2/cells/osd_offline/gsm8k"
    (inputs,) = (run.inputs("mdss_drafts", name) for name in run.cells("mdss_drafts"))
    assert inputs.draft == Path(f"{cell}/draft")
    assert f"{cell}/rows.csv" in map(str, run.reads("mdss_drafts", "all")), "its table, beside which the draft lies"
    run = plan.load_run({"scale": "smollm2", "experiments": "mdss_acceptance"}, WORKFLOW)
    pairs = [f"results/smollm2/main/pairs/{name}.distilled.safetensors" for name in ("gsm8k", "spider")]
    assert run.reads("mdss_acceptance", "all") == pairs


DRAFTED = {name: value for name, value in COMMON.items() if name != "past_end"}
DRAFTED |= {"num_drafts": [2], "draft_temperature": [1.2]}


@pytest.mark.parametrize(
    ("stage", "settings"),
    [
        (blocks, blocks.Settings(**DRAFTED, schemes=["k_seq", "traversal"])),  # type: ignore[arg-type]
        (trees, trees.Settings(**COMMON | {"nodes": [4], "top_k": 5})),  # type: ignore[arg-type]
        (live, live.Settings(**DRAFTED, schemes=["plain", "k_seq"])),  # type: ignore[arg-type]
    ],
)
def test_a_killed_job_goes_on_after_its_last_batch(
    stage: ModuleType, settings: Settings, inputs: live.Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(batches: Iterable[object], label: str) -> Iterator[object]:
        yield next(iter(batches))
        raise KeyboardInterrupt

    whole = stage.run(settings, inputs, Bench(tmp_path))[0]
    bench = Bench(tmp_path, parts=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(_batches, "progress", killed)
        with pytest.raises(KeyboardInterrupt):
            stage.run(settings, inputs, bench)
    (first,) = tmp_path.glob("*.parquet")
    written = first.stat().st_mtime_ns
    rows = stage.run(settings, inputs, bench)[0]
    assert first.stat().st_mtime_ns == written
    counted = [name for name in whole if not name.endswith("seconds")]
    pd.testing.assert_frame_equal(rows[counted], whole[counted])


OURS = """\
import dataclasses
from draftlab.core.verify import k_seq, traversal
bare = dataclasses.replace(k_seq, closed_form=None, survivors=None)
whole, tree = k_seq, traversal
"""


def test_a_verifier_of_one_s_own_without_a_formula_is_decoded_live(
    inputs: live.Inputs, table: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its drafts may be too many to enumerate, as here."""
    (tmp_path / "blocks_ours.py").write_text(OURS)
    monkeypatch.chdir(tmp_path)
    own = [f"blocks_ours.py:{name}" for name in ("whole", "bare", "tree", "bare+block")]
    rows = run(inputs, schemes=own, top_k=[0])
    assert set(rows["scheme"]) == {*own}
    assert (rows.loc[rows["scheme"] != own[0], "blocks"] % 1 == 0).all(), "counted live"
    assert (rows.loc[rows["scheme"] == own[0], "blocks"] % 1 != 0).any(), "expected counts"
    counted = run(inputs, schemes=[own[0]], timed=2, ceiling=True)
    known = table[table["scheme"] == "k_seq"]
    np.testing.assert_allclose(counted["blocks"], known["blocks"], err_msg="a built-in verifier under another name")
