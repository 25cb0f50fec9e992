"""The simulator beside what others measured: nothing is fitted on the number that it predicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from draftlab.errors import UserError
from draftlab.serving import profiles, traces
from draftlab.serving.simulate import fixed, serve


def queueing(profile: str, file: Path) -> list[dict[str, Any]]:
    """Mean times of the requests of a real vLLM (LLMServingSim's ``requests.jsonl``), beside the simulated ones."""
    arrivals = traces.read_trace(file)
    served = serve(arrivals, profiles.load(profile), fixed(0), None, np.random.default_rng(0))
    rows = [row for _, row in traces.rows(file) if row is not None]
    if len(rows) != len(served.last):
        raise UserError("requests were left out", file=file, remedy="fetch the file again")
    shift = rows[0]["queued_ts"] - rows[0]["arrival_time"]  # from one clock to the other
    first = [row["first_token_ts"] - row["arrival_time"] - shift for row in rows]
    pace = [(r["last_token_ts"] - r["first_token_ts"]) / (r["output_toks"] - 1) for r in rows if r["output_toks"] > 1]
    pairs = {
        "mean time per token": (np.mean(pace), served.per_token.mean(), 0.05),
        "mean time to first token": (np.mean(first), served.to_first.mean(), 0.10),
    }
    return [
        {
            "part": "a: vLLM without drafts",
            "setting": profile,
            "quantity": quantity,
            "measured": float(measured),
            "predicted": float(predicted),
            "error": float(predicted / measured - 1),
            "bound": bound,
        }
        for quantity, (measured, predicted, bound) in pairs.items()
    ]
