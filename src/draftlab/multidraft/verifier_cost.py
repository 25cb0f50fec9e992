"""What a decision of each scheme costs (MDSS App. G)."""

from __future__ import annotations

import pandas as pd

from draftlab import bench_verify
from draftlab.experiments import VerifierCost


def verifier_cost(settings: VerifierCost) -> pd.DataFrame:
    """The rows of ``draftlab bench verify``: CPU milliseconds per decision by scheme, vocabulary, filter, number of drafts and batch."""
    return bench_verify.bench(settings.vocabs, settings.num_drafts, settings.rounds, settings.batch, settings.seed)
