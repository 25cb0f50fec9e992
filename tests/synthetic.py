"""Tables that no run made: plausible numbers from a fixed seed, to test what reads tables."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from draftlab import plan
from draftlab.core import theory
from draftlab.models.llama import Llama, LlamaConfig
from draftlab.stages import memory_traffic
from draftlab.stages._stage import Bench, NoInputs
from tests import planned

DATASETS = ("spider", "gsm8k", "code_search_net", "finance_alpaca")
BEFORE = dict(zip(DATASETS, (0.23, 0.25, 0.30, 0.40), strict=True))


def _served(rng: np.random.Generator, alpha: np.ndarray) -> pd.DataFrame:
    """One request per entry of ``alpha``: counts as a speculative loop would record them."""
    blocks = rng.integers(6, 20, len(alpha))
    visited = blocks * 3
    accepted = rng.binomial(visited, np.clip(alpha, 0, 1))
    overlap = np.clip(accepted + rng.normal(0, 0.5, len(alpha)), 0, visited)
    return pd.DataFrame(
        {
            "accepted": accepted,
            "visited": visited,
            "overlap": overlap,
            "overlap_repo": overlap,
            "blocks": blocks,
            "emitted": accepted + blocks,
        }
    )


def osd_offline(requests: int = 60, gain: float = 0.45) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    variants = {
        ("none", "none"): 0.0,
        ("teacher", "hard_label"): gain,
        ("teacher", "forward_kl"): gain + 0.01,
        ("student", "forward_kl"): 0.05,
        ("mix_token", "forward_kl"): 0.3,
    }
    frames = []
    for dataset, ((source, loss), more) in itertools.product(DATASETS, variants.items()):
        spread = rng.normal(0, 0.05, requests)
        frames.append(
            _served(rng, BEFORE[dataset] + more + spread).assign(
                experiment="osd_offline",
                dataset=dataset,
                sample_source=source,
                loss=loss,
                seed=0,
                request_id=range(requests),
            )
        )
    return pd.concat(frames, ignore_index=True)


def osd_online(records: int = 200, held_out: int = 60, gain: float = 0.45) -> pd.DataFrame:
    rng = np.random.default_rng(2)
    frames = []
    for dataset in DATASETS:
        ramp = gain * (1 - np.exp(-np.arange(records) / (records / 4)))
        levels = {
            "online": BEFORE[dataset] + ramp,
            "static_10": np.full(records, BEFORE[dataset] + 0.15),
            "static_10_fair": np.full(records, BEFORE[dataset] + 0.25),
            "offline": np.full(held_out, BEFORE[dataset] + 0.48),
        }
        for method, alpha in levels.items():
            frames.append(
                _served(rng, alpha + rng.normal(0, 0.05, len(alpha))).assign(
                    dataset=dataset,
                    method=method,
                    seed=0,
                    stream_index=range(len(alpha)),
                    request_id=range(len(alpha)),
                    split="eval" if method == "offline" else "train",
                )
            )
    return pd.concat(frames, ignore_index=True)


def osd_speedup_theory() -> pd.DataFrame:
    curves = [(3, 0.1), (5, 0.1), (7, 0.1), (9, 0.1), (5, 0.01), (5, 0.05), (5, 0.2)]
    alphas = [round(0.1 * i, 1) for i in range(1, 10)]
    return pd.DataFrame(
        [
            {"alpha": a, "draft_len": k, "cost_ratio": c, "speedup": theory.speedup(a, k, c), "seed": 0}
            for k, c in curves
            for a in alphas
        ]
    )


def osd_latency_alpha(blocks: int = 7) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    rows = []
    for alpha, block in itertools.product((0.5, 0.6, 0.7, 0.8, 0.9), range(blocks)):
        plain, rounds = 0.013 * rng.normal(1, 0.02), 20
        verify, draft = 1.25 * plain, 0.1 * plain
        rows.append(
            {
                "alpha": alpha,
                "draft_len": 5,
                "seed": 0,
                "block": block,
                "plain_before_seconds": 4 * plain,
                "plain_after_seconds": 4 * plain,
                "plain_steps": 8,
                "tokens": 60,
                "draft_steps": 5 * rounds,
                "draft_seconds": 5 * rounds * draft,
                "verify_seconds": rounds * verify,
                "seconds": rounds * (5 * draft + verify) * rng.normal(1, 0.02),
                "disagreements": 0,
                "rounds": rounds,
                "verify_probe_seconds": 2 * verify,
                "verify_probes": 2,
                "draft_probe_seconds": 6 * draft,
                "draft_probes": 6,
                "attempt": 0,
            }
        )
    return pd.DataFrame(rows)


def beyond_best_draft_len() -> pd.DataFrame:
    return pd.concat(
        osd_latency_alpha(5).assign(draft_len=length, verify_probe_seconds=0.03 * (1 + 0.1 * length))
        for length in (1, 2, 4, 8, 12)
    )


def mdss_region(points: int = 13) -> pd.DataFrame:
    rows = []
    for (panel, first), drafts in itertools.product((("left", 1 / 3), ("right", 1 / 6)), (2, 3, 4)):
        for q2 in np.linspace(0, 1 - first, points):
            q = np.array([first, q2, 1 - first - q2])
            single = np.minimum(q, 1 / 3).sum()
            order = np.sort(q)
            optimal = min(1.0, 1 + min(order[:i].sum() - (i / 3) ** drafts for i in range(4)))
            schemes = {
                "optimal": optimal,
                "importance": optimal,
                "k_seq": (2 * optimal + single) / 3,
                "specinfer": (optimal + single) / 2,
                "single": single,
            }
            rows += [
                {
                    "panel": panel,
                    "num_drafts": drafts,
                    "q2": q2,
                    "scheme": name,
                    "acceptance": value,
                    "distribution_error": 1e-16,
                }
                for name, value in schemes.items()
            ]
    return pd.DataFrame(rows)


def mdss_acceptance(requests: int = 8) -> pd.DataFrame:
    rng = np.random.default_rng(4)
    rows = []
    less = {
        "optimal": 0,
        "importance_truncated": 0.006,
        "k_seq": 0.012,
        "specinfer": 0.016,
        "rrs": 0.002,
        "block": 0.05,
        "single": 0.08,
    }
    for dataset, request in itertools.product(("xsum", "dolly", "wmt16", "synthetic"), range(requests)):
        base, positions = rng.uniform(0.4, 0.7), int(rng.integers(10, 20))
        for temperature, drafts in itertools.product((1.0, 1.6), (2, 4, 8)):
            best = base + 0.03 * np.log2(drafts) - 0.1 * (temperature - 1)
            for scheme, missing in less.items():
                value = best - missing * rng.uniform(0.8, 1.2)
                rows.append(
                    {
                        "dataset": dataset,
                        "draft_temperature": temperature,
                        "num_drafts": drafts,
                        "scheme": scheme,
                        "request_id": request,
                        "acceptance_sum": value * positions,
                        "positions": positions,
                        "member_sum": value * positions,
                    }
                )
    return pd.DataFrame(rows)


def osd_latency_length(blocks: int = 5) -> pd.DataFrame:
    rng = np.random.default_rng(5)
    rows = []
    for alpha, (begin, end), block in itertools.product(
        (0.5, 0.7, 0.9), itertools.pairwise((0, 16, 128, 1024, 2048)), range(blocks)
    ):
        step, rounds = 0.013 * rng.normal(1, 0.02), 10
        plain = step * (1 + end / 4000)
        rows.append(
            {
                "alpha": alpha,
                "draft_len": 5,
                "begin": begin,
                "end": end,
                "block": block,
                "plain_before_seconds": 4 * plain,
                "plain_after_seconds": 4 * plain,
                "plain_steps": 8,
                "seconds": rounds * step * (1 + end / 8000) * 1.8,
                "rounds": rounds,
            }
        )
    return pd.DataFrame(rows)


def _requests(contenders: dict[str, float], requests: int = 20) -> pd.DataFrame:
    rng = np.random.default_rng(6)
    rows = []
    for dataset, request in itertools.product(DATASETS, range(requests)):
        tokens = int(rng.integers(20, 60))
        for contender, speedup in {"none": 1.0, **contenders, "none_again": 1.0}.items():
            seconds = 0.01 * tokens / speedup * rng.normal(1, 0.02)
            rows.append(
                {
                    "request_id": f"r{request}",
                    "contender": contender,
                    "draft_len": 5,
                    "tokens": tokens,
                    "seconds": seconds,
                    "blocks": tokens // 3,
                    "drafted": tokens,
                    "visited": tokens,
                    "accepted": tokens // 2,
                    "draft_seconds": seconds / 4,
                    "verify_seconds": seconds / 2,
                    "same_text": True,
                    "dataset": dataset,
                }
            )
    return pd.DataFrame(rows)


def osd_latency_dataset() -> pd.DataFrame:
    return _requests({"before": 0.9, "distilled": 1.5, "lookup": 1.1, "lookup_first": 1.7})


def beyond_weights() -> pd.DataFrame:
    slower = {"f16": 1, "q8_0": 3}
    tables = ((kind, slower[kind], length) for kind, length in itertools.product(slower, (1, 3)))
    return pd.concat(
        osd_latency_alpha(5)
        .query("alpha == 0.8")
        .assign(weights=kind, draft_len=length)
        .eval(f"seconds = seconds * {by}")
        for kind, by, length in tables
    )


def beyond_sampled_latency() -> pd.DataFrame:
    speedups = {0.0: 1.5, 1.0: 1.2}
    return pd.concat(
        [_requests({"before": 0.9, "distilled": x, "lookup": 1.1}).assign(temperature=t) for t, x in speedups.items()]
    )


def beyond_three_baselines() -> pd.DataFrame:
    return _requests({"before": 0.9, "distilled": 1.5, "distilled_adaptive": 1.6, "lookup": 1.1})


def beyond_branches(blocks: int = 6) -> pd.DataFrame:
    rng = np.random.default_rng(8)
    return pd.DataFrame(
        {
            "num_drafts": drafts,
            "draft_len": 4,
            "block": block,
            "plain_seconds": 0.004,
            "one_branch_seconds": 0.006 * rng.normal(1, 0.02),
            "branches_seconds": 0.006 * (1 + 0.3 * (drafts - 1)) * rng.normal(1, 0.02),
        }
        for drafts, block in itertools.product((2, 4), range(blocks))
    )


def beyond_noise_floor(repeats: int = 6) -> pd.DataFrame:
    rng = np.random.default_rng(9)
    return pd.DataFrame(
        {"repeat": repeat, "pair": pair, "a_seconds": rng.normal(0.01, 1e-4), "b_seconds": rng.normal(0.01, 1e-4)}
        for repeat, pair in itertools.product(range(repeats), range(3))
    )


def osd_update_cost(blocks: int = 5) -> pd.DataFrame:
    rng = np.random.default_rng(7)
    frames = [
        pd.DataFrame(
            {
                "block": range(blocks),
                "target_request_seconds": rng.normal(0.8, 0.02, blocks),
                "update_seconds": rng.normal(seconds, 0.04 * seconds, blocks),
                "update_forward_seconds": 0.3 * seconds,
                "update_backward_seconds": 0.6 * seconds,
                "update_interval": 8,
                "draft": draft,
            }
        )
        for draft, seconds in (("draft", 0.05), ("draft_large", 0.12))
    ]
    return pd.concat(frames, ignore_index=True)


def osd_medusa(blocks: int = 6) -> pd.DataFrame:
    rng = np.random.default_rng(8)
    ways = [("plain", "single", 0.0, 1.0), ("draft", "single", 0.0, 1.3), ("draft_osd", "single", 0.0, 2.0)]
    ways += [("medusa", "single", 0.0, 1.2), ("medusa_osd", "single", 0.0, 1.8), ("plain", "single", 1.0, 1.0)]
    ways += [("draft_osd", "single", 1.0, 1.6), ("medusa_osd", "rrs", 1.0, 1.4), ("medusa_osd", "typical", 1.0, 1.7)]
    rows = []
    for dataset, (contender, verifier, temperature, length), block in itertools.product(
        ("spider", "arena"), ways, range(blocks)
    ):
        tokens = 100 + int(rng.integers(20))
        is_heads = contender.startswith("medusa")
        counted = {"accepted": tokens - round(tokens / length), "visited": tokens, "overlap": 40, "overlap_repo": 40}
        rows.append(
            {
                "dataset": dataset,
                "contender": contender,
                "verifier": verifier,
                "temperature": temperature,
                "block": block,
            }
            | counted
            | {"blocks": round(tokens / length), "emitted": tokens, "requests": 5, "same_text": 5 - int(temperature)}
            | {
                "is_lossless": int(verifier != "typical"),
                "seconds": tokens / length * 1.2,
                "plain_seconds": float(tokens),
            }
            | {"parameters": 700_000 if is_heads else 115_000, "epoch_seconds": 9.0 if is_heads else 3.0, "seed": 0}
        )
    return pd.DataFrame(rows)


def _table_of(name: str, inputs: Any) -> pd.DataFrame:
    """The rows of a cell that reads models at most: the stage itself writes them."""
    experiment = plan.load_experiment(planned.FOLDER / f"{name}.yaml")
    [variants] = experiment.cells("laptop", name).values()
    return experiment.of_stage.run(variants[0].settings, inputs, Bench(Path()))[0]


def osd_memory_traffic() -> pd.DataFrame:
    with tempfile.TemporaryDirectory() as folder:
        for name, width in (("target", 192), ("draft", 64)):
            Llama(LlamaConfig(1024, width, 2 * width, 2, 2, 2, 64)).save(Path(folder) / name)
        served = osd_online()
        served = pd.concat([served, served[served["method"] == "static_10"].assign(method="static")])
        served.to_csv(Path(folder) / "osd_online.csv", index=False)
        target, draft, online = (Path(folder) / name for name in ("target", "draft", "osd_online.csv"))
        return _table_of("osd_memory_traffic", memory_traffic.Inputs(target=target, draft=draft, online=online))


def osd_utilisation() -> pd.DataFrame:
    return _table_of("osd_utilisation", NoInputs())


def beyond_break_even(records: int = 40) -> pd.DataFrame:
    rng = np.random.default_rng(9)
    frames = []
    runs = [("static", 0, 1.0, 0.0), ("larger", 0, 0.8, 0.05)]
    runs += [("online", interval, 0.6 + 0.002 * interval, 0.4 / interval) for interval in (1, 8, 64)]
    for contender, interval, cost, update in runs:
        static = rng.normal(1, 0.05, records)
        frames.append(
            pd.DataFrame(
                {
                    "stream_index": range(records), "request_id": range(records), "emitted": 20, "blocks": (20 * cost * static).round(),
                    "serve_seconds": cost * static, "serve_gb": cost * static, "update_seconds": update,
                    "update_gb": update / 10, "static_seconds": static, "static_gb": static,
                    "contender": contender, "update_interval": interval, "seed": 0,
                }
            )
        )  # fmt: skip
    return pd.concat(frames, ignore_index=True)


def beyond_context_batch(blocks: int = 3) -> pd.DataFrame:
    rng = np.random.default_rng(8)
    rows = []
    for context, batch, verified, block in itertools.product((64, 512), (1, 8), (1, 2, 4, 6, 9), range(blocks)):
        plain = 0.01 * batch * rng.normal(1, 0.02)
        rows.append(
            {
                "context": context,
                "batch": batch,
                "block": block,
                "verified": verified,
                "plain_before_seconds": plain,
                "verify_seconds": plain * (1 + 0.3 * (verified - 1)),
                "draft_seconds": 0.1 * plain,
                "plain_after_seconds": plain,
            }
        )
    return pd.DataFrame(rows)


def beyond_interference() -> pd.DataFrame:
    alone = osd_latency_alpha()
    slower = alone.assign(seconds=alone["seconds"] * 1.1)
    both = pd.concat(
        [alone.assign(phase="alone", training_steps=0), slower.assign(phase="training", training_steps=3)],
        ignore_index=True,
    )
    return both.assign(wall_seconds=0.5, idle_training_steps=4, idle_wall_seconds=0.5)


def mdss_cone() -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "num_tokens": n,
                "num_drafts": k,
                "dimension": 2 * n,
                "rays": 2 * n,
                "nonnegative": n,
                "subsets": 2**n - 2,
                "expected_subsets": 2**n - 2,
                "other": 0,
                "cases": 3,
                "largest_difference": 3e-8,
                "inequalities": "",
            }
            for n, k in itertools.product((2, 3, 4), (2, 3))
        ]
    )


def mdss_cost() -> pd.DataFrame:
    costs = {
        "restrict": 2.0,
        "optimum value": 0.05,
        "single": 0.02,
        "k_seq": 0.1,
        "optimal": 0.12,
        "importance_truncated s=5": 0.3,
        "importance_truncated s=5, highs": 1.4,
    }
    filters = ("top-p .95, sharp", "top-p .95, peaked", "no truncation")
    return pd.DataFrame(
        [
            {
                "vocab": v,
                "filter": f,
                "support": 100,
                "num_drafts": k,
                "batch": b,
                "scheme": s,
                "ms": ms * k * v / 32000,
                "ms_p90": 1.4 * ms * k * v / 32000,
            }
            for v, f, k, b, (s, ms) in itertools.product((32000, 128000), filters, (2, 4), (1, 16), costs.items())
            if not (s == "restrict" and f == "no truncation")
        ]
    )


def _live(grid: list[dict[str, object]], requests: int = 10, quality: bool = False) -> pd.DataFrame:
    """Live decoding as ``stages.live`` writes it; every scheme better than the one before."""
    rng = np.random.default_rng(9)
    gains = {
        "plain": 0.0,
        "single": 0.6,
        "block": 0.7,
        "specinfer": 0.8,
        "k_seq": 0.9,
        "importance_truncated": 1.1,
        "optimal": 1.2,
    }
    common = {
        "num_drafts": 2,
        "draft_temperature": 1.2,
        "target_temperature": 1.0,
        "top_k": 0,
        "draft_len": 4,
        "top_p": 0.95,
        "seed": 0,
    }
    rows = []
    for dataset, request, contender in itertools.product(("xsum", "dolly", "wmt16"), range(requests), grid):
        row = common | contender
        row.setdefault("first_temperature", row["draft_temperature"])
        row.setdefault("lp_threshold", 5 if row["scheme"] == "importance_truncated" else 0)
        if row["scheme"] == "single":
            row["num_drafts"] = 1
        blocks = int(rng.integers(8, 16))
        more = gains[str(row["scheme"])] * (1 + 0.05 * row["num_drafts"] + 0.002 * min(row["top_k"], 40))
        row |= {
            "dataset": dataset,
            "request_id": request,
            "batch": 0,
            "drafted": 4 * blocks,
            "visited": 3 * blocks,
            "accepted": blocks,
            "emitted": round(blocks * (1 + more)),
            "blocks": blocks,
        }
        row |= {"draft_seconds": 0.01 * blocks, "target_seconds": 0.03 * blocks, "select_seconds": 0.002 * blocks}
        if quality:
            row |= {"rouge_l": rng.uniform(0.15, 0.22), "bleu": rng.uniform(0.03, 0.05)}
        rows.append(row)
    return pd.DataFrame(rows)


SCHEMES = ("single", "specinfer", "k_seq", "importance_truncated", "optimal")


def mdss_drafts() -> pd.DataFrame:
    return _live(
        [{"scheme": s, "num_drafts": k} for s, k in itertools.product(SCHEMES, (2, 3, 6)) if s != "single" or k == 2]
    )


def mdss_draft_temperature() -> pd.DataFrame:
    return _live([{"scheme": s, "draft_temperature": t} for s, t in itertools.product(SCHEMES, (1.0, 1.6, 2.4))])


def mdss_three_drafts() -> pd.DataFrame:
    return mdss_draft_temperature()


def mdss_target_temperature() -> pd.DataFrame:
    return _live([{"scheme": s, "target_temperature": t} for s, t in itertools.product(SCHEMES, (0.2, 0.6, 1.0))])


def mdss_mixed_temperature() -> pd.DataFrame:
    mixed = [
        {"scheme": s, "draft_temperature": t, "first_temperature": 1.2}
        for s, t in itertools.product(("specinfer", "importance_truncated"), (1.2, 1.6, 2.4))
    ]
    return _live([{"scheme": "single", "first_temperature": 1.2}, *mixed])


def mdss_topk() -> pd.DataFrame:
    return _live(
        [
            {"scheme": s, "num_drafts": k, "top_k": top}
            for s, k, top in itertools.product(SCHEMES, (2, 3), (5, 10))
            if s != "single" or k == 2
        ]
    )


def mdss_truncation() -> pd.DataFrame:
    sizes = [
        {"scheme": "importance_truncated", "top_k": top, "lp_threshold": size}
        for top, size in itertools.product((10, 40), (5, 15))
    ]
    return _live([*({"scheme": "single", "top_k": top} for top in (10, 40)), *sizes])


def mdss_quality() -> pd.DataFrame:
    same = [{"scheme": s, "draft_temperature": t} for s, t in itertools.product(SCHEMES[:4], (1.2, 1.6, 2.4))]
    mixed = [
        {"scheme": s, "draft_temperature": t, "first_temperature": 1.2}
        for s, t in itertools.product(("specinfer", "importance_truncated"), (1.6, 2.4))
    ]
    plain = {"scheme": "plain", "num_drafts": 0, "draft_temperature": 0.0}
    grid = [own | {"drafts": "identical"} for own in (plain, *same)] + [own | {"drafts": "different"} for own in mixed]
    return _live(grid, quality=True)


def beyond_hybrid() -> pd.DataFrame:
    rows = mdss_acceptance()
    rows = rows[rows["num_drafts"] < 8]
    hybrid = rows[rows["scheme"] == "importance_truncated"].assign(scheme="hybrid")
    return pd.concat([rows[~rows["scheme"].isin(["rrs", "block"])], hybrid], ignore_index=True)


def beyond_regime() -> pd.DataFrame:
    rng = np.random.default_rng(10)
    rows = []
    for target, draft, request in itertools.product((0.4, 1.0), (0.7, 1.2, 2.0), range(15)):
        positions = int(rng.integers(5, 15))
        gain = 0.05 * (draft - target) + rng.normal(0, 0.02)
        share = {
            "optimal": 0.8,
            "hybrid": 0.78,
            "importance_truncated": 0.7 + gain,
            "k_seq": 0.72,
            "specinfer": 0.7,
            "single": 0.6,
        }
        rows.append(
            {
                "dataset": "xsum",
                "num_drafts": 2,
                "target_temperature": target,
                "draft_temperature": draft,
                "entropy_class": request % 3,
                "request_id": request,
                "positions": positions,
            }
            | {scheme: value * positions for scheme, value in share.items()}
        )
    return pd.DataFrame(rows)


def beyond_sinkhorn() -> pd.DataFrame:
    rows = []
    contenders = [
        ("optimal", 0, 0.0),
        ("importance_truncated", 0, 0.0),
        *(("sinkhorn", count, sharp) for sharp, count in itertools.product((3.0, 10.0), (0, 3, 30))),
    ]
    for drafts, request, (scheme, count, sharp) in itertools.product((2, 3), range(12), contenders):
        value = 0.8 if scheme != "sinkhorn" else 0.78 - 0.1 / (1 + count) / sharp - 0.002 * (request % 3)
        rows.append(
            {
                "dataset": "xsum",
                "draft_temperature": 1.2,
                "num_drafts": drafts,
                "scheme": scheme,
                "iterations": count,
                "sharpness": sharp,
                "request_id": request,
                "acceptance_sum": 10 * value,
                "positions": 10,
                "seconds": 0.001 * (1 + count) if scheme == "sinkhorn" else 0.0001,
            }
        )
    return pd.DataFrame(rows)


def beyond_block_multidraft() -> pd.DataFrame:
    shapes = [
        ("single", 1),
        ("block", 1),
        ("importance_truncated", 2),
        ("k_seq", 2),
        ("importance_truncated", 4),
        ("k_seq", 4),
    ]
    return _live(
        [
            {"scheme": s, "num_drafts": k, "draft_len": 8 // k, "draft_temperature": t, "shape": f"{k}x{8 // k}"}
            for (s, k), t in itertools.product(shapes, (1.0, 1.6))
        ]
    )


def beyond_online_multidraft(requests: int = 8) -> pd.DataFrame:
    rng = np.random.default_rng(12)
    one, several = ("shared, one", "routed, one"), ("original", "shared", "routed", "specialists")
    ways = [*((d, False, "importance_truncated") for d in one)]
    ways += [(d, True, s) for d, s in itertools.product(several, ("importance_truncated", "specinfer"))]
    rows = []
    for (mixture, topics), seed in itertools.product({"two": DATASETS[:2], "four": DATASETS}.items(), (0, 1)):
        for topic, request, (drafts, many, scheme) in itertools.product(topics, range(requests), ways):
            blocks = int(rng.integers(6, 14))
            rows.append(
                {
                    "mixture": mixture,
                    "seed": seed,
                    "dataset": topic,
                    "request_id": request,
                    "drafts": drafts,
                    "num_drafts": len(topics) if many else 1,
                    "scheme": scheme,
                    "accepted": blocks,
                    "visited": 2 * blocks,
                    "emitted": 2 * blocks + many * 3,
                    "blocks": blocks,
                }
            )
    return pd.DataFrame(rows)


TABLES = {
    make.__name__: make
    for make in (
        osd_offline,
        osd_online,
        osd_speedup_theory,
        osd_latency_alpha,
        osd_latency_dataset,
        osd_latency_length,
        osd_update_cost,
        beyond_best_draft_len,
        beyond_branches,
        beyond_noise_floor,
        osd_medusa,
        osd_memory_traffic,
        osd_utilisation,
        beyond_break_even,
        mdss_region,
        mdss_acceptance,
        mdss_cone,
        mdss_cost,
        mdss_draft_temperature,
        mdss_drafts,
        mdss_mixed_temperature,
        mdss_quality,
        mdss_target_temperature,
        mdss_three_drafts,
        mdss_topk,
        mdss_truncation,
        beyond_block_multidraft,
        beyond_context_batch,
        beyond_hybrid,
        beyond_interference,
        beyond_online_multidraft,
        beyond_regime,
        beyond_sampled_latency,
        beyond_sinkhorn,
        beyond_three_baselines,
        beyond_weights,
    )
} | planned.TABLES
