"""Distil a draft on the target's answers, then measure it on held-out requests (OSD, Table 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.stages._counts import Counts
from draftlab.stages._inputs import Distillation
from draftlab.stages._measures import ALPHAS
from draftlab.stages._stage import Bench, Facts, column, stage_of, timing
from draftlab.train.settings import Offline

if TYPE_CHECKING:
    import pandas as pd


class Settings(Offline):
    save: str = Field("", description="the method whose draft is saved; empty: the first one")


class Row(Counts):
    """One held-out request, as one variant's draft serves it after so many epochs."""

    request_id: int = column("number of the held-out request")
    draft_len: int = column("tokens that the draft proposes per block", "tokens")
    epoch: float = column("epochs of distillation before the measurement", "epochs")
    sample_source: str = column("source of the tokens in the loss: teacher, student, a mixture, or none")
    loss: str = column("the loss, by name")
    seed: int = column("seed of the random order and draws")
    parameters: int = column("weights of the draft", "weights")
    tokens: int = column("tokens that the draft has read for training by then", "tokens")
    learning_seconds: float = timing("CPU time of the distillation up to then", optional=True)
    measured: Literal["replay", "live"] = column("replay of the recorded answer, or live decoding", optional=True)
    looping: bool = column(
        "whether some six tokens in a row occur at least three times in the target's answer", optional=True
    )


class Derived:
    cost: float = column("time in steps of the target, with a draft step at a tenth of one", "steps", optional=True)
    training_flops: float = column("work done in training", "FLOPs", optional=True)
    parameters_million: float = column("weights of the draft", "10^6", optional=True)
    budget: str = column("unit in which the cost of learning is counted", optional=True)
    spent: float = column("the amount spent, in that unit", optional=True, timed=True)
    estimator: str = column("how alpha is estimated", optional=True)
    counted: float = column("the numerator of that estimate", optional=True)


MEASURES = ALPHAS | {
    "speedup_eq1": Measure(
        "emitted", "cost", "speed-up by Eq. 1, a draft step at a tenth of a target step", "times plain decoding"
    ),
    "estimate": Measure("counted", "visited", "estimate of alpha"),
    "accepted_of_emitted": Measure("accepted", "emitted", "accepted over emitted tokens"),
}


def run(settings: Settings, inputs: Distillation, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """Distil and measure one variant, and keep its draft in ``out/draft`` if it is the one to save."""
    from draftlab.engine.answers import loops
    from draftlab.errors import UserError
    from draftlab.files.atomic import is_first_process
    from draftlab.models.config import HEAD_ALONE
    from draftlab.models.on_target import OnTarget
    from draftlab.models.places import ByPlace
    from draftlab.train import parallel
    from draftlab.train.folders import Folders
    from draftlab.train.offline import distil
    from draftlab.train.sources import Scene, runs_target
    from draftlab.train.trimmed_head import coverage

    parallel.start()
    folders = Folders(inputs.answers, inputs.models, bench.kept)
    recorded, held_out = (
        folders.recorded(settings.dataset, split, settings.temperature) for split in ("train", "eval")
    )
    draft = folders.draft_of_blocks(settings, inputs.dtype, settings.longest)
    reads_target = isinstance(draft, OnTarget)
    if reads_target and runs_target(settings.sample_source):
        raise UserError(f"{HEAD_ALONE}, and writes no answers alone", remedy="set sample_source to teacher")
    needs_target = runs_target(settings.sample_source) or settings.live or reads_target
    target = folders.target(settings.device, inputs.dtype) if needs_target else None
    eos_ids = folders.tokenizer.eos_ids
    scene = Scene(draft, recorded, target, inputs.max_new_tokens, eos_ids, settings.sample_batch)
    rows, effort = distil(scene, held_out, settings, checkpoint=bench.checkpoint())
    is_wanted = bench.labels.get("method") == settings.save if settings.save else True
    if is_wanted and is_first_process():
        folders.once("saved", lambda: folders.save(draft, settings.draft, bench.out / "draft", recorded))
    looping = [loops(answer.answer_ids) for answer in held_out.answers]
    rows = rows.assign(
        sample_source=settings.sample_source,
        loss=settings.loss,
        seed=settings.seed,
        looping=rows["request_id"].map(looping.__getitem__),
        parameters=folders.parameters(settings.draft) + (draft.added if isinstance(draft, ByPlace) else 0),
    )
    covered = coverage(draft, (answer.answer_ids for answer in held_out.answers))
    return rows, folders.facts(effort) | ({} if covered is None else {"head_coverage": covered})


def draft_length(rows: pd.DataFrame) -> pd.DataFrame:
    """Time of a request in target steps, with draft steps of a tenth of one (Eq. 1's denominator, OSD)."""
    return rows.assign(cost=rows["blocks"] * (rows["draft_len"] * 0.1 + 1))


def compute(rows: pd.DataFrame) -> pd.DataFrame:
    """FLOPs of training: forward and backward take 6 per parameter and token."""
    flops = 6.0 * rows["parameters"] * rows["tokens"]
    return rows.assign(training_flops=flops, parameters_million=rows["parameters"] / 1e6)


def budgets(rows: pd.DataFrame) -> pd.DataFrame:
    """Each row once by the tokens read (in thousands) and once by the CPU seconds of training, the mean of the seeds."""
    import pandas as pd

    keys = [key for key in ("dataset", "design", "epoch") if key in rows]
    seconds = rows.groupby(keys)["learning_seconds"].transform("mean")
    spent = {"k tokens": rows["tokens"] / 1e3, "CPU s": seconds}
    return pd.concat([rows.assign(budget=name, spent=values) for name, values in spent.items()], ignore_index=True)


ESTIMATORS = {
    "live": ("live", "accepted"),
    "accepted over visited": ("replay", "accepted"),
    "sum of minima": ("replay", "overlap"),
    "OSD's repository": ("replay", "overlap_repo"),
}
"""For each estimator of alpha, how it is measured and its numerator, over the visited tokens; live decoding is the truth."""


def estimators(rows: pd.DataFrame) -> pd.DataFrame:
    """Each row once per ``estimator`` of alpha, whose numerator is ``counted``."""
    import pandas as pd

    frames = []
    for name, (measured, numerator) in ESTIMATORS.items():
        measurements = rows[rows["measured"] == measured]
        frames.append(measurements.assign(estimator=name, counted=measurements[numerator]))
    return pd.concat(frames, ignore_index=True)


STAGE = stage_of(
    __name__,
    split="eval",
    inputs=Distillation,
    views={"draft_length": draft_length, "compute": compute, "budgets": budgets, "estimators": estimators},
    launch=True,
)
