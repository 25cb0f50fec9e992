"""What a cell of the workflow runs: every variant of its settings, one after the other, in one process."""

from __future__ import annotations

import dataclasses
import functools
import math
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import pandas as pd

from draftlab.data import routing
from draftlab.engine.answers import recorded_name
from draftlab.engine.recording import TargetPass, load_pass
from draftlab.engine.replay import agree_along, walk
from draftlab.errors import UserError
from draftlab.files.weights import check_sizes, parameter_count
from draftlab.models import LanguageModel, Tokenizer, load_model, load_tokenizer
from draftlab.train import parallel
from draftlab.train.learning import Effort, train
from draftlab.train.live import live_server
from draftlab.train.offline import counts, distil
from draftlab.train.online import Server, check_interval, replay_server, serve
from draftlab.train.settings import Training
from draftlab.train.sources import LIVE, Scene
from draftlab.train.tokens import token_counts
from draftlab.train.traffic import Traffic, along, whole

if TYPE_CHECKING:
    from draftlab.stages._inputs import Distillation
    from draftlab.stages._stage import Bench
    from draftlab.stages.offline import Settings as Offline
    from draftlab.stages.online import Settings as Online
    from draftlab.stages.tokens import Settings as Tokens

T = TypeVar("T")


@dataclass(frozen=True)
class Folders:
    """Where a job finds recorded answers, models and (``streams``) the order of requests; ``out`` is its own."""

    answers: Path
    models: Path
    out: Path
    max_new_tokens: int
    streams: Path | None = None
    kept: dict[object, object] = field(default_factory=dict)

    @classmethod
    def of(cls, inputs: Distillation, bench: Bench) -> Folders:
        """Those of a cell; what they read is kept for all of its variants."""
        return cls(inputs.answers, inputs.models, bench.out, inputs.max_new_tokens, inputs.streams, bench.kept)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The one that target and drafts share."""
        return load_tokenizer(self.models / "target")

    def recorded(self, dataset: str, split: str, temperature: float) -> TargetPass:
        """The target's recorded answers to one split of a dataset."""
        name = recorded_name(dataset, split, temperature)
        return self.once(name, lambda: load_pass(self.answers / name))

    def target(self, device: str) -> LanguageModel:
        """The target itself, for what no record can answer."""
        return self.once(("target", device), lambda: load_model(self.models / "target", device=device))

    def parameters(self, model: str) -> int:
        """Weights of a model."""
        return self.once(("parameters", model), lambda: parameter_count(self.models / model))

    def draft(self, settings: Training) -> LanguageModel:
        """A fresh copy of a draft; ``UserError`` for one larger than the target."""
        folder = self.models / settings.draft
        check_sizes(self.models / "target", folder)
        return load_model(folder, device=settings.device)

    def once(self, key: object, make: Callable[[], T]) -> T:
        """What ``make`` makes, made once for all variants."""
        if key not in self.kept:
            self.kept[key] = make()
        return cast(T, self.kept[key])


# --- offline -----------------------------------------------------------------------------------------------------


def offline(settings: Offline, inputs: Distillation, bench: Bench) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Distil and measure one variant; its draft goes to ``out/draft`` if it is the first one, or the first one called ``settings.save``."""
    parallel.start()
    folders = Folders.of(inputs, bench)
    begin = time.process_time()
    train_pass, held_out = (
        folders.recorded(settings.dataset, split, settings.temperature) for split in ("train", "eval")
    )
    needs_target = settings.sample_source in LIVE or settings.live
    target = folders.target(settings.device) if needs_target else None
    draft = folders.draft(settings)
    scene = Scene(draft, target, train_pass, folders.max_new_tokens, folders.tokenizer.eos_ids)
    rows, effort = distil(scene, held_out, settings, checkpoint=folders.out / f".{bench.number}.checkpoint.safetensors")
    is_wanted = bench.labels.get("method") == settings.save if settings.save else True
    if is_wanted and parallel.is_first():
        original = folders.models / settings.draft
        bench.once("saved", lambda: save_draft(draft, original, folders.out / "draft"))
    fixed: dict[str, Any] = {"sample_source": settings.sample_source, "loss": settings.loss, "seed": settings.seed}
    fixed |= {"parameters": folders.parameters(settings.draft), "tokens": effort.tokens}
    return rows.assign(**fixed), _facts(effort, begin)


def save_draft(draft: LanguageModel, original: Path, out: Path) -> None:
    """Write a distilled draft with the tokenizer of the draft that it came from."""
    draft.save(out)
    load_tokenizer(original).save(out)


def tokens(settings: Tokens, inputs: Distillation, bench: Bench) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Count by token before (``method`` original) and after (distilled)."""
    folders = Folders.of(inputs, bench)
    begin = time.process_time()
    train_pass, held_out = (folders.recorded(settings.dataset, split, 0.0) for split in ("train", "eval"))
    draft = folders.draft(settings)
    before = token_counts(draft, held_out, settings.draft_len).assign(method="original")
    requests = range(len(train_pass.answers))
    steps = settings.epochs * math.ceil(len(requests) / settings.batch)
    effort = train(Scene(draft, None, train_pass, folders.max_new_tokens, ()), requests, steps, settings)
    after = token_counts(draft, held_out, settings.draft_len).assign(method="distilled")
    table = pd.concat([before, after], ignore_index=True).assign(seed=settings.seed)
    texts = {token: folders.tokenizer.decode([token]) for token in table["token"].unique()}
    return table.assign(text=table["token"].map(texts)), _facts(effort, begin)


# --- online ------------------------------------------------------------------------------------------------------


def online(settings: Online, inputs: Distillation, bench: Bench) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Serve the stream once; ``group`` in a stream of several classes.

    ``record`` is the place in the stream, which each seed gives to another request; ``request`` numbers the requests (with ``bin`` the bins
    of requests) over the recorded passes of the stream's datasets, so an interval draws all seeds of one together (those of held-out
    requests are negative). Measurements on
    held-out requests (``measured_on``: ``held_out``) say in ``after`` how many requests had been served. ``misrouted``: whether the draft of
    another class served the request, where classes have their own.
    """
    folders = Folders.of(inputs, bench)
    begin = time.process_time()
    rows, effort = _serve_variant(settings, folders)
    facts = _facts(effort, begin)
    fixed: dict[str, Any] = {"seed": settings.seed}
    if settings.timed:
        fixed |= {"cpu_seconds": facts["cpu_seconds"], "peak_mb": _peak_mb()}
    return rows.assign(**fixed), facts


def _traffic(settings: Online, folders: Folders, part: str) -> Traffic:
    """The stream, what was kept ``aside`` of it, or the ``held_out`` requests."""
    split = "eval" if part == "held_out" else "train"
    seed = 0 if part == "held_out" else settings.seed
    path = (
        folders.streams or Path()
    ) / f"{'routed' if part == 'stream' and settings.drafts == 'by_route' else part}.jsonl"

    def load() -> Traffic:
        passes = [folders.recorded(dataset, split, settings.temperature) for dataset in settings.datasets]
        traffic = along(path, passes) if settings.stream else whole(passes[0], settings.dataset)
        if part == "held_out":
            traffic = dataclasses.replace(traffic, request=~traffic.request)
        in_time = settings.stream is not None and settings.arrangement.kind == "by_time"
        return traffic.in_bins(settings.bin).reordered(seed, settings.bin, in_time)

    return folders.once((path, split, settings.temperature, settings.dataset, seed, settings.bin), load)


def _serve_variant(settings: Online, folders: Folders) -> tuple[pd.DataFrame, Effort]:
    stream = _traffic(settings, folders, "stream")
    check_interval(stream, settings)
    classes = stream.group
    if settings.drafts == "by_route":
        classes = routing.misroute(stream.route, settings.route_errors, np.random.default_rng(settings.seed))
    parts = {"": list(range(len(stream)))} if settings.drafts == "shared" else routing.by_route(classes)
    frames, effort = [], Effort()
    for name, places in parts.items():
        own = stream if name == "" else stream.take(places)
        rows, spent = _serve_own(settings, folders, own, name)
        is_stream = rows["measured_on"] == "stream"
        rows.loc[is_stream, "record"] = np.array(places)[rows.loc[is_stream, "record"]]
        if name:
            rows["misrouted"] = (rows["group"] != name).astype(int)
        frames.append(rows)
        effort += spent
    rows = pd.concat(frames, ignore_index=True).sort_values(["measured_on", "record"], kind="stable")
    if not settings.probes:
        rows = rows.drop(columns=["measured_on", "after"])
    if not settings.stream:
        rows = rows.drop(columns=["group", "segment"])
    return _binned(rows, settings.bin), effort


def _serve_own(settings: Online, folders: Folders, own: Traffic, name: str) -> tuple[pd.DataFrame, Effort]:
    """Prepare one draft, and let it serve the requests that are its own."""
    draft = folders.draft(settings)
    pool = (
        own
        if settings.warm_on == "stream"
        else _traffic(settings, folders, "aside")
        if settings.warm_on == "aside"
        else None
    )
    effort, known = Effort(), set()
    if pool is not None:
        if settings.warm_on == "stream":
            known = set(range(math.ceil(settings.warm_share * len(pool))))
        else:
            known = set(_first(pool, settings.warm_share, name))
        steps = settings.warm_epochs * math.ceil(len(known) / settings.batch)
        if settings.warm_fair:
            steps = int(own.trains.sum()) // settings.update_interval
        scene = Scene(draft, None, pool.answers, folders.max_new_tokens, ())
        effort = train(scene, sorted(known), steps, settings)
    if settings.measured_on == "held_out":
        held_out = _traffic(settings, folders, "held_out")
        places = [place for place, group in enumerate(held_out.group) if name in ("", group)]
        rows = _measured(draft, held_out.take(places), settings).assign(measured_on="held_out", after=len(own))
        return rows.assign(record=places), effort
    # A draft is never measured on requests that it was distilled on.
    left = [place for place in range(len(own)) if settings.warm_on != "stream" or place not in known]
    served = own if len(left) == len(own) else own.take(left)
    probes: list[pd.DataFrame] = []
    due = [math.ceil(len(served) * (part + 1) / settings.probes) for part in range(settings.probes)]

    def watch(count: int) -> None:
        while due and count >= due[0]:
            rows = _measured(draft, _traffic(settings, folders, "held_out"), settings)
            probes.append(rows.assign(measured_on="held_out", after=due.pop(0)))

    if settings.learns:
        server: Server = replay_server
        if settings.live:
            server = live_server(folders.target(settings.device), folders.max_new_tokens, folders.tokenizer.eos_ids)
        rows, spent = serve(draft, served, settings, server=server, watch=watch)
        rows = rows.assign(group=served.group, segment=served.segment)
        effort += spent
    else:
        rows = _measured(draft, served, settings)
        watch(len(served))
    rows["record"] = np.array(left, dtype=int)[rows["record"]]
    return pd.concat([rows.assign(measured_on="stream", after=0), *probes], ignore_index=True), effort


def _first(pool: Traffic, share: float, name: str) -> list[int]:
    """The first ``share`` of each group's requests; of the group ``name`` alone if it is given."""
    sizes, taken = Counter(pool.group), Counter[str]()
    chosen = []
    for place, group in enumerate(pool.group):
        if name in ("", group) and taken[group] < math.ceil(share * sizes[group]):
            taken[group] += 1
            chosen.append(place)
    if not chosen:
        raise UserError(f"no request of class {name!r} was kept aside", remedy="set aside requests of each class")
    return chosen


def _measured(draft: LanguageModel, traffic: Traffic, settings: Online) -> pd.DataFrame:
    """Acceptance of a draft that does not change, along all of ``traffic``."""
    rows = counts(walk(agree_along(draft, traffic.answers), settings.draft_len))
    return traffic.numbered(rows, range(len(traffic))).assign(group=traffic.group, segment=traffic.segment)


def _binned(rows: pd.DataFrame, size: int) -> pd.DataFrame:
    """Sums over the requests of one bin (``Traffic.in_bins``: the same ones in every seed) that stand at ``size`` neighbouring places;
    ``record`` is the first of these places, ``requests`` how many they are."""
    if size == 1:
        return rows
    keys = [key for key in ("measured_on", "after", "group", "segment") if key in rows]
    rows = rows.assign(record=rows["record"] // size * size, requests=1)
    return rows.groupby([*keys, "record", "request"], sort=False).sum().reset_index()


# --- shared ------------------------------------------------------------------------------------------------------


def _facts(effort: Effort, begin: float) -> dict[str, Any]:
    return {**dataclasses.asdict(effort), "cpu_seconds": round(time.process_time() - begin, 3)}


def _peak_mb() -> float:
    """The most memory that this process has held, in MB."""
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(largest / (1024**2 if sys.platform == "darwin" else 1024), 1)  # macOS counts in bytes
