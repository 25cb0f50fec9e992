"""The one console command: a verb per Snakemake rule, and the verbs that people type.

Verbs import what they need when they run: a rule that draws a figure never waits for torch.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import tyro
from pydantic import ValidationError

from draftlab import plan
from draftlab.data import streams
from draftlab.errors import UserError, printable

if TYPE_CHECKING:
    import pandas as pd

    from draftlab.data import classify
    from draftlab.train.jobs import Folders

T = TypeVar("T")
Flat = Annotated[T, tyro.conf.arg(name="")]
"""The settings of a stage, each a flag of its own."""


# --- data --------------------------------------------------------------------------------------------------------


def data_fetch(
    *,
    dataset: str,
    split: Literal["train", "eval"],
    source: Literal["generator", "raw", "hub"] = "generator",
    raw: Path | None = None,
    rows: int = 0,
    seed: int = 0,
    out: Path,
) -> None:
    """Write the raw rows of one split of a dataset, and beside them where they come from."""
    from draftlab.data import sources

    sources.fetch(dataset, split, source, raw=raw, rows=rows, seed=seed, out=out)


def data_make(
    *,
    dataset: str,
    source: Literal["generator", "raw", "hub", "fetched"] = "generator",
    raw: Path | None = None,
    train: int = 0,
    eval: int = 200,
    seed: int = 0,
    profile: Literal["clean", "osd_repo_2024"] = "clean",
    on_bad_row: Literal["keep", "stop"] = "keep",
    max_chars: int = 100_000,
    out: Path,
) -> None:
    """Write the prompts of a dataset, its held-out prompts, its rejected rows and a summary."""
    from draftlab.data import splits

    options = splits.Options(train, eval, seed, profile, on_bad_row, max_chars)
    summary = splits.make_from(dataset, source, raw=raw, out=out, options=options)
    for split, counts in summary["counts"].items():
        origin = f"of {counts['read']} rows" if counts["read"] else "held out of train"
        rejected = sum(counts["rejected"].values())
        print(
            f"{dataset} {split}: {counts['kept']} prompts {origin}, {rejected} rejected, "
            f"{counts['duplicates']} duplicates, {counts['overlap']} on both sides"
        )


def data_check(
    file: tyro.conf.Positional[Path],
    *,
    dataset: str | None = None,
    tokenizer: Path | None = None,
    against: Path | None = None,
    max_chars: int = 100_000,
    out: Path | None = None,
) -> None:
    """Tell what a file of prompts is taken for and what is in it; exit code 0 when it can be used."""
    from draftlab.data import check
    from draftlab.files.json_files import write_json

    report = check.check(file, dataset=dataset, tokenizer=tokenizer, against=against, max_chars=max_chars)
    print(check.table(report))
    if out is not None:
        write_json(out, check.as_json(report))
    if not report.usable:
        raise UserError("no prompt in it", file=file, remedy="see the reasons above")


def data_stream(
    stream: Flat[streams.Stream], *, prompts: tuple[Path, ...], answered: tuple[Path, ...] = (), out: Path
) -> None:
    """Write requests in the order in which they arrive; with --answered only those that these files of answers know."""
    from draftlab.data.prompts import Prompt
    from draftlab.engine.answers import Answer
    from draftlab.files.json_files import read_jsonl, write_jsonl

    known = {answer.id for file in answered for answer in read_jsonl(file, Answer)}
    requests = (p for file in prompts for p in read_jsonl(file, Prompt) if not answered or p.id in known)
    print(f"{write_jsonl(out, streams.arrange(requests, stream))} requests")


def data_shares(settings: Flat[plan.Shares], *, prompts: Path, out: Path) -> None:
    """Count the requests of each class in equal slices of time (OSD, Figs. 2 and 10)."""
    import pandas as pd

    from draftlab.data.prompts import Prompt
    from draftlab.files.cells import write_cell
    from draftlab.files.json_files import read_jsonl

    rows = streams.shares_over_time(read_jsonl(prompts, Prompt), settings.group_by, settings.slices)
    table = pd.DataFrame(rows).assign(group_by=settings.group_by)
    write_cell(out, table, {"settings": settings.model_dump()}, data=[prompts])


def data_classify(
    *,
    prompts: Path,
    label: Literal["language", "topic"],
    method: Literal["langid", "naive_bayes", "hub"],
    train: Path | None = None,
    model: str | None = None,
    device: str = "cpu",
    out: Path,
    report: Path,
) -> None:
    """Give each request its language or topic, and tell how often that agrees with the labels it came with."""
    from draftlab.data import classify
    from draftlab.data.prompts import Prompt
    from draftlab.files.json_files import read_jsonl, write_json, write_jsonl

    classifier = _classifier(method, label, train, model, device)
    marked, found = classify.classify(list(read_jsonl(prompts, Prompt)), classifier, label)
    write_jsonl(out, marked)
    write_json(report, {"method": method, "accuracy": found.accuracy, **dataclasses.asdict(found)})
    print(f"{label}: {found.correct} of {found.labelled} as labelled")


def _classifier(
    method: str, label: classify.Label, train: Path | None, model: str | None, device: str
) -> classify.Classifier:
    from draftlab.data import classify
    from draftlab.data.prompts import Prompt
    from draftlab.files.json_files import read_jsonl

    if method == "langid":
        return classify.languages
    if method == "hub":
        if model is None:
            raise UserError("no classifier of the hub", remedy="name it with --model OWNER/NAME@REVISION")
        return classify.hub_classifier(model, device)
    if train is None:
        raise UserError("naive Bayes learns from labelled requests", remedy="name them with --train")
    return classify.naive_bayes(read_jsonl(train, Prompt), label)


# --- models ------------------------------------------------------------------------------------------------------


def pretrain_tokenizer(recipe: Flat[plan.Recipe], *, prompts: tuple[Path, ...], out: Path) -> None:
    """Make the tokenizer that target and draft share."""
    from draftlab.train import pretrain

    pretrain.make_tokenizer(prompts, recipe, out)


def pretrain_target(
    recipe: Flat[plan.Recipe],
    *,
    prompts: tuple[Path, ...],
    tokenizer: Path,
    template: plan.Template,
    out: Path,
) -> None:
    """Make the target: train it on reference answers, or fetch the one that --model names."""
    from draftlab.train import pretrain

    pretrain.make_target(prompts, tokenizer, recipe, template, out)


def pretrain_draft(
    recipe: Flat[plan.Recipe],
    *,
    tokenizer: Path,
    template: plan.Template,
    out: Path,
    prompts: tuple[Path, ...] = (),
) -> None:
    """Make the draft: train it on reference answers, on public text where there are none, or fetch the one that --model names."""
    from draftlab.train import pretrain

    pretrain.make_draft(tokenizer, recipe, template, out, prompts)


# --- answers and distillation ------------------------------------------------------------------------------------


def answer(
    settings: Flat[plan.Answers],
    *,
    target: Path,
    prompts: Path,
    requests: int,
    temperature: float = 0.0,
    out: Path,
) -> None:
    """Record the target's answers and its distribution at every position: the one pass that all variants share."""
    from draftlab.core.sampling import Sampling
    from draftlab.engine import recording

    found, rejected = recording.answer(target, prompts, requests, settings, sampling=Sampling(temperature))
    recording.save(found, rejected, out)
    tokens, open_ended = sum(found.lengths), sum(not record.finished for record in found.answers)
    print(
        f"{len(found.answers)} answers, {tokens} tokens in {found.forwards} forwards of the target, "
        f"{open_ended} without an end, {len(rejected)} prompts too long"
    )


def offline(settings: Flat[plan.Offline], *, answers: Path, models: Path, max_new_tokens: int, out: Path) -> None:
    """Distil drafts on recorded answers or on text of their own, then measure them on the held-out requests."""
    from draftlab.train import jobs

    folders = jobs.Folders(answers, models, out, max_new_tokens)
    _write_job(folders, settings, jobs.offline(settings, folders))


def online(
    settings: Flat[plan.Online],
    *,
    answers: Path,
    models: Path,
    max_new_tokens: int,
    streams: Path | None = None,
    out: Path,
) -> None:
    """Serve the stream with drafts that learn from it, and with drafts that stay as they are."""
    from draftlab.train import jobs

    folders = jobs.Folders(answers, models, out, max_new_tokens, streams)
    _write_job(folders, settings, jobs.online(settings, folders))


def tokens(settings: Flat[plan.Tokens], *, answers: Path, models: Path, max_new_tokens: int, out: Path) -> None:
    """Count by token what a draft proposes, has accepted and lacks, before and after distillation (OSD, Fig. 7)."""
    from draftlab.train import jobs

    folders = jobs.Folders(answers, models, out, max_new_tokens)
    _write_job(folders, settings, jobs.tokens(settings, folders))


def token_view(*, before: Path, after: Path, answers: Path, dataset: str, draft_len: int, out: Path) -> None:
    """Write one request's accepted and rejected tokens with two drafts, those of the folders BEFORE and AFTER, for the report."""
    from draftlab.engine.recording import load_pass
    from draftlab.files.json_files import write_json
    from draftlab.models import load_model, load_tokenizer
    from draftlab.train import tokens

    drafts = load_model(before), load_model(after)
    found = tokens.token_view(*drafts, load_pass(answers), load_tokenizer(after), draft_len)
    write_json(out, {"dataset": dataset, **found})


def medusa(settings: Flat[plan.Medusa], *, answers: Path, models: Path, max_new_tokens: int, out: Path) -> None:
    """Compare Medusa heads on the target with a draft, before and after each learnt from what it served (OSD, Table 4)."""
    from draftlab.train import jobs, medusa

    folders = jobs.Folders(answers, models, out, max_new_tokens)
    _write_job(folders, settings, medusa.medusa(settings, folders))


def break_even(settings: Flat[plan.BreakEven], *, answers: Path, models: Path, max_new_tokens: int, out: Path) -> None:
    """Compare what updates cost with what they save, by update interval and against a larger static draft."""
    from draftlab.train import break_even, jobs

    folders = jobs.Folders(answers, models, out, max_new_tokens)
    _write_job(folders, settings, break_even.break_even(settings, folders))


def route(
    *,
    stream: Path,
    train: Path,
    method: Literal["langid", "naive_bayes", "hub"],
    model: str | None = None,
    device: str = "cpu",
    out: Path,
    report: Path,
) -> None:
    """Let a classifier name the class of each request of a stream as it arrives, and tell how often it is right."""
    from draftlab.data import routing
    from draftlab.data.prompts import Prompt
    from draftlab.files.json_files import read_jsonl, write_json, write_jsonl

    classifier = _classifier(method, "group", train, model, device)
    marked, facts = routing.routed(list(read_jsonl(stream, Prompt)), classifier)
    write_jsonl(out, marked)
    write_json(report, {"method": method, **facts})
    print(f"{facts['correct']} of {facts['requests']} requests go to their class")


def _write_job(folders: Folders, job: plan.Training, found: tuple[pd.DataFrame, dict[str, object]]) -> None:
    """Write a job's table and record, from the first process if there are several."""
    from draftlab.files.cells import write_cell
    from draftlab.train import parallel

    rows, facts = found
    if parallel.is_first():
        write_cell(
            folders.out,
            rows,
            {"settings": plan.plain(job), **facts},
            models=[folders.models / name for name in plan.models_of(job)],
            answers=[folders.answers / name / "answers.jsonl" for name in plan.passes_of(job)],
        )


# --- theory and multi-draft --------------------------------------------------------------------------------------


def speedup_theory(settings: Flat[plan.SpeedupTheory], *, out: Path) -> None:
    """Tabulate the theoretical speed-up (OSD, Eq. 1)."""
    from draftlab.files.cells import write_cell
    from draftlab.stages import costs

    write_cell(out, costs.speedup_theory(settings), {"settings": settings.model_dump()})


def memory_traffic(settings: Flat[plan.MemoryTraffic], *, target: Path, draft: Path, online: Path, out: Path) -> None:
    """Tabulate the bytes that a request moves (OSD, Table 5); ONLINE is the table of osd_online."""
    from draftlab.files.cells import write_cell
    from draftlab.stages import costs

    rows = costs.memory_traffic(settings, target, draft, online)
    write_cell(out, rows, {"settings": settings.model_dump()}, models=[target, draft], tables=[online])


def utilisation(settings: Flat[plan.Utilisation], *, out: Path) -> None:
    """Tabulate the load of a request trace against hardware (OSD, App. A.4)."""
    from draftlab.files.cells import write_cell
    from draftlab.stages import costs

    write_cell(out, costs.utilisation(settings), {"settings": settings.model_dump()})


def mdss_region(settings: Flat[plan.Region], *, out: Path) -> None:
    """Acceptance over the toy simplex of MDSS Fig. 2, exactly."""
    from draftlab.files.cells import write_cell
    from draftlab.multidraft import region

    write_cell(out, region.region(settings.num_drafts, settings.points), {"settings": settings.model_dump()})


def mdss_cone(settings: Flat[plan.Cone], *, out: Path) -> None:
    """Check the best acceptance by double description and by linear programs (MDSS App. D)."""
    from draftlab.files.cells import write_cell
    from draftlab.multidraft import cone

    write_cell(out, cone.cone(settings), {"settings": settings.model_dump()})


def mdss_verifier_cost(settings: Flat[plan.VerifierCost], *, out: Path) -> None:
    """Measure what a decision of each scheme costs (MDSS App. G)."""
    from draftlab.files.cells import write_cell
    from draftlab.multidraft import verifier_cost

    write_cell(out, verifier_cost.verifier_cost(settings), {"settings": settings.model_dump()})


def mdss_pairs(
    settings: Flat[plan.Answers],
    *,
    target: Path,
    draft: Path,
    prompts: dict[str, Path],
    positions: int,
    seed: int = 0,
    out: Path,
) -> None:
    """Record target and draft logits along sampled answers (top-k 5, as in MDSS Table 2) to OUT/DATASET.safetensors, and what they are
    made of to OUT/DATASET.json.

    PROMPTS are a name and a file for each dataset. The synthetic family is written beside them.
    """
    from draftlab.files.cells import digests
    from draftlab.files.json_files import write_json
    from draftlab.multidraft import pairs

    pairs.record_all(settings, target, draft, prompts, positions, seed, out)
    for dataset, file in prompts.items():
        write_json(out / f"{dataset}.json", digests(out.parent, models=[target, draft], data=[file]))


def mdss_acceptance(settings: Flat[plan.Acceptance], *, pairs: Path, out: Path) -> None:
    """Exact acceptance of multi-draft schemes on the recorded probability pairs in a folder."""
    from draftlab.multidraft import acceptance
    from draftlab.multidraft.pairs import load_all

    _write_on_pairs(out, settings, acceptance.acceptance(load_all(pairs, settings), settings), pairs)


def mdss_regime(settings: Flat[plan.Regime], *, pairs: Path, out: Path) -> None:
    """Map which scheme accepts most over target and draft temperatures and the target's entropy."""
    from draftlab.multidraft import regime
    from draftlab.multidraft.pairs import load_all

    _write_on_pairs(out, settings, regime.regime(load_all(pairs, settings), settings), pairs)


def mdss_sinkhorn(settings: Flat[plan.Sinkhorn], *, pairs: Path, out: Path) -> None:
    """Compare entropic optimal transport with the linear program, the optimum and the other schemes."""
    from draftlab.multidraft import sinkhorn
    from draftlab.multidraft.pairs import load_all

    _write_on_pairs(out, settings, sinkhorn.sinkhorn(load_all(pairs, settings), settings), pairs)


def _write_on_pairs(out: Path, settings: plan.OnPairs, rows: pd.DataFrame, pairs: Path) -> None:
    from draftlab.files.cells import write_cell

    files = [pairs / f"{name}.safetensors" for name in settings.datasets]
    write_cell(out, rows, {"settings": settings.model_dump()}, pairs=files)


def mdss_live(
    settings: Flat[plan.Live],
    *,
    target: Path,
    draft: Path,
    prompts: dict[str, Path],
    template: plan.Template,
    dtype: Literal["float32", "bfloat16"] = "float32",
    device: Literal["cpu", "cuda"] = "cpu",
    out: Path,
) -> None:
    """Decode held-out requests with several drafted sequences: block efficiency, token rate, where the time goes.

    PROMPTS are a name and a file for each dataset.
    """
    from draftlab.files.cells import write_cell
    from draftlab.multidraft import live, pairs

    models = pairs.load_models(target, draft, dtype, device)
    rows = live.live(settings, *models, prompts, template)
    write_cell(out, rows, {"settings": settings.model_dump()}, models=[target, draft], data=prompts.values())


def mdss_online(settings: Flat[plan.OnlineMultidraft], *, target: Path, draft: Path, answers: Path, out: Path) -> None:
    """Compare specialists of several topics as non-identical drafts with routing and with copies of one shared draft."""
    from draftlab.files.cells import write_cell
    from draftlab.multidraft import online_multidraft

    passes = {topic: {split: answers / f"{topic}.{split}" for split in ("train", "eval")} for topic in settings.topics}
    rows = online_multidraft.online_multidraft(settings, target, draft, passes)
    write_cell(
        out,
        rows.assign(mixture=settings.mixture),
        {"settings": settings.model_dump()},
        models=[target, draft],
        answers=[folder / "answers.jsonl" for splits in passes.values() for folder in splits.values()],
    )


def collect(*, rows: tuple[Path, ...], out: Path) -> None:
    """Concatenate the rows of an experiment's cells into its tidy table."""
    import pandas as pd

    from draftlab.files.atomic import atomic_path
    from draftlab.files.tables import read_table

    if not rows:
        raise UserError("no rows to collect", remedy="name at least one file with --rows")
    table = pd.concat([read_table(path) for path in rows], ignore_index=True)
    with atomic_path(out) as temporary:
        table.to_csv(temporary, index=False, lineterminator="\n")


def summary(*, results: Path = Path("results")) -> None:
    """Print the headline numbers of the newest run below --results, and where its report lies."""
    from draftlab.report import summary as module

    print(*module.lines(module.newest_run(results)), sep="\n")


# --- latency -----------------------------------------------------------------------------------------------------


def gguf_export(
    model: Path, out: Path, weights: Literal["f32", "f16", "q8_0", "q4_0"] = "f32", vocabulary: bool = True
) -> None:
    """Write a model folder as one GGUF file for llama.cpp; --no-vocabulary for one that decodes token ids only."""
    from draftlab.models import gguf

    gguf.export(model, out, weights, vocabulary=vocabulary)


def gguf_inflate(model: Path, out: Path, layers: int, ffn: int | None = None, widths: int = 1) -> None:
    """Make a model cost as much as a larger one without changing what it computes; --widths 4 on four times the channels."""
    from draftlab.latency.inflate import inflate

    inflate(model, out, layers=layers, ffn=ffn, widths=widths)


def latency_check() -> None:
    """Whether the installed llama.cpp survives a batch of two quantized tokens; says which build it is."""
    from draftlab.latency.self_check import self_check
    from draftlab.models.llama_cpp import describe_build

    self_check()
    print(*(f"{name}: {value}" for name, value in describe_build().items()), sep="\n")


def latency_alpha(settings: Flat[plan.LatencyAlpha], *, target: Path, draft: Path, out: Path) -> None:
    """Measure time per token in llama.cpp at set acceptances (OSD, Tables 2 and 7)."""
    from draftlab.latency import alpha

    _write_measured(out, settings, alpha.latency_alpha(settings, target, draft), models=[target, draft])


def latency_length(settings: Flat[plan.LatencyLength], *, target: Path, draft: Path, out: Path) -> None:
    """Measure the speed-up in llama.cpp against the length of the answer (OSD, Table 8)."""
    from draftlab.latency import length

    _write_measured(out, settings, length.latency_length(settings, target, draft), models=[target, draft])


def latency_requests(
    settings: Flat[plan.LatencyRequests], *, target: Path, drafts: dict[str, Path], answers: Path, out: Path
) -> None:
    """Decode recorded requests in llama.cpp without speculation and with each of --drafts NAME FOLDER ... (OSD, Table 3)."""
    from draftlab.latency import requests

    measured = requests.latency_requests(settings, target, drafts, answers)
    _write_measured(out, settings, measured, models=[target, *drafts.values()], answers=[answers])


def latency_cost(settings: Flat[plan.LatencyCost], *, target: Path, draft: Path, out: Path) -> None:
    """Calibrate the cost model: draft steps and verification at context lengths and batch sizes."""
    from draftlab.latency import cost

    _write_measured(out, settings, cost.latency_cost(settings, target, draft), models=[target, draft])


def latency_branches(settings: Flat[plan.LatencyBranches], *, target: Path, out: Path) -> None:
    """Measure what verifying K branches in one call costs against one branch."""
    from draftlab.latency import branches

    _write_measured(out, settings, branches.latency_branches(settings, target), models=[target])


def latency_update(settings: Flat[plan.LatencyUpdate], *, target: Path, draft: Path, out: Path) -> None:
    """Measure one update of the draft against the requests between two updates (OSD, Table 9)."""
    from draftlab.latency import update

    _write_measured(out, settings, update.latency_update(settings, target, draft), models=[target, draft])


def latency_null(settings: Flat[plan.LatencyNull], *, target: Path, out: Path) -> None:
    """Compare plain decoding with itself many times: the noise floor, and how often a winner is named."""
    from draftlab.latency import noise

    _write_measured(out, settings, noise.latency_null(settings, target), models=[target])


def latency_interference(settings: Flat[plan.LatencyInterference], *, target: Path, draft: Path, out: Path) -> None:
    """Measure serving while the draft trains on another core, and while it does not."""
    from draftlab.latency import interference

    _write_measured(out, settings, interference.latency_interference(settings, target, draft), models=[target, draft])


def _write_measured(
    out: Path,
    settings: plan.Settings,
    measured: tuple[pd.DataFrame, dict[str, object]],
    **inputs: Iterable[Path],
) -> None:
    from draftlab.files.cells import write_cell

    write_cell(out, measured[0], {"settings": settings.model_dump(), **measured[1]}, **inputs)


# --- figures, tables, claims, report -----------------------------------------------------------------------------


def figure(experiment: tyro.conf.Positional[str], *, table: Path, scale: plan.Scale, out: Path) -> None:
    """Draw one experiment's table as OUT.pdf and OUT.png, and format it as OUT.md, OUT.csv and OUT.tex."""
    from draftlab.report.figures import batch

    batch.draw(experiment, table, scale, out)


def figures(*, data: Path, scale: plan.Scale, out: Path, drawn: Path, processes: int = 1) -> None:
    """Do the same for every table of a folder that changed, or whose figure's code did, since DRAWN was written."""
    from draftlab.report.figures import batch

    if processes < 1:
        raise UserError(f"processes is {processes}", remedy="give 1 or more")
    for name in batch.draw_all(data, out, scale, drawn, processes):
        print(f"drawn: {name}")


def claims(*, tables: Path, scale: plan.Scale, out: Path) -> None:
    """Put every published number and claim beside the tables of a run, with a verdict."""
    from draftlab.files.atomic import write_text
    from draftlab.report import ledger, published

    rows = ledger.judge_claims(published.load(), ledger.read_tables(tables), scale)
    write_text(out, rows.to_csv(index=False, lineterminator="\n"))
    for verdict, count in rows["verdict"].value_counts().items():
        print(f"{count:5d} {verdict}")


def report(*, results: Path, scale: plan.Scale, out: Path, config: tuple[str, ...] = ()) -> None:
    """Write the one page that shows and explains a run; --config has the KEY=VALUE that the run was given."""
    from draftlab.report import page

    page.write(results, scale, out, config)


def compare(one: tyro.conf.Positional[Path], two: tyro.conf.Positional[Path]) -> None:
    """Whether the tables of two runs are the same text but for measured times; if not, which columns differ, and by how much."""
    from draftlab.report import compare as module

    if found := module.differences(one, two):
        sys.exit("\n".join(map(str, found)))
    print("the tables are the same but for measured times")


def provenance(figure: tyro.conf.Positional[Path]) -> None:
    """Print the chain behind a figure: table, runs, models, answers, raw data."""
    from draftlab.report import provenance

    print(*provenance.trace(figure), sep="\n")


def tensorboard(*, results: Path, out: Path) -> None:
    """Write the curves of a run as TensorBoard events (needs the package tensorboard)."""
    from draftlab.report import tensorboard

    print(f"{tensorboard.write(results, out)} points; look at them with: tensorboard --logdir {out}")


def record_provenance(*, results: Path, out: Path) -> None:
    """Write the chains behind all tables of a run, for publishing beside them."""
    from draftlab.report import provenance

    provenance.record(results, out)


# --- verifiers ---------------------------------------------------------------------------------------------------


def verify_lossless(
    *,
    verifier: str | None = None,
    samples: Path | None = None,
    form: Literal["distribution", "sampler", "samples"] = "distribution",
    drafting: Literal["iid", "independent", "without_replacement", "greedy"] = "iid",
    num_drafts: int = 2,
    max_samples: int = 20_000,
    false_alarm: float = 1e-3,
    seed: int = 0,
) -> None:
    """Test whether a verifier keeps the target's distribution: its distribution exactly, its samples sequentially.

    VERIFIER is a name (single, specinfer, ...) or MODULE:OBJECT; DRAFTING says how its drafts are made, FORM what a function of yours is:

    distribution(target_probs[vocab], draft_probs[drafts, vocab], tokens[drafts]) gives the probability of each emitted token;

    sampler(target_probs[batch, vocab], draft_probs[batch, drafts, vocab], tokens[batch, drafts], generator) gives tokens[batch];

    samples() yields pairs (target_probs[vocab], token).

    SAMPLES is a file of {"target_probs": [...], "token": n} lines from any engine, each whole text cut at a length fixed beforehand.
    """
    from draftlab.conformance import Budget, command

    budget = Budget(max_samples, false_alarm, seed)
    if (verifier is None) == (samples is None):
        raise UserError("nothing to test, or two things", remedy="give either --verifier or --samples")
    if verifier is not None:
        command.run(verifier, form, drafting, num_drafts, budget)
    elif samples is not None:
        command.run_on_file(samples, budget)


def bench_verify(settings: Flat[plan.VerifierCost], *, out: Path | None = None) -> None:
    """Print what each verifier costs per decision, one thread, contenders interleaved; with OUT also as CSV."""
    from draftlab.multidraft import verifier_cost

    frame = verifier_cost.verifier_cost(settings)
    _print_table(verifier_cost.table(frame), frame, out)


def _print_table(text: str, frame: pd.DataFrame, out: Path | None) -> None:
    from draftlab.files.atomic import write_text

    print(text)
    if out is not None:
        write_text(out, frame.to_csv(index=False, lineterminator="\n"))


def readme(*, file: Path = Path("README.md"), check: bool = False) -> None:
    """Render the results and the datasets of README.md from the committed tables; --check only compares."""
    from draftlab.report import readme as module

    module.update(file, check=check)


VERBS: dict[str, Callable[..., None]] = {
    "readme": readme,
    "verify-lossless": verify_lossless,
    "bench verify": bench_verify,
    "gguf export": gguf_export,
    "gguf inflate": gguf_inflate,
    "latency check": latency_check,
    "latency alpha": latency_alpha,
    "latency length": latency_length,
    "latency requests": latency_requests,
    "latency cost": latency_cost,
    "latency branches": latency_branches,
    "latency update": latency_update,
    "latency null": latency_null,
    "latency interference": latency_interference,
    "answer": answer,
    "collect": collect,
    "offline": offline,
    "online": online,
    "tokens": tokens,
    "medusa": medusa,
    "break-even": break_even,
    "memory-traffic": memory_traffic,
    "utilisation": utilisation,
    "token-view": token_view,
    "route": route,
    "mdss pairs": mdss_pairs,
    "figure": figure,
    "figures": figures,
    "claims": claims,
    "report": report,
    "compare": compare,
    "provenance": provenance,
    "record-provenance": record_provenance,
    "tensorboard": tensorboard,
    "summary": summary,
    "data fetch": data_fetch,
    "data make": data_make,
    "data check": data_check,
    "data stream": data_stream,
    "data classify": data_classify,
    "data shares": data_shares,
    "pretrain tokenizer": pretrain_tokenizer,
    "pretrain target": pretrain_target,
    "pretrain draft": pretrain_draft,
    "speedup-theory": speedup_theory,
    "mdss region": mdss_region,
    "mdss acceptance": mdss_acceptance,
    "mdss live": mdss_live,
    "mdss online": mdss_online,
    "mdss regime": mdss_regime,
    "mdss sinkhorn": mdss_sinkhorn,
    "mdss cone": mdss_cone,
    "mdss verifier-cost": mdss_verifier_cost,
}


def main() -> None:
    """Run one verb."""
    args = sys.argv[1:]
    if " ".join(args[:2]) in VERBS:  # a verb of two words
        args = [" ".join(args[:2]), *args[2:]]
    exit_on_error(lambda: tyro.extras.subcommand_cli_from_dict(VERBS, prog="draftlab", description=__doc__, args=args))


def exit_on_error(call: Callable[[], object]) -> None:
    """Call it; a ``UserError``, or a setting out of its bounds, becomes one line on stderr and exit code 1."""
    try:
        call()
    except (UserError, ValidationError) as error:
        said = plan.refused(error) if isinstance(error, ValidationError) else error
        sys.exit(f"draftlab: error: {said}")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if error.errno is None:  # not of the system: a library's
            sys.exit(f"draftlab: error: {printable(str(error))}")
        # A full disk, a folder that cannot be written: the system's own words name the file and the reason.
        what = printable(f"{error.strerror}: {error.filename}")
        sys.exit(f"draftlab: error: {what} (free space or fix permissions, run again)")
    except KeyboardInterrupt:
        sys.exit("draftlab: interrupted; finished files are whole, run again to resume")


if __name__ == "__main__":
    main()
