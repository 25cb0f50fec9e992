"""Exact acceptance on toy distributions and on recorded pairs."""

import dataclasses
import functools
import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import ValidationError

from draftlab.conformance import check_distribution
from draftlab.core import stats
from draftlab.core.sampling import Sampling, restrict_pair, to_probs
from draftlab.core.verify import token_verifier
from draftlab.core.verify.acceptance import by_position, distribution_error
from draftlab.core.verify.joint import joint_distribution
from draftlab.core.verify.rrs import rrs
from draftlab.core.verify.sinkhorn import sinkhorn_verifier
from draftlab.core.verify.specinfer import specinfer
from draftlab.core.verify.token import TokenVerifier
from draftlab.engine import recorded_pairs as recorded
from draftlab.engine.answers import Answer
from draftlab.engine.generate import generate
from draftlab.errors import UserError
from draftlab.models import load_model
from draftlab.models.llama import Llama
from draftlab.stages import acceptance, cone, regime, region, sinkhorn
from draftlab.stages._pairs import RecordedPairs
from draftlab.stages._stage import Bench, NoInputs
from tests.optimum import optimum_by_subsets, optimum_without_replacement
from tests.pair import small_llama
from tests.verify_cases import FIGURE_2


def computed(num_drafts, points):
    return region.run(region.Settings(num_drafts=num_drafts, points=points), NoInputs(), Bench(Path()))[0]


def by_point(rows):
    return rows.pivot_table(index=["num_drafts", "panel", "q2"], columns="scheme", values="acceptance")


@pytest.fixture(scope="module")
def points():
    return computed([2, 3, 4], 31)


@pytest.fixture(scope="module")
def toy(points):
    return by_point(points)


@pytest.fixture(scope="module")
def printed_region():
    """The printed values lie on every 120th of a panel."""
    return by_point(computed([2], 121))


@pytest.mark.parametrize(("panel", "q2", "optimal", "k_seq", "specinfer"), FIGURE_2)
def test_region_has_the_known_values(printed_region, panel, q2, optimal, k_seq, specinfer):
    line = printed_region.loc[(2, panel)]
    for scheme, value in (("optimal", optimal), ("k_seq", k_seq), ("specinfer", specinfer)):
        assert np.interp(q2, line.index, line[scheme]) == pytest.approx(value, abs=2e-5)


def test_region_is_ordered_and_the_program_is_the_optimum_at_every_number_of_drafts(toy):
    assert len(toy) == 3 * 2 * 31
    assert (toy["optimal"] >= toy["k_seq"] - 1e-9).all()
    assert (toy["k_seq"] >= toy["specinfer"] - 1e-9).all()
    assert (toy["specinfer"] >= toy["single"] - 1e-12).all()
    assert ((toy["optimal"] - toy["importance"]).abs() < 1e-6).all()
    more = toy["optimal"].unstack("num_drafts")
    assert (more[3] >= more[2] - 1e-12).all()
    assert (more[4] > more[2] + 0.05).any()


def test_every_scheme_is_lossless_over_the_region_and_one_that_trusts_another_draft_is_not(points):
    assert points.groupby(["scheme", "num_drafts"])["distribution_error"].max().lt(1e-12).sum() == 15
    target = torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64)

    def trusting(target_probs, draft_probs, tokens):
        return specinfer.decide(target_probs, draft_probs.flip(-1), tokens)

    mutant = TokenVerifier("trusting", "independent", trusting)
    draft = torch.tensor([[[0.6, 0.3, 0.1]] * 2], dtype=torch.float64)
    assert distribution_error(mutant, target, draft).item() > 0.1
    assert distribution_error(specinfer, target, draft).item() < 1e-12


def test_the_optimum_on_three_tokens_is_the_smallest_cut(toy):
    for drafts, panel, q2 in itertools.islice(toy.index, 0, None, 5):
        first = {"left": 1 / 3, "right": 1 / 6}[panel]
        target = torch.tensor([first, q2, max(0.0, 1 - first - q2)], dtype=torch.float64)
        joint = joint_distribution(torch.full((drafts, 3), 1 / 3, dtype=torch.float64), "iid")
        assert toy.loc[(drafts, panel, q2), "optimal"] == pytest.approx(optimum_by_subsets(target, joint), abs=1e-12)


@pytest.fixture(scope="module")
def pairs():
    answers = [Answer(str(i), [1, 5 + i], [7, 9, 11, 2], True) for i in range(5)]
    return {"toy": recorded.record(small_llama(32, 0), small_llama(16, 1), answers, 18)}


def settings(**changes):
    values = {
        "datasets": ["toy"],
        "schemes": ["optimal", "importance_truncated", "k_seq", "specinfer", "single"],
        "num_drafts": [2, 4],
        "draft_temperature": [1.0, 2.0],
        "top_k": 100,
    }
    return acceptance.Settings(**(values | changes))


def run(stage, folder, settings, **pairs):
    """The rows of a stage on these pairs, which it reads from the folder."""
    for name, own in pairs.items():
        own.save(folder / f"{name}.safetensors")
    settings = settings.model_copy(update={"datasets": list(pairs)})
    return stage.run(settings, RecordedPairs(pairs=folder), Bench(folder))[0]


def test_recorded_pairs_stop_at_the_number_asked_for_and_are_read_as_written(pairs, tmp_path):
    assert torch.bincount(pairs["toy"].request).tolist() == [4, 4, 4, 4, 2]
    assert pairs["toy"].token.tolist() == [7, 9, 11, 2] * 4 + [7, 9]
    pairs["toy"].save(tmp_path / "toy.safetensors")
    read = recorded.load_all({"toy": tmp_path / "toy.safetensors"}, 5, synthetic_seed=0)
    assert list(read) == ["toy", "synthetic"]
    torch.testing.assert_close(read["toy"].draft_logits, pairs["toy"].draft_logits[:5], rtol=0, atol=0)
    assert read["toy"].is_text
    assert not read["synthetic"].is_text


def test_a_file_that_holds_no_pairs_is_refused(tmp_path):
    (tmp_path / "toy.safetensors").write_bytes(b"no")
    with pytest.raises(UserError, match=r"toy\.safetensors: cannot read recorded pairs"):
        recorded.load_all({"toy": tmp_path / "toy.safetensors"}, 5, synthetic_seed=None)


def test_no_scheme_beats_the_optimum_and_single_does_not_see_more_drafts(pairs, tmp_path):
    rows = run(acceptance, tmp_path, settings(), **pairs)
    sums = rows.groupby(["draft_temperature", "num_drafts", "scheme"])["acceptance_sum"].sum().unstack()
    assert len(sums.columns) == 5
    for scheme in sums.columns:
        assert (sums[scheme] <= sums["optimal"] + 1e-6).all()
    assert (sums["optimal"] > 0).all()
    single = sums["single"].unstack()
    pd.testing.assert_series_equal(single[2], single[4], check_names=False)


def test_a_shortfall_is_what_the_optimum_of_the_same_request_accepts_more():
    keys = {"dataset": "d", "draft_temperature": 1.0, "num_drafts": [2, 2, 4, 4], "request_id": [0, 0, 0, 0]}
    rows = pd.DataFrame(keys | {"scheme": ["optimal", "k_seq"] * 2, "acceptance_sum": [3.0, 2.5, 4.0, 3.0]})
    assert acceptance.derive(rows)["shortfall_sum"].tolist() == [0.0, 0.5, 0.0, 1.0]
    more = pd.concat([rows.assign(top_k=5), rows.assign(top_k=9, acceptance_sum=[2.0, 1.75, 3.0, 2.9])])
    assert acceptance.derive(more)["shortfall_sum"].round(9).tolist() == [0.0, 0.5, 0.0, 1.0, 0.0, 0.25, 0.0, 0.1]


def test_a_path_has_no_shortfall_because_it_visits_other_positions():
    rows = pd.DataFrame(
        {"scheme": ["optimal", "k_seq", "single_path", "block"], "acceptance_sum": [3.0, 2.5, 2.0, 2.2]}
    )
    rows = rows.assign(dataset="d", num_drafts=2, request_id=0, positions=[4.0, 4.0, 3.1, 3.3])
    assert acceptance.derive(rows)["shortfall_sum"].fillna(-1).tolist() == [0.0, 0.5, -1.0, -1.0]


def test_what_is_named_twice_is_measured_once(pairs, tmp_path):
    named = {"schemes": ["optimal", "k_seq", "optimal"], "num_drafts": [2, 2], "draft_temperature": [1, 1.0, 2]}
    rows = run(acceptance, tmp_path, settings(**named), **pairs)
    assert not rows.duplicated(["request_id", "dataset", "scheme", "num_drafts", "draft_temperature"]).any()
    assert (acceptance.derive(rows)["shortfall_sum"] > -1e-9).all()


def test_the_draft_temperature_reaches_the_draft_alone(pairs, tmp_path):
    rows = run(
        acceptance, tmp_path, settings(schemes=["single"], num_drafts=[2], draft_temperature=[0.5, 3.0]), **pairs
    )
    for temperature, own in rows.groupby("draft_temperature"):
        target = to_probs(pairs["toy"].target_logits, Sampling(1.0, 100))
        draft = to_probs(pairs["toy"].draft_logits, Sampling(temperature, 100))
        assert own["acceptance_sum"].sum() == pytest.approx(float(target.minimum(draft).sum()), abs=1e-9)


def test_an_unknown_scheme_is_refused_with_those_that_exist():
    with pytest.raises(UserError, match=r"sequoia.*allowed: .*k_seq"):
        token_verifier("sequoia")
    with pytest.raises(ValidationError, match=r"'k_seq'.*'single_path'"):
        settings(schemes=["sequoia"])


@pytest.mark.parametrize("drafts", [1, 2, 3, 8])
def test_without_replacement_the_enumeration_by_batches_is_that_of_the_verifier(drafts):
    found = recorded.synthetic(1, contexts=12, vocab=40)
    target = to_probs(found.target_logits, Sampling(1.0, 4))
    draft = to_probs(found.draft_logits, Sampling(1.5, 5, 0.9))  # supports of several sizes
    assert (draft > 0).sum(-1).unique().numel() > 1
    exact = by_position(rrs, *restrict_pair(target, draft), drafts)
    for row, (q, p) in enumerate(zip(target, draft, strict=True)):
        count = min(drafts, int((p > 0).sum()))
        support = ((q > 0) | (p > 0)).nonzero()[:, 0]
        known = rrs.acceptance(q[support], p[support].expand(count, -1))
        assert exact.proc[row] == pytest.approx(float(known.proc), abs=1e-12)
        assert exact.member[row] == pytest.approx(float(known.member), abs=1e-12)
        assert exact.member[row] <= optimum_without_replacement(q[support], p[support], count) + 1e-9


def test_too_many_tuples_are_refused():
    found = recorded.synthetic(1, contexts=2, vocab=40)
    distributions = restrict_pair(to_probs(found.target_logits, Sampling()), to_probs(found.draft_logits, Sampling()))
    for name in ("rrs", "importance"):
        with pytest.raises(UserError, match="no exact acceptance at 4 drafts on 40 tokens"):
            by_position(token_verifier(name), *distributions, 4)


def test_a_real_model_with_its_first_layers_as_draft_has_the_published_order_at_top_k_5(shared, tmp_path):
    target = load_model(shared / "models/stories260K/hf")
    assert isinstance(target, Llama)
    layers = target.config.num_hidden_layers - 1
    draft = Llama(dataclasses.replace(target.config, num_hidden_layers=layers))
    kept = {name: value for name, value in target.state_dict().items() if not name.startswith(f"layers.{layers}")}
    draft.load_state_dict(kept)
    sampling, generator = Sampling(1.0, top_k=5), torch.Generator().manual_seed(0)
    texts = generate(target, [[1]] * 24, max_new_tokens=40, eos_ids=[1, 2], sampling=sampling, generator=generator)
    answers = [Answer(str(i), [1], ids, True) for i, ids in enumerate(texts)]
    stories = recorded.record(target, draft, answers, 1000)
    schemes = ["optimal", "importance_truncated", "k_seq", "specinfer"]
    grid = settings(schemes=schemes, num_drafts=[2, 4, 8], draft_temperature=[1.6], top_k=5)
    rows = run(acceptance, tmp_path, grid, stories=stories)
    assert rows["positions"].sum() > 6000
    for drafts, of_size in rows.groupby("num_drafts"):
        sums = of_size.pivot(index="request_id", columns="scheme", values="acceptance_sum")
        share = sums.sum() / of_size.loc[of_size["scheme"] == "optimal", "positions"].sum()
        assert 0.3 < share["specinfer"] < share["optimal"] < 1
        for better, worse in itertools.pairwise(schemes):
            ahead = stats.ratio(sums[better] - sums[worse], np.ones(len(sums)))
            assert ahead.low > 0 or (better == "optimal" and ahead.estimate >= -1e-9), (drafts, better, worse, ahead)


def test_block_verification_keeps_at_least_as_much_along_a_text_and_has_none_without_one(pairs, tmp_path):
    both = pairs | {"synthetic": recorded.synthetic(0, contexts=3, vocab=200)}
    grid = settings(schemes=["block", "single"], num_drafts=[2], draft_temperature=[1.0], top_k=5)
    rows = run(acceptance, tmp_path, grid, **both)
    assert set(rows.loc[rows["scheme"] == "block", "dataset"]) == {"toy"}
    along = functools.partial(acceptance.along_text, pairs["toy"], Sampling(), Sampling())
    whole, token = along(4, "block"), along(4, "single")
    assert whole["acceptance_sum"].sum() > token["acceptance_sum"].sum() > 0
    # With paths of one token both are the same.
    pd.testing.assert_frame_equal(along(1, "block"), along(1, "single"))


@pytest.mark.parametrize("changes", [{"top_k": 0}, {"target_temperature": 2.0}, {"top_p": 0.9}])
def test_a_path_is_refused_unless_the_target_wrote_the_texts_so(changes):
    """Tokens accepted along texts of another distribution say nothing about the acceptance under this one."""
    assert Sampling(*acceptance.WRITTEN.values()) == recorded.SAMPLING
    settings(schemes=["single"], **changes)
    with pytest.raises(ValidationError, match="block is verified along the recorded texts, which were written at"):
        settings(**{"schemes": ["block"], "top_k": 5} | changes)


def test_a_sum_with_an_unknown_member_is_unknown(tmp_path):
    """Where importance sampling is chosen, the hybrid has no closed form of the member acceptance."""
    found = recorded.synthetic(0, contexts=40, vocab=30)
    whole = dataclasses.replace(found, request=torch.arange(40) // 20)
    rows = run(acceptance, tmp_path, settings(schemes=["hybrid", "k_seq"], num_drafts=[2], top_k=5), text=whole)
    member = rows.set_index("scheme")["member_sum"]
    assert member["hybrid"].isna().all()
    assert (member["k_seq"] > 0).all()


def test_the_synthetic_family_has_the_regimes_of_the_reference():
    """At equal temperature the small program loses to K-SEQ, on hotter drafts it wins."""
    found = recorded.synthetic(0)
    means = {}
    for temperature in (1.0, 1.6):
        distributions = restrict_pair(
            to_probs(found.target_logits, Sampling(1.0, None, 0.95)),
            to_probs(found.draft_logits, Sampling(temperature, None, 0.95)),
        )
        for name in ("specinfer", "k_seq", "importance_truncated", "optimal"):
            means[name, temperature] = float(by_position(token_verifier(name), *distributions, 2).proc.mean())
    assert means["importance_truncated", 1.0] < means["k_seq", 1.0] - 0.01
    assert means["importance_truncated", 1.6] > means["k_seq", 1.6] + 0.01
    for temperature in (1.0, 1.6):
        assert means["optimal", temperature] >= means["importance_truncated", temperature]
        assert means["k_seq", temperature] > means["specinfer", temperature]


def test_the_cone_has_no_facets_but_the_expected_ones_and_the_formula_is_the_program():
    settings = cone.Settings(num_tokens=[2, 3, 4], num_drafts=[2, 3], cases=6)
    rows, _ = cone.run(settings, NoInputs(), Bench(Path()))
    assert (rows["other"] == 0).all()
    assert (rows["subsets"] == rows["expected_subsets"]).all()
    assert rows["largest_difference"].max() < 1e-6
    three = rows[(rows["num_tokens"] == 3) & (rows["num_drafts"] == 3)].iloc[0]
    assert (three["dimension"], three["rays"], three["nonnegative"], three["subsets"]) == (10, 12, 7, 6)
    lines = three["inequalities"].split("; ")
    assert len(lines) == 13
    assert {"m123 >= 0", "q1 >= m1", "q1 + q2 >= m1 + m2 + m12"} <= set(lines)


def test_the_difference_sees_a_wrong_formula(monkeypatch):
    monkeypatch.setattr("draftlab.core.verify.optimum.optimum_iid", lambda q, p, k: q.minimum(p).sum(-1))
    assert cone.largest_difference(3, 2, 6, 0) > 0.01


def test_regime_sums_to_the_acceptance_of_all_positions_and_the_hybrid_takes_the_better(pairs, tmp_path):
    both = pairs | {"synthetic": recorded.synthetic(0, contexts=20, vocab=60)}
    grid = regime.Settings(num_drafts=2, target_temperature=[0.7, 1.0], draft_temperature=[1.0, 1.6], top_p=0.95)
    rows = run(regime, tmp_path, grid, **both)
    assert rows["entropy_class"].nunique() > 2
    whole = rows.groupby(["dataset", "target_temperature", "draft_temperature"])[["positions", *regime.SCHEMES]].sum()
    assert set(whole["positions"]) == {18, 20}
    one = settings(schemes=["hybrid", "k_seq"], num_drafts=[2], draft_temperature=[1.6], top_k=0, top_p=0.95)
    direct = run(acceptance, tmp_path, one, **both)
    direct = direct.groupby(["dataset", "scheme"])["acceptance_sum"].sum()
    for dataset, scheme in direct.index:
        assert whole.loc[(dataset, 1.0, 1.6), scheme] == pytest.approx(direct[dataset, scheme], abs=1e-9)
    assert (whole["hybrid"] >= whole[["importance_truncated", "k_seq"]].max(axis=1) - 1e-9).all()
    assert (whole["hybrid"] <= whole["optimal"] + 1e-6).all()
    classes = rows["entropy_class"].mul(rows["positions"]).groupby(rows["target_temperature"]).sum()
    assert classes[0.7] < classes[1.0], "a colder target has less entropy"
    derived = regime.derive(rows)
    np.testing.assert_allclose(derived["over_k_seq"], derived["importance_truncated"] - derived["k_seq"])


@pytest.mark.parametrize("name", ["num_tokens", "num_drafts"])
def test_the_cone_of_a_single_draft_or_token_is_refused(name):
    """It has other facets than Theorem 2 names, because its two parts are equal."""
    sizes = {"num_tokens": [2], "num_drafts": [2], "cases": 1}
    assert cone.Settings(**sizes)
    with pytest.raises(ValidationError, match="greater than or equal to 2"):
        cone.Settings(**sizes | {name: [1, 2]})


@pytest.mark.parametrize("drafting", ["iid", "independent"])
@pytest.mark.parametrize(("iterations", "drafts"), [(0, 2), (3, 2), (3, 3), (40, 2)])
def test_sinkhorn_is_lossless_after_any_number_of_iterations(iterations, drafts, drafting):
    found = check_distribution(sinkhorn_verifier(iterations, 8.0).distribution, drafting, drafts)
    assert found.cases > 100
    assert found.lossless, found


def test_sinkhorn_refuses_more_tuples_than_it_can_hold():
    target = torch.full((1, 300), 1 / 300, dtype=torch.float64)
    with pytest.raises(UserError, match=r"300 tokens and 3 drafts make 27000000 tuples .*lower top_k"):
        sinkhorn_verifier(3, 8.0).closed_form(target, target[:, None].expand(-1, 3, -1))


def test_the_time_of_sinkhorn_is_that_of_all_threads(tmp_path, monkeypatch):
    """Torch shares its work among several threads; the clock of one would miss the others."""
    ticks = itertools.count()
    monkeypatch.setattr(sinkhorn.time, "process_time", lambda: float(next(ticks)))
    family = recorded.synthetic(1, contexts=7, vocab=12)
    grid = sinkhorn.Settings(
        num_drafts=[2], draft_temperature=[1.0], iterations=[1], sharpness=[4.0], rounds=2, top_k=5
    )
    rows = run(sinkhorn, tmp_path, grid, family=family)
    assert (rows.groupby("scheme")["seconds"].sum().round(9) == 1.0).all()


def test_sinkhorn_comes_to_the_optimum_with_iterations_and_sharpness(tmp_path):
    family = recorded.synthetic(2, contexts=30, vocab=60)
    grid = sinkhorn.Settings(
        num_drafts=[2], draft_temperature=[1.3], iterations=[0, 3, 200], sharpness=[2.0, 12.0], rounds=1, top_k=5
    )
    rows = run(sinkhorn, tmp_path, grid, family=family)
    sums = rows.groupby(["scheme", "sharpness", "iterations"])["acceptance_sum"].sum() / 30
    steps = [sums["sinkhorn", 12.0, count] for count in (0, 3, 200)]
    assert steps == sorted(steps)
    assert sums["optimal", 0.0, 0] - 1e-4 < steps[-1] <= sums["optimal", 0.0, 0] + 1e-9
    assert sums["sinkhorn", 2.0, 200] < steps[-1] - 1e-4
    assert (rows["seconds"] > 0).all()
