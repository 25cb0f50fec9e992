"""Bytes and operations of serving with a draft that is updated: OSD's tables recomputed, and with the terms that they leave out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from draftlab.core import theory
from draftlab.errors import UserError
from draftlab.files.json_files import read_object
from draftlab.files.weights import parameter_count

if TYPE_CHECKING:
    from draftlab.stages.memory_traffic import Settings as MemoryTraffic
    from draftlab.stages.speedup_theory import Settings as SpeedupTheory
    from draftlab.stages.utilisation import Settings as Utilisation


def speedup_theory(settings: SpeedupTheory) -> pd.DataFrame:
    """Eq. 1 of OSD: ``speedup`` for each ``alpha`` on each curve of ``draft_len`` and ``cost_ratio``."""
    rows = [
        {"alpha": alpha, "draft_len": k, "cost_ratio": c, "speedup": theory.speedup(alpha, k, c)}
        for k, c in settings.curves
        for alpha in settings.alphas
    ]
    return pd.DataFrame(rows)


@dataclass(frozen=True)
class Inputs:
    """A pair and its block lengths before and after; ``train_gb``: the draft's weights in float32."""

    name: str
    target: theory.Moved
    draft: theory.Moved
    train_gb: float
    before: float
    after: float


def memory_traffic(settings: MemoryTraffic, target: Path, draft: Path, online: Path) -> pd.DataFrame:
    """One row per ``inputs`` (printed, unrounded, ours), ``terms`` (printed, all), ``batch, update_interval`` and ``system`` (original, vsd, osd):
    GB by term, their sum ``gb``, ``original_gb`` and ``vsd_gb`` beside it, and the ``break_even`` block length above which osd moves less than vsd.
    """
    size = theory.Moved(settings.target_gb, settings.target_cache_gb)
    small = theory.Moved(settings.draft_gb, settings.draft_cache_gb)
    unrounded = [theory.expected_block_length(alpha, settings.draft_len) for alpha in settings.alphas]
    own, own_small = (moved(folder) for folder in (target, draft))
    every = [
        Inputs("printed", size, small, 2 * settings.draft_gb, *settings.rounded),
        Inputs("unrounded", size, small, 2 * settings.draft_gb, unrounded[0], unrounded[1]),
        Inputs("ours", own, own_small, own_small.weights, *_measured(online, settings.dataset)),
    ]
    rows = [row for inputs in every for row in (*_printed(inputs, settings), *_all_terms(inputs, settings))]
    return pd.DataFrame(rows)


def _printed(inputs: Inputs, settings: MemoryTraffic) -> Iterator[dict[str, Any]]:
    """Table 5."""
    for interval in settings.update_interval:
        systems = theory.memory_traffic(
            inputs.target,
            inputs.draft,
            tokens=settings.tokens,
            block_length=inputs.before,
            online_block_length=inputs.after,
            update_interval=interval,
        )
        yield from _rows(systems, inputs, systems["original"]["target_gb"], "printed", 1, interval)


def _all_terms(inputs: Inputs, settings: MemoryTraffic) -> Iterator[dict[str, Any]]:
    for batch, interval in itertools.product(settings.batch, settings.update_interval):
        systems = {
            name: theory.traffic_terms(
                inputs.target,
                inputs.draft,
                tokens=settings.tokens,
                context=settings.context,
                draft_len=0 if name == "original" else settings.draft_len,
                block_length=length,
                batch=batch,
                updates_per_request=(name == "osd") / interval,
                train_gb=inputs.train_gb,
            )
            for name, length in _block_lengths(inputs).items()
        }
        per_block = (sum(systems["vsd"].values())) * inputs.before
        yield from _rows(systems, inputs, per_block, "all", batch, interval)


def _block_lengths(inputs: Inputs) -> dict[str, float]:
    return {"original": 1.0, "vsd": inputs.before, "osd": inputs.after}


def _rows(
    systems: Mapping[str, Mapping[str, float]], inputs: Inputs, per_block: float, terms: str, batch: int, interval: int
) -> Iterator[dict[str, Any]]:
    totals = {name: sum(parts.values()) for name, parts in systems.items()}
    online_fixed, fixed = (totals[name] - per_block / _block_lengths(inputs)[name] for name in ("osd", "vsd"))
    needed = theory.break_even_block_length(per_block, fixed, online_fixed, inputs.before)
    for name, parts in systems.items():
        axes = {"inputs": inputs.name, "terms": terms, "batch": batch, "update_interval": interval, "system": name}
        beside = {"gb": totals[name], "original_gb": totals["original"], "vsd_gb": totals["vsd"]}
        yield axes | {"block_length": _block_lengths(inputs)[name], **parts, **beside, "break_even": needed}


def moved(model: Path) -> theory.Moved:
    """Weights and cache entry of a decoder-only model's folder, in float32."""
    config = read_object(model / "config.json")
    try:
        width, layers, heads = (config[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    except KeyError as error:
        raise UserError(f"no {error} in its config", file=model, remedy="use a decoder-only model") from None
    entry = 2 * (config.get("num_key_value_heads") or heads) * (config.get("head_dim") or width // heads)
    return theory.Moved(4e-9 * parameter_count(model), 4e-9 * layers * entry)


def _measured(online: Path, dataset: str) -> tuple[float, float]:
    """Block lengths at the end of the stream: of the draft as it was, and of the online one."""
    rows = pd.read_csv(online)
    rows = rows[(rows["dataset"] == dataset) & (rows["record"] >= 0.8 * (rows["record"].max() + 1))]
    sums = rows.groupby("method")[["emitted", "blocks"]].sum()
    lengths = sums["emitted"] / sums["blocks"]
    return float(lengths["static"]), float(lengths["online"])


def utilisation(settings: Utilisation) -> pd.DataFrame:
    """OSD, App. A.4. ``part`` load: FLOP/s of the trace times ``load``, of the target alone (``serving``) and with drafting and training
    (``online``), over the hardware's. ``part`` ratio: target over draft FLOPs of each pair, at the printed and the recomputed block length."""
    length = theory.expected_block_length(settings.alpha, settings.draft_len)
    # Per emitted token: (k + 1) / a verified tokens; k / a drafted ones, and a forward and a backward pass over what was served.
    verified = (settings.draft_len + 1) / length * settings.flops_per_token
    online = verified + (settings.draft_len / length + 3) * settings.draft_flops_per_token
    rows: list[dict[str, Any]] = []
    for load in np.geomspace(1, settings.most, 13):
        for system, per_token in {"serving": settings.flops_per_token, "online": online}.items():
            requests = load * settings.requests
            rows.append(
                {
                    "part": "load",
                    "system": system,
                    "load": load,
                    "requests_per_second": requests / (86_400 * settings.days),
                    "flops_per_second": theory.load_flops(
                        settings.tokens_per_request, requests, settings.days, per_token
                    ),
                    "hardware_flops": settings.hardware_flops,
                }
            )
    for pair, target, draft, printed, alpha in settings.pairs:
        recomputed = theory.expected_block_length(alpha, settings.draft_len)
        for source, length in {"printed": printed, "recomputed": recomputed}.items():
            ratio = theory.update_flops_ratio(settings.draft_len, length, target, draft)
            rows.append({"part": "ratio", "pair": pair, "source": source, "block_length": length, "ratio": ratio})
    return pd.DataFrame(rows)
