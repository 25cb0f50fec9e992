"""What updates of a draft cost against what they save, by interval, and against a larger static draft."""

from __future__ import annotations

import copy
import functools
import math
from typing import TYPE_CHECKING, Literal

from draftlab.core.measure import Measure
from draftlab.errors import UserError
from draftlab.stages._counts import UnroundedCounts
from draftlab.stages._inputs import Distillation
from draftlab.stages._measures import ALPHA, BLOCK_EFFICIENCY
from draftlab.stages._stage import Bench, Facts, column, stage_of, timing
from draftlab.train.settings import BreakEven as Settings
from draftlab.train.settings import Serving

if TYPE_CHECKING:
    import pandas as pd


class Row(UnroundedCounts):
    """One request, as one contender serves it."""

    stream_index: int = column("place in the stream")
    request_id: int = column("number among the recorded requests")
    serve_seconds: float = timing("time to serve the request")
    serve_gb: float = column("bytes moved to serve it", "GB")
    update_seconds: float = timing("its share of the training time")
    update_gb: float = column("its share of the bytes that the training moves", "GB")
    contender: Literal["static", "online", "larger"] = column("the draft, and whether it learns")
    update_interval: int = column("requests between two updates; 0: none", "requests")
    static_seconds: float = timing("time to serve it with the undistilled draft")
    static_gb: float = column("bytes moved to serve it with the undistilled draft", "GB")
    seed: int = column("seed of the order")


class Derived:
    cost_seconds: float = timing("time of a request with its share of the training")
    cost_gb: float = column("bytes moved for a request, with its share of the training", "GB")


MEASURES = {
    "gain": Measure(
        "static_seconds", "cost_seconds", "seconds of the undistilled draft over those of this one, training counted"
    ),
    "gain_bytes": Measure(
        "static_gb", "cost_gb", "bytes of the undistilled draft over those of this one, training counted"
    ),
    "alpha": ALPHA,
    "block_efficiency": BLOCK_EFFICIENCY,
}


def run(settings: Settings, inputs: Distillation, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """Serve the same requests with the undistilled draft, with one that learns at each interval, and with a larger one."""
    import pandas as pd

    from draftlab.latency.pair import load_inflated
    from draftlab.models.weights import model_size
    from draftlab.train.break_even import LARGER, affordable, measure, priced
    from draftlab.train.folders import Folders
    from draftlab.train.learning import Effort, train
    from draftlab.train.online import serve, serve_unchanged
    from draftlab.train.sources import Scene
    from draftlab.train.traffic import whole

    folders = Folders(inputs.answers, inputs.models, bench.kept)
    recorded = folders.recorded(settings.dataset, "train")
    if len(recorded.answers) < 2 * settings.requests:
        raise UserError(
            f"only {len(recorded.answers)} answers for {settings.requests} requests to serve and as many to distil on",
            remedy="lower requests, or raise data.train of the scale",
        )
    traffic = whole(recorded, settings.dataset).reordered(settings.seed)
    stream, target = traffic.take(range(settings.requests)), folders.target(settings.device, inputs.dtype)
    size = settings.inflated_layers, settings.inflated_ffn
    target = load_inflated(target, inputs.models / "target", *size, settings.device)
    draft, larger = (folders.draft(settings, name) for name in (settings.draft, settings.larger))
    prices = measure(target, draft, larger, stream, settings)
    names = {"target": "target", "draft": settings.draft, "larger": settings.larger}
    sizes = {role: model_size(inputs.models / name) for role, name in names.items()}
    price = functools.partial(priced, sizes=sizes, prices=prices, settings=settings)
    static = price(serve_unchanged(draft, stream, settings.draft_len), name="draft")
    runs, effort = {("static", 0): static}, Effort()
    learning = settings.model_dump(include=set(Serving.model_fields))
    for interval in settings.intervals:
        learner = copy.deepcopy(draft)
        rows, spent = serve(learner, stream, Serving(**learning, update_interval=interval))
        effort = max(effort, spent, key=lambda effort: effort.tokens)
        share = spent.updates / len(stream)  # a stream may end between two updates
        runs["online", interval] = price(rows, name="draft", update=f"update {interval}", share=share)
    tokens = effort.tokens * sizes["draft"].weights / sizes["larger"].weights
    chosen = affordable(traffic, settings.requests, tokens)
    steps = math.ceil(len(chosen) / settings.batch)
    train(Scene(larger, traffic.answers), chosen, steps, settings)
    rows = serve_unchanged(larger, stream, settings.draft_len)
    runs["larger", 0] = price(rows, name="larger", update=LARGER, share=steps / len(stream))
    costs = {f"static_{unit}": static[f"serve_{unit}"].to_numpy() for unit in ("seconds", "gb")}
    frames = [rows.assign(contender=name, update_interval=number, **costs) for (name, number), rows in runs.items()]
    table = pd.concat(frames, ignore_index=True).drop(columns=["group", "segment", "updates", "update_loss"])
    return table.assign(seed=settings.seed), folders.facts(effort)


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    """Seconds and bytes of a request with its share of the training."""
    return rows.assign(**{f"cost_{unit}": rows[f"serve_{unit}"] + rows[f"update_{unit}"] for unit in ("seconds", "gb")})


STAGE = stage_of(__name__, split="train", inputs=Distillation, exclusive=True)
