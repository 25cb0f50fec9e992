"""The exact optimum beside Global Resolution: drawn as the figure of MDSS App. G."""

from draftlab.report.figures.mdss_cost import draw

__all__ = ["draw"]
