"""The measures of the counts of decoding and replay."""

from draftlab.core.measure import Measure

ALPHA = Measure("overlap", "visited", "alpha")
BLOCK_EFFICIENCY = Measure("emitted", "blocks", "block efficiency", "tokens per target call")
ALPHAS = {
    "alpha": ALPHA,
    "alpha_accepted": Measure("accepted", "visited", "accepted over visited tokens"),
    "alpha_repo": Measure("overlap_repo", "visited", "alpha by the estimator of OSD's repository"),
    "block_efficiency": BLOCK_EFFICIENCY,
}
