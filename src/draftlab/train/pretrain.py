"""The small models of the scales that download nothing: a tokenizer, a target, and a draft that was trained on other text.

The target learns the answers of the datasets' training rows. The draft sees only public text that belongs to no prompt. Its acceptance is
therefore low, which is where online distillation starts.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from draftlab.core.settings import Flat, Template
from draftlab.data import generators
from draftlab.data.prompts import Prompt
from draftlab.engine.answers import Answer
from draftlab.engine.fitting import encoded, fitting
from draftlab.engine.settings import Answers, Recipe
from draftlab.errors import UserError
from draftlab.files.atomic import atomic_dir
from draftlab.files.digests import code_digest
from draftlab.files.json_files import read_jsonl, write_json
from draftlab.files.seals import check_content, seal
from draftlab.models import LanguageModel, Tokenizer, hf, hub, load_model, load_tokenizer, shared_tokenizer
from draftlab.models.config import context_of
from draftlab.models.head import columns_of
from draftlab.models.llama import Llama
from draftlab.models.tokenizer import train_tokenizer
from draftlab.models.vocabulary_rows import rows_of
from draftlab.train import training
from draftlab.train.designs import config_of, designed, frequent_tokens, trim_head
from draftlab.train.trimmed_head import answer_logits, kept_by

TOKENIZER_TEXTS = 2000  # per dataset, and as many public documents
BUCKET = 16  # batches are cut from runs of this many batches sorted by length, so that they need little padding


@dataclass(frozen=True)
class Example:
    """A text in token ids; the loss is taken on the answer."""

    prompt: list[int]
    answer: list[int]


def make_tokenizer(
    recipe: Flat[Recipe],
    *,
    out: Path,
    prompts: tuple[Path, ...] = (),
    asked: tuple[Path, ...] = (),
    draft_context: int = 0,
    max_new_tokens: int = 1,
    template: Template = "vicuna_short",
    content: str = "",
) -> None:
    """Make the tokenizer that target and draft share: the target's own if it exists, else one trained on the prompts.

    Before anything is trained, a file of --asked is refused if none of its prompts leaves room for an answer.

    **Arguments:**
    - `out`: the folder for the tokenizer
    - `prompts`: files of prompts to train it on
    - `asked`: files of prompts that the target will answer
    - `draft_context`: context length of the draft, in tokens; 0: any
    - `max_new_tokens`: most tokens of an answer
    - `template`: how a prompt is written as text. vicuna_v1.1: as Vicuna reads it; vicuna_short: that without the system text; plain: as it is;
      own: in the target's chat template; rendered: prompts are in it already
    - `content`: the digest of the files of --model when the run began; if they have changed since, they are refused
    """
    if recipe.model:
        hub.check_outside(recipe.model, out)
    with atomic_dir(out) as folder:
        if recipe.model:
            hub.copy_tokenizer(recipe.model, folder)
            check_content(recipe.model, content, weights=False)
        else:
            texts: list[str] = []
            for path in prompts:
                records = list(read_jsonl(path, Prompt))[:TOKENIZER_TEXTS]
                texts += [f"{record.whole} {record.reference or ''}" for record in records]
            texts += list(generators.public_documents(TOKENIZER_TEXTS, recipe.seed))
            train_tokenizer(texts, recipe.vocabulary).save(folder)
            ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
            size = {} if recipe.family == "t5" else {"max_position_embeddings": recipe.context}
            write_json(folder / "config.json", ids | size)
        answers = Answers.model_validate({"max_new_tokens": max_new_tokens, "template": template})
        contexts = [size for size in (draft_context, context_of(folder)) if size]
        for path in asked if contexts else ():
            fitting(path, 1, load_tokenizer(folder), answers, min(contexts))


def make_target(
    recipe: Flat[Recipe],
    *,
    tokenizer: Path,
    template: Template,
    out: Path,
    prompts: tuple[Path, ...] = (),
    content: str = "",
) -> None:
    """Make the target: train it on reference answers, or fetch the one that --model names.

    **Arguments:**
    - `tokenizer`: the folder of the tokenizer
    - `template`: how a prompt is written as text. vicuna_v1.1: as Vicuna reads it; vicuna_short: that without the system text; plain: as it is;
      own: in the target's chat template; rendered: prompts are in it already
    - `out`: the folder for the target
    - `prompts`: files of prompts with reference answers to train it on
    - `content`: the digest of the files of --model when the run began; if they have changed since, they are refused
    """
    if recipe.model:
        hub.copy_model(recipe.model, out)
        check_content(recipe.model, content)
        return
    encoder = load_tokenizer(tokenizer)
    examples = _answered(prompts, encoder, template)
    if not examples:
        raise UserError(
            "no prompt has a reference answer" if prompts else "no prompts to train the target on",
            file=prompts[0] if prompts else None,
            remedy="name a target that exists (--model; in a run --config target=FOLDER), or give prompts with answers",
        )
    _train(_untrained(recipe, encoder.vocab_size), examples, encoder, recipe, out, "target")


def make_draft(
    recipe: Flat[Recipe],
    *,
    tokenizer: Path,
    template: Template,
    out: Path,
    prompts: tuple[Path, ...] = (),
    target: Path | None = None,
    answers: tuple[Path, ...] = (),
    content: str = "",
) -> None:
    """Make the draft: train it on reference answers, on public text where there are none, or fetch the one that --model names.

    **Arguments:**
    - `tokenizer`: the folder of the tokenizer
    - `template`: how a prompt is written as text. vicuna_v1.1: as Vicuna reads it; vicuna_short: that without the system text; plain: as it is;
      own: in the target's chat template; rendered: prompts are in it already
    - `out`: the folder for the draft
    - `prompts`: files of prompts with reference answers to train it on
    - `target`: the folder of the target, for a design that is made from it
    - `answers`: files of recorded answers, whose most frequent tokens a trimmed head keeps; without one, those of the text to train on
    - `content`: the digest of the files of --model when the run began; if they have changed since, they are refused
    """
    if target:
        hub.check_outside(str(target), out)
    encoder = load_tokenizer(tokenizer)
    if recipe.model:
        hub.copy_model(recipe.model, out, tokenizer)
        shared_tokenizer(tokenizer, out)
        check_content(recipe.model, content)
        return
    begin = encoder.encode_prompt("", "plain") or [encoder.eos_ids[0]]  # not every model has a token before a text
    examples = _answered(prompts, encoder, template) or [
        Example(begin, [*encoder.encode(text), encoder.eos_ids[0]])
        for text in generators.public_documents(recipe.documents, recipe.seed)
    ]
    context = max(recipe.context, context_of(tokenizer))  # for every request that the target answers
    size = rows_of(tokenizer) or encoder.vocab_size  # the target's padding too
    model = _untrained(recipe.model_copy(update={"context": context}), size, target)
    if recipe.head:
        if not isinstance(model, Llama):
            raise UserError("only a Llama's head can be trimmed", remedy="set head to 0")
        records = [record for path in answers for record in read_jsonl(path, Answer)]
        texts = [record.answer_ids for record in records] or [example.answer for example in examples]
        asked, rest = [record.prompt_ids for record in records], range(encoder.vocab_size) if recipe.fill else ()
        tokens, share = frequent_tokens(texts, recipe.head, encoder.eos_ids, asked, rest)
        source = "recorded answers" if answers else "the text it learns"
        print(f"head: {len(tokens):,} of {model.vocab_size:,} tokens, {share:.1%} of {source}", flush=True)
        model = trim_head(model, tokens)
    _train(model, examples, encoder, recipe, out, "draft")


def _answered(prompts: Sequence[Path], tokenizer: Tokenizer, template: str) -> list[Example]:
    """The prompts that have a reference answer, with it; without those that a target cannot read."""
    return [
        Example(ids, [*tokenizer.encode(f" {prompt.reference}"), tokenizer.eos_ids[0]])
        for path in prompts
        for prompt, ids in encoded(path, tokenizer, template)
        if prompt.reference and not isinstance(ids, str)
    ]


def _train(
    model: LanguageModel, examples: Sequence[Example], tokenizer: Tokenizer, recipe: Recipe, out: Path, label: str
) -> None:
    kept = [example for example in examples if len(example.prompt) + len(example.answer) <= recipe.context]
    if not kept:
        what = f"every text is longer than the context of {recipe.context} tokens"
        raise UserError(what, remedy="raise --context; in a run, the context of the model in the scale")
    head = kept_by(model)
    order = list(_batches(kept, recipe.batch, recipe.steps, recipe.seed))

    def losses(step: int) -> Iterator[Tensor]:
        batch = order[step]
        prompts, texts = [example.prompt for example in batch], [example.answer for example in batch]
        logits = answer_logits(model, prompts, texts, autocast=True)
        answers = torch.tensor([token for text in texts for token in text])
        if head is not None:
            answers = columns_of(answers, head)
        yield F.cross_entropy(logits, answers, ignore_index=-1 if head is None else len(head))

    # The weights differ with the target that they were made from, and with the tokens of a trimmed head.
    start = training.digest(dict(model.named_parameters()))
    training.fit(
        model,
        losses,
        training.Schedule(recipe.learning_rate, recipe.steps, warmup=min(50, recipe.steps // 5), floor=0.05),
        optimizer=training.adamw(model, betas=(0.9, 0.98), weight_decay=0.01),
        label=label,
        checkpoint=out.parent / f".{out.name}.checkpoint.safetensors",
        identity=f"{recipe!r} {start} {sha256(repr(kept).encode()).hexdigest()} {code_digest(__name__)}",
    )
    with atomic_dir(out) as folder:
        model.save(folder)
        tokenizer.save(folder)
        seal(folder)


def _untrained(recipe: Recipe, vocab_size: int, target: Path | None = None) -> LanguageModel:
    """The untrained model of a design, with a whole head."""
    generator = torch.Generator().manual_seed(recipe.seed)
    if recipe.family == "t5":
        return hf.new_t5(vocab_size, recipe.hidden, recipe.ffn, recipe.layers, recipe.heads, generator)
    if recipe.design == "scratch":
        return Llama(config_of(recipe, vocab_size)).initialise(generator)
    source = load_model(target) if target else None
    if not isinstance(source, Llama):
        what = f"the design {recipe.design} needs a target" + (" of the Llama family" if source else "")
        raise UserError(what, file=target, remedy="name one with --target, or make the draft from scratch")
    return designed(source, recipe, generator)


def _batches(examples: Sequence[Example], size: int, count: int, seed: int) -> Iterator[list[Example]]:
    """``count`` batches in a seeded order; texts of similar length share a batch."""
    rng = random.Random(seed)
    while count > 0:
        order = rng.sample(examples, len(examples))
        batches: list[list[Example]] = []
        for start in range(0, len(order), size * BUCKET):
            run = order[start : start + size * BUCKET]
            run.sort(key=lambda example: len(example.prompt + example.answer))
            batches += [run[at : at + size] for at in range(0, len(run), size)]
        rng.shuffle(batches)
        yield from batches[:count]
        count -= len(batches)
