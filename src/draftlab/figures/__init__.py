"""Tidy table -> picture: one module per figure, named as its experiment.

A figure function takes (table, scale, published) and returns a matplotlib ``Figure``; it reads nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from draftlab.figures import (
    beyond_block_multidraft,
    beyond_context_batch,
    beyond_hybrid,
    beyond_interference,
    beyond_online_multidraft,
    beyond_regime,
    beyond_sinkhorn,
    beyond_three_baselines,
    mdss_acceptance,
    mdss_cone,
    mdss_cost,
    mdss_draft_temperature,
    mdss_drafts,
    mdss_mixed_temperature,
    mdss_quality,
    mdss_region,
    mdss_target_temperature,
    mdss_three_drafts,
    mdss_topk,
    mdss_truncation,
    osd_arena_classes,
    osd_latency_alpha,
    osd_latency_dataset,
    osd_latency_length,
    osd_offline,
    osd_online,
    osd_speedup_theory,
    osd_update_cost,
)
from draftlab.figures.forms import overview
from draftlab.figures.style import save
from draftlab.published import Published

FIGURES: dict[str, Callable[[pd.DataFrame, str, Published], Figure]] = {
    "osd_offline": osd_offline.draw,
    "osd_online": osd_online.draw,
    "osd_arena_classes": osd_arena_classes.draw,
    "osd_speedup_theory": osd_speedup_theory.draw,
    "osd_latency_alpha": osd_latency_alpha.draw,
    "osd_latency_dataset": osd_latency_dataset.draw,
    "osd_latency_length": osd_latency_length.draw,
    "osd_update_cost": osd_update_cost.draw,
    "mdss_region": mdss_region.draw,
    "mdss_acceptance": mdss_acceptance.draw,
    "mdss_cone": mdss_cone.draw,
    "mdss_cost": mdss_cost.draw,
    "mdss_draft_temperature": mdss_draft_temperature.draw,
    "mdss_drafts": mdss_drafts.draw,
    "mdss_mixed_temperature": mdss_mixed_temperature.draw,
    "mdss_quality": mdss_quality.draw,
    "mdss_target_temperature": mdss_target_temperature.draw,
    "mdss_three_drafts": mdss_three_drafts.draw,
    "mdss_topk": mdss_topk.draw,
    "mdss_truncation": mdss_truncation.draw,
    "beyond_block_multidraft": beyond_block_multidraft.draw,
    "beyond_hybrid": beyond_hybrid.draw,
    "beyond_online_multidraft": beyond_online_multidraft.draw,
    "beyond_regime": beyond_regime.draw,
    "beyond_sinkhorn": beyond_sinkhorn.draw,
    "beyond_context_batch": beyond_context_batch.draw,
    "beyond_interference": beyond_interference.draw,
    "beyond_three_baselines": beyond_three_baselines.draw,
}


def draw(experiment: str, table: pd.DataFrame, scale: str, published: Published, prefix: Path) -> None:
    """Write ``prefix.pdf`` and ``prefix.png``; the same table gives the same bytes. Without a figure of its own, an overview."""
    designed = FIGURES.get(experiment)
    save(designed(table, scale, published) if designed else overview(experiment, table, scale), prefix)
