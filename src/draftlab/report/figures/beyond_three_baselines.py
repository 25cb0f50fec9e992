"""No speculation, an off-the-shelf draft and a distilled draft on the same requests and one engine (a question of reviewer fopk)."""

from __future__ import annotations

from draftlab.report.figures.osd_latency_dataset import draw

__all__ = ["draw"]
