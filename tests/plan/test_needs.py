"""What a run will need: sizes of the papers' models, jobs that do not fit, what is left out."""

from __future__ import annotations

import ast
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import memory
from draftlab import plan
from draftlab.core.settings import Device
from draftlab.engine.recording import compact_distribution
from draftlab.engine.settings import WHOLE_VOCAB
from draftlab.errors import UserError
from draftlab.files.json_files import write_json
from draftlab.latency.settings import Engine
from draftlab.latency.sizes import Sizes, known_models
from draftlab.models.hf import new_t5
from draftlab.models.llama import Llama, LlamaConfig
from draftlab.plan import hours, needs, outlook
from draftlab.plan.hours import GPUS, STREAMED, OnCard, drafting
from draftlab.plan.memory import decoding, recorded, training
from draftlab.plan.scale import Gpu, Needs
from draftlab.stages import STAGES, blocks
from draftlab.stages._schemes import LIVE, is_counted
from draftlab.stages.blocks import Settings as Blocks
from draftlab.stages.latency_cost import Settings as Costs
from draftlab.stages.latency_null import Settings as Null
from draftlab.stages.live import Contender
from draftlab.train.settings import ReplayLog
from tests.conftest import ROOT

WORKFLOW = Path(plan.WORKFLOW)
CARD = GPUS["a100-80"]
PRINTED = {  # million weights, as the models' cards or papers count them
    "lmsys/vicuna-7b-v1.3": 6738.4,
    "lmsys/vicuna-33b-v1.3": 32528.9,
    "JackFram/llama-160m": 162.4,
    "package:smollm2-135m-instruct": 134.5,
    "facebook/opt-13b": 12853.5,
    "facebook/opt-125m": 125.2,
    "google/flan-t5-xl": 2849.8,
    "google/t5-efficient-small": 60.5,
    "meta-llama/Llama-3.2-1B-Instruct": 1235.8,
    "meta-llama/Llama-3.2-3B-Instruct": 3212.8,
    "meta-llama/Llama-3.1-8B-Instruct": 8030.3,
    "meta-llama/Llama-3.3-70B-Instruct": 70553.7,
    "mistralai/Mistral-7B-Instruct-v0.3": 7248.0,
    "Qwen/Qwen2.5-0.5B-Instruct": 494.0,
    "Qwen/Qwen2.5-1.5B-Instruct": 1543.7,
    "Qwen/Qwen2.5-7B-Instruct": 7615.6,
    "Qwen/Qwen2.5-32B-Instruct": 32763.9,
    "Qwen/Qwen3-0.6B": 596.0,
    "Qwen/Qwen3-1.7B": 1720.6,
    "Qwen/Qwen3-4B": 4022.5,
    "Qwen/Qwen3-8B": 8190.7,
    "Qwen/Qwen3-14B": 14768.3,
    "Qwen/Qwen3-32B": 32762.1,
}


def run(**config: object) -> plan.Run:
    return plan.load_run({"scale": "paper"} | config, WORKFLOW)


def said_of(asked: plan.Run, gpu: Gpu = "a100-80", gpus: int = 1) -> list[str]:
    return list(outlook.lines(asked, gpu, GPUS[gpu], gpus=gpus))


def settings_of(planned: plan.Run, experiment: str) -> list[Any]:
    """The settings of every variant of an experiment."""
    return [variant.settings for cell in planned.cells(experiment).values() for variant in cell]


def peak_of(planned: plan.Run, settings: Any, **changes: object) -> int:
    """The bytes of a variant with these changes on its device."""
    peak = needs._peak(planned, settings.model_copy(update=changes))
    assert peak
    return peak


def seconds_of(planned: plan.Run, settings: Any, **changes: object) -> float:
    """The seconds of a variant with these changes on ``CARD``, with prompts of 256 tokens."""
    seconds = hours.of_variant(planned, settings.model_copy(update=changes), CARD, 256)
    assert seconds
    return seconds


def on_card(planned: plan.Run, role: str, pair: str = "main", dtype: str = "float16") -> OnCard:
    """A model of a pair on ``CARD``."""
    model = needs.model_of(planned.settings.pairs[pair], role)
    assert model
    return OnCard(CARD, model.sizes, dtype)


def test_the_sizes_are_those_of_the_models() -> None:
    known = known_models()
    for name, millions in PRINTED.items():
        assert known[name].sizes.parameters / 1e6 == pytest.approx(millions, abs=0.06, rel=2e-5), name
    llama = Sizes(kind="llama", hidden=32, ffn=64, layers=3, heads=4, kv_heads=2, vocab=100, context=64)
    made = Llama(LlamaConfig(100, 32, 64, 3, 4, 2, 64, tie_word_embeddings=False))
    assert llama.parameters == sum(weight.numel() for weight in made.parameters())
    t5 = Sizes(kind="t5", hidden=32, ffn=64, layers=3, heads=4, kv_heads=4, vocab=100, context=64, tied=True)
    network = new_t5(100, 32, 64, 3, 4, torch.Generator().manual_seed(0))
    assert t5.parameters == sum(weight.numel() for weight in network.parameters())


def test_every_model_of_the_papers_is_in_the_table() -> None:
    every = list(needs.jobs(run()))
    assert {job.rule for job in every} >= {"answer", "offline", "online", "target", "draft", "pairs", "latency_alpha"}
    modelled = ("answer", "blocks", "live", "offline", "online", "pairs", "tokens")
    unknown = [job for job in every if job.rule in modelled and not job.peak]
    assert unknown == []
    said = said_of(run())
    assert any("lmsys/vicuna-33b-v1.3" in line for line in said)
    assert any(line.startswith("requires access") and "chatbot_arena" in line for line in said)


@pytest.mark.parametrize("experiments", ["", "all"])
def test_every_job_fits_a_card_of_80_gb(experiments: str) -> None:
    asked = run(experiments=experiments) if experiments else run()
    assert said_of(asked)[-1] == "every job that is modelled fits a100-80 (80 GiB)"


def test_the_page_shows_the_plan() -> None:
    page = (ROOT / "docs/paper.md").read_text(encoding="utf-8")
    assert "\n".join(said_of(run())) in page
    for gpus in (1, 8):
        [said] = [line for line in said_of(run(), "h100", gpus) if line.startswith(f"on {gpus} GPU")]
        assert f" {said.split()[3]} " in page


def test_jobs_that_do_not_fit_are_named() -> None:
    said = said_of(run(), "rtx4090")
    small = [line for line in said if line.startswith("does not fit")]
    assert any("answer main spider.train" in line for line in small)
    assert any("latency_alpha large" in line for line in small)
    assert not any("t5-efficient" in line for line in small)
    remedies = {line.partition("; lower ")[2] for line in small if " large " not in line and "latency_" not in line}
    keys = {f"pairs.{pair}.answers.batch_tokens" for pair in ("main", "multidraft")}
    assert remedies == keys | {"micro_batch, sample_batch", "micro_batch", "batch"}


def test_the_files_of_sizes_on_the_page_fit_their_cards(tmp_path: Path) -> None:
    page = (
        (ROOT / "docs/paper.md").read_text(encoding="utf-8").partition("## A smaller GPU")[2].partition("\n## Other")[0]
    )
    texts = [part.partition("```")[0] for part in page.split("```yaml\n")[1:]]
    assert len(texts) == 3
    runs = []
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.yaml").write_text(text)
        runs.append(run(sizes=str(tmp_path / f"{number}.yaml")))
    assert not any(one.has_own_models for one in runs)
    large, small, shared = runs
    said = said_of(large, "a100-40", 4)
    assert [line.split()[6:8] for line in said if line.startswith("does not fit")] == [["latency_alpha", "large"]]
    assert any(line.startswith("on 4 GPUs: 39.8 hours") for line in said)
    left_out = ["osd_latency_alpha_33b", "osd_draft_size", "osd_medusa", "osd_update_cost"]
    left_out += [
        name
        for name in small.experiments
        if name[:5] == "mdss_" and name not in ("mdss_cone", "mdss_cost", "mdss_region")
    ]
    assert all(f"`{name}`" in page for name in left_out[:4])
    named = ",".join(name for name in small.experiments if name not in left_out)
    assert said_of(run(sizes=str(tmp_path / "1.yaml"), experiments=named), "rtx4090")[-1].startswith("every job")
    assert shared.settings.compute.processes == 4


def test_a_job_that_fits_has_room_for_what_the_allocator_holds() -> None:
    """On an H100, answers to 32 prompts of 1,920 tokens held 1.12 times the peak that is computed."""
    asked = run(experiments="osd_online")
    most = max(job.peak or 0 for job in needs.jobs(asked)) / 2**30
    for room, fits in ((1.1, False), (1.2, True)):
        card = GPUS["h100"].model_copy(update={"memory": most * room})
        assert ("every job" in list(outlook.lines(asked, "mine", card))[-1]) == fits


def test_a_longer_batch_takes_its_cache_and_a_larger_one_its_distributions() -> None:
    sizes = known_models()["lmsys/vicuna-7b-v1.3"].sizes
    assert decoding(sizes, "float16", 1, 0, 0, "cuda") == pytest.approx(2 * 6738.4e6, rel=1e-3)
    for device, size in (("cuda", 2), ("cpu", 4)):
        more = decoding(sizes, "float16", 32, 1, 2047, device) - decoding(sizes, "float16", 32, 1, 1023, device)
        assert more == 32 * 1024 * sizes.entry * size, "attention on a CPU is in float32"
    small = known_models()["JackFram/llama-160m"].sizes
    assert training(small, 8, 256, 64, 32) - training(small, 8, 256, 64, 16) == 16 * 64 * 32000 * 4
    in_parts = training(small, 8, 256, 64, 8, in_parts=True)
    assert in_parts - training(small, 8, 256, 64, 8) == 4 * small.parameters, "the gradients of the parts before"


def test_a_long_context_takes_no_more_than_the_longest_request() -> None:
    """Llama 3.1 reads 131,072 tokens, whose cache would take 17 GB."""
    pair = {"target": "meta-llama/Llama-3.1-8B-Instruct", "draft": "meta-llama/Llama-3.2-1B-Instruct"}
    timed = [job for job in needs.jobs(run(experiments="osd_latency_alpha", **pair)) if job.rule == "latency_alpha"]
    weights = 2e6 * (PRINTED[pair["target"]] + PRINTED[pair["draft"]])
    assert timed
    for job in timed:
        assert weights < (job.peak or 0) < weights + 1e9


@pytest.mark.parametrize(
    ("engine", "number"),
    [
        ({"weights": "f16", "gpu_layers": -1}, 2),
        ({"weights": "f32", "gpu_layers": -1}, 2),
        ({"weights": "f16"}, 4),
        ({"weights": "bf16", "backend": "torch", "device": "cuda"}, 2),
        ({"weights": "f32", "backend": "torch", "device": "cuda"}, 4),
    ],
)
def test_a_measurement_takes_the_cache_of_every_request_in_a_call(engine: dict[str, Any], number: int) -> None:
    """As ``models.llama_cpp`` opens it: in float16 on a GPU, in float32 on a CPU; torch's has the type of its weights."""
    vicuna, llama = (known_models()[name].sizes for name in ("lmsys/vicuna-7b-v1.3", "JackFram/llama-160m"))
    weights = (4 if engine["weights"] == "f32" else 2) * (vicuna.parameters + llama.parameters)
    entries = number * (vicuna.entry + llama.entry)
    grid = {"context": [64, 1000], "batch": [1, 8], "verified": [2, 9], "blocks": 1}
    assert needs._engine(run(), Costs(**grid, **engine)) == weights + 8 * 1009 * entries
    assert needs._engine(run(), Engine(**engine)) == weights + 2048 * entries


def test_a_measurement_takes_the_drafts_that_it_opens() -> None:
    """By hand: Vicuna-7B in float16 beside TinyLlama, which learns: weights in float32, gradients and two moments."""
    paper = run(experiments="osd_update_cost,osd_latency_dataset")
    peaks = {job.name: (job.peak or 0) / 1e9 for job in needs.jobs(paper) if job.rule == "latency_update"}
    assert 13.5 + 16 * 1.1 < peaks["osd_update_cost/draft_large"] < 13.5 + 16 * 1.1 + 6
    assert peaks["osd_update_cost/draft"] < 22
    served = settings_of(paper, "osd_latency_dataset")[0]
    one, two = (
        needs._engine(paper, served.model_copy(update={"weights": "f16", "contenders": names})) or 0
        for names in (["distilled"], ["distilled", "draft_large"])
    )
    assert two - one > 2 * 1.1e9
    vicuna = known_models()["lmsys/vicuna-7b-v1.3"].sizes
    null = needs._engine(paper, Null(repeats=1, pairs=2, steps=1, weights="f16", gpu_layers=-1))
    assert null == 2 * (vicuna.parameters + 2048 * vicuna.entry)


def test_a_padded_target_takes_the_memory_of_its_padded_size() -> None:
    small = plan.load_run({"scale": "laptop"}, WORKFLOW)
    pair = small.settings.pairs["main"]
    target = on_card(small, "target").model
    config = LlamaConfig(
        vocab_size=target.vocab,
        hidden_size=4 * target.hidden,
        intermediate_size=8192,
        num_hidden_layers=6,
        num_attention_heads=target.heads,
        num_key_value_heads=target.kv_heads,
        head_dim=target.hidden // target.heads,
        max_position_embeddings=target.context,
        tie_word_embeddings=True,
    )
    made = sum(weight.numel() for weight in Llama(config, torch.device("meta")).parameters())
    padding = {"inflated_layers": 6, "inflated_ffn": 8192, "inflated_widths": 4}
    plain, padded = (needs._engine(small, Engine(weights="f32", **more)) or 0 for more in ({}, padding))
    cache = 4 * (6 * target.entry // target.layers - target.entry) * needs._context(pair, target)
    assert padded - plain == 4 * (made - target.parameters) + cache > 4e8


def test_a_recorded_pass_takes_the_bytes_that_are_planned() -> None:
    for vocab, kept in ((50, 50), (WHOLE_VOCAB, WHOLE_VOCAB), (WHOLE_VOCAB + 1, 8)):
        log_probs, ids = compact_distribution(torch.zeros(6, vocab), torch.zeros(6, dtype=torch.int64), kept)
        assert recorded(2, 3, vocab, keep=8) == log_probs.nbytes + ids.nbytes


def test_learning_that_is_timed_beside_the_target_holds_the_target_and_its_copies() -> None:
    """By hand for Medusa: Vicuna-7B in float16; LLaMA-160M and 444 million weights of heads, three times and with gradients and moments; and of
    8 answers of 128 tokens the logits of three heads, six times in float32, and the target's."""
    peaks = {job.rule: job.peak for job in needs.jobs(run(experiments="osd_medusa,beyond_break_even"))}
    by_hand = 13.48 + 24 * (0.1624 + 3 * 4096 * (32000 + 4096 + 1) / 1e9) + 8 * 128 * 32000 * 4 * 19 / 1e9
    assert (peaks["medusa"] or 0) / 1e9 == pytest.approx(by_hand, abs=0.05)
    assert (peaks["break_even"] or 0) > (13.48 + 20 * 1.1) * 1e9


@pytest.mark.parametrize("experiment", ["osd_offline", "osd_online"])
def test_a_draft_that_reads_the_targets_states_learns_beside_the_target(experiment: str) -> None:
    planned = run(experiments=experiment)
    settings = settings_of(planned, experiment)[-1].model_copy(update={"sample_source": "teacher"})
    alone, beside = (peak_of(planned, settings, reads_target=reads) for reads in (False, True))
    assert beside > alone + 13.48e9, "Vicuna-7B in float16"


def a_head(folder: Path) -> Path:
    """The config.json of a head of EAGLE-3 for Vicuna-7B."""
    sizes = {
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
    }
    folder.mkdir()
    write_json(
        folder / "config.json",
        {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1, **sizes}
        | {"vocab_size": 32000, "draft_vocab_size": 16000},
    )
    (folder / "model.safetensors").touch()
    return folder


@pytest.mark.parametrize("experiment", ["osd_epochs", "osd_online"])
def test_a_head_of_eagle_3_takes_what_a_draft_of_its_size_does_that_reads_the_states(
    experiment: str, tmp_path: Path
) -> None:
    planned = run(experiments=experiment, models={"draft": str(a_head(tmp_path / "head"))})
    settings = next(iter(planned.cells(experiment).values()))[-1].settings
    settings = settings.model_copy(update={"sample_source": "teacher"})
    head = needs.model_of(planned.settings.pairs[settings.pair], "draft")
    assert head is not None
    assert head.sizes.vocab == 16000
    states = settings.model_copy(update={"reads_target": True})
    peaks = [needs._peak(planned, one) or 0 for one in (settings, states)]
    spent = [hours.of_variant(planned, one, GPUS["a100-80"], 256) for one in (settings, states)]
    assert peaks[0] == peaks[1] > 13.48e9, "the target is beside it"
    two, four = (peak_of(planned, states, micro_batch=rows) for rows in (2, 4))
    assert two < four < 60e9, "the target reads the requests of one forward pass at a time"
    assert spent[0] == spent[1]


@pytest.mark.parametrize(("experiment", "places"), [("osd_offline", "longest"), ("osd_online", "draft_len")])
def test_a_draft_that_proposes_a_block_in_one_pass_learns_each_token_of_it(experiment: str, places: str) -> None:
    planned = run(experiments=experiment)
    settings = settings_of(planned, experiment)[-1].model_copy(update={"sample_source": "teacher"})
    alone, parallel = (peak_of(planned, settings, parallel=is_parallel) for is_parallel in (False, True))
    draft = known_models()["JackFram/llama-160m"].sizes
    once = 12 * draft.parameters  # weights and moments, however often it learns
    assert alone + 0.5 * (getattr(settings, places) - 1) * (alone - once) < parallel
    assert parallel <= once + getattr(settings, places) * (alone - once)


def test_weights_moments_and_recorded_distributions_are_held_once_however_often_a_token_is_learnt() -> None:
    draft = known_models()["JackFram/llama-160m"].sizes
    once, five = (training(draft, 2, 2048, 128, 8, places=places) for places in (1, 5))
    held = (12 + 4) * draft.parameters + 8 * 128 * draft.vocab * 4
    assert five - held == 5 * (once - held) > 0


def test_a_draft_with_a_mask_learns_each_token_of_a_block_of_a_log() -> None:
    """The verdict, unlike the other experiments, does not ask whether it proposes a block in one pass."""
    planned = run(experiments="osd_online")
    settings = ReplayLog(dataset="gsm8k", batch=8, learning_rate=1e-3, update_interval=8, draft_lens=[4], draft_len=4)
    pair = planned.settings.pairs[settings.pair]
    draft = needs.model_of(pair, "draft")
    assert draft is not None
    alone, parallel = (
        needs._learning(pair, settings, draft.model_copy(update={"parallel": mask})) or 0 for mask in (False, True)
    )
    once = 12 * draft.sizes.parameters
    assert alone + 0.5 * 3 * (alone - once) < parallel <= once + 4 * (alone - once)


def test_a_draft_that_serves_live_decodes_with_the_target() -> None:
    """Vicuna-7B in float16 is loaded, and every group of requests is decoded before the draft learns from it."""
    planned = run(experiments="osd_online")
    settings = settings_of(planned, "osd_online")[-1]
    assert settings.learns
    assert peak_of(planned, settings, live=True) >= peak_of(planned, settings) + 13.47e9
    target, draft = (on_card(planned, role) for role in ("target", "draft"))
    groups = planned.settings.data.train_requests(settings.dataset) / settings.update_interval
    decoded = groups * drafting(target, draft, settings.update_interval, 256, 128, 1, settings.draft_len)
    replaying = groups * draft.reading(settings.update_interval, 256 + 128)
    more = seconds_of(planned, settings, live=True) - seconds_of(planned, settings)
    assert more == pytest.approx(decoded - replaying, rel=0.01)


def test_every_live_measurement_decodes_the_held_out_requests() -> None:
    planned = run(experiments="osd_offline")
    changes = {"loss": "forward_kl", "sample_source": "teacher", "epochs": 2, "probes": 3, "sample_batch": 32}
    settings = settings_of(planned, "osd_offline")[0].model_copy(update=changes)
    models = on_card(planned, "target"), on_card(planned, "draft")
    once = -(-planned.settings.data.eval // 32) * drafting(*models, 32, 256, 128, 1, settings.draft_len)
    assert seconds_of(planned, settings, live=True) - seconds_of(planned, settings) == pytest.approx(7 * once)


def test_decoding_with_several_drafts_holds_a_cache_for_each() -> None:
    """By hand for OPT-13B with OPT-125M, two sequences of four tokens: weights of both in float16, keys and values of 16 sequences of 2,048
    tokens, logits of both, and eight tables in float64. Texts are written with one cache for each of 8 requests."""
    peaks = {job.name: (job.peak or 0) / 1e9 for job in needs.jobs(run(experiments="all"))}
    opt, small = (known_models()[name].sizes for name in ("facebook/opt-13b", "facebook/opt-125m"))
    weights = 2 * (opt.parameters + small.parameters)
    live = weights + 16 * 2048 * 2 * (opt.entry + small.entry) + 16 * 5 * 50272 * (4 + 64)
    assert peaks["mdss_live/all"] == pytest.approx(live / 1e9)
    assert peaks["mdss_drafts/all"] < peaks["mdss_live/all"] - 11
    # Traversal is always decoded live: three requests with eight sequences each.
    assert peaks["beyond_verifiers/along_texts"] > (weights + 3 * 8 * 2048 * 2 * opt.entry) / 1e9
    trees = weights + 2**15 * 2 * opt.entry
    assert trees / 1e9 < peaks["beyond_trees/all"] < trees / 1e9 + 3
    assert peaks["osd_token_recall/spider"] == peaks["osd_epochs/spider"]


def test_specialists_and_their_target_fit_a_card_in_the_number_type_of_the_pair(tmp_path: Path) -> None:
    def peak(batch: int, dtype: str = "float16") -> int:
        (tmp_path / "sizes.yaml").write_text(
            f"{{pairs: {{main: {{answers: {{dtype: {dtype}}}}}}}, experiments: {{beyond_online_multidraft: {{fixed: {{batch: {batch}}}}}}}}}"
        )
        planned = run(experiments="beyond_online_multidraft", sizes=str(tmp_path / "sizes.yaml"))
        return max(job.peak or 0 for job in needs.jobs(planned) if job.rule == "online_multidraft")

    assert peak(16) < 60e9
    assert peak(16, "float32") > peak(16) + 2 * 6738e6
    assert peak(0) == peak(200) > 300e9


def test_the_plan_knows_which_schemes_are_counted_along_texts() -> None:
    """The plan must not import torch, so it goes by names; the stage asks the verifiers themselves."""
    for scheme in set(LIVE) - {"plain"}:
        contender = Contender(scheme, 2, 1.0, 1.0, 1.0, 0, 0, 0)
        assert is_counted(scheme) == blocks.is_counted(contender), scheme


def test_a_draft_that_is_distilled_before_it_serves_takes_the_memory_of_its_larger_updates() -> None:
    planned = run(experiments="osd_online")
    variants = settings_of(planned, "osd_online")
    static = next(one for one in variants if one.warm_on == "stream" and not one.warm_fair)
    small, peak = known_models()["JackFram/llama-160m"].sizes, partial(peak_of, planned, static)
    assert peak() == training(small, 8, 2048, 128, 128, autocast=True)
    assert peak(micro_batch=0) == training(small, 128, 2048, 128, 128, autocast=True) > 150e9
    assert peak(micro_batch=0, warm_fair=True) == peak(micro_batch=0, warm_on="nothing") < 5e9
    both = {"micro_batch": 0, "warm_on": "nothing"}
    assert peak(**both) < peak(**both, replay=8) == peak(**both, update_interval=static.update_interval + 8)


def test_a_run_that_downloads_nothing_asks_for_nothing() -> None:
    said = said_of(plan.load_run({"scale": "smoke"}, WORKFLOW))
    assert not any(line.startswith("requires access") for line in said)
    assert not any("hub" in line.lower() for line in said)


def downloads(asked: plan.Run) -> list[str]:
    return [line.split("GB  ")[1] for line in said_of(asked) if line.startswith("download")]


def test_the_plan_lists_the_downloads_of_its_own_experiments() -> None:
    *models, total = downloads(run(experiments="osd_online"))
    assert models == ["JackFram/llama-160m", "lmsys/vicuna-7b-v1.3"]
    assert total == "in all; of unknown size: the datasets"
    assert downloads(run(experiments="mdss_region")) == ["in all"]
    assert downloads(plan.load_run({"scale": "smoke"}, WORKFLOW)) == ["in all"]


def test_the_plan_names_downloads_whose_size_it_does_not_know(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a", "answer": "b"}\n{"prompt": "c", "answer": "d"}\n')
    config = {"scale": "smoke", "dataset": str(tmp_path / "prompts.jsonl")}
    hub = plan.load_run(config | {"target": "owner/large@main", "draft": "owner/small"}, WORKFLOW)
    assert downloads(hub) == ["in all; of unknown size: owner/large, owner/small"]
    package = plan.load_run(config | {"target": "package:smollm2-135m-instruct"}, WORKFLOW)
    assert downloads(package) == ["in all; of unknown size: package:smollm2-135m-instruct"]


def test_the_published_memory_is_what_is_computed_and_within_15_percent_of_what_was_measured() -> None:
    said = [
        line.split("|")
        for line in (ROOT / "docs/paper.md").read_text().splitlines()
        if ", (" in line and line[0] == "|"
    ]
    found = []
    for _, job, model, predicted, measured, *_ in said:
        name, how = model.strip().split(", ", 1)
        device: Device = "cpu" if name.endswith("M") else "cuda"
        found.append((device, job.strip(), name, ast.literal_eval(how)))
        computed = memory.predicted(job.strip(), name, found[-1][3], device) / 1e6
        assert f"{computed:,.0f}" == predicted.strip()
        assert computed == pytest.approx(float(measured.replace(",", "")), rel=0.15)
    devices: tuple[Device, Device] = ("cpu", "cuda")
    assert found == [(on, job, *one) for on in devices for job, sizes in memory.CASES.items() for one in sizes[on]]


def test_the_published_speeds_are_computed_within_20_percent() -> None:
    """Two of the nine are updates of 0.03 and 0.06 s, as they were printed."""
    card = GPUS["h100"]
    target, draft = memory.SIZES["vicuna-7b"], memory.SIZES["llama-160m"]
    compared = 0
    for line in (ROOT / "docs/paper.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if ", (" not in line or not cells[-2].endswith((" s", " tokens/s")):
            continue
        how = ast.literal_eval(cells[2].split(", ", 1)[1])
        rows, length = how[:2]
        if cells[1] == "decoding":
            found = rows * how[2] / OnCard(card, target, "float16").answering(rows, rows, length, how[2])
        else:
            _, _, answer, batch = how
            found = OnCard(card, draft, "float32").updating(rows, length, batch // rows)
            if cells[1] == "beside a target":
                found += OnCard(card, draft, "float32").answering(batch, rows, length - answer, answer)
                found += batch / rows * OnCard(card, target, "float16").reading(rows, length)
        assert found == pytest.approx(float(cells[-2].split()[0].replace(",", "")), rel=0.2), line
        compared += 1
    assert compared == 9


def test_hours_follow_the_card_and_more_cards_share_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def hours(lines: list[str]) -> float:
        return float(next(line for line in lines if line.startswith("in all")).split()[3].replace(",", ""))

    slow, fast = said_of(run(), "a100-80"), said_of(run(), "h100", 8)
    assert 1.2 * hours(fast) < hours(slow)
    shared = next(line for line in fast if line.startswith("on 8 GPUs"))
    assert hours(fast) / 8 - 0.1 < float(shared.split()[3]) < hours(fast) / 4
    card = tmp_path / "mine.yaml"
    card.write_text("{memory: 48, bandwidth: 2039, teraflops: 312}")
    outlook.show(config=("scale=paper",), card=card)
    printed = capsys.readouterr().out.splitlines()
    assert hours(printed) == hours(slow)
    assert any(line.startswith("does not fit mine (48 GiB)") for line in printed)
    card.write_text("{memory: 48, bandwidth: none, teraflops: 312}")
    with pytest.raises(UserError, match="bandwidth"):
        outlook.show(config=("scale=paper",), card=card)


def test_live_decoding_takes_longer_the_more_is_drafted_and_launches_what_a_block_launches() -> None:
    card, (target, draft) = GPUS["h100"], (known_models()[f"facebook/opt-{size}"].sizes for size in ("13b", "125m"))
    one, two, longer = (
        drafting(OnCard(card, target, "float16"), OnCard(card, draft, "float16"), 1, 64, 10, drafts, length)
        for drafts, length in ((1, 4), (2, 4), (1, 8))
    )
    read = sum(OnCard(card, model, "float16").reading(1, 64) for model in (target, draft))
    weights = target.parameters * 2 / (card.bandwidth * 1e9 * STREAMED)
    call = max(target.layers * card.launch / 1e3, weights) + 4 * draft.layers * card.launch / 1e3
    assert one == pytest.approx(read + 10 * call, rel=0.01)
    assert one <= two < longer
    planned = run()
    assert min(seconds_of(planned, settings) for settings in settings_of(planned, "mdss_live")) > 60


def test_requests_that_a_model_classifies_are_planned() -> None:
    labelled = [job for job in needs.jobs(run()) if job.rule == "label"]
    assert {job.name for job in labelled} == {"arena.topic.prompts.jsonl", "arena.topic.eval.jsonl"}
    assert any("of unknown size: the classifier alimazhar-110" in line for line in said_of(run()))
    assert not any("classifier" in line for line in said_of(run(experiments="osd_epochs")))


def test_a_job_that_may_take_longer_than_it_requests_is_named(tmp_path: Path) -> None:
    (tmp_path / "sizes.yaml").write_text("needs: {offline: {runtime: 1}}")
    said = said_of(run(experiments="osd_epochs", sizes=str(tmp_path / "sizes.yaml")))
    assert sum(line.startswith("requests 1 min, may take") for line in said) == 4
    assert not any(line.startswith("requests ") for line in said_of(run()))


def test_jobs_request_what_their_files_and_models_take() -> None:
    """Recorded answers of four datasets take more than those of one; a scale's own number is requested as it is."""
    paper = run()
    one, four = (
        needs.requested_mb(paper, "online", {"experiment": name, "cell": cell})
        for name, cell in (("osd_online", "spider"), ("osd_shift_sharp", "all"))
    )
    assert four > one + 1500
    large = {"experiment": "osd_latency_alpha_33b", "cell": next(iter(paper.cells("osd_latency_alpha_33b")))}
    assert 130_000 < needs.requested_mb(paper, "latency_alpha", large) < 160_000
    assert needs.requested_mb(paper, "label", {}) == 16_000
    assert needs.requested_mb(paper, "figure", {}) == needs.LEAST_MB
    answers = {"pair": "main", "dataset": "spider", "split": "train", "temperature": ""}
    assert needs.requested_mb(paper, "answer", answers) > 2 * 13_500
    small = plan.load_run({"scale": "laptop"}, WORKFLOW)
    assert needs.requested_mb(small, "answer", answers) < 6_000


def test_every_process_of_a_training_requests_host_memory(tmp_path: Path) -> None:
    (tmp_path / "four.yaml").write_text("{compute: {processes: 4}, needs: {offline: {gpu: 4}}}")
    one, four = run(), run(sizes=str(tmp_path / "four.yaml"))
    for rule, name, times in (("offline", "osd_offline", 4), ("online", "osd_online", 1)):
        cell = {"experiment": name, "cell": "spider"}
        assert needs.requested_mb(four, rule, cell) == pytest.approx(
            times * needs.requested_mb(one, rule, cell), abs=500 * times
        )


def test_processes_share_the_learning_of_a_draft_but_not_its_measurements(tmp_path: Path) -> None:
    """Four GPUs take a little more GPU hours together, and far less time; each learns from its share of a batch."""
    (tmp_path / "four.yaml").write_text("{compute: {processes: 4}, needs: {offline: {gpu: 4}}}")
    one, four = (run(experiments="osd_offline", **more) for more in ({}, {"sizes": str(tmp_path / "four.yaml")}))
    method = next(own for own in settings_of(one, "osd_offline") if own.sample_source == "student")
    measured = hours._replaying(one, on_card(one, "draft", dtype="float32"), 256 + 128)
    once, shared = (seconds_of(planned, method) - measured for planned in (one, four))
    assert shared == pytest.approx(once / 4, rel=0.01)
    whole = method.model_copy(update={"micro_batch": 0})
    assert peak_of(four, whole) < 0.5 * peak_of(one, whole)
    (alone, total), (together, total_of_four) = (
        (float(line.split()[-1]), float(line.split()[3]))
        for planned in (one, four)
        for line in said_of(planned, gpus=4)
        if line.startswith("on 4 GPUs")
    )
    assert together < alone / 3
    assert total < total_of_four < 1.1 * total
    assert "a job asks for 4 GPUs, more than there are (--gpus 1)" in said_of(four)
    assert not any("more than there are" in line for line in said_of(four, gpus=4) + said_of(one))


def test_what_is_asked_for_online_is_not_asked_for_another_stage_whose_name_begins_with_it() -> None:
    settings = plan.load_run({"scale": "smoke"}, WORKFLOW).settings
    settings = settings.model_copy(update={"needs": {name: Needs(mem_mb=1) for name in ("online", "latency", "token")}})
    rules = ("online", "online_multidraft", "latency_cost", "token_view", "token_rate")
    assert [rule for rule in rules if settings.asked(rule).mem_mb] == ["online", "latency_cost"]


def test_a_model_of_unknown_size_requests_what_its_files_hold(tmp_path: Path) -> None:
    config = {"model_type": "qwen3_moe", "num_experts": 128, "vocab_size": 1000, "eos_token_id": 2}
    write_json(tmp_path / "config.json", config)
    for number in range(2):
        with (tmp_path / f"model-{number}.safetensors").open("wb") as file:
            file.truncate(30 * 10**9)  # takes no space on the disk
    asked = run(target=str(tmp_path), template="plain")
    answers = {"pair": "main", "dataset": "spider", "split": "train", "temperature": ""}
    known = needs.requested_mb(run(), "answer", answers)
    assert known + 2 * (60_000 - 13_500) - 2_000 < needs.requested_mb(asked, "answer", answers) < 130_000
    assert needs.requested_mb(asked, "target", {"pair": "main"}) > 60_000
    of_hub = run(target="some/model", template="plain")
    assert needs.requested_mb(of_hub, "target", {"pair": "main"}) == needs.LEAST_MB


def test_every_job_of_the_papers_scale_that_opens_a_model_on_a_gpu_requests_one() -> None:
    paper = run(experiments="all")
    found = set()
    for name, experiment in paper.experiments.items():
        for cell, variants in paper.cells(name).items():
            opened = getattr(paper.inputs(name, cell), "answers", None)
            on_gpu = {getattr(opened, "device", "cpu"), *(getattr(own.settings, "device", "cpu") for own in variants)}
            layers = any(isinstance(own.settings, Engine) and own.settings.gpu_layers for own in variants)
            if "cuda" in on_gpu or layers:
                found.add(experiment.stage)
    assert found >= {"blocks", "live", "trees", "offline", "online", "latency_alpha", "verifier_cost"}
    assert [stage for stage in sorted(found) if not paper.settings.asked(stage).gpu] == []


@pytest.mark.parametrize("more", [{"gpus": 0}, {"gpus": -1}, {"prompt": 0}])
def test_numbers_that_cannot_be_are_refused(more: dict[str, int]) -> None:
    with pytest.raises(UserError, match=r"--(gpus|prompt) is -?\d"):
        outlook.show(config=("scale=paper",), **more)


def test_fair_updates_take_as_long_as_online_ones_whatever_the_batch() -> None:
    planned = run(experiments="osd_online")
    fair = next(one for one in settings_of(planned, "osd_online") if one.warm_fair)
    assert seconds_of(planned, fair, batch=1) == seconds_of(planned, fair, batch=128)


def test_the_target_writes_along_only_where_each_token_is_drawn() -> None:
    """Of whole answers, its half is recorded. Its own writing costs more than scoring what the draft wrote."""
    planned = run(experiments="osd_offline")
    variants = [one for one in settings_of(planned, "osd_offline") if one.dataset == "spider" and one.loss != "none"]
    taken = {one.sample_source: seconds_of(planned, one) for one in variants}
    target, count = on_card(planned, "target"), 2 * planned.settings.data.train_requests("spider")
    written = target.answering(count, 32, 256, 128)
    scored = -(-count // 32) * target.reading(32, 256 + 128)
    assert taken["mix_token"] - taken["student"] == pytest.approx(written - scored)
    assert taken["teacher"] < taken["mix_request"] < taken["student"]


def test_only_measurements_and_a_classifier_have_no_hours() -> None:
    """Medusa heads are measured too, but learn much longer."""
    paper = run(experiments="all")
    unknown = {
        job.rule
        for job in needs.jobs(paper)
        if needs.has_gpu(paper, job.rule, job.pair) and hours.seconds(paper, job, CARD, 256) is None
    }
    assert unknown - {name for name, stage in STAGES.items() if stage.exclusive and name != "medusa"} == {"label"}


@pytest.mark.parametrize(
    ("experiment", "name", "once", "more"),
    [
        ("beyond_trees", "datasets", ["dolly"], ["dolly"] * 2),
        ("beyond_trees", "width", 4, 8),
        ("beyond_verifiers", "datasets", ["dolly"], ["dolly"] * 2),
        ("beyond_verifiers", "schemes", ["traversal"], ["traversal", "optimal"]),
        ("beyond_verifiers", "timed", 0, 1),
        ("mdss_live", "requests", 64, 128),
        ("beyond_online_multidraft", "seeds", [0], [0, 1]),
        ("beyond_online_multidraft", "stream", 100, 200),
        ("osd_medusa", "warm_requests", 10, 1000),
        ("osd_offline", "reads_target", False, True),
        ("osd_online", "reads_target", False, True),
        ("osd_offline", "parallel", False, True),
        ("osd_online", "parallel", False, True),
        ("osd_medusa", "verifiers", ["rrs"], ["rrs", "typical"]),
    ],
)
def test_more_work_takes_more_hours(experiment: str, name: str, once: Any, more: Any) -> None:
    planned = run(experiments=experiment)
    settings = settings_of(planned, experiment)[0]
    fewer, longer = (seconds_of(planned, settings, **{name: value}) for value in (once, more))
    if name in ("datasets", "seeds", "requests"):
        assert longer == pytest.approx(2 * fewer, rel=0.1)
    else:
        assert longer > fewer * (1 + (name != "schemes") * 1e-3)


@pytest.mark.parametrize(("name", "value"), [("warm_epochs", 11), ("probes", 50)])
def test_a_target_whose_states_are_read_runs_again_for_each_part_of_a_stream(name: str, value: int) -> None:
    planned = run(experiments="osd_online")
    settings = settings_of(planned, "osd_online")[0].model_copy(update={"warm_on": "stream", "probes": 0})

    def more(reads: bool) -> float:
        few, many = (seconds_of(planned, settings, reads_target=reads, **change) for change in ({}, {name: value}))
        return many - few

    assert more(True) > 2 * settings.draft_len * more(False) > 0


def test_heads_read_the_target_once_to_learn_and_once_more_to_serve() -> None:
    planned = run(experiments="osd_medusa")
    settings = settings_of(planned, "osd_medusa")[0]
    target, new = on_card(planned, "target"), planned.settings.pairs["main"].answers.max_new_tokens
    count, hidden = settings.update_interval, target.model.hidden
    weights = len(settings.widths) * hidden * (hidden + target.model.vocab)
    learnt = 6 * weights * count * new / (CARD.teraflops * 1e12 * hours.LEARNING)
    read = target.reading(count, 256 + new)
    few = settings.model_copy(update={"warm": ["gsm8k"], "warm_requests": 8, "requests": 80})

    def more(**changes: int) -> float:
        return seconds_of(planned, few, **changes) - seconds_of(planned, few)

    assert more(warm_requests=8 + count) == pytest.approx(read + learnt)
    assert more(requests=80 + count) > 2 * read + learnt


def test_texts_are_written_once_for_all_schemes_of_a_target() -> None:
    """So a replayed scheme costs nothing more, and one that decodes costs what decoding does."""
    planned = run(experiments="beyond_verifiers")
    few = {"timed": 0, "num_drafts": [4], "draft_temperature": [1.0], "datasets": ["dolly"], "requests": 8, "batch": 8}
    settings = next(one for one in settings_of(planned, "beyond_verifiers") if isinstance(one, Blocks))
    replayed, both, decoded = (
        seconds_of(planned, settings, **few, schemes=schemes)
        for schemes in (["optimal"], ["optimal", "k_seq"], ["optimal", "traversal"])
    )
    assert replayed == both
    dtype = planned.settings.pairs[settings.pair].answers.dtype
    target, draft = (on_card(planned, role, settings.pair, dtype) for role in ("target", "draft"))
    shape = (8, 256, settings.max_new_tokens, 4, settings.draft_len)
    assert decoded - replayed == pytest.approx(drafting(target, draft, *shape))


def test_a_probe_reads_the_held_out_requests_of_every_dataset() -> None:
    planned = run(experiments="beyond_forgetting")
    settings = settings_of(planned, "beyond_forgetting")[0]
    assert len(settings.datasets) == 4
    few, many = (seconds_of(planned, settings, probes=probes) for probes in (1, 4))
    assert many - few == pytest.approx(3 * 4 * hours._replaying(planned, on_card(planned, "draft"), 256 + 128))


def test_no_more_requests_are_timed_than_a_batch_has() -> None:
    planned = run(experiments="mdss_drafts")
    settings = settings_of(planned, "mdss_drafts")[0].model_copy(update={"schemes": ["optimal"], "batch": 4})
    for of in (seconds_of, peak_of):
        assert of(planned, settings, timed=4) == of(planned, settings, timed=40)


def test_answers_to_the_requests_of_several_updates_are_written_together() -> None:
    planned = run(experiments="osd_offline")
    student = next(one for one in settings_of(planned, "osd_offline") if one.sample_source == "student")
    apart, together, odd = (
        seconds_of(planned, student, batch=8, micro_batch=8, sample_batch=rows) for rows in (8, 32, 39)
    )
    assert together < 0.7 * apart
    assert odd == together, "whole updates"


def test_counting_tokens_takes_as_long_as_distilling_and_measuring_twice() -> None:
    planned = run(experiments="osd_token_recall,osd_epochs")
    counted, distilled = (settings_of(planned, name)[0] for name in ("osd_token_recall", "osd_epochs"))
    same = counted.model_dump(include={"epochs", "micro_batch", "dataset", "loss"})
    same |= {"probes": 0, "requests": 0, "sample_source": "teacher", "live": False}
    measured = hours._replaying(planned, on_card(planned, "draft", dtype="float32"), 256 + 128)
    once = seconds_of(planned, distilled, **same)
    assert seconds_of(planned, counted) == pytest.approx(once + measured)
    assert once > 60


def test_one_pair_may_ask_for_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "sizes.yaml").write_text("needs: {answer.multidraft: {gpu: 1}}\n")
    planned = plan.load_run({"scale": "smoke", "sizes": str(tmp_path / "sizes.yaml")}, WORKFLOW)
    assert [needs.has_gpu(planned, "answer", pair) for pair in ("main", "multidraft")] == [False, True]
