"""OSD Tables 2 and 7, the 33B pair: speed-up measured in llama.cpp at controlled acceptance, beside Eq. 1."""

from __future__ import annotations

from draftlab.report.figures.osd_latency_alpha import draw

__all__ = ["draw"]
