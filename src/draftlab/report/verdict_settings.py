"""What `draftlab verdict` is asked, and the names that follow from it: those of the run, and of the folder of the verdict."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from draftlab.core.settings import Template
from draftlab.engine.answers import in_full
from draftlab.errors import UserError
from draftlab.files import registries
from draftlab.files.registries import is_own
from draftlab.serving import profiles


@dataclass(frozen=True)
class VerdictSettings:
    """What to judge."""

    traffic: Path
    """a file of your prompts, with or without answers"""
    target: str
    """the target: a model folder, a GGUF file, a hub id, or package:smollm2-135m-instruct to try it"""
    draft: tuple[str, ...] = ()
    """the draft, likewise; several are judged one after the other; without one, a draft is made of the target's first layers"""
    hardware: str | None = None
    """a profile (as for draftlab load) to use instead of measuring on this machine"""
    load: str | None = None
    """the load to judge, in requests per second, such as 4/s"""
    trace: Path | None = None
    """a file with the arrivals of your requests"""
    cleaner: str | None = None
    """your own function of a row of the file, FILE.py:OBJECT, in place of the format's"""
    temperature: float = 0.0
    """temperature of the answers, 0 to 1; a verdict above 0 is written to its own folder, such as temperature_0.7"""
    top_p: float = 1.0
    """above temperature 0: tokens are drawn from the most probable ones of this mass"""
    top_k: int = 0
    """above temperature 0: tokens are drawn from so many of the most probable ones; 0: from all"""
    min_p: float = 0.0
    """above temperature 0: no token less than so many times as probable as the most probable one"""
    template: Template | None = None
    """the chat template for prompts to the target; without one, its tokenizer's own"""
    template_options: str | None = None
    """JSON: variables for the chat template, such as {"enable_thinking": false}; those of a request prevail"""
    answer_tokens: int | None = None
    """most tokens of an answer; without one, what the scale says: 96 in traffic"""
    learning_rate: float | None = None
    """the learning rate at which drafts learn on the log; without one, what the scale says: 3e-4 in traffic. A new head needs more, such as 1e-3"""
    server: str | None = None
    """address of an OpenAI-compatible server that runs the target and writes its answers, such as http://host:8000/v1"""
    scale: str = "traffic"
    """the sizes of the run: the name of a file in workflow/scales"""
    cores: int = 0
    """CPU cores for the workflow; 0: all"""

    @property
    def rate(self) -> float | None:
        """The load as a number; ``UserError`` if it is none."""
        if self.load is None:
            return None
        try:
            rate = float(self.load.removesuffix("/s"))
        except ValueError:
            rate = 0.0
        if not 0 < rate < float("inf"):
            remedy = "give a number of requests per second above 0, such as 4/s"
            raise UserError(f"load is {self.load!r}", remedy=remedy)
        return rate

    @property
    def cuts(self) -> dict[str, float]:
        """Top-p, top-k and min-p, where they leave tokens out."""
        every = {"top_p": self.top_p, "top_k": self.top_k, "min_p": self.min_p}
        return {name: value for name, value in every.items() if value != getattr(VerdictSettings, name)}


def check_bounds(settings: VerdictSettings) -> None:
    """Refuse settings that are out of bounds, or that do nothing."""
    if not 0 <= settings.temperature <= 1:
        what = f"temperature is {settings.temperature:g}"
        raise UserError(
            what, remedy="give 0 to 1: above it, too much probability lies beyond the tokens that are recorded"
        )
    bounds = [
        ("top-p", settings.top_p, 0 < settings.top_p <= 1, "more than 0 and at most 1"),
        ("top-k", settings.top_k, settings.top_k >= 0, "a number of tokens, or 0 for all"),
        ("min-p", settings.min_p, 0 <= settings.min_p <= 1, "0 to 1"),
        (
            "answer-tokens",
            settings.answer_tokens,
            settings.answer_tokens is None or settings.answer_tokens > 0,
            "1 or more",
        ),
        (
            "learning-rate",
            settings.learning_rate,
            settings.learning_rate is None or 0 < settings.learning_rate < 1,
            "a number between 0 and 1, such as 1e-3",
        ),
        ("cores", settings.cores, settings.cores >= 0, "1 or more, or 0 for all"),
    ]
    for name, value, fits, allowed in bounds:
        if not fits:
            raise UserError(f"--{name} is {value}", remedy=f"give {allowed}")
    if settings.cleaner is not None and not is_own(settings.cleaner):
        raise UserError(f"--cleaner is {settings.cleaner}", remedy="give FILE.py:OBJECT")
    if not settings.temperature and (cuts := settings.cuts):
        raise UserError(f"{', '.join(cuts)} at temperature 0", remedy="give --temperature: greedy answers are not cut")


def name_of(settings: VerdictSettings, draft: str) -> str:
    """A name for the run, unique to the log, target, draft, scale, limit of answers, sampling, learning rate and chat template."""
    parts = [os.path.abspath(settings.traffic), absolute(settings.target), absolute(draft), settings.scale]
    parts += [] if settings.answer_tokens is None else [str(settings.answer_tokens)]
    parts += [f"{key}={value}" for key, value in settings.cuts.items()]
    parts += [] if settings.learning_rate is None else [f"learning_rate={settings.learning_rate:g}"]
    parts += [f"cleaner={absolute_cleaner(settings.cleaner)}"] if settings.cleaner else []
    parts += [f"template={settings.template}"] if settings.template else []
    parts += [f"template_options={settings.template_options}"] if settings.template_options else []
    return f"verdict-{short(settings.traffic)}-{short(settings.target)}-" + _digest("\n".join(parts))


def setting_folders(settings: VerdictSettings) -> list[str]:
    """The nested folders of a verdict, one for each setting that is given: a verdict with other settings does not replace it."""
    rate = settings.rate
    named = {
        "temperature": in_full(settings.temperature) if settings.temperature else None,
        **{cut: f"{value:g}" for cut, value in settings.cuts.items()},
        "cleaner": _named_cleaner(settings.cleaner),
        "template": settings.template,
        "template_options": _digest(settings.template_options) if settings.template_options else None,
        "answer_tokens": settings.answer_tokens,
        "learning_rate": None if settings.learning_rate is None else f"{settings.learning_rate:g}",
        "scale": None if settings.scale == VerdictSettings.scale else settings.scale,
        # Not its address: at another one, the same run goes on.
        "answers": None if settings.server is None else "server",
        "hardware": _named(settings.hardware),
        "load": None if rate is None else f"{rate:.15g}",
        "trace": _named(settings.trace),
    }
    return [f"{setting}_{value}" for setting, value in named.items() if value is not None]


def _named(given: str | Path | None) -> str | None:
    """A name for a profile or a file: two files may have the same name in different folders."""
    if given is None:
        return None
    return str(given) if str(given) in profiles.shipped() else f"{short(given)}-{_digest(os.path.abspath(given))}"


def _named_cleaner(given: str | None) -> str | None:
    return None if given is None else f"{registries.short(given)}-{_digest(absolute_cleaner(given))}"


def absolute_cleaner(cleaner: str) -> str:
    """A cleaner's name with the path of its file from the root."""
    file, attribute = cleaner.rsplit(":", 1)
    return f"{os.path.abspath(file)}:{attribute}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=3).hexdigest()


def short(path: str | Path) -> str:
    """A short name for a file or a model, which two of them may share."""
    return re.sub(r"[^A-Za-z0-9]+", "_", Path(path).stem)[:24].strip("_")


def absolute(model: str) -> str:
    """A model's path from the root; the name of one that is no file stays as it is."""
    return os.path.abspath(model) if os.path.exists(model) else model
