"""Plans of runs: what is refused, which cells exist, and what an edit of code or values changes."""

import ast
import contextlib
import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import yaml
from pydantic import TypeAdapter, ValidationError

from draftlab import conformance, plan
from draftlab.core import losses, verify
from draftlab.errors import UserError
from draftlab.files import digests, registries
from draftlab.files.tables import tables_in
from draftlab.files.yaml_files import read_yaml
from draftlab.plan import needs, outlook
from draftlab.plan.experiment import PROFILES
from draftlab.plan.preflight import needed
from draftlab.plan.run import run_of
from draftlab.plan.scale import Size
from draftlab.stages import STAGES, acceptance
from draftlab.stages._schemes import LiveScheme
from draftlab.train import designs, sources
from tests.pair import small_llama

WORKFLOW = Path(__file__).resolve().parents[2] / "workflow"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A working folder with a file of prompts, a folder of raw files or a model, and an empty folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.jsonl").write_text('{"prompt": "?"}\n{"prompt": "!"}\n')
    for name in ("x", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "x" / "config.json").write_text("{}")
    (tmp_path / "x" / "model.safetensors").write_bytes(b"")
    for file in ("adapter/adapter_config.json", "quants/a.gguf"):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text("{}")


def load(config, workflow=WORKFLOW):
    return plan.load_run(config, workflow)


def write(folder, **changes):
    values = {
        "title": "t",
        "question": "q",
        "paper": "osd",
        "artefact": "a",
        "stage": "offline",
        "axes": {"dataset": ["spider", "gsm8k"], "method": {"ft": {"sample_source": "teacher", "loss": "hard_label"}}},
        "fixed": {"epochs": 1, "batch": 8, "learning_rate": 0.1},
        "scales": {"smoke": {}},
    } | changes
    path = folder / "osd_test.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def test_the_guide_to_configuration_names_every_key():
    guide = (WORKFLOW.parent / "config/README.md").read_text(encoding="utf-8")
    keys = [re.findall(r"`(\w+)`", line.split("|")[1]) for line in guide.splitlines() if line.startswith("| `")]
    assert sorted(key for row in keys for key in row) == sorted(plan.RunConfig.model_fields)


def test_the_tutorials_verifier_is_lossless_and_its_experiment_is_one(tmp_path):
    guide = (WORKFLOW.parent / "docs/tutorial.md").read_text(encoding="utf-8")
    code = re.search(r"`ours.py`[^`]*```python\n(.*?)```", guide, re.DOTALL)[1]
    text = re.search(r"`last.yaml`[^`]*```yaml\n(.*?)```", guide, re.DOTALL)[1]
    path = tmp_path / "beyond_last.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"yaml:\d+: schemes.0: no such file: ours.py \(give its path from /"):
        plan.load_experiment(path)
    (tmp_path / "ours.py").write_text(code, encoding="utf-8")
    last = verify.token_verifier("ours.py:last")
    assert conformance.check_distribution(last.distribution, last.drafting, 3).lossless
    assert plan.load_experiment(path).compared == ["num_drafts", "draft_temperature", "schemes"]
    path.write_text(text.replace("[ours.py:last,", "[rrs,"), encoding="utf-8")
    with pytest.raises(UserError, match=r"yaml:6: no rows with scheme ours.py:last .the scales of this file have rrs,"):
        plan.load_experiment(path)
    path.write_text(text.replace("ours.py:last", "rrs"), encoding="utf-8")
    experiment = plan.load_experiment(path)
    first, second = "num_drafts: [2, 4]", "draft_temperature: [1.0, 1.6]"
    path.write_text(path.read_text("utf-8").replace(f"{first}, {second}", f"{second}, {first}"), encoding="utf-8")
    assert plan.load_experiment(path).shown != experiment.shown, "their order shapes the table"


def test_the_tutorials_types_are_where_it_says():
    guide = (WORKFLOW.parent / "docs/tutorial.md").read_text(encoding="utf-8")
    sentence = re.search(r"The verifiers are classes of .*?\.\s", guide, re.DOTALL)[0].replace(
        "The verifiers", "`TokenVerifier`"
    )
    seen, waiting = set(), []
    for word in re.findall(r"`([\w.]+)`", sentence):
        if word.startswith("draftlab."):
            seen |= {getattr(importlib.import_module(word), name) for name in waiting}
        waiting = [] if word.startswith("draftlab.") else [*waiting, word]
    assert len(seen) == 8
    assert not waiting


def test_cells_are_the_product_of_the_axes(tmp_path):
    cells = plan.load_experiment(write(tmp_path)).cells("smoke")
    assert list(cells) == ["spider.ft", "gsm8k.ft"]
    assert cells["gsm8k.ft"][0].settings.loss == "hard_label"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"fixed": {"epochs": 1, "batch": 8, "learning_rate": 0.1, "dataset": "spider"}}, "dataset: spider"),
        ({"scales": {"smoke": {"fixed": {"dataset": "spider"}}}}, "dataset: spider"),
        ({"fixed": {"epochs": 1, "batch": 8, "learning_rate": 0.1, "inner": {"batch": [4, 16]}}}, "batch: 8"),
    ],
)
def test_an_axis_that_would_override_a_fixed_value_is_refused(tmp_path, changes, line):
    path = write(tmp_path, **changes)
    with pytest.raises(UserError, match=r"(dataset|batch): both an axis and fixed") as refused:
        plan.load_experiment(path)
    assert path.read_text("utf-8").splitlines()[refused.value.line - 1].strip() == line


def test_inner_axes_are_variants_of_one_job(tmp_path):
    inner = {"method": {"kl": {}, "slow": {"learning_rate": 0.01}}, "seed": [0, 1]}
    path = write(tmp_path, fixed={"epochs": 1, "batch": 8, "learning_rate": 0.1, "inner": inner})
    cell = plan.load_experiment(path).cells("smoke")["gsm8k.ft"]
    labels = [{"dataset": "gsm8k", "method": name, "seed": seed} for name in ("kl", "slow") for seed in (0, 1)]
    assert [variant.labels for variant in cell] == labels
    rates = [(variant.settings.learning_rate, variant.settings.seed) for variant in cell]
    assert rates == [(0.1, 0), (0.1, 1), (0.01, 0), (0.01, 1)]


def test_a_profile_stands_for_its_keys_and_what_is_beside_or_inside_wins(tmp_path):
    inner = {
        "method": {"a": {}, "b": {"profile": "readme_2024"}, "c": {"profile": "readme_2024", "update_interval": 2}}
    }
    fixed = {"profile": "paper_2023", "dataset": "spider", "batch": 8, "inner": inner}
    path = write(tmp_path, stage="online", axes={}, fixed=fixed)
    variants = [variant.settings for variant in plan.load_experiment(path).cells("smoke")["all"]]
    updates = [(settings.update_interval, settings.learning_rate, settings.clip) for settings in variants]
    assert updates == [(1, 1e-5, 1.0), (8, 1e-4, 0.0), (2, 1e-4, 0.0)]
    path.write_text(path.read_text().replace("paper_2023", "paper_2024"))
    with pytest.raises(
        UserError, match=r"osd_test.yaml:\d+: unknown profile 'paper_2024' \(allowed: paper_2023, readme_2024\)"
    ):
        plan.load_experiment(path)


@pytest.mark.parametrize("name", ["osd_online", "osd_online_t5"])
@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
def test_a_fair_static_draft_has_as_many_updates_as_the_online_one(name, scale):
    for cell in load({"scale": scale}).cells(name).values():
        intervals = {variant.labels["method"]: variant.settings.update_interval for variant in cell}
        assert intervals["static_10_fair"] == intervals["online"]


def test_online_drafts_at_paper_are_updated_as_a_script_did():
    run = load({"scale": "paper", "experiments": "all"})
    # beyond_routing_errors: all drafts together are updated as often as a shared draft.
    swept = {"beyond_update_interval", "osd_online_t5", "beyond_routing_errors"}
    seen = set()
    for name in set(run.of_stage("online")) - swept:
        for variant in (variant for cell in run.cells(name).values() for variant in cell):
            settings = variant.settings
            update = settings.model_dump(include={"update_interval", "learning_rate", "clip"})
            if settings.learns and variant.labels.get("method") != "separate_fast":
                seen.add((name, next(key for key, profile in PROFILES.items() if profile == update)))
            if settings.warm_on != "nothing" and not settings.learns and not settings.warm_fair:
                assert settings.learning_rate == 2e-5
    assert ("osd_online", "paper_2023") in seen
    assert {name for name, profile in seen if profile == "readme_2024"} == {
        "beyond_update_lag", "osd_online", "osd_routing",
    }  # fmt: skip


def test_an_experiment_without_its_dataset_is_left_out_or_refused(tmp_path):
    (tmp_path / "spider").mkdir()
    (tmp_path / "spider" / "train_spider.json").write_text("[]")
    for config in ({"raw": str(tmp_path)}, {"dataset": "mine.jsonl"}):
        with pytest.raises(UserError, match=r"needs dataset arena; this run has"):
            load(config | {"experiments": "osd_arena_classes"})
        run = load(config | {"experiments": "all"})
        assert "osd_offline" in run.experiments
        assert "osd_arena_classes" not in run.experiments
    assert "osd_arena_classes" in load({"experiments": "all"}).experiments


@pytest.mark.parametrize("content", ["[]", '{"draft_vocab_size": 30}'])
def test_a_config_json_in_the_working_directory_is_no_draft(tmp_path, monkeypatch, content):
    """Where no draft was named, it once ended the plan, or left out the experiments that a released head cannot run."""
    expected = list(load({"scale": "smoke"}).experiments)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(content)
    assert list(load({"scale": "smoke"}).experiments) == expected


def test_raw_files_that_are_missing_or_unreadable_are_refused_unless_no_cell_needs_them(tmp_path):
    (tmp_path / "x" / "gsm8k").mkdir()
    (tmp_path / "x" / "gsm8k" / "train.jsonl").write_text('{"question": "?", "answer": "1"}\n')
    (tmp_path / "utf16.jsonl").write_bytes(b"\xff\xfe{")
    for config, message in (({"raw": "x"}, "no raw files of "), ({"dataset": "utf16.jsonl"}, "the file is UTF-16")):
        with pytest.raises(UserError, match=message):
            plan.check_data(load(config | {"experiments": "osd_offline"}))
        plan.check_data(load(config | {"experiments": "mdss_region"}))
    plan.check_data(load({"dataset": "mine.jsonl"}))


@pytest.mark.parametrize("text", ["", "\n \n"])
@pytest.mark.parametrize("template", [{}, {"template": "rendered"}])
def test_a_file_without_rows_is_refused_before_any_job(tmp_path, text, template):
    (tmp_path / "none.jsonl").write_text(text)
    with pytest.raises(UserError, match=r"none\.jsonl: it has no rows"):
        plan.check_data(load({"dataset": "none.jsonl"} | template))


@pytest.mark.parametrize("text", ['{"prompt": "Why?"}\n' * 3, '{"prompt": 3}\n{"prompt": 4}\n', "not JSON\n"])
def test_a_file_without_two_different_prompts_is_refused_before_any_job_and_by_a_plan(tmp_path, text):
    (tmp_path / "few.jsonl").write_text(text)
    refused = pytest.raises(UserError, match=r"few\.jsonl: it has fewer than two different prompts .*data check FILE")
    with refused:
        plan.check_data(load({"dataset": "few.jsonl"}))
    with refused:
        outlook.show(config=("dataset=few.jsonl",))


def test_prompts_in_a_chat_template_need_the_template_rendered(tmp_path):
    for texts, is_refused in ((["[INST] a [/INST]", "[INST] b [/INST]", "c"], True), (["[INST] a", "b"], False)):
        (tmp_path / "log.txt").write_text("\n".join(texts))
        if not is_refused:
            plan.check_data(load({"dataset": "log.txt"}))
            continue
        with pytest.raises(
            UserError, match=r"log.txt: most prompts are in a chat template already .*template=rendered"
        ):
            plan.check_data(load({"dataset": "log.txt"}))
        plan.check_data(load({"dataset": "log.txt", "template": "rendered"}))


def test_prompts_in_a_template_of_text_are_read_as_they_are_under_plain(tmp_path):
    (tmp_path / "log.txt").write_text("USER: Why? ASSISTANT:\nUSER: How? ASSISTANT:\n")
    for template, is_refused in (("vicuna_short", True), ("plain", False), ("rendered", False)):
        run = load({"dataset": "log.txt", "template": template})
        with pytest.raises(UserError, match="template=rendered") if is_refused else contextlib.nullcontext():
            plan.check_data(run)


def test_a_raw_file_that_the_system_refuses_is_named(monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied", "x/spider")

    monkeypatch.setattr(plan.run.sources, "content_of", refuse)
    with pytest.raises(UserError, match="x/spider: Permission denied"):
        plan.check_data(load({"raw": "x", "experiments": "osd_offline"}))


FIXED = {"epochs": 1, "batch": 8, "learning_rate": 0.1}
STREAMED = {"of": ["spider"], "learning_rate": 0.1, "batch": 8, "update_interval": 8}
REQUESTS = {"requests": 1, "max_new_tokens": 4, "draft_len": 3}
LATENCY = {"alpha": [0.5], "draft_len": [3], "blocks": 1, "rounds": 1}
SERVED = {"dataset": "spider", "learning_rate": 1e-3, "batch": 8, "update_interval": 8} | {
    "inner": {"method": {"online": {}, "static": {"learns": False}}}
}
PRICED = {"dataset": "spider", "learning_rate": 1e-3, "batch": 8, "requests": 8, "intervals": [2], "measurements": 1}
LIVE = {"num_drafts": [2], "draft_temperature": [1.0], "draft_len": 4, "requests": 1, "batch": 1, "max_new_tokens": 1}
NO_AXIS = "an axis is a list of values or a mapping from names to settings, with at least one entry"


def test_the_line_of_a_wrong_value_is_found_by_the_loader_that_read_it(tmp_path):
    """PyYAML's loader in C takes a tab where the one in Python takes none."""
    (tmp_path / "mine.yaml").write_text("$\t \u00a0", encoding="utf-8")
    with pytest.raises(UserError, match=r"mine\.yaml"):
        plan.load_experiment(tmp_path / "mine.yaml")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stage": "offlin"}, r"offlin.*allowed: .*offline"),
        ({"fixed": FIXED | {"lr": 1}}, r"unknown key 'lr'.*learning_rate"),
        ({"fixed": {"epochs": 1}}, r"learning_rate and batch are missing \(add them\)"),
        ({"fixed": {"epochs": 1, "batch": 8}}, r"learning_rate is missing \(add it\)"),
        ({"fixed": FIXED | {"batch": 0}}, "batch.*greater than 0"),
        ({"axes": {"dataset": ["x"], "loss": ["kl"], "sample_source": ["teacher"]}}, r"loss.*'forward_kl'.*not 'kl'"),
        ({"axes": {"dataset": ["spidr"]}}, "unknown dataset 'spidr'.*spider"),
        ({"axes": {"dataset": []}}, NO_AXIS),
        ({"axes": {"dataset": "spider"}}, NO_AXIS),
        ({"axes": {"method": {"a b/c": {}}}}, "'a b/c' cannot name a cell"),
        ({"axes": {"method": {"..": {}}}}, "'..' cannot name a cell"),
        ({"axes": {"method": {"x" * 256: {}}}}, "cannot name a cell"),
        ({"axes": {"dataset": ["spider", "spider"]}}, "two cells named 'spider'"),
        ({"axes": {"temperature": [0.5, 1, 1.0]}}, "temperature: 1.0 stands here twice"),
        ({"fixed": FIXED | {"inner": {"seed": [0, 1, 0]}}}, "seed: 0 stands here twice"),
        ({"scales": {"tiny": {}}}, "smoke"),
        ({"scales": {"smoke": {"axes": {"datasets": ["spider"]}}}}, r"no axis named datasets"),
        ({"scales": {"smoke": {"axes": {"dataset": "spider"}}}}, NO_AXIS),
        ({"scales": {"smoke": {"axes": {"dataset": 5}}}}, NO_AXIS),
        ({"color": "red"}, "unknown key 'color'"),
        ({"figure": {"streams": {}}}, r"unknown key 'figure.streams' \(allowed: curves, gaps, like, live, stream\)"),
        ({"figure": {"stream": {"windw": 5}}}, r"unknown key 'figure.stream.windw' \(allowed: .*window\)"),
        ({"figure": {"stream": {"printed": [{"clam": "T1"}]}}}, r"unknown key .*clam' \(allowed: claim, "),
        ({"figure": {"live": {"x": "num_drafts"}}}, "figure.live.xlabel is missing"),
        ({"figure": {"stream": {"window": 0}}}, "figure.stream.window: .*greater than 0"),
        ({"figure": {}}, "figure: give exactly one of curves, live, stream, gaps"),
        ({"figure": {"stream": {}, "live": {"x": "a", "xlabel": "a"}}}, "figure: give exactly one of"),
        ({"fixed": FIXED | {"inner": 5}}, "inner: give a mapping"),
        ({"fixed": FIXED | {"inner": [1, 2]}}, "inner: give a mapping"),
        ({"fixed": FIXED | {"inner": "hello"}}, "inner: give a mapping"),
        ({"fixed": FIXED | {"inner": {"seed": 3}}}, f"inner.seed: {NO_AXIS}"),
        ({"fixed": FIXED | {"inner": {"seed": []}}}, f"inner.seed: {NO_AXIS}"),
        ({"fixed": FIXED | {"inner": {"loss": ["kl"]}}}, r"loss.*'forward_kl'.*not 'kl'"),
        ({"fixed": FIXED | {"inner": {"sample_source": ["mine"]}}}, r"'mix_request'.*not 'mine'"),
        ({"stage": "online", "axes": {}, "fixed": STREAMED | {"stream": 5}}, "stream: give a mapping"),
        ({"stage": "latency_alpha", "axes": {}, "fixed": LATENCY | {"alpha": [1.5]}}, "alpha.*less than 1, not 1.5"),
        ({"stage": "latency_alpha", "axes": {}, "fixed": LATENCY | {"alpha": []}}, "alpha.*at least 1 item"),
        ({"stage": "latency_alpha", "axes": {}, "fixed": LATENCY | {"draft_len": [0]}}, "draft_len.*greater than 0"),
        ({"stage": "latency_alpha", "axes": {}, "fixed": LATENCY | {"gpu_layers": -7}}, "gpu_layers.*equal to -1"),
        ({"stage": "latency_alpha", "axes": {}, "fixed": LATENCY | {"inflated_layers": -3}}, "inflated_layers"),
        ({"stage": "latency_alpha", "axes": {}, "fixed": LATENCY | {"device": "cuda"}}, "device is for backend torch"),
        ({"stage": "latency_alpha", "axes": {}, "fixed": LATENCY | {"backend": "torch", "gpu_layers": 1}}, "gpu_layers is for backend llama_cpp"),
        ({"stage": "break_even", "axes": {}, "fixed": PRICED | {"update_interval": 8}}, "unknown key 'update_interval'"),
        ({"stage": "break_even", "axes": {}, "fixed": PRICED | {"learns": False}}, "unknown key 'learns'"),
        ({"fixed": FIXED | {"save": "kd", "inner": {"method": {"kl": {}}}}}, r"save: no method 'kd'.*those that learn: kl"),
        ({"stage": "online", "axes": {}, "fixed": SERVED | {"save": "static"}}, "save: no method 'static'.*: online"),
        ({"stage": "live", "axes": {}, "fixed": LIVE | {"schemes": ["k_sec"]}}, r"schemes.*'k_seq\+block'.*not 'k_sec'"),
        ({"stage": "live", "axes": {}, "fixed": LIVE | {"schemes": ["k_seq"], "num_drafts": [0]}}, "num_drafts"),
    ],
)  # fmt: skip
def test_a_wrong_yaml_is_refused_with_the_allowed_values(tmp_path, change, message):
    with pytest.raises(UserError, match=message) as caught:
        plan.load_experiment(write(tmp_path, **change))
    assert re.match(r".*osd_test\.yaml:[1-9]\d*: ", str(caught.value))


@pytest.mark.parametrize(
    ("stage", "fixed", "line", "message"),
    [
        ("offline", FIXED | {"draft": "drat"}, True, r"unknown draft 'drat' \(drafts of pair main at scale smoke: draft, "),
        ("offline", FIXED | {"pair": "mian"}, True, r"unknown pair 'mian' \(pairs of scale smoke: main, multidraft, t5\)"),
        ("latency_requests", REQUESTS | {"contenders": ["before", "drat"]}, True, "'drat'"),
        ("latency_update", {"role": "drat", "blocks": 1}, True, "unknown draft 'drat'"),
        ("live", LIVE | {"schemes": ["k_seq"], "pair": "multi"}, True, "unknown pair 'multi'"),
        ("offline", FIXED, False, "dataset is missing .add it: spider, gsm8k"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("own", [{}, {"target": "me/mine"}])
def test_a_cell_without_its_models_or_dataset_is_refused_before_any_job(tmp_path, stage, fixed, line, message, own):
    copy = shutil.copytree(WORKFLOW, tmp_path / "workflow")
    axes = {"sample_source": ["teacher"]} if stage == "offline" else {}
    axes |= {"dataset": ["spider"]} if line and stage in ("offline", "latency_requests") else {}
    path = write(copy / "experiments", stage=stage, axes=axes, fixed=fixed)
    with pytest.raises(UserError, match=message) as caught:
        load({"scale": "smoke", "experiments": "osd_test"} | own, copy)
    assert str(caught.value).startswith(f"{path}:") or not line
    load({"scale": "smoke", "experiments": "osd_offline"}, copy)


@pytest.mark.parametrize("scale", plan.scale.SCALES)
def test_every_experiment_of_a_scale_has_its_models_and_datasets(scale):
    assert load({"scale": scale, "experiments": "all"}).experiments


@pytest.mark.parametrize(
    ("registry", "names"),
    [
        (losses.LOSSES, registries.names("core.losses", "LOSSES")),
        (sources.SOURCES, registries.names("train.sources", "SOURCES")),
        (designs.DESIGNS, registries.names("train.designs", "DESIGNS")),
        (verify.TOKEN_VERIFIERS, registries.names("core.verify", "TOKEN_VERIFIERS")),
        (verify.PATH_VERIFIERS, registries.names("core.verify", "PATH_VERIFIERS")),
        (verify.TREE_VERIFIERS, registries.names("core.verify", "TREE_VERIFIERS")),
        (acceptance.PATHS, registries.names("stages.acceptance", "PATHS")),
    ],
)
def test_what_an_experiment_may_name_is_what_the_registry_holds(registry, names):
    assert [name for name in names if name != "none"] == list(registry)


ONE_PER_LINE = """\
title: x
question: "?"
paper: osd
artefact: x
finding: {more: x, level: x}
stage: offline
axes:
  dataset: [spider]
  method:
    kl: {loss: forward_kl}
    ft: {loss: hard_label}
fixed:
  sample_source: teacher
  epochs: 1
  batch: 8
  learning_rate: 0.1
scales:
  smoke: {}
  laptop:
    axes:
      dataset:
        - spider
        - gsm8k
    fixed: {epochs: 2}
"""


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("finding: {more: x, level: x}", "finding:\n  - {more: x, level: x}\n  - {more: x}", 7),  # an entry of a list
        ("stage: offline", "stage: offlin", 6),
        ("stage: offline", "figure:\n  stream:\n    panel: dataset\n    windows: 50\nstage: offline", 9),
        ("- gsm8k", "- gsm9k", 23),  # a value
        ("{loss: hard_label}", "{loss: hard}", 10),  # the first line that names the key
        ("batch: 8", "batch: 0", 15),
        ("{epochs: 2}", "{batch: 0}", 24),  # which a scale puts in place of the one above
        ("batch: 8", "batches: 8", 15),
        ("title: x", "title: x\ntitel: x", 2),
        ("  batch: 8\n", "", 17),  # missing: the first scale that lacks it
    ],
)
def test_a_wrong_value_names_its_line(tmp_path, old, new, line):
    path = tmp_path / "e.yaml"
    path.write_text(ONE_PER_LINE, encoding="utf-8")
    plan.load_experiment(path)
    path.write_text(ONE_PER_LINE.replace(old, new), encoding="utf-8")
    with pytest.raises(UserError, match=rf"e\.yaml:{line}: "):
        plan.load_experiment(path)


def test_yaml_that_is_not_yaml_names_its_line(tmp_path):
    path = tmp_path / "e.yaml"
    path.write_text("title: [\nstage: x\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"e\.yaml:\d"):
        plan.load_experiment(path)


def test_a_file_with_a_name_that_no_rule_takes_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"Osd-test\.yaml: not an experiment's name"):
        plan.load_experiment(write(tmp_path).rename(tmp_path / "Osd-test.yaml"))


def test_a_file_that_cannot_be_opened_is_named(tmp_path):
    (tmp_path / "e.yaml").mkdir()
    with pytest.raises(UserError, match=r"e\.yaml: Is a directory"):
        plan.load_experiment(tmp_path / "e.yaml")


def test_a_key_that_stands_twice_is_refused_and_one_that_overrides_a_merged_one_is_not(tmp_path):
    path = tmp_path / "e.yaml"
    path.write_text("title: A\nfixed: {top_k: 5, seed: 0,\n  top_k: 6}\n")
    with pytest.raises(UserError, match=r"e\.yaml:3: not YAML: the key 'top_k' stands here twice"):
        plan.load_experiment(path)
    path.write_text(
        "inner: &inner {seed: 0, method: online}\nown: &own {<<: *inner, seed: 1}\nlast: {<<: *own, seed: 2}\n"
    )
    assert read_yaml(path)["last"] == {"seed": 2, "method": "online"}


@pytest.mark.parametrize("content", [b"title: caf\xe9\n", b"title: 2020-13-45\n"])
def test_a_file_that_yaml_cannot_read_is_named(tmp_path, content):
    path = tmp_path / "e.yaml"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"e\.yaml: not YAML in UTF-8"):
        plan.load_experiment(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("pairs:\n", "needs: {latencyy: {threads: 2}}\npairs:\n", "no rule asks for 'latencyy'.*latency"),
        ("pairs:\n", "needs: {target.t6: {threads: 2}}\npairs:\n", "no rule asks for 'target.t6'"),
        (
            "pairs:\n",
            "needs: {target.t5: {thread: 2}}\npairs:\n",
            "unknown key 'needs.target.t5.thread' .*allowed: .*threads",
        ),
        ("  main:\n", "  first:\n", "pairs: no pair is called main"),
        ("{arena: 160}", "{arena: 600}", r"600 requests of arena are asked for, but only 500 raw rows"),
        ("[spider, gsm8k", "[spidr, gsm8k", "unknown dataset 'spidr'.*spider"),
        ("steps: 120", "steps: -1", "target.steps: .*not -1"),
        ("steps: 120", "stepps: 120", "target.stepps.*allowed: .*steps"),
    ],
)
def test_a_wrong_scale_is_refused(tmp_path, old, new, message):
    copy = shutil.copytree(WORKFLOW, tmp_path / "workflow")
    path = copy / "scales/smoke.yaml"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(UserError, match=rf"scales/smoke\.yaml:\d+: .*{message}"):
        load({"scale": "smoke"}, copy)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"scale": "huge"}, "--config: scale.*'laptop'"),
        ({"scale": "shapes", "experiments": "osd_online"}, "osd_online does not exist at scale shapes.*smoke"),
        ({"experiments": "traffic_verdict"}, "traffic_verdict does not exist at scale .*scale that names it"),
        ({"scale": "paper", "experiments": "osd_online,beyond_interference"}, "beyond_interference does not exist"),
        ({"raw": "/nonexistent"}, "raw: no such file or folder: /nonexistent"),
        ({"raw": "mine.jsonl"}, r"raw: a file, not a folder: mine.jsonl \(.* dataset=FILE\)"),
        ({"dataset": "nonexistent.jsonl"}, "dataset: no such file or folder"),
        ({"sizes": "nonexistent.yaml"}, r"nonexistent.yaml: No such file .*\(check the path"),
        ({"target": "/nonexistent"}, r"target: no such .*\(check the path; a hub id is"),
        ({"target": "package:nosuch"}, r"target: no such package: nosuch \(.* package:smollm2-135m-instruct\)"),
        ({"raw": "package:smollm2-135m-instruct"}, "raw: no such"),
        ({"draft": "./owner/name"}, "draft: no such"),
        ({"draft": "~/model"}, "draft: no such"),
        ({"target": "a/b/c"}, "target: no such"),
        ({"target": "empty"}, r"--config: target: no config.json in empty \(name a folder in the Hugging Face layout"),
        ({"draft": "empty"}, "draft: no config.json in empty"),
        ({"draft": "mine.jsonl"}, "--config: draft: a file, but not called .gguf: mine.jsonl"),
        ({"target": "adapter"}, r"--config: target: an adapter \(LoRA\), not a whole model: adapter \(merge it"),
        ({"target": "quants"}, r"--config: target: a folder of GGUF files: quants \(name the file: quants/a.gguf"),
        ({"raw": "r" * 5000}, "raw: no such"),
        ({"scal": "smoke"}, "unknown key 'scal'"),
        ({"name": 2024}, r"--config: name: 2024 is not a text \(on a command line let a name begin with a letter"),
        ({"name": "ü" * 128}, "--config: name: 256 bytes, but no folder's name has more than 255"),
        ({"scale": "smoke", "name": "laptop"}, "--config: name: laptop is another scale, to whose results this folder"),
        ({"scale": "shapes", "dataset": "mine.jsonl"}, "--config: dataset: scale shapes reads no requests"),
        ({"scale": "shapes", "raw": "x"}, "--config: raw: scale shapes reads no requests"),
        ({"scale": "shapes_cpu", "template": "plain"}, "--config: template: scale shapes_cpu reads no requests"),
        ({"scale": "shapes", "answers": {"batch": 8}}, "--config: answers: scale shapes reads no requests"),
        ({"scale": "shapes", "target": "nonsense"}, "--config: target: no folder or architecture named 'nonsense'"),
        (
            {"scale": "shapes", "draft": "llama-160m/0"},
            "--config: draft: no folder or architecture named 'llama-160m/0'",
        ),
        ({"scale": "shapes_cpu", "models": {"draft": "empty"}}, "--config: draft: no config.json in empty"),
        ({"raw": "x", "dataset": "mine.jsonl"}, "--config: raw and dataset: the requests come from one of them"),
        ({"models": {"target": "x", "main.target": "empty"}}, "--config: models: target and main.target are the same"),
        (
            {"target": "x", "models": {"target": "empty"}},
            "--config: target and models.target are the same model of pair",
        ),
        ({"draft": "x", "models": {"main.draft": "empty"}}, "--config: draft and models.main.draft are the same model"),
        ({"models": {".target": "x"}}, "--config: models: no model named '.target'"),
        ({"models": {"multidraft.target": ""}}, "--config: models: multidraft.target has no value"),
        (
            {"template": "own", "answers": {"template": "plain"}},
            "--config: template is own, but answers.template plain",
        ),
        ({"experiments": "osd_ofline"}, "osd_ofline.*osd_offline"),
        ({"template_options": {"a": 1}}, "--config: template_options: the template vicuna_short has none"),
        (
            {"template_options": {"a": {"b": ["use {name}"]}}},
            r"template_options: braces are wildcards in a workflow: \{name\}",
        ),
        ({"template_options": "a"}, "template_options: give a mapping, not 'a'"),
        (
            {"scale": "shapes", "template_options": {"a": 1}},
            "--config: template_options: scale shapes reads no requests",
        ),
    ],
)
def test_wrong_config_values_are_refused(config, message):
    with pytest.raises(UserError, match=message):
        load(config)


def test_template_options_have_the_types_that_a_template_expects():
    """Snakemake leaves every value in a mapping a text, and gives its jobs Python's form."""
    from snakemake.cli import parse_config

    wanted = {
        "enable_thinking": False,
        "effort": "low",
        "date": "2026-01-02",
        "most": 512,
        "of": [True, None, "NaN", "1 2"],
    }
    for text in (json.dumps(wanted), str(wanted), yaml.safe_dump(wanted, default_flow_style=True, width=1000).strip()):
        words = ["dataset=mine.jsonl", "target=package:smollm2-135m-instruct", f"template_options={text}"]
        for run in (run_of(words), load(parse_config(words))):
            assert run.settings.data.template_options == wanted
            again = run_of(run.given)
            assert again.settings.data.template_options == wanted
            assert again.name == run.name


def test_missing_files_of_a_scale_are_all_named_and_how_to_get_them():
    run = load({"scale": "qwen2.5-coder"})
    one, two = (f"qwen2.5-coder-{size}b-instruct-q4_k_m.gguf" for size in ("1.5", "0.5"))
    with pytest.raises(UserError, match=rf"{one}, {two} .*first lines.*main.target: FILE, main.released: FILE"):
        plan.check_data(run)


def test_a_target_of_whose_layers_no_draft_can_be_made_is_refused_before_it_answers():
    shutil.copytree("x", "whole")
    small_llama(16, 0).save(Path("llama"))
    config = json.loads(Path("llama/config.json").read_text())
    mistral = config | {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 4096}
    for what, changed in {
        r"of this mistral \(sliding_window\)": mistral,
        r"of this gemma": config | {"model_type": "gemma", "architectures": ["GemmaForCausalLM"]},
        "": mistral | {"sliding_window": None},
    }.items():
        Path("whole/config.json").write_text(json.dumps(changed))
        asked = {"scale": "traffic", "dataset": "mine.jsonl", "target": "whole", "template": "plain"}
        load(asked | {"draft": "llama"})
        with (
            pytest.raises(UserError, match=f"layers {what} .*draftlab verdict: --draft")
            if what
            else contextlib.nullcontext()
        ):
            load(asked)


def test_a_model_without_weights_is_refused_before_anything_runs():
    Path("empty/config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(UserError, match=r"target: no weights \(\*.safetensors or pytorch_model\*.bin\) in empty"):
        load({"target": "empty"})


def test_a_wrong_model_of_a_sizes_file_is_refused_with_its_key():
    Path("sizes.yaml").write_text("pairs: {main: {target: {model: empty}}}\n")
    for scale in ("laptop", "shapes"):
        with pytest.raises(UserError, match=r"sizes.yaml: pairs.main.target: no config.json in empty"):
            load({"scale": scale, "sizes": "sizes.yaml"})
    Path("sizes.yaml").write_text("pairs: {main: {drafts: {small: {layers: 1}}}}\n")
    with pytest.raises(UserError, match=r"sizes.yaml: pairs.main.small: no folder or architecture named ''"):
        load({"scale": "shapes", "sizes": "sizes.yaml"})
    load({"scale": "shapes", "target": "vicuna-33b/8"})


@pytest.mark.parametrize(
    "change",
    [{"raw": "x"}, {"target": "x"}, {"dataset": "mine.jsonl"}, {"template": "plain"}, {"answers": {"batch": 8}}],
)
def test_other_data_models_or_answers_have_a_folder_of_their_own(change):
    assert load({"scale": "smoke"} | change).name == f"smoke-{next(iter(change))}"


@pytest.mark.parametrize("scale", ["smoke", "laptop", "smollm2"])
def test_with_your_own_prompts_no_experiment_asks_for_another_dataset(scale):
    run = load({"dataset": "mine.jsonl", "scale": scale, "experiments": "all"})
    read, others = set(), set(load({"scale": scale}).settings.every_dataset)
    for name in run.experiments:
        for settings in (variant.settings for cell in run.cells(name).values() for variant in cell):
            read |= set(getattr(settings, "datasets", [])) | {getattr(settings, "dataset", "prompts")}
        parts = {part for cell in run.cells(name) for file in run.reads(name, cell) for part in Path(file).parts}
        assert not others & {part.partition(".")[0] for part in parts}, name
    assert read - {""} == {"prompts"}
    assert {"osd_offline", "osd_online", "osd_latency_dataset"} <= set(run.experiments)
    assert "mdss_quality" not in run.experiments  # it compares with reference texts


@pytest.mark.parametrize("name", ["osd_medusa", "beyond_online_multidraft"])
def test_an_experiment_that_needs_other_datasets_than_your_prompts_is_refused(name):
    with pytest.raises(UserError, match=rf"{name} needs dataset .*; this run has prompts "):
        load({"dataset": "mine.jsonl", "scale": "smoke", "experiments": name})


def test_multidraft_cells_keep_those_of_their_datasets_that_the_pair_has():
    def datasets(config):
        return load(config).cells("mdss_quality")["identical"][0].settings.datasets

    assert datasets({}) == ["xsum", "wmt16"]
    assert datasets({"dataset": "mine.jsonl"}) == ["prompts"]


@pytest.mark.parametrize("key", ["target", "draft"])
def test_with_your_own_models_drafts_of_other_sizes_and_other_pairs_are_left_out(key):
    ours, scales = (set(load({"experiments": "all"} | config).experiments) for config in ({key: "me/mine"}, {}))
    left_out = scales - ours
    assert {"osd_offline_t5", "osd_draft_size", "beyond_specialised", "beyond_break_even"} <= left_out
    assert {"osd_offline", "osd_online", "osd_latency_alpha", "mdss_acceptance"} <= ours
    named = load({key: "me/mine", "experiments": "osd_draft_size"})
    assert set(named.experiments) == {"osd_draft_size"}


def test_a_target_that_you_name_is_not_inflated(tmp_path):
    def layers(config):
        cells = load(config).cells("osd_latency_alpha")
        return {variant.settings.inflated_layers for cell in cells.values() for variant in cell}

    (tmp_path / "sizes.yaml").write_text("pairs: {main: {target: {model: x}}}")
    assert min(layers({})) > 0
    assert min(layers({"models": {"multidraft.target": "x"}})) > 0
    for config in ({"target": "x"}, {"models": {"target": "x"}}, {"sizes": "sizes.yaml"}):
        assert layers(config) == {0}


def inflated_layers(run):
    """The layers of the inflated target in each experiment that has such a setting."""
    variants = {name: [variant for cell in run.cells(name).values() for variant in cell] for name in run.at_scale}
    return {
        name: layers
        for name, every in variants.items()
        if (layers := {getattr(variant.settings, "inflated_layers", None) for variant in every}) != {None}
    }


@pytest.mark.parametrize("scale", ["smollm2", "smollm2_short", "qwen2.5-coder", "traffic", "shapes", "paper"])
def test_a_scale_with_a_target_of_its_own_asks_for_no_inflation(scale):
    assert set(map(frozenset, inflated_layers(load({"scale": scale})).values())) == {frozenset({0})}


def test_a_scale_says_once_how_large_the_timed_target_is():
    run = load({})
    layers = inflated_layers(run)
    assert layers.pop("osd_update_cost") == {0}  # it says so itself
    assert set(map(frozenset, layers.values())) == {frozenset({run.settings.pairs["main"].inflated.layers})}
    assert {"osd_latency_alpha", "osd_medusa", "beyond_weights"} <= layers.keys()


def test_flags_round_trip_lists_and_leave_none_out():
    lists = {"schemes": ["k_seq", "single"], "num_drafts": [2, 4], "draft_temperature": [1.0]}
    settings = STAGES["live"].settings(**lists, draft_len=4, requests=1, batch=1, max_new_tokens=1)
    words = plan.flags(settings, pairs=Path("p q"))
    assert words[words.index("--num-drafts") :][:3] == ["--num-drafts", "2", "4"]
    assert "--first-temperature" not in words
    assert words[-2:] == ["--pairs", "p q"]


def test_a_scales_file_overrides_the_sizes_of_an_experiments_own():
    file = WORKFLOW / "experiments/mdss_acceptance.yaml"
    size = Size(fixed={"positions": 7, "num_drafts": [3]})
    sized = plan.load_experiment(file).at("laptop", size, file).scales["laptop"]
    assert sized.fixed == {"positions": 7, "num_drafts": [3]}


def test_a_choice_of_an_axis_overrides_what_is_fixed():
    experiment = plan.load_experiment(WORKFLOW / "experiments/mdss_acceptance.yaml")
    choices = {"one": {"schemes": ["optimal"], "top_k": 1}, "as_fixed": {"positions": 9}}
    compared = experiment.model_copy(update={"axes": {"kept": choices}})
    cells = compared.cells("laptop")
    found = [(variant.settings.top_k, variant.settings.positions) for [variant] in cells.values()]
    assert found == [(1, 600), (5, 9)]


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """The file in which digests of code are kept, empty; what is read here is not kept after the test."""
    monkeypatch.setattr(digests, "KEPT", tmp_path / "kept/digests.json")
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    forget()
    yield digests.KEPT
    forget()


def forget():
    """As a new process: digests of code are read from where they are kept."""
    for function in (digests._kept, digests._module, plan.code_digest):
        function.cache_clear()


def test_the_digest_sees_code_and_not_comments(tmp_path, monkeypatch, kept):
    package = tmp_path / "draftlab_probe"

    def source(module):
        path = package / f"{module.removeprefix('draftlab.')}.py"
        return path if path.exists() else None

    monkeypatch.setattr(digests, "source_of", source)
    package.mkdir()

    def digest(loss, trainer="from draftlab import loss\n"):
        (package / "loss.py").write_text(loss, encoding="utf-8")
        (package / "trainer.py").write_text(trainer, encoding="utf-8")
        forget()
        return plan.code_digest("draftlab.trainer")

    code = "def f(x):\n    '''Doc.'''\n    return x + 1\n"
    before = digest(code)
    assert digest("# a comment\ndef f(x):\n    '''Another doc.'''\n    return x + 1  # more\n") == before
    setting = "class A:\n    a: int = Field(1, gt=0, description='one')\n"
    assert digest(setting) == digest(setting.replace("one", "two")) != digest(setting.replace("gt=0", "gt=1"))
    (package / "loss.py~").write_text("a backup")
    assert digest(code) == before
    assert digest("def f(x):\n    return x + 2\n") != before
    for block in ("def f():", "if a: b\nelse:", "try: b\nexcept E:", "try: b\nfinally:", "match a:\n  case 1:"):
        importing = f"{block}\n    from draftlab import loss\n"
        assert digest(code, importing) != digest("def f(x):\n    return x + 2\n", importing), block
    for relative in ("from . import loss\n", "from .loss import f\n"):
        assert digest(code, relative) != digest("def f(x):\n    return x + 2\n", relative), relative
    (package / "loss").mkdir()
    seen = {before}
    for name in ("loss/one.yaml", "loss.yaml", "loss.mplstyle"):  # as the profiles of draftlab.serving.profiles
        for text in "12":
            (package / name).write_text(text)
            seen.add(digest(code))
    assert len(seen) == 7


@pytest.fixture
def parsed(monkeypatch):
    """The modules that are parsed."""
    found, parse = [], ast.parse
    monkeypatch.setattr(ast, "parse", lambda text, *more, **words: found.append(text) or parse(text, *more, **words))
    return found


def test_what_was_read_of_a_module_is_kept_for_the_next_process(monkeypatch, kept, parsed):
    """What is damaged, or was written by another version, is read again."""

    def read():
        forget()
        parsed.clear()
        return digests.modules_behind("draftlab.stages.region")

    before = read()
    assert len(parsed) == len(before) > 10
    assert read() == before
    assert parsed == []
    for damaged in ("{", "[]"):
        kept.write_text(damaged)
        assert read() == before
        assert len(parsed) == len(before)
        assert read() == before
        assert parsed == []
    monkeypatch.setattr(digests, "_reader", lambda: "another version")
    assert read() == before
    assert len(parsed) == len(before)


def test_a_module_that_is_new_is_followed_from_where_its_name_was_kept(tmp_path, monkeypatch, kept, parsed):
    files = {f"draftlab.{name}": tmp_path / f"{name}.py" for name in ("trainer", "loss")}
    monkeypatch.setattr(
        digests, "source_of", lambda name: files[name] if name in files and files[name].exists() else None
    )
    files["draftlab.trainer"].write_text("from draftlab import loss\n")
    assert digests.modules_behind("draftlab.trainer").keys() == {"draftlab.trainer"}
    files["draftlab.loss"].write_text("A = 1\n")
    forget()
    assert digests.modules_behind("draftlab.trainer").keys() == files.keys()
    assert parsed == ["from draftlab import loss\n", "A = 1\n"]


def test_digests_are_kept_where_and_when_python_keeps_compiled_files(monkeypatch, kept):
    assert digests.modules_behind("draftlab.errors")
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]
    kept.unlink()
    forget()
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert digests.modules_behind("draftlab.errors")
    assert not kept.exists()
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    kept.mkdir()
    forget()
    assert digests.modules_behind("draftlab.errors"), "a file that cannot be written is no error"
    assert [path.is_dir() for path in kept.parent.iterdir()] == [True]


def test_a_columns_meaning_and_a_measure_are_no_code_and_a_columns_kind_is(tmp_path, monkeypatch, kept):
    path = tmp_path / "region.py"
    monkeypatch.setattr(digests, "source_of", lambda module: path if module == "draftlab.stages.region" else None)

    def digest(old="", new=""):
        text = digests.Path(STAGES["region"].run.__code__.co_filename).read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")
        forget()
        return plan.code_digest("draftlab.stages.region")

    before = digest()
    assert digest('    q2: float = column("', '    q2: float = column("more on ') == before
    assert digest('"share of the targets', '"the share of the targets') == before
    assert digest('"""Mark the targets', '"""Mark all targets') == before
    assert digest("    q2: float", "    q2: int") != before
    assert digest('"second probability of the target")', '"second probability of the target", whole=True)') != before
    assert digest("1 - 1e-9", "1 - 1e-8") != before
    assert digest('"k_seq", "specinfer"', '"specinfer", "k_seq"') != before, "a constant of the stage"


def test_a_columns_meaning_is_no_code_in_whatever_class_it_stands(monkeypatch, kept):
    path = digests.source_of("draftlab.stages.latency_alpha")
    text = path.read_text(encoding="utf-8")
    assert "class AtAlpha" in text

    def digest(old="", new=""):
        assert old in text
        monkeypatch.setattr(digests.Path, "read_text", lambda self, **_: text.replace(old, new))
        forget()
        return digests._module("draftlab.stages.latency_alpha")[0]

    before = digest()
    assert digest('    alpha: float = column("', '    alpha: float = column("more on ') == before
    assert digest("    alpha: float", "    alpha: int") != before


@pytest.mark.parametrize(
    ("module", "stages"),
    [
        ("draftlab.engine.held_out", ["blocks", "live", "trees"]),
        ("draftlab.engine.recorded_pairs", ["acceptance", "regime", "sinkhorn"]),
        ("draftlab.train.folders", ["break_even", "medusa", "offline", "online", "replay_log", "tokens"]),
        ("draftlab.stages._counts", ["break_even", "medusa", "offline", "online", "replay_log"]),
        ("draftlab.stages._decoding", ["blocks", "live", "token_rate", "trees"]),
        ("draftlab.stages._pairs", ["acceptance", "regime", "sinkhorn"]),
    ],
)
def test_an_edit_of_what_computes_rows_reruns_the_cells(module, stages):
    """What a module of ``PLANNING`` imports is not seen: it must compute no rows."""
    for stage in stages:
        assert module in digests.modules_behind(f"draftlab.stages.{stage}"), stage


def test_planning_a_run_imports_neither_torch_nor_transformers():
    program = f"""
import sys
from pathlib import Path
from draftlab import plan
from draftlab.files import digests
run = plan.load_run({{"scale": "paper", "experiments": "all"}}, Path({str(WORKFLOW)!r}))
assert all(run.cells(name) for name in run.experiments)
for module in ("draftlab.train.pretrain", "draftlab.stages.online", "draftlab.models.tokenizer"):
    plan.code_digest(module)
print(*{{"torch", "transformers", "numpy"}} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_loss_reaches_distillation_and_not_pretraining():
    modules = ("draftlab.stages.online", "draftlab.train.pretrain", "draftlab.engine.answers")
    reading = [module for module in modules if "draftlab.core.losses" in digests.modules_behind(module)]
    assert reading == ["draftlab.stages.online"]


def test_a_new_verifier_reruns_only_the_stages_that_choose_one_by_name():
    """What draws from the registry must see it, and training must not: it would run again for a verifier that it cannot name."""
    behind = {stage for stage in STAGES if "draftlab.core.verify" in digests.modules_behind(f"draftlab.stages.{stage}")}
    assert behind >= {"acceptance", "live", "online_multidraft", "regime", "region"}
    assert not behind & {"offline", "online", "medusa", "break_even", "replay_log", "tokens"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "^FILE: give a mapping, not None"),
        ("a,b\n" * 999, r"^FILE: give a mapping, not 'a,b [ab, ]{195} .change it there.$"),
        ("compute: {device: cuda, processes: 2}", "^FILE: compute.processes is 2, but"),
        ("pairs: {data: {}}", "^FILE:1: pairs.data: a run has another folder of this name .change it there"),
        ("pairs:\n  my pair: {}", "^FILE:2: pairs.my pair: String should match pattern"),
        ("pairs: {main: {drafts: {tokenizer: {}}}}", "^FILE:1: pairs.main.drafts.tokenizer: a run has another folder"),
        ("pairs: {main: {drafts: {a.b: {}}}}", "^FILE:1: pairs.main.drafts.a.b: String should match pattern"),
        ("data:\n  datasets: [gsm8k, gsm8k]", "^FILE:2: data.datasets: gsm8k stands here twice"),
        ("data: {extra: [gsm8k]}", "^FILE:1: data: gsm8k stands here twice"),
        ("pairs: {t5: {datasets: [xsum, xsum]}}", "^FILE:1: pairs.t5.datasets: xsum stands here twice"),
        ("data:\n  raw_rows: 100000000000000000000", "^FILE:2: data.raw_rows: Input should be less than or equal to"),
        ("data:\n  train_of: {gsm8: 500}", "^FILE:2: unknown dataset 'gsm8' .allowed: spider, .*gsm8k"),
        ("data: {raw_rows_of: {gsm8: 500}}", "^FILE:1: unknown dataset 'gsm8'"),
        (
            "pairs: {main: {drafts: {draft_pruned:\n  {layers: 9}}}}",
            "^FILE:2: draft_pruned of pair main: layers is 9, but",
        ),
        ("pairs: {main: {drafts: {draft_pca: {hidden: 900}}}}", "^FILE:1: draft_pca of pair main: hidden is 900, but"),
        (
            "pairs: {main: {target: {hidden: 63, heads: 3}}}",
            "^FILE:1: target of pair main: 3 heads of a model .* 63 wide",
        ),
        (
            "pairs: {main: {answers: {max_new_tokens: 512}}}",
            "^FILE:1: target of pair main: an answer of 512 tokens leaves",
        ),
        (
            "data: {classifier: '', label: {topic: hub}}",
            "^FILE:1: data: classifier is empty, but label or router has the method hub",
        ),
        (
            "data:\n  classifier: nosuch\n  router: {topic: hub}",
            "^FILE: data.classifier: no such file or folder: nosuch",
        ),
        ("data: {label: {topic: langid}}", "^FILE:1: data: label.topic is langid, which finds languages alone"),
        ("data: {router: {dataset: langid}}", "^FILE:1: data: router.dataset is langid"),
        (
            "pairs: {main: {target: {learning_rate: .inf}}}",
            "^FILE:1: pairs.main.target.learning_rate: Input should be a finite",
        ),
        (
            "experiments:\n  osd_online: {fixed: {temperature: .inf}}",
            "^FILE:2: temperature: Input should be a finite number, not inf",
        ),
        ("experiments: {osd_onlin: {}}", "^FILE:1: no experiment named 'osd_onlin' .allowed: .*osd_online"),
    ],
)
def test_a_wrong_file_of_sizes_is_refused_in_the_users_words(tmp_path, text, message):
    file = tmp_path / "sizes.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message.replace("FILE", re.escape(str(file)))):
        load({"scale": "smoke", "sizes": str(file)})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data:\n  source: raw", "^FILE:2: data.source is raw, but no folder is named .*--config raw=FOLDER"),
        ("data:\n  datasets: [gsm8k, piqa]", "^FILE:2: source generator has no piqa .*raw=FOLDER.* spider, gsm8k"),
        ("data: {source: hub, datasets: [prompts]}", "^FILE:1: source hub has no prompts .*raw=FOLDER"),
        ("data:\n  datasets: []\n  extra: []", "^FILE:2: no dataset that the models of pair main could learn"),
    ],
)
def test_datasets_that_no_source_has_are_refused_before_any_job(tmp_path, text, message):
    file = tmp_path / "sizes.yaml"
    file.write_text(text, encoding="utf-8")
    run = load({"scale": "smoke", "sizes": str(file)})
    with pytest.raises(UserError, match=message.replace("FILE", re.escape(str(file)))):
        plan.check_data(run)
    elsewhere = load({"scale": "smoke", "sizes": str(file), "experiments": "mdss_region"})
    plan.check_data(elsewhere)  # no cell reads a dataset
    with_prompts = load({"scale": "smoke", "sizes": str(file), "dataset": "mine.jsonl"})
    plan.check_data(with_prompts)


def test_packaged_datasets_and_those_of_every_scale_have_a_source(tmp_path):
    (tmp_path / "sizes.yaml").write_text("data: {datasets: [gsm8k, humaneval]}", encoding="utf-8")
    plan.check_data(load({"scale": "smoke", "sizes": "sizes.yaml"}))
    for scale in plan.scale.SCALES:
        if not scale.startswith("qwen"):  # whose files the user supplies
            plan.check_data(load({"scale": scale, "experiments": "all"}))


def test_a_draft_may_have_as_many_layers_as_the_target_that_is_given():
    Path("sizes.yaml").write_text("pairs: {main: {drafts: {draft_pruned: {layers: 9}}}}")
    config = {"scale": "smoke", "sizes": "sizes.yaml", "target": "package:smollm2-135m-instruct"}
    assert load(config).settings.pairs["main"].drafts["draft_pruned"].layers == 9


def test_a_hardware_profile_of_the_users_is_read_like_a_table():
    """So its rule names it, and a change of it measures again."""
    Path("sizes.yaml").write_text("experiments: {beyond_token_rate: {fixed: {profiles: [a100-llama-3-8b, mine.yaml]}}}")
    run = load({"scale": "smoke", "sizes": "sizes.yaml", "experiments": "beyond_token_rate"})
    made = [f"{run.folder}/{name}.csv" for name in ("beyond_verifiers", "beyond_branches", "osd_latency_alpha")]
    assert run.reads("beyond_token_rate", "all") == [*made, "mine.yaml"]
    assert [job.name for job in needs.jobs(run)] == ["beyond_token_rate/all"]
    assert needed(run) == (set(), set())


@pytest.mark.parametrize("scale", ["smoke", "traffic"])
def test_only_the_experiments_that_answer_for_prompts_are_cut_to_the_answer(scale):
    config = {"scale": scale, "dataset": "mine.jsonl"}
    cut, whole = load(config), load(config | {"experiments": "all"})
    different = {name for name in whole.experiments if cut.cells(name) != whole.cells(name)}
    assert different <= {"osd_offline"}


def test_an_empty_name_of_prompts_asks_nothing_about_prompts():
    assert load({"dataset": ""}).experiments == load({}).experiments


def test_what_a_run_was_given_plans_it_again(tmp_path):
    given = {"scale": "smoke", "raw": str(tmp_path), "name": "my_run", "experiments": "osd_online"}
    run = load(given)
    again = load(dict(word.split("=", 1) for word in run.given))
    assert again == run
    assert load({}).given == ["scale=laptop"]


def test_a_run_may_have_the_name_of_a_folder_in_it():
    for name in ("cells", "my_run", "smoke"):
        run = load({"scale": "smoke", "name": name})
        assert f"results/{name}/main/models/draft/config.json" in run.reads("osd_offline", "gsm8k")
        distilled = f"results/{name}/cells/osd_offline/gsm8k/rows.csv"
        assert distilled in run.reads("osd_latency_dataset", "gsm8k")


def test_a_lock_that_goes_away_while_it_is_read_is_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    locks = Path(".snakemake/locks")
    locks.mkdir(parents=True)
    (locks / "0.input.lock").symlink_to("gone")
    (locks / "0.output.lock").write_bytes(b"results/a/\xff.csv\n")
    assert plan.is_locked(Path("results/a"))
    assert not plan.is_locked(Path("results/b"))


def test_arguments_are_read_as_snakemake_reads_them():
    given = ["scale=smoke", "name=2026-11-24", "show_tokens=false", "answers={max_new_tokens: 8}", "template="]
    run = run_of(given)
    assert (run.name, run.config.show_tokens, run.config.template) == ("2026-11-24", False, None)
    assert run.settings.pairs["main"].answers.max_new_tokens == 8
    given = ["scale='smoke'", 'name="b"', "show_tokens=False", "answers='{max_new_tokens: 8}'", "template=''"]
    run = run_of(given)
    assert (run.name, run.config.show_tokens, run.config.template) == ("b", False, None)
    assert run.config.answers == {"max_new_tokens": "8"}
    for name in ("2024", "1e5", "inf", "True"):
        with pytest.raises(UserError, match=r"name: .* is not a text|name: Input should be a valid string"):
            run_of([f"name={name}"])
    with pytest.raises(UserError, match="answers: give a mapping"):
        run_of(["answers={engine: openai"])
    with pytest.raises(UserError, match=r"--config: dataset has no value \(write KEY=VALUE\)"):
        run_of(["dataset"])


def test_a_run_with_other_models_or_prompts_of_the_models_says_so():
    own = [
        {"target": "x"},
        {"draft": "x"},
        {"models": {"target": "x"}},
        {"template": "plain"},
        {"answers": {"batch": 1}},
        {"dataset": "mine.jsonl"},
    ]
    assert all(load(config).has_own_models for config in own)
    scales = [{"scale": "paper"}, {"raw": "x"}, {"name": "my_run"}]
    assert not any(load(config).has_own_models for config in scales)


@pytest.mark.parametrize(
    ("sizes", "own"),
    [
        ("needs: {offline: {gpu: 4}}\ncompute: {processes: 4}\nlimits: {runtime: 720}", False),
        ("pairs: {main: {answers: {batch_tokens: 8192, batch: 4}}}", False),
        (
            "experiments: {osd_offline: {fixed: {micro_batch: 8, sample_batch: 8}}, mdss_live: {fixed: {batch: 2}}}",
            False,
        ),
        ("{}", False),
        ("{pairs: {main: {}}, experiments: {osd_offline: {}}}", False),
        ("data: {train: 100}", True),
        ("pairs: {main: {answers: {max_new_tokens: 64}}}", True),
        ("pairs: {main: {target: {context: 1024}}}", True),
        ("experiments: {osd_offline: {fixed: {batch: 8}}}", True),
        ("experiments: {osd_offline: {axes: {dataset: [spider]}}}", True),
    ],
)
def test_a_file_that_only_fits_jobs_to_a_machine_leaves_the_printed_setting(tmp_path, sizes, own):
    """Else a run of the papers' models on smaller GPUs would never be judged as one."""
    (tmp_path / "sizes.yaml").write_text(sizes)
    assert load({"scale": "paper", "sizes": str(tmp_path / "sizes.yaml")}).has_own_models == own


def test_t5_cells_have_models_and_answers_of_their_own(tmp_path):
    run = load({"scale": "paper"})
    names = {"osd_offline_t5", "osd_online_t5", "osd_summaries_t5", "osd_draft_size_t5"}
    assert names <= set(run.experiments)
    for name in names:
        assert {variant.settings.pair for cell in run.cells(name).values() for variant in cell} == {"t5"}
        for cell in run.cells(name):
            assert all("results/paper/t5/" in path for path in run.reads(name, cell) if "/data/" not in path)

    def templates(run):
        return [run.settings.pairs[pair].answers.template for pair in ("main", "multidraft", "t5")]

    assert templates(run) == ["vicuna_v1.1", "plain", "plain"]
    vicuna = load({"scale": "paper", "template": "vicuna_short"})
    assert templates(vicuna) == ["vicuna_short", "vicuna_short", "plain"]
    t5 = run.settings.pairs["t5"]
    assert t5.target.model.startswith("google/flan-t5-xl@")
    sizes = ("small", "base", "large")
    assert [recipe.model for recipe in t5.drafts.values()] == [f"google/t5-efficient-{size}" for size in sizes]
    laptop = load({}).settings.pairs
    assert laptop["t5"].answers == laptop["main"].answers
    assert {recipe.family for recipe in laptop["t5"].models.values()} == {"t5"}
    mine = load({"target": "some/model"})
    mine_at_paper = load({"scale": "paper", "target": "some/model", "draft": "some/draft"})
    assert "osd_update_cost" in run.experiments
    assert "osd_update_cost" not in mine_at_paper.experiments, (
        "its other drafts have the vocabulary of the scale's target"
    )
    both = {"draft_small": "some/smaller", "main.draft_large": "some/larger"}
    assert "osd_update_cost" in load({"scale": "paper", "target": "some/model", "models": both}).experiments
    assert "osd_latency_dataset" in load({"scale": "paper", "target": "some/model"}).experiments
    assert "osd_update_cost" in load({"target": "some/model"}).experiments, "its drafts are trained here"
    assert not names & set(mine.experiments), "nobody asked about the scale's T5 models"
    assert names & set(load({"target": "some/model", "experiments": "osd_online_t5"}).experiments)
    fixed = {"epochs": 1, "batch": 8, "learning_rate": 0.1, "inner": {"pair": ["main", "t5"]}}
    with pytest.raises(UserError, match="pair differs inside a cell"):
        plan.load_experiment(write(tmp_path, fixed=fixed))


@pytest.mark.parametrize(
    ("name", "setting", "values"),
    [
        ("beyond_lookup", "dataset", ["gsm8k", "spider"]),
        ("osd_latency_dataset", "dataset", ["gsm8k", "spider"]),
        ("osd_arena_classes", "group_by", ["language", "topic"]),
        ("osd_update_cost", "role", ["draft", "draft_large"]),
        ("mdss_live", "distilled", [None, "xsum"]),
        ("osd_shift_sharp", "of", [["gsm8k", "spider"], ["spider", "gsm8k"]]),
    ],
)
def test_variants_of_a_cell_read_the_same_files(tmp_path, name, setting, values):
    """The files are found by the first variant: another dataset's rows would be measured on its answers."""
    given = read_yaml(WORKFLOW / f"experiments/{name}.yaml")
    given = {key: given[key] for key in ("title", "question", "paper", "artefact", "stage")} | {
        "fixed": given.get("fixed", {}) | given["scales"]["smoke"].get("fixed", {}),
        "scales": {"smoke": {}},
    }
    given["fixed"].pop(setting, None)
    given["fixed"]["inner"] = {"number": {str(number): {setting: value} for number, value in enumerate(values)}}
    file = tmp_path / "experiments" / f"{name}.yaml"
    file.parent.mkdir()
    file.write_text(yaml.safe_dump(given))
    with pytest.raises(UserError, match=f"{setting} differs inside a cell"):
        plan.load_experiment(file)


def test_a_scale_that_extends_itself_is_refused(tmp_path):
    shutil.copytree(WORKFLOW, tmp_path / "workflow")
    for name, base in (("smollm2", "smollm2_short"), ("smollm2_short", "smollm2")):
        (tmp_path / f"workflow/scales/{name}.yaml").write_text(f"extends: {base}\n")
    with pytest.raises(UserError, match="extends: smollm2 extends itself"):
        load({"scale": "smollm2"}, tmp_path / "workflow")


def test_a_scale_that_extends_none_or_names_no_model_is_refused(tmp_path):
    shutil.copytree(WORKFLOW, tmp_path / "workflow")
    path = tmp_path / "workflow/scales/smollm2.yaml"
    path.write_text("data: {}\nextends: smok\n")
    with pytest.raises(
        UserError, match=r"smollm2.yaml:2: extends: no scale named 'smok' \(allowed: calibration, .*smoke, "
    ):
        load({"scale": "smollm2"}, tmp_path / "workflow")
    sizes = "experiments: {osd_speedup_theory: {}, osd_offline: {fixed: {batch: 1, learning_rate: 1}}}"
    path.write_text(f"extends: smoke\npairs: {{main: {{target: {{model: empty}}}}}}\n{sizes}\n")
    run = load({"scale": "smollm2", "experiments": "osd_offline"}, tmp_path / "workflow")
    with pytest.raises(UserError, match=r"scales/smollm2.yaml: pairs.main.target: no config.json in empty"):
        plan.check_data(run)
    plan.check_data(load({"scale": "smollm2", "experiments": "osd_speedup_theory"}, tmp_path / "workflow"))
    path = path.rename(path.with_name("calibration.yaml"))
    path.write_text("extends: smoke\n")
    with pytest.raises(
        UserError, match=r"scale calibration has no experiment to run \(add some to `experiments:` of workflow"
    ):
        load({"scale": "calibration"}, tmp_path / "workflow")
    path.write_text("extends: smoke\nexperiments: {osd_speedup_theory: {}}\n")
    assert list(load({"scale": "calibration"}, tmp_path / "workflow").experiments) == ["osd_speedup_theory"]


@pytest.mark.parametrize("stem", ["claims", "claims_related"])
def test_an_experiment_is_not_named_like_the_ledger(tmp_path, stem):
    file = shutil.copyfile(WORKFLOW / "experiments/mdss_region.yaml", tmp_path / f"{stem}.yaml")
    with pytest.raises(UserError, match="not claims or claims_related"):
        plan.load_experiment(file)
    other = shutil.copyfile(file, tmp_path / "claims_region.yaml")
    assert plan.load_experiment(other).stage == "region"
    (tmp_path / f"{stem}.csv").write_text("")
    (tmp_path / "claims_region.csv").write_text("")
    assert list(tables_in(tmp_path)) == ["claims_region"]


def test_a_scale_extends_another_and_names_the_experiments_it_runs():
    """What the shorter scale says wins, key by key; null removes; the rest is the longer one's."""
    long, short = (load({"scale": scale}) for scale in ("smollm2", "smollm2_short"))
    assert set(short.experiments) < set(long.experiments), "the short one leaves some out"
    assert short.settings.pairs["main"].target == long.settings.pairs["main"].target
    drafts = [run.settings.pairs["main"].drafts["draft"] for run in (short, long)]
    assert drafts[0].steps < drafts[1].steps
    assert drafts[0].model_dump(exclude={"steps", "documents"}) == drafts[1].model_dump(exclude={"steps", "documents"})
    assert list(short.cells("osd_offline")) == ["gsm8k", "spider"]
    assert {variant.settings.learning_rate for variant in short.cells("osd_offline")["spider"]} == {2.0e-3}
    assert "mdss_cone" not in long.at_scale, "what neither file names does not exist at the scale"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  osd_offline:", "  osd_ofline:", "no experiment named 'osd_ofline'"),
        ("learning_rate: 2.0e-3\n      batch: 8", "learning_rat: 2.0e-3\n      batch: 8", "unknown key 'learning_rat'"),
        ("{dataset: [gsm8k, spider]}", "{dataset: [gsm8k, spider2]}", "unknown dataset 'spider2'"),
    ],
)
def test_a_wrong_experiment_in_a_scale_names_its_line(tmp_path, old, new, message):
    shutil.copytree(WORKFLOW, tmp_path / "workflow")
    scale = tmp_path / "workflow" / "scales" / "smollm2.yaml"
    text = scale.read_text(encoding="utf-8")
    assert old in text
    scale.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(UserError, match=message) as error:
        load({"scale": "smollm2"}, tmp_path / "workflow")
    assert f"{scale}:{text[: text.index(old)].count(chr(10)) + 1}" in str(error.value), str(error.value)


def test_one_model_of_one_pair_can_be_named():
    run = load({"scale": "smoke", "models": {"multidraft.target": "x"}})
    assert run.settings.pairs["multidraft"].target.model == "x"
    assert run.settings.pairs["main"].target.model is None
    assert run.name == "smoke-models"
    with pytest.raises(UserError, match="no model named"):
        load({"scale": "smoke", "models": {"main.drat": "x"}})
    with pytest.raises(UserError, match="no such file or folder"):
        load({"scale": "smoke", "models": {"target": "nosuch.gguf"}})


def test_a_target_of_the_hub_or_in_a_folder_is_asked_in_its_own_template(tmp_path):
    """Qwen or Llama 3 would otherwise read Vicuna's words for a user and an assistant as text."""

    def templates(**config):
        pairs = load({"scale": "paper"} | config).settings.pairs
        return [pairs[pair].answers.template for pair in ("main", "multidraft", "t5")]

    assert templates(target="some/model") == ["own", "own", "plain"]
    assert templates(models={"target": "some/model"}) == ["own", "plain", "plain"]
    assert templates(models={"multidraft.target": "some/base"}) == ["vicuna_v1.1", "plain", "plain"]
    assert templates(target="some/model", template="vicuna_short") == ["vicuna_short", "vicuna_short", "plain"]
    small_llama(16, 0).save(tmp_path / "target")
    assert templates(target=str(tmp_path / "target")) == ["vicuna_v1.1", "plain", "plain"]
    (tmp_path / "target/chat_template.jinja").write_text("{{ messages }}")
    assert templates(target=str(tmp_path / "target"))[0] == "own"


def test_a_tokenizer_in_the_working_folder_is_nobody_s(tmp_path, monkeypatch):
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    monkeypatch.chdir(tmp_path)
    assert load({"scale": "laptop"}).settings.pairs["main"].answers.template == "vicuna_short"


def test_a_target_without_a_template_is_refused_before_anything_runs(tmp_path):
    small_llama(16, 0).save(tmp_path / "target")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "how much is 1 + 1?"}\n')
    given = {"scale": "traffic", "target": str(tmp_path / "target"), "dataset": str(tmp_path / "prompts.jsonl")}
    with pytest.raises(UserError, match=r"no chat template .name one: template=plain"):
        load(given)
    load(given | {"template": "plain"})
    load(given | {"answers": {"template": "plain"}})
    (tmp_path / "target/tokenizer_config.json").write_text('{"chat_template": null}')
    with pytest.raises(UserError, match="no chat template"):
        load(given)
    (tmp_path / "target/chat_template.jinja").write_text("{{ messages }}")
    load(given)
    for own in ({"template": "own"}, {"answers": {"template": "own"}}):
        with pytest.raises(
            UserError, match=r"^the target of pair .* is trained here and has no chat template .name one"
        ):
            load({"scale": "smoke"} | own)


def test_a_package_is_a_target_with_a_template_of_its_own(tmp_path):
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "how much is 1 + 1?"}\n')
    given = {"scale": "traffic", "target": "package:smollm2-135m-instruct", "dataset": str(tmp_path / "prompts.jsonl")}
    main = load(given | {"experiments": "traffic_verdict"}).settings.pairs["main"]
    assert main.target.model == given["target"]
    assert main.answers.template == "own"
    named = load({"scale": "paper", "models": {"multidraft.target": given["target"]}})
    templates = [named.settings.pairs[pair].answers.template for pair in ("main", "multidraft", "t5")]
    assert templates == ["vicuna_v1.1", "own", "plain"], "of the pair whose target it is"


def test_models_of_the_papers_are_pinned_and_targets_in_half_precision():
    pairs = load({"scale": "paper"}).settings.pairs
    named = [made.model for pair in pairs.values() for made in pair.models.values()]
    loose = [name for name in named if not re.fullmatch(r".*@[0-9a-f]{40}", name)]
    assert len(named) == 17
    assert all(name.startswith(("google/t5-efficient-", "eqhylxx/")) for name in loose), loose
    assert {name: pair.answers.dtype for name, pair in pairs.items()} == {
        "main": "float16",
        "large": "float16",
        "multidraft": "float16",
        "t5": "bfloat16",
    }


def test_the_headline_pair_is_measured_and_asks_for_what_it_needs():
    run = load({"scale": "paper"})
    [cell] = run.cells("osd_latency_alpha_33b")
    assert run.pair_of("osd_latency_alpha_33b", cell) == "large"
    assert run.settings.pairs["large"].target.model.startswith("lmsys/vicuna-33b")
    assert run.settings.asked("latency_alpha", "large").runtime > run.settings.asked("latency_alpha").runtime


def test_with_single_models_named_the_other_experiments_stay():
    named = {"models": {"target": "me/mine@main", "multidraft.target": "x"}}
    run, whole = (load({"scale": "paper", "experiments": "all"} | config) for config in (named, {}))
    assert list(run.experiments) == list(whole.experiments)
    changed = [
        (name, role)
        for name, pair in run.settings.pairs.items()
        for role, recipe in pair.models.items()
        if recipe != whole.settings.pairs[name].models[role]
    ]
    assert changed == [("main", "target"), ("multidraft", "target")]


def test_a_run_on_your_own_prompts_does_what_answers_for_them_and_no_more():
    run = load({"scale": "laptop", "dataset": "mine.jsonl"})
    assert set(run.experiments) == {"osd_offline", "osd_latency_dataset"}
    [(cell, variants)] = run.cells("osd_offline").items()
    assert cell == "prompts"
    assert [variant.settings.dataset for variant in variants] == ["prompts", "prompts"]
    assert [variant.labels["method"] for variant in variants] == ["original", "teacher_forward_kl"]
    (timed,) = run.cells("osd_latency_dataset")["prompts"]
    assert timed.settings.requests == 40
    every = load({"scale": "laptop", "dataset": "mine.jsonl", "experiments": "reproduction"})
    assert len(every.experiments) > 5
    assert len(every.cells("osd_offline")["prompts"]) > 10


@pytest.mark.parametrize(
    ("figure", "message"),
    [
        ({"measure": "speed"}, r":\d+: unknown measure 'speed' of offline \(allowed: alpha, "),
        ({"measure": "alpha", "also": [{"measure": "no"}]}, "unknown measure 'no' of offline"),
        ({"measure": "alpha", "x": "epcoh"}, r":\d+: no column 'epcoh' in the table of offline \(there are "),
        ({"above": "overlp", "ylabel": "y"}, r":\d+: no column 'overlp' in the table of offline"),
        ({"above": "overlap", "below": "visted", "ylabel": "y"}, "no column 'visted'"),
        ({"measure": "alpha", "also": [["y", "overlap", "visted"]]}, "no column 'visted'"),
        ({"measure": "alpha", "panel": "at {tmp}"}, r":\d+: unknown placeholder {tmp} \(allowed: {dataset}, "),
        ({"measure": "alpha", "facts": ["at {tmp:g}"]}, r":\d+: unknown placeholder {tmp:g}"),
        ({"measure": "alpha", "series": "at {method"}, r":\d+: expected '}' before end of string: 'at {method'"),
        ({"measure": "alpha", "where": {"method": "fd"}}, r":\d+: no rows with method fd \(.* have ft\)"),
        ({"measure": "alpha", "series": "method", "order": ["fd"]}, "no rows with method fd"),
        ({}, "give a measure of the stage, or the columns above"),
    ],
)
def test_a_figure_names_columns_and_measures_of_its_stage(tmp_path, figure, message):
    with pytest.raises(UserError, match=message):
        plan.load_experiment(write(tmp_path, figure={"curves": {"x": "epoch", "xlabel": "x"} | figure}))


def test_a_finding_may_name_a_value_that_a_scales_file_sets(tmp_path):
    for folder in ("experiments", "scales"):
        (tmp_path / folder).mkdir()
    size = {"experiments": {"osd_test": {"axes": {"dataset": ["dolly"]}}, "osd_other": None}}
    (tmp_path / "scales/mine.yaml").write_text(yaml.safe_dump(size), encoding="utf-8")
    finding = {"left": {"dataset": "dolly"}, "more": "{gap}", "level": "{gap}"}
    assert plan.load_experiment(write(tmp_path / "experiments", finding=finding))
    with pytest.raises(UserError, match="no rows with method fd"):
        plan.load_experiment(write(tmp_path / "experiments", finding=finding | {"left": {"method": "fd"}}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"left": {"metod": "ft"}}, r":\d+: no column 'metod' in the table of offline"),
        ({"right": {"metod": "ft"}}, "no column 'metod'"),
        ({"each": ["datset"]}, r":\d+: no column 'datset'"),
        ({"best": ["metod"]}, "no column 'metod'"),
        ({"left": {"method": ["ft", "fd"]}}, r":\d+: no rows with method fd \(the scales of this file have ft\)"),
        ({"right": {"dataset": "spidr"}}, "no rows with dataset spidr"),
        ({"left": {"window": [0.8, 1.0]}}, r":\d+: no column 'stream_index'"),
        ({"more": "by {gapp}"}, r":\d+: unknown placeholder {gapp} \(allowed: {gap}, "),
        ({"level": "by {gap:.2f}"}, "unknown placeholder {gap:.2f}"),
        ({"less": "{best} is best"}, "unknown placeholder {best}"),
        ({"more": "by {}"}, "unknown placeholder {}"),
        ({"more": "by {gap"}, r":\d+: expected '}' before end of string: 'by {gap' \(write {{ and }} for braces\)"),
        ({"more": "by gap}"}, "Single '}' encountered"),
    ],
)
def test_a_finding_names_columns_values_and_placeholders_that_exist(tmp_path, change, message):
    right = {"left": {"method": "ft"}, "each": ["dataset"], "more": "{gap} {{", "level": "{each}"}
    assert plan.load_experiment(write(tmp_path, finding=[right, right | {"best": ["method"], "level": "{best}"}]))
    with pytest.raises(UserError, match=message):
        plan.load_experiment(write(tmp_path, finding=[right, right | change]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": ["datset"]}, r":\d+: no column 'datset'"),
        ({"columns": ["metod"]}, "no column 'metod'"),
        ({"where": {"metod": "ft"}}, "no column 'metod'"),
        ({"where": {"method": "fd"}}, "no rows with method fd"),
        ({"window": [0.8, 1.0]}, "no column 'stream_index'"),
    ],
)
def test_a_layout_names_columns_and_values_that_exist(tmp_path, change, message):
    with pytest.raises(UserError, match=message):
        plan.load_experiment(write(tmp_path, layout={"rows": ["dataset"]} | change))


def test_values_that_a_file_does_not_set_are_not_judged(tmp_path):
    """A number is compared as a number; a view may rename values, and a column of the stage may have any."""
    axes = {"dataset": ["spider"], "temperature": [0, 1]}
    finding = {"left": {"temperature": "1.0", "epoch": 7}, "more": "", "level": ""}
    fixed = FIXED | {"sample_source": "teacher"}
    assert plan.load_experiment(write(tmp_path, axes=axes, fixed=fixed, finding=finding))
    assert plan.load_experiment(write(tmp_path, axes=axes, fixed=fixed, finding=finding, view="budgets"))
    finding["left"]["temperature"] = 2
    with pytest.raises(UserError, match="no rows with temperature 2"):
        plan.load_experiment(write(tmp_path, axes=axes, fixed=fixed, finding=finding))
    assert plan.load_experiment(write(tmp_path, axes=axes, fixed=fixed, finding=finding, view="budgets"))


@pytest.mark.parametrize(
    ("stage", "scheme"), [("acceptance", "traversal"), ("live", "traversal+block"), ("online_multidraft", "block")]
)
def test_a_verifier_of_another_kind_is_refused_before_any_job(stage: str, scheme: str) -> None:
    (of_list,) = get_args(STAGES[stage].settings.model_fields["schemes"].annotation)
    allowed = TypeAdapter(of_list).validate_python
    assert allowed("k_seq") == "k_seq"
    with pytest.raises(ValidationError, match=r"Input should be .*'k_seq'.* or FILE.py:OBJECT"):
        allowed(scheme)


@pytest.mark.parametrize("name", verify.TOKEN_VERIFIERS)
def test_a_tail_follows_drawn_drafts_alone(name):
    drawn = verify.TOKEN_VERIFIERS[name].drafting != "ranked"
    with contextlib.nullcontext() if drawn else pytest.raises(ValidationError):
        TypeAdapter(LiveScheme).validate_python(f"{name}+block")
