"""Which tokens a draft proposes, has accepted and misses, before and after distillation (OSD, Fig. 7 and Table 6)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.stages._inputs import Distillation
from draftlab.stages._stage import Bench, Facts, column, stage_of
from draftlab.train.settings import Training

if TYPE_CHECKING:
    import pandas as pd


class Settings(Training):
    epochs: int = Field(gt=0, description="epochs of distillation")
    temperature: float = Field(0.0, ge=0, le=0, description="temperature of the recorded answers: only 0, greedy")


class Row:
    """One token of the vocabulary in one held-out request, where it was proposed or written."""

    request_id: int = column("number of the held-out request")
    token: int = column("id of the token")
    proposed: int = column("how often the draft proposed it and the target judged it", "times")
    accepted: int = column("how often the target accepted it", "times")
    generated: int = column("how often the answer contains it", "times")
    method: Literal["original", "distilled"] = column("the undistilled draft, or the distilled one")
    seed: int = column("seed of the order of training")
    dataset: str = column("dataset of the requests")
    text: str = column("the token as text")


class Derived:
    rank: float = column("rank of the token by how often the target writes it, from 1", optional=True)
    common: bool = column("whether it is among the first hundred", optional=True)
    common_generated: int = column("``generated`` if it is, else 0", "times", optional=True)
    statistic: str = column("precision, or recall", optional=True)
    over: int = column("its denominator: ``proposed`` or ``generated``", "times", optional=True)


MEASURES = {
    "precision_or_recall": Measure("accepted", "over", "precision or recall"),
    "coverage": Measure("common_generated", "generated", "share of the tokens that are common"),
}


def run(settings: Settings, inputs: Distillation, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """Count by token before (``method`` original) and after (distilled)."""
    import pandas as pd

    from draftlab.train.folders import Folders
    from draftlab.train.learning import train
    from draftlab.train.sources import Scene
    from draftlab.train.tokens import token_counts

    folders = Folders(inputs.answers, inputs.models, bench.kept)
    recorded, held_out = (folders.recorded(settings.dataset, split) for split in ("train", "eval"))
    draft = folders.draft(settings)
    before = token_counts(draft, held_out, settings.draft_len).assign(method="original")
    requests = range(len(recorded.answers))
    steps = settings.epochs * math.ceil(len(requests) / settings.batch)
    effort = train(Scene(draft, recorded), requests, steps, settings, checkpoint=bench.checkpoint())
    after = token_counts(draft, held_out, settings.draft_len).assign(method="distilled")
    table = pd.concat([before, after], ignore_index=True).assign(seed=settings.seed, dataset=settings.dataset)
    texts = {token: folders.tokenizer.decode([token]) for token in table["token"].unique()}
    return table.assign(text=table["token"].map(texts)), folders.facts(effort)


def recall(rows: pd.DataFrame) -> pd.DataFrame:
    """The rank of each token by how often the target writes it, per dataset, from 1; and each row once per ``statistic``, whose
    denominator is ``over``: precision over what was proposed, recall over what was written."""
    import numpy as np
    import pandas as pd

    written = rows[rows["method"] == "original"].groupby(["dataset", "token"])["generated"].sum()
    ranks = written.groupby(level="dataset").rank(method="first", ascending=False)
    rank = ranks.reindex(pd.MultiIndex.from_frame(rows[["dataset", "token"]])).fillna(np.inf).to_numpy()
    common = rank <= 100
    rows = rows.assign(rank=rank, common=common, common_generated=rows["generated"].where(common, 0))
    denominators = {"precision": "proposed", "recall": "generated"}
    frames = [rows.assign(statistic=name, over=rows[column]) for name, column in denominators.items()]
    return pd.concat(frames, ignore_index=True)


STAGE = stage_of(__name__, split="eval", inputs=Distillation, views={"recall": recall})
