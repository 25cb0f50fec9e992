"""``draftlab verdict``: runs the workflow on a user's log, and judges each draft from its tables."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import yaml

from draftlab.core.settings import Flat, Template
from draftlab.core.stats import ENOUGH
from draftlab.data import check, dropped
from draftlab.data.classify import languages
from draftlab.data.continuations import conversation_numbers
from draftlab.data.prompts import Prompt
from draftlab.engine.answers import Answer, in_full, recorded_name
from draftlab.errors import UserError
from draftlab.files.atomic import write_text
from draftlab.files.checkout import ROOT
from draftlab.files.digests import sha256
from draftlab.files.json_files import read_jsonl, read_object
from draftlab.files.tables import read_table
from draftlab.models.tokenizer import Tokenizer, load_tokenizer
from draftlab.plan.run import run_of
from draftlab.report import card
from draftlab.report.verdict_page import page, replayed
from draftlab.serving import costs as block_costs
from draftlab.serving import profiles, traces, verdict
from draftlab.serving.speedup import mean_context
from draftlab.serving.verdict_format import Judged, Verdict

LEAST = 2 * ENOUGH
"""The fewest requests that a log must have; at most half of them are held out."""


@dataclass(frozen=True)
class VerdictSettings:
    """What to judge."""

    traffic: Path
    """a file of your prompts, with or without answers"""
    target: str
    """the target: a model folder, a GGUF file or a hub id"""
    draft: tuple[str, ...] = ()
    """the draft, likewise; several are judged one after the other; without one, a draft is made of the target's first layers"""
    hardware: str | None = None
    """a profile (as for draftlab load) to use instead of measuring on this machine"""
    load: str | None = None
    """the load to judge, in requests per second, such as 4/s"""
    trace: Path | None = None
    """a file with the arrivals of your requests"""
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
    answer_tokens: int | None = None
    """most tokens of an answer; without one, what the scale says: 96 in traffic"""
    server: str | None = None
    """address of an OpenAI-compatible server that runs the target and writes its answers, such as http://host:8000/v1"""
    scale: str = "traffic"
    """the sizes of the run: the name of a file in workflow/scales"""
    cores: int = 0
    """CPU cores for the workflow; 0: all"""


def run(settings: VerdictSettings, out: Path | None) -> list[tuple[Path, Verdict | None]]:
    """Judge each draft; return the folder that each verdict is written to with the verdict, None if the log is too short."""
    rate = _rate(settings.load)
    trace = traces.read_trace(settings.trace) if settings.trace else None
    if trace is not None and not math.isfinite(trace.rate):
        raise UserError(
            "all its requests come at once", file=settings.trace, remedy="give one with several times, or --load"
        )
    if settings.hardware:
        profiles.load(settings.hardware)  # a wrong name is said before hours of work
    _check_sampling(settings)
    distinct, left_out = _usable(settings.traffic)
    verdicts: list[tuple[Path, Verdict | None]] = []
    for draft in settings.draft or ("",):
        name = _name(settings, draft)
        digest = name.rpartition("-")[2]  # two drafts may have the same short name
        folder = (out or Path("results") / name) / (f"{_short(draft)}-{digest}" if len(settings.draft) > 1 else "")
        folder = folder.joinpath(*_setting_folders(settings))  # beside the verdict without these settings
        judged = None
        if distinct < LEAST:
            without = "".join(f"; left out: {count} {why}" for why, count in left_out.items())
            what = f"{distinct} usable requests, but {LEAST} are needed: half of them are held out{without}"
            print(what, file=sys.stderr)
        else:
            results = _run_workflow(settings, draft, name, out or Path())
            judged = judge_run(results, settings, draft, left_out, rate, trace)
            write_text(folder / "verdict.json", judged.model_dump_json(indent=1) + "\n")
            write_text(folder / "verdict.html", page(judged, folder, draft, results))
            card.write(judged, draft, replayed(results, settings.temperature))
        verdicts.append((folder, judged))
    return verdicts


def _usable(traffic: Path) -> tuple[int, dict[str, int]]:
    """How many different requests of a log are usable, and how many are left out, by reason."""
    log = check.check(traffic)
    distinct = log.kept - log.duplicates
    if not log.usable:
        reasons = ", ".join(f"{n} {why}" for why, n in log.rejected.items())
        what = f"usable requests: {distinct} of {log.read}" + (f"; {reasons}" if reasons else "")
        raise UserError(what, file=traffic, remedy="see draftlab data check FILE")
    return distinct, dict(log.rejected) | ({"duplicates": log.duplicates} if log.duplicates else {})


def judge_run(
    results: Path,
    settings: VerdictSettings,
    draft: str,
    left_out: dict[str, int],
    rate: float | None,
    trace: traces.Arrivals | None,
) -> Verdict:
    """Judge one draft from the tables of a finished run."""
    temperature, cell = settings.temperature, replayed(results, settings.temperature)
    facts = read_object(cell / "run.json")["runs"][0]
    answers = {split: _answers(results, split, temperature) for split in ("train", "eval")}
    rows = _labelled(read_table(cell / "rows.csv"), answers, results)
    if unread := dropped.unread(results):
        left_out = {**left_out, dropped.UNREAD.format("the target"): unread}
    cut = [len(answer.answer_ids) for answer in answers["eval"] if not answer.finished]
    context = mean_context(rows[rows["split"] == "eval"])
    if settings.hardware:
        weights = facts["parameters"]
        costs = block_costs.from_profile(settings.hardware, context, weights["draft"] / weights["target"])
    else:
        costs = block_costs.from_probes(read_table(results / "traffic_cost.csv"), context)
    learnt_from = results / "main/answers" / recorded_name("prompts", "train", temperature)
    stored = {"recorded_bytes": _size(learnt_from, "distributions"), "draft_bytes": _size(cell / "draft", "model")}
    return verdict.decide(
        rows,
        costs,
        facts | stored,
        Judged(
            log=str(settings.traffic),
            log_sha256=sha256(settings.traffic),
            target=settings.target,
            draft=draft or "made of the target's first layers",
            temperature=temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            min_p=settings.min_p,
        ),
        left_out=left_out,
        cut=len(cut),
        cut_at=max(cut, default=0),
        rate=rate,
        trace=trace,
        progress=lambda line: print(line, file=sys.stderr),
    )


def _labelled(rows: pd.DataFrame, answers: Mapping[str, Sequence[Answer]], results: Path) -> pd.DataFrame:
    """The rows, each with the language and the conversation of its request, and the length of its answer under load."""
    every = [answer for split in answers.values() for answer in split]
    prompts = _prompts(results, every)
    texts = [next(m["content"] for m in reversed(prompt.messages) if m["role"] == "user") for prompt in prompts]
    tokenizer = load_tokenizer(results / "main/models/target")
    labels = {
        "language": languages(texts),
        "conversation": conversation_numbers([prompt.messages for prompt in prompts]),
        "answer_tokens": [_answer_tokens(*pair, tokenizer) for pair in zip(every, prompts, strict=True)],
    }
    requests = [(split, number) for split, recorded in answers.items() for number in range(len(recorded))]
    named = pd.MultiIndex.from_tuples(requests, names=["split", "request_id"])
    return rows.join(pd.DataFrame(labels, named), on=["split", "request_id"])


def _size(folder: Path, name: str) -> int:
    """The bytes of the tensors ``name`` in a folder, in one file or several."""
    return sum(file.stat().st_size for file in folder.glob(f"{name}*.safetensors"))


def _answer_tokens(answer: Answer, prompt: Prompt, tokenizer: Tokenizer) -> int:
    """How long an answer is under load: where it was cut, as long as the log's own if that is longer."""
    logged = len(tokenizer.encode(prompt.reference)) if prompt.reference and not answer.finished else 0
    return max(len(answer.answer_ids), logged)


def _answers(results: Path, split: str, temperature: float) -> list[Answer]:
    folder = results / "main/answers" / recorded_name("prompts", split, temperature)
    return list(read_jsonl(folder / "answers.jsonl", Answer))


def _prompts(results: Path, answers: Sequence[Answer]) -> list[Prompt]:
    """The prompt of each answer."""
    files = (results / "data/prompts" / name for name in ("prompts.jsonl", "eval.jsonl"))
    known = {prompt.id: prompt for file in files for prompt in read_jsonl(file, Prompt)}
    return [known[answer.id] for answer in answers]


def lines(verdicts: Sequence[tuple[Path, Verdict | None]]) -> list[str]:
    """Lines of text for each draft, the last with the path of its page."""
    texts = []
    for folder, judged in verdicts:
        if judged is None:
            texts.append(f"Not yet known: too few requests ({LEAST} are needed, half of which are held out)")
        else:
            *first, last = verdict.lines(judged)
            texts += [*first, f"{last}; {folder / 'verdict.html'}"]
    return texts


def _run_workflow(settings: VerdictSettings, draft: str, name: str, folder: Path) -> Path:
    """Run the workflow below ``folder`` up to the tables; a later call with the same files continues where this one stopped."""
    results = Path("results") / name
    config = _config(settings, draft, name, folder)
    run_of(config)  # a wrong model or scale is one line, not Snakemake's error
    wanted = [replayed(results, settings.temperature) / "rows.csv"]
    wanted += [] if settings.hardware else [results / "traffic_cost.csv"]
    command: list[object] = [sys.executable, "-m", "snakemake", "--snakefile", ROOT / "Snakefile"]
    command += ["--directory", folder, "--workflow-profile", ROOT / "profiles/default", "--nolock"]
    command += ["--cores", settings.cores or "all"]
    command += ["--config", *config, "--", *wanted]
    folder.mkdir(parents=True, exist_ok=True)
    # The workflow's rules call draftlab.
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    with alone(folder / results):
        done = subprocess.run([str(part) for part in command], stdout=sys.stderr, stderr=sys.stderr, env=environment)
    if done.returncode:
        remedy = "see the message above; the same command resumes"
        raise UserError("the workflow stopped", file=folder / results / "logs", remedy=remedy)
    return folder / results


def _config(settings: VerdictSettings, draft: str, name: str, folder: Path) -> list[str]:
    """What the workflow gets after ``--config``; a temperature that its experiment does not have is written into a file beside its results."""
    config = {
        "scale": settings.scale,
        "dataset": os.path.abspath(settings.traffic),
        "target": _absolute(settings.target),
        "name": name,
        "experiments": "traffic_verdict,traffic_cost",
    }
    config |= {"draft": _absolute(draft)} if draft else {}
    config |= {"template": settings.template} if settings.template else {}
    answers: dict[str, object] = {} if settings.answer_tokens is None else {"max_new_tokens": settings.answer_tokens}
    answers |= {"engine": "openai", "url": settings.server} if settings.server else {}
    answers |= _cuts(settings)
    config |= {"answers": json.dumps(answers)} if answers else {}
    if settings.temperature not in (0, 1):
        sizes = folder / "results" / f"{name}.temperature_{in_full(settings.temperature)}.yaml"
        axes = {"temperature": [settings.temperature]}
        write_text(sizes, yaml.safe_dump({"experiments": {"traffic_verdict": {"axes": axes}}}))
        config |= {"sizes": os.path.abspath(sizes)}
    return [f"{key}={value}" for key, value in config.items()]


def _check_sampling(settings: VerdictSettings) -> None:
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
    ]
    for name, value, fits, allowed in bounds:
        if not fits:
            raise UserError(f"--{name} is {value}", remedy=f"give {allowed}")
    if not settings.temperature and (cuts := _cuts(settings)):
        raise UserError(f"{', '.join(cuts)} at temperature 0", remedy="give --temperature: greedy answers are not cut")


def _cuts(settings: VerdictSettings) -> dict[str, float]:
    """Top-p, top-k and min-p, where they leave tokens out."""
    every = {"top_p": settings.top_p, "top_k": settings.top_k, "min_p": settings.min_p}
    return {name: value for name, value in every.items() if value != getattr(VerdictSettings, name)}


@contextlib.contextmanager
def alone(results: Path) -> Iterator[None]:
    """Refuse a second verdict on the same run. Unlike Snakemake's lock, this one is gone when the process ends, for whatever reason."""
    results.parent.mkdir(parents=True, exist_ok=True)
    with results.with_name(f".{results.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError("another verdict on it is under way", file=results, remedy="wait until it ends") from None
        yield


def _absolute(model: str) -> str:
    return os.path.abspath(model) if os.path.exists(model) else model


def _name(settings: VerdictSettings, draft: str) -> str:
    """A name for the run, unique to the log, target, draft, scale, limit of answers, sampling and chat template."""
    parts = [os.path.abspath(settings.traffic), _absolute(settings.target), _absolute(draft), settings.scale]
    parts += [] if settings.answer_tokens is None else [str(settings.answer_tokens)]
    parts += [f"{key}={value}" for key, value in _cuts(settings).items()]
    parts += [f"template={settings.template}"] if settings.template else []
    return f"verdict-{_short(settings.traffic)}-{_short(settings.target)}-" + _digest("\n".join(parts))


def _setting_folders(settings: VerdictSettings) -> list[str]:
    """The nested folders of a verdict, one for each setting that is given: a verdict with other settings does not replace it."""
    rate = _rate(settings.load)
    named = {
        "temperature": in_full(settings.temperature) if settings.temperature else None,
        **{cut: f"{value:g}" for cut, value in _cuts(settings).items()},
        "template": settings.template,
        "answer_tokens": settings.answer_tokens,
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
    return str(given) if str(given) in profiles.shipped() else f"{_short(given)}-{_digest(os.path.abspath(given))}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=3).hexdigest()


def _short(path: str | Path) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "_", Path(path).stem)[:24].strip("_")


def _rate(load: str | None) -> float | None:
    if load is None:
        return None
    try:
        rate = float(load.removesuffix("/s"))
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise UserError(f"load is {load!r}", remedy="give a number of requests per second above 0, such as 4/s")
    return rate


def verdict_of(settings: Flat[VerdictSettings], *, out: Path | None = None) -> None:
    """Say whether a draft would make your traffic faster, which draft, at what length, and what would change the answer.

    **Arguments:**
    - `out`: the folder for the verdict and, below it, the run; without one, both go into a folder below results/
    """
    print(*lines(run(settings, out)), sep="\n")
