"""The run behind a verdict: the workflow on a user's log up to its tables, and the judgement of these."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import yaml

from draftlab.data import dropped
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
from draftlab.models.config import drafts_in_parallel, head_in
from draftlab.models.tokenizer import Tokenizer, load_tokenizer
from draftlab.plan.run import run_of
from draftlab.report.verdict_settings import VerdictSettings, absolute, absolute_cleaner
from draftlab.serving import costs as block_costs
from draftlab.serving import traces, verdict
from draftlab.serving.speedup import mean_context
from draftlab.serving.verdict_format import Judged, Verdict


def run_workflow(settings: VerdictSettings, draft: str, name: str, folder: Path) -> Path:
    """Run the workflow below ``folder`` up to the tables; a later call with the same files continues where this one stopped."""
    results = Path("results") / name
    config = _config(settings, draft, name, folder)
    try:
        run_of(config)  # a wrong model or scale is one line, not Snakemake's error
    except UserError as error:
        if error.file != "--config":
            raise
        raise UserError(error.what, remedy=error.remedy) from None  # here nobody typed --config
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
    """What the workflow gets after ``--config``; a temperature or a rate that its experiment does not have, and a cleaner, are in a file beside its
    results."""
    config = {
        "scale": settings.scale,
        "dataset": os.path.abspath(settings.traffic),
        "target": absolute(settings.target),
        "name": name,
        "experiments": "traffic_verdict" if settings.hardware else "traffic_verdict,traffic_cost",
    }
    config |= {"draft": absolute(draft)} if draft else {}
    config |= {"template": settings.template} if settings.template else {}
    config |= {"template_options": settings.template_options} if settings.template_options else {}
    answers: dict[str, object] = {} if settings.answer_tokens is None else {"max_new_tokens": settings.answer_tokens}
    answers |= {"engine": "openai", "url": settings.server} if settings.server else {}
    answers |= settings.cuts
    config |= {"answers": json.dumps(answers)} if answers else {}
    changed: dict[str, object] = {}
    if settings.temperature not in (0, 1):
        changed["axes"] = {"temperature": [settings.temperature]}
    if settings.learning_rate is not None:
        changed["fixed"] = {"learning_rate": settings.learning_rate}
    sizes: dict[str, object] = {"experiments": {"traffic_verdict": changed}} if changed else {}
    if settings.cleaner:
        sizes |= {"data": {"cleaners": {"prompts": absolute_cleaner(settings.cleaner)}}}
    if sizes:
        file = folder / "results" / f"{name}.temperature_{in_full(settings.temperature)}.yaml"
        write_text(file, yaml.safe_dump(sizes))
        config |= {"sizes": os.path.abspath(file)}
    return [f"{key}={value}" for key, value in config.items()]


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


def replayed(results: Path, temperature: float) -> Path:
    """The folder of the replayed requests in a run."""
    return results / "cells/traffic_verdict" / f"prompts.{in_full(temperature)}"


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
    ours = results / "main/models/draft"
    parallel = drafts_in_parallel(ours)
    if settings.hardware:
        read = facts["active_parameters"]
        ratio, is_head = read["draft"] / read["target"], bool(head_in(ours))
        costs = block_costs.from_profile(
            settings.hardware, context, ratio, is_head=is_head, parallel=parallel, longest=int(rows["draft_len"].max())
        )
        costs = replace(costs, source=costs.source + _experts(facts["active_by_four_tokens"] / read["target"]))
    else:
        costs = block_costs.from_probes(read_table(results / "traffic_cost.csv"), context, parallel=parallel)
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


def _experts(more: float) -> str:
    """What verifying costs a mixture of experts, of which four tokens read so many times as many weights as one, and a dense model does not."""
    text = (
        f"; the target is a mixture of experts, of which four tokens read up to {more:.1f} times as many weights as one: "
        "a profile of a dense model has them verified too cheaply"
    )
    return text * (more > 1.05)


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
    files = (results / "data/prompts" / name for name in ("prompts.jsonl", "eval.jsonl"))
    known = {prompt.id: prompt for file in files for prompt in read_jsonl(file, Prompt)}
    return [known[answer.id] for answer in answers]
