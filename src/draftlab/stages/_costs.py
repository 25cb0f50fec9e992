"""Costs beside a served measurement: probed between its requests, or read from another experiment's table, with the times that they predict."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftlab.errors import UserError
from draftlab.stages._contenders import BEFORE, CALIBRATION_CONTEXT, DISTILLED

if TYPE_CHECKING:
    from draftlab.latency.cost import CostModel
    from draftlab.latency.loop import Generation
    from draftlab.models.backend import LatencyBackend
    from draftlab.stages.latency_requests import Settings


class Probes:
    """Costs of a pair as ``latency_cost`` measures them, taken between the requests that are served."""

    def __init__(self, target: LatencyBackend, draft: LatencyBackend, settings: Settings) -> None:
        from draftlab.latency.cost import around_calls

        self.target, self.draft, self.settings = target, draft, settings
        self.around = around_calls(target, CALIBRATION_CONTEXT // 2, settings.seed)
        self.records: list[dict[str, Any]] = []

    def take(self, block: int) -> None:
        """Probe every number of tokens that a block of these requests can verify."""
        from draftlab.latency.cost import calibrate

        sizes = range(2, self.settings.draft_len + 2)
        rows = calibrate(self.target, self.draft, [CALIBRATION_CONTEXT], [1], sizes, 1, self.settings.seed + block)
        records = rows.assign(block=block, **self.around).to_dict("records")
        self.records += [{str(name): value for name, value in row.items()} for row in records]


def read_costs(table: Path, context: int, drafts: Collection[str] = (), verified: int = 1) -> dict[str, CostModel]:
    """The costs of each draft in a table of ``latency_cost`` with a column ``draft``, at batch 1 and the context that is nearest.

    The distilled draft must be among them, and each of ``drafts`` but the undistilled one, which is as large as the distilled one. They must
    reach to ``verified`` tokens in one call of the target.
    """
    from draftlab.files.tables import read_table
    from draftlab.latency.cost import cost_model

    rows = read_table(table)
    rows = rows[rows["batch"] == 1]
    if "draft" in rows and len(rows):
        near = min(rows["context"].unique(), key=lambda measured: abs(measured - context))
        rows = rows[rows["context"] == near]
    known = set(rows["draft"]) if "draft" in rows else set[str]()
    if absent := [name for name in (DISTILLED, *drafts) if name != BEFORE and name not in known]:
        remedy = f"give it an axis draft, one value of which is {absent[0]}, and measure batch 1"
        raise UserError(f"no costs of the {absent[0]} draft", file=table, remedy=remedy)
    if (most := rows.groupby("draft")["verified"].max().min()) < verified:
        what = f"costs of verifying up to {most} tokens, but the target verifies up to {verified}"
        raise UserError(what, file=table, remedy=f"add {verified} to verified, and measure again")
    return {str(name): cost_model(of_draft) for name, of_draft in rows.groupby("draft")}


def predict(written: Generation, steps: int, costs: CostModel) -> float:
    """The time of an answer in plain steps: ``sum of v(drafted + 1)`` over its blocks, and c for each step of the draft's model."""
    if not written.blocks:
        return float(len(written.tokens))
    return sum(costs.verify(block.drafted + 1) for block in written.blocks) + costs.cost_ratio * steps
