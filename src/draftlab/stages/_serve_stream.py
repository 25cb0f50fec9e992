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


class Run:
    """A run of the stage: its settings, where its inputs lie, what it has read of them, and where its results go."""

    def __init__(self, settings: Settings, inputs: Inputs, bench: Bench) -> None:
        self.settings, self.inputs, self.bench = settings, inputs, bench
        self.folders = Folders(inputs.answers, inputs.models, bench.kept)

    def table(self) -> tuple[pd.DataFrame, Facts]:
        """Serve the stream once, with one draft for all requests or with one for each class."""
        settings, stream = self.settings, self._arrive("stream")
        if settings.learns:
            online.check_interval(stream, settings)
        frames, effort = [], Effort()
        for number, (name, places) in enumerate(self._drafts(stream).items()):
            rows, spent = self._measure(stream, places, name, number)
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
        facts = self.folders.facts(effort)
        if settings.timed:
            rows = rows.assign(cpu_seconds=facts["cpu_seconds"], peak_mb=peak_mb())
        return rows, facts

    def _drafts(self, stream: Traffic) -> dict[str, list[int]]:
        """The places of the requests that each draft serves, by class; "" is the class of a draft for all requests."""
        settings = self.settings
        if settings.drafts == "shared":
            return {"": list(range(len(stream)))}
        if settings.drafts == "by_group":
            return by_route(stream.group)
        return by_route(misroute(stream.route, settings.route_errors, np.random.default_rng(settings.seed)))

    def _measure(self, stream: Traffic, places: Sequence[int], name: str, number: int) -> tuple[pd.DataFrame, Effort]:
        """Prepare one draft, then let it serve the requests at its ``places``, or measure it on the held-out requests of its class."""
        settings = self.settings
        draft = self.folders.draft_of_blocks(settings, self.inputs.dtype, settings.draft_len)
        traffic = stream.take(places) if name else stream
        # A draft is never measured on requests that it was distilled on.
        known = range(part_of(len(traffic), settings.warm_share) if settings.warm_on == "stream" else 0)
        left = range(len(known), len(traffic))
        served = traffic.take(left) if known else traffic
        if settings.measured_on == "stream" and not left:
            what = f"the draft is distilled on all {len(traffic)} requests of {name or 'the stream'}"
            raise UserError(f"{what}, and none is left to measure", remedy="lower warm_share, or lengthen the stream")
        if settings.learns and not name:
            online.check_interval(served, settings)
        effort = self._prepare(draft, traffic, known, name)
        if settings.measured_on == "held_out":
            held_out = self._arrive("held_out")
            of_class = [place for place, group in enumerate(held_out.group) if name in ("", group)]
            rows = online.serve_unchanged(draft, held_out.take(of_class), settings.draft_len)
            return rows.assign(stream_index=of_class, split="eval", after=len(traffic)), effort
        rows, spent = self._serve(draft, served, number)
        rows["after"] = rows["after"].fillna(0).astype(int) if "after" in rows else 0
        rows["split"] = np.where(rows["after"] > 0, "eval", "train")
        is_stream = rows["split"] == "train"
        of_stream = np.array(places[len(known) :], dtype=int)
        rows.loc[is_stream, "stream_index"] = of_stream[rows.loc[is_stream, "stream_index"]]
        return rows, effort + spent

    def _prepare(self, draft: LanguageModel, traffic: Traffic, known: Sequence[int], name: str) -> Effort:
        """Distil the draft before it serves, on the requests at the places ``known`` of its ``traffic`` or on those set aside."""
        settings = self.settings
        if settings.warm_on == "nothing":
            return Effort()
        if settings.warm_on == "stream":
            pool, chosen = traffic, list(known)
        else:
            pool = self._arrive("aside")
            chosen = pool.first(settings.warm_share, name)
        steps = settings.warm_epochs * math.ceil(len(chosen) / settings.batch)
        if settings.warm_fair:  # as many updates as online, each of as many requests
            steps = int(traffic.trains.sum()) // settings.update_interval
            settings = settings.model_copy(update={"batch": settings.update_interval})
        return train(Scene(draft, pool.answers), chosen, steps, settings, checkpoint=self.checkpoint("warm"))

    def _serve(self, draft: LanguageModel, served: Traffic, number: int) -> tuple[pd.DataFrame, Effort]:
        """Let a draft serve requests, learning from them or not, with its ``probes`` on held-out ones; a draft that is to be kept is saved."""
        settings, folders = self.settings, self.folders
        due = sorted({math.ceil(len(served) * (part + 1) / settings.probes) for part in range(settings.probes)})

        def probe(after: int) -> pd.DataFrame:
            """Measure the draft on the held-out requests."""
            held_out = self._arrive("held_out")
            return online.serve_unchanged(draft, held_out, settings.draft_len).assign(after=after)

        if not settings.learns:
            rows = online.serve_unchanged(draft, served, settings.draft_len)
            return pd.concat([rows, *map(probe, due)], ignore_index=True), Effort()
        server: online.Server = online.replay_server
        if settings.live:
            target = folders.target(settings.device, self.inputs.dtype)
            server = live_server(target, self.inputs.max_new_tokens, folders.tokenizer.eos_ids)
        checkpoint = self.checkpoint(f"{number}.checkpoint")
        rows, spent = online.serve(
            draft, served, settings, server=server, probe=probe, probes=due, checkpoint=checkpoint
        )
        if self.bench.labels.get("method") == settings.save != "":
            folders.once("saved", lambda: folders.save(draft, settings.draft, self.bench.out / "draft", served.answers))
        return rows, spent

    def checkpoint(self, name: str) -> Path | None:
        """Where training is kept; a run that is timed begins anew if it is killed, because its CPU time before that is lost."""
        return None if self.settings.timed else self.bench.checkpoint(name)

    def _arrive(self, part: Part) -> Traffic:
        """A part of the stream. The seed permutes the requests of each class."""
        settings, folders = self.settings, self.folders
        split, seed = ("eval", 0) if part == "held_out" else ("train", settings.seed)
        is_routed = settings.drafts == "by_route" and part == "stream"
        key = (part, is_routed, settings.stream, settings.aside)

        def in_order() -> Traffic:
            answers = folders.joined(settings.datasets, split, settings.temperature)
            if settings.stream is None:
                traffic = whole(answers, settings.dataset)
            else:
                order = self._route if is_routed else self._order
                traffic = along(folders.once(key, lambda: order(part)), answers)
            return traffic.in_bins(settings.bin)

        traffic = folders.once((*key, settings.dataset, settings.temperature, settings.bin), in_order)
        in_time = settings.stream is not None and settings.stream.kind == "by_time"
        return traffic.reordered(seed, settings.bin, in_time)

    def _order(self, part: Part) -> list[Prompt]:
        """The requests of a part of the stream that have a recorded answer, in their order."""
        settings, inputs = self.settings, self.inputs
        split, files = ("eval", inputs.held_out) if part == "held_out" else ("train", inputs.requests)
        passes = (self.folders.recorded(dataset, split, settings.temperature) for dataset in settings.datasets)
        answered = {answer.id for recorded in passes for answer in recorded.answers}
        prompts = (prompt for file in files for prompt in read_jsonl(file, Prompt))
        return arrange((prompt for prompt in prompts if prompt.id in answered), settings.part(part))

    def _route(self, part: Part) -> list[Prompt]:
        """The stream with the class that the router finds for each request; its accuracy goes into routing.json beside the table."""
        inputs, labelled = self.inputs, self._order("held_out")
        classifier = classifier_of(inputs.router, "group", labelled, inputs.classifier, self.settings.device)
        prompts, facts = routed(self._order(part), classifier)
        write_json(self.bench.out / "routing.json", {"method": inputs.router, **facts})
        return prompts
