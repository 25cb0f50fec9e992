"""Single rules, each from committed inputs of its own: what it writes, and that it asks for nothing else."""

from __future__ import annotations

import json
import re
import shutil

import pandas as pd
import pytest
import yaml

from draftlab import plan
from draftlab.cli import VERBS
from draftlab.files.digests import modules_behind
from draftlab.files.gguf_header import read_header
from draftlab.files.tables import table_bytes
from draftlab.files.weights import parameter_count
from draftlab.models.gguf import export
from draftlab.models.tokenizer import train_tokenizer
from tests.checkout import copy_checkout, edited, jobs, snakemake
from tests.conftest import ROOT
from tests.pair import small_llama

pytestmark = pytest.mark.workflow

PUBLISHED = ROOT / "paper_figures/laptop"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    return copy_checkout(tmp_path_factory.mktemp("rules") / "checkout")


def run(checkout, rules, *targets):
    """Make targets with these rules alone: an input that another would have to make is an error."""
    snakemake(checkout, "--allowed-rules", *rules.split(), "--config", "scale=laptop", "--", *targets, cores=1)
    return [(checkout / target).read_text() for target in targets]


def test_a_template_is_that_of_all_who_read_prompts_and_pairs_may_be_of_a_distilled_draft(checkout):
    words = ["-n", "-p", "--config", "scale=smoke", "name=smoke", "template=plain", "--"]
    tables = [f"results/smoke/{name}.csv" for name in ("mdss_drafts", "mdss_acceptance", "osd_online")]
    distilled = "results/smoke/main/pairs/spider.distilled.safetensors"
    said = snakemake(checkout, *words, *tables, distilled)
    commands = re.findall(r"draftlab (pretrain target|pretrain draft|record-pairs|answer) (.*?) --out", said, re.S)
    assert len({verb for verb, _ in commands}) == 4
    assert all("--template plain" in words for _, words in commands)
    for verb, given in commands:  # the answers of recorded pairs are always sampled in one way
        assert ("--top-p" in given) == (verb == "answer"), verb
    (words,) = (words for words in said.split("draftlab record-pairs ") if distilled in words)
    assert "--draft results/smoke/cells/osd_offline/spider/draft " in words, (
        "the draft that osd_offline distilled on it"
    )


def test_answers_at_any_temperature_have_a_name_of_their_own(checkout):
    (checkout / "sizes.yaml").write_text(
        "experiments: {osd_online: {axes: {dataset: [spider]}, fixed: {save: '', temperature: 1.0e-5, inner: "
        "{method: {cold: {}, third: {temperature: 0.3333333333333333}, six: {temperature: 0.333333}}}}}}"
    )
    config = ["--config", "scale=smoke", "sizes=sizes.yaml", "name=cold"]
    said = snakemake(checkout, "-n", "-p", *config, "--", "results/cold/osd_online.csv")
    asked = set(re.findall(r"--temperature (\S+)", said))
    assert asked == {"1e-05", "0.3333333333333333", "0.333333"}


def test_a_figure_of_your_own_target_does_not_say_that_it_is_padded(checkout):
    small_llama(32, 0).save(checkout / "own")
    for models, flag in (("{target: own}", True), ("{multidraft.target: own}", False)):
        words = ["-n", "-p", "--config", "scale=smoke", "name=own", f"models={models}", "--"]
        said = snakemake(checkout, *words, "results/own/figures/osd_latency_alpha.png")
        assert ("--own-target" in said) == flag


def test_topics_are_told_by_the_classifier_of_the_scale(checkout):
    words = ["-n", "-p", "--config", "scale=paper", "--", "prefetch"]
    words += [f"results/paper/{name}.csv" for name in ("osd_arena_topic", "osd_routing")]
    with edited(
        checkout / "workflow/scales/paper.yaml", "website_classification@main", "website_classification@abc123"
    ):
        said = snakemake(checkout, *words)
    assert "hub_classifier('alimazhar-110/website_classification@abc123')" in said.replace("'\"'\"'", "'")
    asked = re.findall(r"draftlab data classify (.*?) --out", said, re.S)
    assert asked
    assert all("--model alimazhar-110/website_classification@abc123" in words for words in asked)
    cells = re.findall(r"\"classifier\": \"(.*?)\"", said)  # which route the requests of a stream
    assert set(cells) == {"alimazhar-110/website_classification@abc123"}


def test_other_sizes_of_an_architecture_and_another_model_in_a_folder_rerun_what_measures_them(checkout):
    small_llama(32, 0).save(checkout / "own")
    cell = "results/shapes_cpu-target/cells/osd_latency_length/all"
    (checkout / cell).mkdir(parents=True)
    for name in ("cell.json", "rows.csv", "run.json"):
        (checkout / cell / name).touch()
    words = ["--config", "scale=shapes_cpu", "target=own", "--", f"{cell}/rows.csv"]
    snakemake(checkout, "--touch", "--force", *words)
    assert "Nothing to be done" in snakemake(checkout, "-n", *words)
    draft = "llama-160m,llama,768,3072,"
    with edited(checkout / "workflow/models.csv", f"{draft}12", f"{draft}13"):
        assert set(jobs(snakemake(checkout, "-n", *words))) == {"latency_length"}
    small_llama(64, 0).save(checkout / "own")
    assert set(jobs(snakemake(checkout, "-n", *words))) == {"latency_length"}


def test_a_rule_runs_again_when_the_code_of_its_command_changes():
    seen = set()
    for file in sorted((ROOT / "workflow").rglob("*.smk")):
        for rule in re.split(r"^ *rule\b", file.read_text(), flags=re.M)[1:]:
            named = re.search(r"\bcode=(.*?)\b(message|shell):", rule, re.S)
            for verb, where in VERBS.items():
                if named and isinstance(where, str) and re.search(rf"draftlab {verb}\b", rule) and verb != "run":
                    modules = [f"draftlab.{name}" for name in re.findall(r'"([a-z_.]+)"', named[1])]
                    assert f"draftlab.{where.partition(':')[0]}" in modules_behind(*modules), verb
                    seen.add(verb)
    assert {"pretrain tokenizer", "pretrain target", "data fetch", "figure", "report"} <= seen


def test_a_job_that_asks_for_more_gpus_than_the_run_has_is_refused_before_any_job(checkout):
    (checkout / "two.yaml").write_text("{compute: {processes: 2}, needs: {offline: {gpu: 2}}}")
    words = ["--config", "scale=paper", "sizes=two.yaml", "name=two", "--", "results/two/osd_offline.csv"]
    said = snakemake(checkout, "-n", *words, check=False)
    assert "a job asks for 2 GPUs, but --resources gives the run 1" in said
    snakemake(checkout, "-n", *words[:4], "--", "paper_figures")
    said = snakemake(checkout, "-n", "-p", "--resources", "gpu=2", "exclusive=1", *words)
    assert "python -m draftlab.files.gpus 2 torchrun --standalone --nproc-per-node 2 -m draftlab run" in said


def test_the_path_of_a_checkout_may_have_any_character_but_braces(tmp_path):
    for name, fits in (("my $(touch ran) 'dr\u00e4ft\"", True), ("my {run}", False)):
        folder = copy_checkout(tmp_path / name)
        said = snakemake(folder, "-n", "--config", "scale=smoke", "experiments=mdss_region", check=fits)
        assert ("region" in jobs(said)) == fits
        assert ("braces are wildcards in a workflow: " in said) != fits


def test_a_kept_draft_is_exported(checkout):
    cell = checkout / "results/laptop/cells/osd_online/spider"
    small_llama(32, 0).save(cell / "draft")
    train_tokenizer(["some text"], 320).save(cell / "draft")
    (cell / "rows.csv").write_text("alpha\n1\n")
    made = "results/laptop/drafts/osd_online.spider.gguf"
    words = ["--allowed-rules", "export_draft", "--config", "scale=laptop", "--", made]
    snakemake(checkout, *words, cores=1)
    assert parameter_count(checkout / made) == parameter_count(cell / "draft")
    target = checkout / "results/laptop/main/models/target"
    small_llama(32, 1).save(target)
    train_tokenizer(["other words"], 320).save(target)
    export(target, target / "model.gguf")
    snakemake(checkout, "--force", *words, cores=1)
    tokens = [read_header(file).metadata["tokenizer.ggml.tokens"] for file in (checkout / made, target / "model.gguf")]
    assert tokens[0] == tokens[1], "the vocabulary of the target's own file"
    planned = jobs(snakemake(checkout, "-n", "export_drafts", "--config", "scale=laptop"))
    assert planned["export_draft"] > 5


def test_no_rule_has_an_array_of_the_shell(checkout):
    """In bash 3.2, which macOS has, an empty one is an unbound variable."""
    files = [ROOT / "Snakefile", *sorted((ROOT / "workflow").rglob("*.smk"))]
    assert len(files) > 5
    assert not [file.name for file in files if "[@]" in file.read_text() or "[*]" in file.read_text()]


def test_any_table_can_be_made_by_its_name(checkout):
    """As the report's commands ask, whatever experiments the run was made of."""
    names = [path.stem for path in (checkout / "workflow/experiments").glob("*.yaml")]
    known = [
        name for name in names if "smoke" in plan.load_experiment(checkout / f"workflow/experiments/{name}.yaml").scales
    ]
    said = snakemake(checkout, "-n", "--config", "scale=smoke", "--", *(f"results/smoke/{name}.csv" for name in known))
    assert jobs(said)["collect"] == len(known) > 50


def test_figure_makes_the_published_files_of_a_published_table(checkout):
    (checkout / "results/laptop").mkdir(parents=True, exist_ok=True)
    (checkout / "results/laptop/mdss_region.csv").write_bytes(table_bytes(PUBLISHED / "data/mdss_region.csv.gz"))
    names = [f"mdss_region.{suffix}" for suffix in ("md", "csv", "tex")]
    targets = [f"results/laptop/figures/{name}" for name in names]
    said = snakemake(checkout, "--allowed-rules", "figure", "--config", "scale=laptop", "--", *targets, cores=1)
    finding = re.search(r"results/laptop/figures/mdss_region\.png: (.+)", said)[1]
    made = [(checkout / target).read_text() for target in targets]
    assert finding in made[0]
    assert made == [(PUBLISHED / name).read_text() for name in names]
    for suffix in ("pdf", "png"):
        name = f"mdss_region.{suffix}"
        assert (checkout / f"results/laptop/figures/{name}").read_bytes() == (PUBLISHED / name).read_bytes()


@pytest.fixture
def publish(checkout):
    """Publish one table of a run whose claims were judged."""
    (checkout / "results/laptop").mkdir(parents=True, exist_ok=True)
    for name in ("claims", "claims_related"):
        (checkout / f"results/laptop/{name}.csv").touch()
    rules = ["--allowed-rules", "speedup_theory", "collect", "publish"]
    words = [*rules, "--config", "scale=laptop", "experiments=osd_speedup_theory", "--", "publish"]
    return lambda: snakemake(checkout, *words)


def test_the_curves_of_a_run_are_those_of_its_experiments(checkout):
    """Tables of experiments that an earlier run had may lie in the same folder."""
    run = ["--config", "scale=smoke", "experiments=osd_online", "tracker=tensorboard"]
    said = snakemake(checkout, "-n", "-p", *run, "--", "results/smoke/tensorboard")
    (words,) = re.findall(r"draftlab tensorboard (.*?)--out", said, re.S)
    assert "--experiments osd_online " in words


def test_publish_makes_the_published_table_and_runs_again_after_it_was_taken_back(checkout, publish):
    published = checkout / "paper_figures/laptop/data/osd_speedup_theory.csv.gz"
    for _ in range(2):
        published.unlink(missing_ok=True)
        publish()
        assert table_bytes(published) == table_bytes(PUBLISHED / f"data/{published.name}")
    assert (checkout / "results/laptop/cells/osd_speedup_theory.txt").read_text() == "all\n"


def test_publish_of_one_table_keeps_the_verdicts_on_the_others(checkout, publish):
    data = checkout / "paper_figures/laptop/data"
    data.mkdir(parents=True, exist_ok=True)
    shutil.copy(PUBLISHED / "data/mdss_region.csv.gz", data)
    publish()
    judged, before = (pd.read_csv(folder / "claims.csv") for folder in (data, PUBLISHED / "data"))
    for name in ("mdss_region", "osd_speedup_theory"):
        ours, theirs = (table[table["experiment"] == name].reset_index(drop=True) for table in (judged, before))
        assert len(theirs) > 0
        pd.testing.assert_frame_equal(ours, theirs, check_dtype=False)
    assert (data / "claims_related.csv").stat().st_size > 0


def test_a_hidden_file_beside_the_published_numbers_judges_nothing_again(checkout):
    made = checkout / "results/mine"
    made.mkdir(parents=True)
    for name in ("osd_speedup_theory", "claims", "claims_related"):
        (made / f"{name}.csv").touch()
    config = ["--config", "scale=laptop", "name=mine", "experiments=osd_speedup_theory"]
    words = ["--allowed-rules", "claims", *config, "--", "results/mine/claims.csv"]
    snakemake(checkout, "--touch", "--force", *words)
    (checkout / "workflow/published/.DS_Store").touch()
    assert "Nothing to be done" in snakemake(checkout, "-n", *words)


def test_clean_turns_raw_rows_into_prompts_and_keeps_what_it_rejects(checkout):
    raw = checkout / "results/laptop/data/gsm8k/raw"
    raw.mkdir(parents=True)
    for split in ("train", "eval"):
        rows = [
            {"question": f"{split}: what is {i} plus {i}?", "answer": f"It is {2 * i}.\n#### {2 * i}"}
            for i in range(200)
        ] + [{"answer": "no question"}]
        lines = [json.dumps({"file": "here", "line": line, "row": row}) for line, row in enumerate(rows, 1)]
        (raw / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
        (raw / f"{split}.provenance.json").write_text(json.dumps({"source": "raw"}))
    folder = "results/laptop/data/gsm8k"
    prompts, rejected = run(checkout, "clean", f"{folder}/prompts.jsonl", f"{folder}/rejected.jsonl")
    assert "train: what is 7 plus 7?" in prompts
    assert "eval:" not in prompts
    assert rejected.count("\n") == 2


HOSTILE = 'it\'s "mine" $(touch ran) `touch ran`; touch ran\n\\n %s {braces} \u00fc'


def test_a_value_of_a_cell_reaches_its_job_unharmed_and_is_never_run(checkout):
    """A label of an experiment's file, and the name of a model at a scale where no rule makes models."""
    experiment = checkout / "workflow/experiments/mdss_region.yaml"
    values = yaml.safe_load(text := experiment.read_text())
    values["fixed"] |= {"inner": {"method": {HOSTILE: {}}}}
    with edited(experiment, text, yaml.safe_dump(values)):
        run(checkout, "region", "results/laptop/cells/mdss_region/all/rows.csv")
    assert set(pd.read_csv(checkout / "results/laptop/cells/mdss_region/all/rows.csv")["method"]) == {HOSTILE}
    small_llama(32, 0).save(checkout / HOSTILE)
    target = "results/shapes_cpu-target/cells/osd_latency_alpha/all/cell.json"
    (checkout / "config.json").write_text(json.dumps({"scale": "shapes_cpu", "target": HOSTILE}))
    words = ("--keep-incomplete", "--configfile", "config.json", "--allowed-rules", "latency_alpha", "--", target)
    assert "draftlab: error: " in snakemake(checkout, *words, check=False, cores=1)  # the draft has other tokens
    assert json.loads((checkout / target).read_text())["inputs"]["target"] == HOSTILE
    assert not list(checkout.rglob("ran"))
