"""One draft of a stream: perhaps distilled before, it serves its requests or is measured on held-out ones.

It imports torch, so only a running stage imports it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from draftlab.errors import UserError
from draftlab.models import LanguageModel
from draftlab.stages._arrivals import arrive, folders_of
from draftlab.train import online
from draftlab.train.learning import Effort, train
from draftlab.train.live import live_server
from draftlab.train.sources import Scene
from draftlab.train.traffic import Traffic, part_of

if TYPE_CHECKING:
    from draftlab.stages._stage import Bench
    from draftlab.stages.online import Inputs, Settings


def measure(
    traffic: Traffic, name: str, number: int, settings: Settings, inputs: Inputs, bench: Bench
) -> tuple[pd.DataFrame, Effort]:
    """Prepare one draft, then let it serve its ``traffic``, or measure it on the held-out requests of its class."""
    draft = folders_of(inputs, bench).draft(settings)
    # A draft is never measured on requests that it was distilled on.
    known = range(part_of(len(traffic), settings.warm_share) if settings.warm_on == "stream" else 0)
    left = range(len(known), len(traffic))
    served = traffic.take(left) if known else traffic
    if settings.measured_on == "stream" and not left:
        what = f"the draft is distilled on all {len(traffic)} requests" + (f" of {name}" if name else " of the stream")
        raise UserError(f"{what}, and none is left to measure", remedy="lower warm_share, or lengthen the stream")
    if settings.learns and not name:
        online.check_interval(served, settings)
    effort = _prepare(draft, traffic, known, name, settings, inputs, bench)
    if settings.measured_on == "held_out":
        held_out = arrive(settings, inputs, bench, "held_out")
        places = [place for place, group in enumerate(held_out.group) if name in ("", group)]
        rows = online.serve_unchanged(draft, held_out.take(places), settings.draft_len)
        return rows.assign(stream_index=places, split="eval", after=len(traffic)), effort
    rows, spent = _serve(draft, served, number, settings, inputs, bench)
    rows["after"] = rows["after"].fillna(0).astype(int) if "after" in rows else 0
    rows["split"] = np.where(rows["after"] > 0, "eval", "train")
    is_stream = rows["split"] == "train"
    rows.loc[is_stream, "stream_index"] = np.array(left, dtype=int)[rows.loc[is_stream, "stream_index"]]
    return rows, effort + spent


def _prepare(
    draft: LanguageModel,
    traffic: Traffic,
    known: Sequence[int],
    name: str,
    settings: Settings,
    inputs: Inputs,
    bench: Bench,
) -> Effort:
    """Distil the draft before it serves, on the requests at the places ``known`` of its ``traffic`` or on those set aside."""
    if settings.warm_on == "nothing":
        return Effort()
    if settings.warm_on == "stream":
        pool, chosen = traffic, list(known)
    else:
        pool = arrive(settings, inputs, bench, "aside")
        chosen = pool.first(settings.warm_share, name)
    steps = settings.warm_epochs * math.ceil(len(chosen) / settings.batch)
    if settings.warm_fair:  # as many updates as online, each of as many requests
        steps = int(traffic.trains.sum()) // settings.update_interval
        settings = settings.model_copy(update={"batch": settings.update_interval})
    return train(Scene(draft, pool.answers), chosen, steps, settings, checkpoint=_checkpoint(settings, bench, "warm"))


def _serve(
    draft: LanguageModel, served: Traffic, number: int, settings: Settings, inputs: Inputs, bench: Bench
) -> tuple[pd.DataFrame, Effort]:
    """Let a draft serve requests, learning from them or not, with its ``probes`` on held-out ones; a draft that is to be kept is saved."""
    due = sorted({math.ceil(len(served) * (part + 1) / settings.probes) for part in range(settings.probes)})

    def probe(after: int) -> pd.DataFrame:
        """Measure the draft on the held-out requests."""
        held_out = arrive(settings, inputs, bench, "held_out")
        return online.serve_unchanged(draft, held_out, settings.draft_len).assign(after=after)

    if not settings.learns:
        rows = online.serve_unchanged(draft, served, settings.draft_len)
        return pd.concat([rows, *map(probe, due)], ignore_index=True), Effort()
    folders = folders_of(inputs, bench)
    live = settings.live and live_server(
        folders.target(settings.device, inputs.dtype), inputs.max_new_tokens, folders.tokenizer.eos_ids
    )
    server = live or online.replay_server
    checkpoint = _checkpoint(settings, bench, f"{number}.checkpoint")
    rows, spent = online.serve(draft, served, settings, server=server, probe=probe, probes=due, checkpoint=checkpoint)
    if bench.labels.get("method") == settings.save != "":
        bench.once("saved", lambda: folders.save(draft, settings.draft, bench.out / "draft"))
    return rows, spent


def _checkpoint(settings: Settings, bench: Bench, name: str) -> Path | None:
    """Where training is kept; a run that is timed begins anew if it is killed, because its CPU time before that is lost."""
    return None if settings.timed else bench.checkpoint(name)
