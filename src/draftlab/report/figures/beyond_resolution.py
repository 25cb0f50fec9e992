"""The same form as for MDSS App. G."""

from draftlab.report.figures.mdss_cost import draw

__all__ = ["draw"]
