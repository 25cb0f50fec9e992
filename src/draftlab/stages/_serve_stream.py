"""The path of a request in the stage ``online``, from the run back to where the requests come from.

A run serves its stream with one draft or several. Each is perhaps distilled before; then it serves its requests, and learns from each after
the acceptance on it was measured. The requests arrive with the target's recorded answers. It imports torch, so only a running stage imports it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from draftlab.data.classify import classifier_of
from draftlab.data.prompts import Prompt
from draftlab.data.routing import by_route, misroute, routed
from draftlab.data.streams import arrange
from draftlab.errors import UserError
from draftlab.files.json_files import read_jsonl, write_json
from draftlab.files.machine import peak_mb
from draftlab.models import LanguageModel
from draftlab.train import online
from draftlab.train.folders import Folders
from draftlab.train.learning import Effort, train
from draftlab.train.live import live_server
from draftlab.train.sources import Scene
from draftlab.train.traffic import Traffic, along, binned, part_of, whole

if TYPE_CHECKING:
    from draftlab.stages._stage import Bench, Facts
    from draftlab.stages.online import Inputs, Part, Settings


def serve_stream(settings: Settings, inputs: Inputs, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """Serve the stream once, with one draft for all requests or with one for each class."""
    folders = _folders(inputs, bench)
    stream = _arrive(settings, inputs, bench, "stream")
    if settings.learns:
        online.check_interval(stream, settings)
    frames, effort = [], Effort()
    for number, (name, places) in enumerate(_drafts(settings, stream).items()):
        rows, spent = _measure(stream, places, name, number, settings, inputs, bench)
        if name:
            rows["misrouted"] = (rows["group"] != name).astype(int)
        frames.append(rows)
        effort += spent
    rows = pd.concat(frames, ignore_index=True).sort_values(["split", "stream_index"], kind="stable")
    updates = rows.reindex(columns=["updates", "update_loss"]).fillna(0)  # none where nothing is learnt
    rows = rows.assign(updates=updates["updates"].astype(int), update_loss=updates["update_loss"].astype(float))
    unused = [] if settings.probes else ["after"]
    unused += [] if settings.stream else ["group", "segment"]
    rows = binned(rows.drop(columns=unused), settings.bin).assign(seed=settings.seed)
    facts = folders.facts(effort)
    if settings.timed:
        rows = rows.assign(cpu_seconds=facts["cpu_seconds"], peak_mb=peak_mb())
    return rows, facts


def _folders(inputs: Inputs, bench: Bench) -> Folders:
    """The folders that the inputs name, with what has been read from them."""
    return Folders(inputs.answers, inputs.models, bench.kept)


def _drafts(settings: Settings, stream: Traffic) -> dict[str, list[int]]:
    """The places of the requests that each draft serves, by class; "" is the class of a draft for all requests."""
    if settings.drafts == "shared":
        return {"": list(range(len(stream)))}
    if settings.drafts == "by_group":
        return by_route(stream.group)
    return by_route(misroute(stream.route, settings.route_errors, np.random.default_rng(settings.seed)))


def _measure(
    stream: Traffic, places: Sequence[int], name: str, number: int, settings: Settings, inputs: Inputs, bench: Bench
) -> tuple[pd.DataFrame, Effort]:
    """Prepare one draft, then let it serve the requests at its ``places``, or measure it on the held-out requests of its class."""
    folders = _folders(inputs, bench)
    draft = folders.draft_of_blocks(settings, inputs.dtype, settings.draft_len)
    traffic = stream.take(places) if name else stream
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
        held_out = _arrive(settings, inputs, bench, "held_out")
        of_class = [place for place, group in enumerate(held_out.group) if name in ("", group)]
        rows = online.serve_unchanged(draft, held_out.take(of_class), settings.draft_len)
        return rows.assign(stream_index=of_class, split="eval", after=len(traffic)), effort
    rows, spent = _serve(draft, served, number, settings, inputs, bench)
    rows["after"] = rows["after"].fillna(0).astype(int) if "after" in rows else 0
    rows["split"] = np.where(rows["after"] > 0, "eval", "train")
    is_stream = rows["split"] == "train"
    of_stream = np.array(places[len(known) :], dtype=int)
    rows.loc[is_stream, "stream_index"] = of_stream[rows.loc[is_stream, "stream_index"]]
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
        pool = _arrive(settings, inputs, bench, "aside")
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
        held_out = _arrive(settings, inputs, bench, "held_out")
        return online.serve_unchanged(draft, held_out, settings.draft_len).assign(after=after)

    if not settings.learns:
        rows = online.serve_unchanged(draft, served, settings.draft_len)
        return pd.concat([rows, *map(probe, due)], ignore_index=True), Effort()
    folders = _folders(inputs, bench)
    live = settings.live and live_server(
        folders.target(settings.device, inputs.dtype), inputs.max_new_tokens, folders.tokenizer.eos_ids
    )
    server = live or online.replay_server
    checkpoint = _checkpoint(settings, bench, f"{number}.checkpoint")
    rows, spent = online.serve(draft, served, settings, server=server, probe=probe, probes=due, checkpoint=checkpoint)
    if bench.labels.get("method") == settings.save != "":
        folders.once("saved", lambda: folders.save(draft, settings.draft, bench.out / "draft", served.answers))
    return rows, spent


def _checkpoint(settings: Settings, bench: Bench, name: str) -> Path | None:
    """Where training is kept; a run that is timed begins anew if it is killed, because its CPU time before that is lost."""
    return None if settings.timed else bench.checkpoint(name)


def _arrive(settings: Settings, inputs: Inputs, bench: Bench, part: Part) -> Traffic:
    """A part of the stream. The seed permutes the requests of each class."""
    folders = _folders(inputs, bench)
    split, seed = ("eval", 0) if part == "held_out" else ("train", settings.seed)
    is_routed = settings.drafts == "by_route" and part == "stream"
    key = (part, is_routed, settings.stream, settings.aside)

    def in_order() -> Traffic:
        answers = folders.joined(settings.datasets, split, settings.temperature)
        if settings.stream is None:
            traffic = whole(answers, settings.dataset)
        else:
            order = _route if is_routed else _order
            traffic = along(folders.once(key, lambda: order(settings, inputs, bench, part)), answers)
        return traffic.in_bins(settings.bin)

    traffic = folders.once((*key, settings.dataset, settings.temperature, settings.bin), in_order)
    in_time = settings.stream is not None and settings.stream.kind == "by_time"
    return traffic.reordered(seed, settings.bin, in_time)


def _order(settings: Settings, inputs: Inputs, bench: Bench, part: Part) -> list[Prompt]:
    """The requests of a part of the stream that have a recorded answer, in their order."""
    split, files = ("eval", inputs.held_out) if part == "held_out" else ("train", inputs.requests)
    folders = _folders(inputs, bench)
    passes = (folders.recorded(dataset, split, settings.temperature) for dataset in settings.datasets)
    answered = {answer.id for recorded in passes for answer in recorded.answers}
    prompts = (prompt for file in files for prompt in read_jsonl(file, Prompt))
    return arrange((prompt for prompt in prompts if prompt.id in answered), settings.part(part))


def _route(settings: Settings, inputs: Inputs, bench: Bench, part: Part) -> list[Prompt]:
    """The stream with the class that the router finds for each request; its accuracy goes into routing.json beside the table."""
    labelled = _order(settings, inputs, bench, "held_out")
    classifier = classifier_of(inputs.router, "group", labelled, inputs.classifier, settings.device)
    prompts, facts = routed(_order(settings, inputs, bench, part), classifier)
    write_json(bench.out / "routing.json", {"method": inputs.router, **facts})
    return prompts
