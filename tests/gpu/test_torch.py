"""The code path of a GPU in torch, beside the CPU's on the same small models: `make test-gpu`, on a machine with CUDA."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from draftlab.core.sampling import Sampling, draft_tokens, restrict_pair, to_probs
from draftlab.core.verify import VERIFIERS
from draftlab.core.verify.acceptance import by_position
from draftlab.core.verify.gls import gls
from draftlab.core.verify.optimum import argsort
from draftlab.core.verify.rrs import rrs
from draftlab.core.verify.sinkhorn import sinkhorn_verifier
from draftlab.core.verify.token import TokenVerifier
from draftlab.engine.generate import generate
from draftlab.engine.recording import load_pass, record
from draftlab.engine.speculate import speculate
from draftlab.models import load_model
from draftlab.stages import STAGES
from draftlab.stages.verifier_cost import Settings as Costs
from draftlab.stages.verifier_cost import measure
from draftlab.train import online, traffic, training
from draftlab.train.designs import trim_head
from tests.gpu.measured import measured
from tests.pair import run_cell

pytestmark = pytest.mark.gpu


PROMPTS = [[5, 9, 20], [7] * 11, [30, 4, 8, 100, 2, 60], [1]]


@pytest.mark.parametrize(("dtype", "most"), [("float32", 2e-2), ("float16", 5e-2), ("bfloat16", 0.4)])
def test_recorded_distributions_are_the_cpu_s(results: Path, dtype: Any, most: float) -> None:
    """On prompts of several lengths, whose rows of the cache are ragged; sharp logits, so types differ by their rounding."""
    requests = [(str(number), prompt) for number, prompt in enumerate(PROMPTS)]
    target = results / "models/target"
    found, expected = (
        record(load_model(target, kind, device), requests, max_new_tokens=1, eos_ids={2})
        for kind, device in ((dtype, "cuda"), ("float32", "cpu"))
    )
    assert found.log_probs.device.type == "cpu"
    gap = (found.log_probs.float().exp() - expected.log_probs.float().exp()).abs().max()
    assert gap < most


def test_greedy_answers_in_float32_are_the_cpu_s(results: Path) -> None:
    answers = []
    for device in ("cuda", "cpu"):
        model = load_model(results / "models/target", "float32", device)
        torch.set_float32_matmul_precision("highest")  # not TF32: the same text is wanted
        answers.append(generate(model, PROMPTS, max_new_tokens=12, eos_ids={2}))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("verifier", ["single", "block", "traversal"])
def test_speculation_leaves_greedy_text_as_it_is(results: Path, verifier: str) -> None:
    target, draft = (load_model(results / f"models/{name}", "float32", "cuda") for name in ("target", "draft"))
    torch.set_float32_matmul_precision("highest")
    drafts: dict[str, Any] = {}
    if verifier == "traversal":
        drafts = {"num_drafts": 3, "draft_sampling": Sampling(1.0), "generator": torch.Generator("cuda").manual_seed(0)}
    done = speculate(
        target, draft, PROMPTS, draft_len=3, max_new_tokens=12, eos_ids={2}, verifier=VERIFIERS[verifier],
        sampling=Sampling(0.0), **drafts,
    )  # fmt: skip
    assert [trace.answer_ids for trace in done.traces] == generate(target, PROMPTS, max_new_tokens=12, eos_ids={2})
    assert done.target_seconds > 0


@pytest.mark.parametrize("name", sorted(name for name, own in VERIFIERS.items() if isinstance(own, TokenVerifier)))
def test_a_verifier_decides_as_on_the_cpu(name: str) -> None:
    verifier, generator = VERIFIERS[name], torch.Generator().manual_seed(0)
    assert isinstance(verifier, TokenVerifier)
    logits = torch.randn(2, 16, 50, dtype=torch.float64, generator=generator) * 2
    target, draft = (to_probs(part, Sampling(top_k=8)) for part in logits)
    dense = draft[:, None].expand(-1, 3, -1)
    tokens = draft_tokens(dense, verifier.drafting, generator)
    expected = verifier.distribution(target, dense, tokens)
    found = verifier.distribution(target.cuda(), dense.cuda(), tokens.cuda())
    assert found.device.type == "cuda"
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-9, atol=1e-12)
    drawn = torch.Generator("cuda").manual_seed(0)
    many = [tensor.cuda().repeat_interleave(2000, 0) for tensor in (target[:1], dense[:1], tokens[:1])]
    counts = torch.bincount(verifier.sample(*many, drawn)[0], minlength=50) / 2000
    assert (counts.cpu() - expected[0]).abs().max() < 0.06


@pytest.mark.parametrize("verifier", [gls, rrs, sinkhorn_verifier(3, 4.0)], ids=lambda verifier: verifier.name)
def test_the_acceptance_of_a_restricted_pair_is_the_cpu_s(verifier: TokenVerifier) -> None:
    logits = torch.randn(2, 16, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 2
    pair = [to_probs(part, Sampling(top_k=4)) for part in logits]
    small, expected_small = restrict_pair(*(table.cuda() for table in pair)), restrict_pair(*pair)
    torch.testing.assert_close([table.cpu() for table in small], list(expected_small))
    found, expected = (by_position(verifier, *tables, 2).proc for tables in (small, expected_small))
    assert found.device.type == "cuda"
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-9, atol=1e-12)


def test_what_no_draft_can_produce_sorts_last() -> None:
    """0 / 0 is a NaN whose sign a GPU sets; k_seq counts on its place."""
    top, bottom = torch.tensor([[0.0, 0.5, 0.0, 0.5], [0.0, 0.2, 0.3, 0.5]], dtype=torch.float64, device="cuda").repeat(
        1, 500
    )
    for values in (top / bottom, bottom / top):
        order = argsort(values[None])[0]
        finite = values[order].isfinite()
        assert finite.sum() == values.isfinite().sum()
        assert finite[: int(finite.sum())].all()
        assert (values[order][finite].diff() >= 0).all()


@pytest.mark.parametrize("source", ["teacher", "student", "mix_token", "mix_request"])
@pytest.mark.parametrize("autocast", [False, True])
def test_offline_distillation_learns_as_on_the_cpu(results: Path, tmp_path: Path, source: str, autocast: bool) -> None:
    own = {"dataset": "toy", "epochs": 10, "batch": 8, "micro_batch": 4, "learning_rate": 1e-2, "draft_len": 3}
    own |= {"sample_source": source, "autocast": autocast}
    alphas = []
    for device in ("cpu", "cuda"):
        rows, record = run_cell("offline", results, tmp_path / device, own | {"device": device})
        alphas.append(rows["overlap"].sum() / rows["visited"].sum())
    assert abs(alphas[0] - alphas[1]) < 0.05
    assert record["runs"][0]["updates"] == 60


@pytest.mark.parametrize("changes", [{}, {"lag": 4}, {"temperature": 1.0}])
def test_online_distillation_learns_as_on_the_cpu(results: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    own = {"dataset": "toy", "batch": 8, "learning_rate": 1e-2, "draft_len": 3, "update_interval": 4, "replay": 4}
    alphas = []
    for device in ("cpu", "cuda"):
        rows, _ = run_cell("online", results, tmp_path / device, own | changes | {"device": device})
        alphas.append(rows["overlap"].sum() / rows["visited"].sum())
    assert abs(alphas[0] - alphas[1]) < 0.05


def test_decisions_are_timed_until_the_gpu_has_finished() -> None:
    rows = measure(Costs(vocabs=[32_000], num_drafts=[2], batches=[1, 8], rounds=4, device="cuda"))
    assert (rows["ms"] > 0.01).all() or rows.loc[rows["ms"] <= 0.01, "batch"].eq(8).all()
    sorts = rows[(rows["scheme"] == "sort") & (rows["batch"] == 1)].set_index("filter")["ms"]
    assert sorts["no truncation"] >= 0.5 * sorts["top-p .95, sharp"]


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("latency-alpha", "--alpha 0.8 --draft-len 3 --blocks 2 --rounds 2 --backend torch --device cuda --weights f16"),
        ("latency-cost", "--context 64 --batch 1 4 --verified 2 4 --blocks 2 --backend torch --device cuda --weights f16"),
        ("latency-update", "--blocks 2 --prompt 16 --generated 16 --backend torch --device cuda --weights f16"),
    ],
)  # fmt: skip
def test_measurements_in_torch_run_on_the_gpu(verb: str, words: str, tmp_path: Path) -> None:
    assert torch.cuda.get_device_name() in measured(verb, words, tmp_path)


def test_a_trimmed_head_learns_online_as_on_the_cpu(results: Path) -> None:
    stream = traffic.whole(load_pass(results / "answers/toy.train"), "toy")
    losses = []
    for device in ("cpu", "cuda"):
        draft = trim_head(load_model(results / "models/draft"), range(2, 40)).to(device)
        settings = STAGES["online"].settings(dataset="toy", batch=8, learning_rate=1e-2, update_interval=8)
        lessons = online.whole_answers(stream, 0, 4)
        losses.append(online.learn(draft, training.adamw(draft), lessons, settings)[1])
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
