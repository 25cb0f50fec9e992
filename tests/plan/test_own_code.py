"""Code in a file of the user's own, named in a YAML file: checked before any job, run where it is named, and part of what reruns a job."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from draftlab import plan
from draftlab.conformance.command import verify_lossless
from draftlab.core.verify import any_verifier, k_seq, single, tail_of, token_verifier
from draftlab.data import check as data_check
from draftlab.data import splits
from draftlab.data.registry import find
from draftlab.data.sources import RawFiles
from draftlab.engine.length_rules import scores_of
from draftlab.engine.recording import load_pass
from draftlab.engine.replay_lengths import draft_everywhere, proposed_everywhere
from draftlab.errors import UserError
from draftlab.files import registries
from draftlab.files.json_files import read_object
from draftlab.models import load_model
from draftlab.models.lookup import Lookup
from draftlab.models.ngrams import Ngrams
from draftlab.report import tidy
from draftlab.report.figures import style
from draftlab.stages import STAGES, _cell, lookup
from draftlab.stages._stage import Variant
from draftlab.train.learning import losses_at, samples_of
from tests.plan.test_experiments import FIXED, write
from tests.stages.test_lookup import inputs

OURS = '''\
"""Ideas."""
import dataclasses

import numpy as np
import torch
from beside import SCALE
from draftlab.core import verify
from draftlab.core.verify import k_seq, single, traversal
from draftlab.data.fields import BadRow, Cleaned
from draftlab.models.ngrams import Ngrams


def loss(draft_logits, target_logits):
    return SCALE * (draft_logits - target_logits).square().sum(-1)


def source(scene, requests, generator):
    return len(requests)


def rule(stream, drafted):
    return np.ones(drafted.confidence.shape) / SCALE


def draft(text, most):
    known, found = Ngrams(text), []
    while len(found) < most and (token := known.guess) is not None:
        found.append(token)
        known.append(token)
    return found


def clean(row):
    if not row["asked"]:
        raise BadRow("nothing asked")
    return Cleaned(row["asked"], row["said"])


def greedy(target_probs, draft_probs, tokens):
    right = single.decide(target_probs, draft_probs, tokens)
    return dataclasses.replace(right, accept=torch.ones_like(right.accept) / tokens.shape[1])


path = verify.path.PathVerifier("path", verify.block.decide)
mine = dataclasses.replace(k_seq, closed_form=None, survivors=None)
tree = traversal
token = verify.TokenVerifier("token", "independent", single.decide)
lossy = dataclasses.replace(single, decide=greedy)
honest = dataclasses.replace(lossy, is_lossless=False)
lossy_path = dataclasses.replace(path, is_lossless=False)
lossy_tree = dataclasses.replace(verify.greedy_block, is_lossless=False)
number = 3
'''


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with ideas."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    monkeypatch.setattr("sys.path", [*sys.path])
    (tmp_path / "ours.py").write_text(OURS)
    (tmp_path / "beside.py").write_text("SCALE = 2.0\n")
    return tmp_path


def run_with(experiments: dict[str, object], **more: object) -> plan.Run:
    Path("mine.yaml").write_text(yaml.safe_dump({"experiments": experiments, **more}))
    return plan.load_run({"scale": "smoke", "sizes": "mine.yaml", "experiments": ",".join(experiments)}, plan.WORKFLOW)


def acceptance(*schemes: str, **fixed: object) -> dict[str, object]:
    return {"mdss_topk": {"fixed": {"schemes": list(schemes), **fixed}}}


def schemes_of(experiment: str) -> list[str]:
    (first, *_) = plan.load_experiment(plan.WORKFLOW / f"experiments/{experiment}.yaml").cells("smoke").values()
    return list(first[0].settings.schemes)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("none.py:loss", r"^mine.yaml:\d+: loss: no such file: none.py \(give its path from /"),
        ("ours.py:los", r"^mine.yaml:\d+: loss: ours.py: no los in it \(it has .*loss, "),
        ("ours.py:source", r"^mine.yaml:\d+: loss: ours.py:17: source cannot be called with \(draft_logits, target_"),
        ("ours.py:clean", r"loss: ours.py:\d+: clean cannot be called with \(draft_logits, target_logits\) \(give it"),
        ("broken.py:loss", r"^mine.yaml:\d+: loss: broken.py:2: no Python: .* \(repair it\)"),
        ("model/ours.py:loss", r"loss: model/ours.py: in the folder of a model, whose own code is never run \(copy"),
        ("ours:loss", r"loss: Input should be 'none', .*'jeffreys_0.9' or FILE.py:OBJECT, not 'ours:loss'"),
    ],
)
def test_what_cannot_be_used_is_refused_before_any_job(loss: str, message: str) -> None:
    Path("broken.py").write_text("x = 1\ndef loss(:\n")
    Path("model").mkdir()
    for name in ("config.json", "model.safetensors", "ours.py"):
        Path("model", name).write_text(OURS)
    with pytest.raises(UserError, match=message):
        run_with({"beyond_divergences": {"fixed": {"inner": {"loss": [loss], "seed": [0]}}}})


def test_names_in_every_place_are_checked() -> None:
    for name, fixed in {
        "beyond_length_rules": {"length_rules": ["ours.py:no"]},
        "beyond_lookup": {"drafters": ["ours.py:loss", "ours.py:clean"]},
        "beyond_trees": {"shapes": ["no.py:x"]},
        "mdss_live": {"schemes": ["ours.py:no+block"]},
        "mdss_acceptance": {"schemes": ["ours.py:path"]},
    }.items():
        with pytest.raises(UserError, match=r"mine.yaml:\d+: .*(no no in it|no such file|cannot be called|is a PathV)"):
            run_with({name: {"fixed": fixed}})
    with pytest.raises(UserError, match=r"mine.yaml:\d+: data.cleaners.gsm8k: ours.py:\d+: loss cannot be called with"):
        run_with({}, data={"cleaners": {"gsm8k": "ours.py:loss"}})


def test_a_tail_follows_a_verifier_of_one_s_own() -> None:
    schemes = ["plain", "single", "ours.py:mine+block", "k_seq+ours.py:path", "ours.py:mine+ours.py:path"]
    run = run_with({"mdss_live": {"fixed": {"schemes": schemes}}})
    assert run.cells("mdss_live")["all"][0].settings.schemes == schemes
    assert list(run.cell_file("mdss_live", "all")["own_code"]) == ["ours.py:mine", "ours.py:path"]
    assert {f"results/smoke-sizes/verifiers/ours.{name}.txt" for name in ("mine", "path")} <= {
        *run.reads("mdss_live", "all")
    }
    assert style.name("k_seq+ours.py:path").endswith("ours.path")
    for wrong in ("ours.py:mine+traversal", "ranked+ours.py:path", "traversal+ours.py:path", "no+ours.py:path"):
        with pytest.raises(UserError, match="Input should be"):
            run_with({"mdss_live": {"fixed": {"schemes": [wrong]}}})
    with pytest.raises(UserError, match=r"ours.py:\d+: token is a TokenVerifier \(give a PathVerifier\)"):
        run_with({"mdss_live": {"fixed": {"schemes": ["ours.py:mine+ours.py:token"]}}})


def test_an_edit_reruns_the_cells_that_name_the_file_and_no_other() -> None:
    axes = {"source": {"teacher": {"sample_source": "teacher"}, "mine": {"sample_source": "ours.py:source"}}}
    inner = {"inner": {"loss": ["forward_kl"], "seed": [0]}}
    divergences = {"beyond_divergences": {"axes": axes, "fixed": inner}}

    def cells() -> dict[str, str]:
        run = run_with(divergences)
        return {cell: json.dumps(run.cell_file("beyond_divergences", cell)) for cell in run.cells("beyond_divergences")}

    def changed(file: str, old: str, new: str) -> set[str]:
        before, text = cells(), Path(file).read_text()
        assert old in text
        Path(file).write_text(text.replace(old, new))
        after = cells()
        return {cell for cell in after if after[cell] != before[cell]}

    assert "own_code" not in json.loads(cells()["teacher"])
    assert list(json.loads(cells()["mine"])["own_code"]) == ["ours.py:source"]
    assert changed("ours.py", '"""Ideas."""', "# Only words.") == set()
    assert changed("ours.py", "len(requests)", "2 * len(requests)") == {"mine"}
    assert changed("beside.py", "2.0", "3.0") == {"mine"}, "which it imports"
    Path("beside.py").write_text("SCALE = (\n")
    with pytest.raises(UserError, match=r"beside.py:1: no Python"):
        cells()


def test_a_cell_waits_for_the_test_of_its_verifier() -> None:
    names = schemes_of("mdss_topk")
    run = run_with(acceptance(*names, "ours.py:mine"))
    assert run.own_verifiers == {"ours.mine": "ours.py:mine"}
    wanted = "results/smoke-sizes/verifiers/ours.mine.txt"
    assert all(wanted in run.reads("mdss_topk", cell) for cell in run.cells("mdss_topk"))
    assert wanted not in run_with(acceptance(*names)).reads("mdss_topk", next(iter(run.cells("mdss_topk"))))
    Path("a").mkdir()
    Path("a/ours.py").write_text(OURS)
    with pytest.raises(UserError, match=r"ours.py:mine and a/ours.py:mine have one name, ours.mine \(rename"):
        _ = run_with(acceptance(*names, "ours.py:mine", "a/ours.py:mine")).own_verifiers


def test_a_list_without_what_a_finding_compares_is_refused_before_any_job() -> None:
    message = r"mine.yaml:\d+: no rows with scheme specinfer, which the finding compares \(keep k_seq, specinfer\)"
    with pytest.raises(UserError, match=message):
        run_with({"mdss_acceptance": {"fixed": {"schemes": ["single", "k_seq", "optimal", "ours.py:mine"]}}})


def test_a_loss_and_a_sample_source_are_found_and_blamed() -> None:
    draft, target = torch.zeros(2, 3, requires_grad=True), torch.ones(2, 3)
    labels = torch.zeros(2, dtype=torch.long)
    assert losses_at("ours.py:loss", draft, target, labels).tolist() == [6.0, 6.0]
    with pytest.raises(UserError, match=r"loss ours.py:rule raised .* \(repair the function\)") as error:
        losses_at("ours.py:rule", draft, target, labels)
    assert Path(str(error.value.file)) == Path("ours.py").resolve()
    with pytest.raises(UserError, match=r"ours.py:clean: too many positional arguments \(it is called with \(draft_l"):
        losses_at("ours.py:clean", draft, target, labels)
    with pytest.raises(
        UserError, match=r"loss ours.py:loss returned nan \(a logit may be -inf: leave such a token out"
    ):
        losses_at("ours.py:loss", torch.where(target > 0, -torch.inf, draft), torch.full((2, 3), -torch.inf), labels)
    with pytest.raises(UserError, match=r"ours.py:number is a int \(give a function\)"):
        losses_at("ours.py:number", draft, target, labels)
    with pytest.raises(UserError, match=r"sample source ours.py:source returned int"):
        samples_of("ours.py:source", None, [0, 1], torch.Generator())  # type: ignore[arg-type]


def test_a_file_that_fails_as_it_is_loaded_names_its_line() -> None:
    Path("late.py").write_text("import torch\nloss = torch.no_such\n")
    with pytest.raises(UserError, match=r"late.py:2: cannot load 'late.py:loss': AttributeError.*\(repair the file\)"):
        registries.own("late.py:loss", ("a",))


def test_verifiers_are_found() -> None:
    target, draft = torch.tensor([0.5, 0.3, 0.2]).double(), torch.tensor([[0.2, 0.3, 0.5]] * 2).double()
    mine = token_verifier("ours.py:mine")
    assert mine.name == "ours.py:mine"
    torch.testing.assert_close(mine.acceptance(target, draft).proc, k_seq.acceptance(target, draft).proc)
    assert any_verifier("ours.py:tree").name == "ours.py:tree"
    assert any_verifier("ours.py:path").name == tail_of("ours.py:path").name == "ours.py:path"
    with pytest.raises(UserError, match=r"ours.py:tree is a TreeVerifier \(give a PathVerifier\)"):
        tail_of("ours.py:tree")
    with pytest.raises(UserError, match=r"ours.py:tree is a TreeVerifier \(give a TokenVerifier\)"):
        token_verifier("ours.py:tree")
    with pytest.raises(
        UserError, match=r"ours.py:loss is a function \(give a TokenVerifier, PathVerifier or TreeVerifier\)"
    ):
        any_verifier("ours.py:loss")


def test_the_claim_of_a_verifier_is_tested(capsys: pytest.CaptureFixture[str]) -> None:
    verify_lossless(verifier="ours.py:mine", if_claimed=True, max_samples=2000)
    assert "ours.py:mine: lossless" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"ours.py:lossy is not lossless: distribution"):
        verify_lossless(verifier="ours.py:lossy", if_claimed=True, max_samples=2000)
    for name in ("honest", "lossy_path", "lossy_tree"):
        verify_lossless(verifier=f"ours.py:{name}", if_claimed=True)
        assert f"ours.py:{name}: not tested, because it says is_lossless=False" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"lossy_tree is not lossless \(its texts are not the target's: decode live\)"):
        any_verifier("ours.py:lossy_tree").transitions(None, ())  # type: ignore[arg-type, union-attr]
    with pytest.raises(UserError, match=r"ours.py:honest is not lossless"):
        verify_lossless(verifier="ours.py:honest", max_samples=2000)
    assert token_verifier("ours.py:lossy").decide is not single.decide


def test_rules_and_drafters_join_the_others(results: Path, tmp_path: Path) -> None:
    settings = lookup.Settings(
        dataset="toy", depth=3, tuning=20, length_rules=["joint", "ours.py:rule"], drafters=["ours.py:draft"]
    )
    out = tmp_path / "cell"
    _cell.run(STAGES["lookup"], [Variant({}, settings)], inputs(results), out)
    rows = tidy.read_table(out / "rows.csv")
    assert {"ours.py:rule", "joint"} < set(rows["rule"])
    mine = rows[rows["contender"] == "ours.py:draft"]
    pd_columns = ["request_id", "rule", "draft_len", "blocks", "accepted"]
    found = rows[rows["contender"] == "lookup"][pd_columns].query("rule == 'fixed'").to_numpy().tolist()
    assert mine[pd_columns].query("rule == 'fixed'").to_numpy().tolist() == found, "prompt lookup, written by hand"
    assert (mine["steps"] == 0).all()
    assert list(read_object(out / "run.json")["own_code"]) == ["ours.py:draft", "ours.py:rule"]


def test_what_a_drafter_proposes_is_counted_as_prompt_lookup_is(results: Path) -> None:
    held_out = load_pass(results / "answers/toy.eval")
    mine = proposed_everywhere("mine", registries.own("ours.py:draft", ("text", "most")), held_out, 3)
    known = draft_everywhere(Lookup(load_model(results / "models/draft")), held_out, 3)
    np.testing.assert_array_equal(mine.found.cumprod(1), known.found.cumprod(1))
    np.testing.assert_array_equal(
        np.minimum(mine.accepted, mine.without_model()), np.minimum(known.accepted, known.without_model())
    )
    assert scores_of("ours.py:rule", mine, mine).tolist() == (np.ones(mine.found.shape) / 2).tolist()
    for propose, message in {
        lambda text, most: [0] * 9: r"mine returned 9 tokens \(return a list of at most 3 token ids\)",
        lambda text, most: None: "mine returned NoneType",
        lambda text, most: 1 / 0: "mine raised ZeroDivisionError",
    }.items():
        with pytest.raises(UserError, match=message):
            proposed_everywhere("mine", propose, held_out, 3)  # type: ignore[arg-type]
    assert Ngrams([1, 2, 1, 2]).guess == 1


def test_a_cleaner_reads_a_log() -> None:
    rows = [{"asked": f"what is {n}?" if n else "", "said": f"{n}"} for n in range(6)]
    Path("log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {"scale": "smoke", "dataset": "log.jsonl", "sizes": "mine.yaml"}
    Path("mine.yaml").write_text("data: {cleaners: {prompts: 'ours.py:clean'}}\n")
    plan.check_data(plan.load_run(config, plan.WORKFLOW))
    with pytest.raises(
        UserError, match=r"two different prompts \(see above; for a format of yours: --cleaner FILE.py:"
    ):
        data_check.check_file(Path("log.jsonl"))
    data_check.check_file(Path("log.jsonl"), cleaner="ours.py:clean", out=Path("check.json"))
    summary = read_object(Path("check.json"))
    assert (summary["format"], summary["kept"], summary["rejected"]) == ("ours.py:clean", 5, {"nothing asked": 1})
    options = splits.Options(eval=2, cleaner="ours.py:clean")
    made = splits.make("prompts", RawFiles(find("prompts"), Path("log.jsonl")), Path("out"), options)
    assert made["cleaner"] == "ours.py:clean"
    assert made["counts"]["train"]["kept"] + made["counts"]["eval"]["kept"] == 5
    with pytest.raises(UserError, match="no cleaner for the dataset x"):
        splits.make("x", RawFiles(find("prompts"), Path("log.jsonl")), Path("out"), replace(options, cleaner=""))


def test_names_for_readers_and_files_leave_out_folders(tmp_path: Path) -> None:
    assert style.name("ideas/ours.py:my_loss") == "ours.my_loss"
    axes = {"dataset": ["spider"], "loss": ["ours.py:loss", "forward_kl"]}
    experiment = plan.load_experiment(write(tmp_path, axes=axes, fixed=FIXED | {"sample_source": "teacher"}))
    assert list(experiment.cells("smoke")) == ["spider.ours.loss", "spider.forward_kl"]


def own_experiment(folder: Path, name: str = "mine") -> str:
    folder.mkdir(exist_ok=True)
    write(folder, axes={}, fixed=FIXED | {"dataset": "spider", "sample_source": "teacher", "loss": "ours.py:loss"})
    return str((folder / "osd_test.yaml").rename(folder / f"{name}.yaml"))


def test_an_experiment_lies_beside_the_idea(here: Path) -> None:
    def run(*names: str, **more: str) -> plan.Run:
        return plan.load_run({"scale": "smoke", "experiments": ", ".join(names)} | more, plan.WORKFLOW)

    mine = own_experiment(Path("our ideas"))
    found = run(mine, "osd_online")
    assert list(found.experiments) == ["mine", "osd_online"]
    assert [found.called(name) for name in found.experiments] == ["our ideas/mine.yaml", "osd_online"]
    assert found.cell_file("mine", "all")["own_code"].keys() == {"ours.py:loss"}
    assert f"experiments={mine}, osd_online" in found.given
    known = plan.WORKFLOW / "experiments/osd_online.yaml"
    assert run(str(known)).called("osd_online") == "osd_online", "which the ledger knows"
    Path("mine.yaml").write_text("experiments: {mine: {fixed: {epochs: 7}}}\n")
    assert run(mine, sizes="mine.yaml").cells("mine")["all"][0].settings.epochs == 7
    for names, message in {
        (
            mine,
            own_experiment(Path("other")),
        ): r"^other/mine.yaml: our ideas/mine.yaml has the name of the experiment mi",
        (own_experiment(Path("x"), "osd_online"),): r"^x/osd_online.yaml: /.*/experiments/osd_online.yaml has the name",
        (own_experiment(Path("x{y}")),): r"--config: experiments: braces are wildcards in a workflow: x{y}/mine.yaml",
        (own_experiment(Path("x"), "claims"),): r"^x/claims.yaml: not an experiment's name",
        ("no/mine.yaml",): r"^no/mine.yaml: No such file",
        ("our ideas/mine.yml",): r"no experiment named 'our ideas/mine.yml' \(allowed: FILE.yaml of your own, ",
    }.items():
        with pytest.raises(UserError, match=message):
            run(*names)
    with pytest.raises(UserError, match="mine does not exist at scale laptop"):
        run(mine, scale="laptop")
    Path(mine).write_text(Path(mine).read_text().replace("epochs", "epoch"))
    with pytest.raises(UserError, match=r"^our ideas/mine.yaml:\d+: unknown key 'epoch'"):
        run(mine)


def test_a_list_of_a_layout_shows_one_s_own_code_too() -> None:
    import pandas as pd

    table = pd.DataFrame({"rule": ["joint", "ours.py:rule", "fixed"], "n": [1, 2, 3]})
    assert tidy.with_own({"rule": ["joint"], "n": 1, "window": [0, 1]}, table) == {
        "rule": ["joint", "ours.py:rule"],
        "n": 1,
        "window": [0, 1],
    }
