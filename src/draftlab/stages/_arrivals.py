"""The requests of a stream in the order in which they arrive, with the target's recorded answers.

It imports torch, so only a running stage imports it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftlab.data.classify import classifier_of
from draftlab.data.prompts import Prompt
from draftlab.data.routing import routed
from draftlab.data.streams import arrange
from draftlab.files.json_files import read_jsonl, write_json
from draftlab.train.folders import Folders
from draftlab.train.traffic import Traffic, along, whole

if TYPE_CHECKING:
    from draftlab.stages._stage import Bench
    from draftlab.stages.online import Inputs, Part, Settings


def folders_of(inputs: Inputs, bench: Bench) -> Folders:
    """The folders that the inputs name, with what has been read from them."""
    return Folders(inputs.answers, inputs.models, bench.kept)


def arrive(settings: Settings, inputs: Inputs, bench: Bench, part: Part) -> Traffic:
    """A part of the stream. The seed permutes the requests of each class."""
    folders = folders_of(inputs, bench)
    split, seed = ("eval", 0) if part == "held_out" else ("train", settings.seed)
    is_routed = settings.drafts == "by_route" and part == "stream"
    key = (part, is_routed, settings.stream, settings.aside)

    def in_order() -> Traffic:
        answers = folders.joined(settings.datasets, split, settings.temperature)
        if settings.stream is None:
            traffic = whole(answers, settings.dataset)
        else:
            order = _route if is_routed else _order
            traffic = along(bench.once(key, lambda: order(settings, inputs, bench, part)), answers)
        return traffic.in_bins(settings.bin)

    traffic = bench.once((*key, settings.dataset, settings.temperature, settings.bin), in_order)
    in_time = settings.stream is not None and settings.stream.kind == "by_time"
    return traffic.reordered(seed, settings.bin, in_time)


def _order(settings: Settings, inputs: Inputs, bench: Bench, part: Part) -> list[Prompt]:
    """The requests of a part of the stream that have a recorded answer, in their order."""
    split, files = ("eval", inputs.held_out) if part == "held_out" else ("train", inputs.requests)
    folders = folders_of(inputs, bench)
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
