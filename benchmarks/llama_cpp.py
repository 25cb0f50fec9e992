"""Speed of the llama.cpp loop beside llama.cpp's own C++ tools and assisted generation in ``transformers``: one core, wall time, in turns.

    python -m benchmarks.llama_cpp --target FOLDER --draft FOLDER --tools BUILD/bin --prompts eval.jsonl

``llama-speculative-simple`` and ``llama-speculative`` (the tree tool, with one branch) are built from llama.cpp's source with the flags of
the installed binding; without ``--tools`` they are left out. All decode the same prompts greedily to the end of text, the tools and the loop
from the same two GGUF files, with the same draft lengths; reading the prompt is not counted. Beside a tool the loop cuts the text into the same
blocks as the tool (``Tool``), so that accepted tokens can be compared one by one.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pandas as pd
import torch
from pydantic import Field

from benchmarks import Turns, hub_network, run, show
from draftlab.core.settings import Count, Flat, Template
from draftlab.data.prompts import Prompt
from draftlab.errors import UserError
from draftlab.files.json_files import read_jsonl
from draftlab.latency.comparison import compare
from draftlab.latency.loop import Block, DraftLength, Generation, begin, fixed, speculate
from draftlab.latency.pair import inflated
from draftlab.models import load_tokenizer
from draftlab.models.backend import EngineOptions
from draftlab.models.chat import pieces
from draftlab.models.cores import pinned
from draftlab.models.gguf import export
from draftlab.models.llama_cpp import LlamaCpp


@dataclass(frozen=True)
class Tool:
    """A C++ tool's flags, and the blocks that it cuts a text into. Every tool goes on until it has a token more than the limit.

    ``shortens``: it drafts no further than to the limit. ``whole``: it counts its last block whole, past an end of text. ``given``: its first
    token comes from reading the prompt, before anything is drafted; the tool counts it, the table does not.
    """

    flags: tuple[str, ...]
    shortens: bool = False
    whole: bool = False
    given: bool = False

    def draft_lens(self, draft_len: int, tokens: int) -> DraftLength:
        """The draft length of each block of this tool when asked for ``tokens`` tokens."""

        def choose(blocks: Sequence[Block]) -> int:
            if self.given and not blocks:
                return 0
            left = tokens - sum(block.accepted + 1 for block in blocks) - 1
            return min(draft_len, left) if self.shortens and left > 0 else draft_len  # 0 means no limit to this tool

        return choose

    def counts(self, generation: Generation, eos: Collection[int]) -> tuple[int, int]:
        """Accepted and decoded tokens of ``generation`` as this tool counts them, without the given one."""
        accepted = sum(block.accepted for block in generation.blocks)
        decoded = accepted + len(generation.blocks)
        ended = generation.tokens[-1] in eos and not self.whole
        beyond = decoded - len(generation.tokens) if ended else 0
        return accepted - beyond, decoded - beyond - int(self.given)


TOOLS = {
    "llama-speculative-simple": Tool(("--spec-type", "draft-simple"), shortens=True),
    "llama-speculative": Tool(("-np", "1"), whole=True, given=True),
}
ASSISTED = "transformers assisted"


class Run(NamedTuple):
    """The result of one run of a contender: ``speed`` in tokens per second, ``accepted`` and decoded ``tokens``."""

    speed: float
    accepted: int | None
    tokens: int


CONTEXT = 512
ATTEMPTS = 20  # another thread writes the tools' log, and now and then its end is lost
TEXTS = (
    "Tom has 5 apples and buys 7 more. How many apples does he have?",
    "List the names of all singers who are older than 20.",
    "Write a function that returns the largest number of a list.",
)


class LlamaCppBench(Turns):
    """A few requests at several draft lengths; the target is inflated (``draftlab.latency.inflate``)."""

    template: Template = "vicuna_short"
    requests: Count = 3
    draft_len: list[Count] = Field(default=[3, 5, 8], min_length=1)
    max_new_tokens: Count = 96
    inflated_layers: int = Field(default=6, ge=0)
    inflated_ffn: int = Field(default=8192, ge=0)
    inflated_widths: Literal[1, 4, 16, 64] = 4


def bench(
    target: Path,
    draft: Path,
    tools: Path | None = None,
    prompts: Path | None = None,
    settings: LlamaCppBench = LlamaCppBench(),  # noqa: B008 (frozen)
) -> pd.DataFrame:
    """Time every contender on every prompt ``settings.repeats`` times, each next to the loop; one row per (``draft_len, contender``).

    Columns: ``tokens_per_second`` of the loop and of the contender (medians), ``ratio, low, high``: how much faster the loop is, from pairs
    of neighbouring runs, with the 99 % interval, and ``same_accepted``: prompts on which both accepted as many tokens.
    """
    torch.set_num_threads(1)
    tokenizer = load_tokenizer(target)
    requests = [prompt.text for prompt in read_jsonl(prompts, Prompt)] if prompts else list(TEXTS)
    # A tool reads the rendered text and adds the start token itself.
    asked = [[{"role": "user", "content": text}] for text in requests[: settings.requests]]
    texts = ["".join(piece.text for piece in pieces(settings.template, messages)) for messages in asked]
    ids_of = {text: tokenizer.encode_prompt(text, "plain") for text in texts}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="draftlab-") as name:
        scratch = Path(name)
        sizes = (settings.inflated_layers, settings.inflated_ffn, settings.inflated_widths)
        expensive = inflated(target, scratch / "target", *sizes)
        files = {"-m": scratch / "target.gguf", "-md": scratch / "draft.gguf"}
        for folder, file in zip((expensive, draft), files.values(), strict=True):
            export(folder, file)
        assisted = _assisted(expensive, draft, tokenizer.eos_ids)
        with (
            pinned(1),  # the tools too
            LlamaCpp(files["-m"], EngineOptions(CONTEXT)) as big,
            LlamaCpp(files["-md"], EngineOptions(CONTEXT)) as small,
        ):

            def loop(ids: list[int], draft_lens: DraftLength, tokens: int, tool: Tool | None = None) -> Run:
                for model in (big, small):
                    model.trim(0)
                    begin(model, ids)
                begun = time.perf_counter()
                generation = speculate(big, small, ids, tokens, draft_lens, eos=tokenizer.eos_ids)
                seconds = time.perf_counter() - begun
                if tool is None:
                    return Run(len(generation.tokens) / seconds, None, len(generation.tokens))
                given = generation.blocks[: int(tool.given)]
                seconds -= sum(block.draft_seconds + block.verify_seconds for block in given)
                accepted, count = tool.counts(generation, tokenizer.eos_ids)
                return Run(count / seconds, accepted, count)

            def in_turn(contender: str, text: str, length: int) -> tuple[Run, Run]:
                """A run of the contender and, right after it, of the loop."""
                ids, limit = ids_of[text], settings.max_new_tokens
                if contender == ASSISTED:
                    run = assisted(ids, length, limit)
                    return run, loop(ids, fixed(length), run.tokens)
                tool = TOOLS[contender]
                models = [str(word) for flag in files.items() for word in flag]
                command = [str(Path(tools or "") / contender), *models, *tool.flags]
                run = _run_tool(command, limit, tool.given, text, length)
                return run, loop(ids, tool.draft_lens(length, limit), limit + 1, tool)

            for turn in range(settings.repeats + 1):
                for length in settings.draft_len:
                    for number, text in enumerate(texts):
                        for contender in (ASSISTED, *(TOOLS if tools else ())):
                            run, ours = in_turn(contender, text, length)
                            row = {"draft_len": length, "contender": contender, "prompt": number, "turn": turn}
                            same = contender == ASSISTED or (run.accepted, run.tokens) == (ours.accepted, ours.tokens)
                            rows.append(row | {"loop": ours.speed, "speed": run.speed, "same": same})
    return _summary(pd.DataFrame(rows).query("turn > 0"))  # the first turn warms up


def table(frame: pd.DataFrame) -> str:
    """The figures for a person: one line per draft length and contender."""
    lines = [
        f"{'draft_len':>9}  {'contender':26}{'tokens/s':>10}{'loop':>8}{'loop is':>9}   99 % interval  same accepted"
    ]
    for row in frame.to_dict("records"):
        lines.append(
            f"{row['draft_len']:9}  {row['contender']:26}{row['tokens_per_second']:10.1f}{row['loop_tokens_per_second']:8.1f}"
            f"{row['ratio']:8.2f}x   {row['low']:.2f} to {row['high']:.2f}   {row['same_accepted']}/{row['prompts']}"
        )
    return "\n".join(lines)


def _summary(rows: pd.DataFrame) -> pd.DataFrame:
    summary = []
    for (length, contender), group in rows.groupby(["draft_len", "contender"], sort=False):
        against = compare(group["loop"], group["speed"])
        row = {"draft_len": length, "contender": contender, "tokens_per_second": group["speed"].median()}
        row |= {"loop_tokens_per_second": group["loop"].median(), "ratio": against.ratio, "low": against.low}
        same = group.groupby("prompt")["same"].all()
        summary.append(row | {"high": against.high, "same_accepted": int(same.sum()), "prompts": len(same)})
    return pd.DataFrame(summary)


def _run_tool(command: list[str], tokens: int, given: bool, text: str, draft_len: int) -> Run:
    """One run of a C++ tool, without the token that it was ``given``."""
    threads = [word for flag in ("-t", "-tb", "-td", "-tbd") for word in (flag, "1")]
    cache = [word for flag in ("-ctk", "-ctv", "-ctkd", "-ctvd") for word in (flag, "f32")]
    limits = ["-n", tokens, "-c", CONTEXT, "--spec-draft-n-max", draft_len, "--spec-draft-p-min", 0, "--temp", 0]
    arguments = [*command, *threads, *cache, *map(str, limits), "-fa", "off", "-ngl", "0", "-p", text]
    for _ in range(ATTEMPTS):
        try:
            done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        except OSError as error:
            remedy = "build llama.cpp's tools, and name their folder"
            raise UserError(f"{error.strerror}", file=command[0], remedy=remedy) from None
        log = done.stdout + done.stderr
        decoded = re.search(r"decoded\s+(\d+) tokens in\s+[\d.]+ seconds, speed:\s+([\d.]+)", log)
        accepted = re.search(r"n_accept\s*=\s*(\d+)", log)
        if decoded is not None and accepted is not None:
            count = int(decoded[1]) - given
            return Run(float(decoded[2]) * count / (count + given), int(accepted[1]), count)
        if done.returncode:
            break
    last = (log.strip().splitlines() or ["no output"])[-1]
    remedy = "build it from the binding's source"
    raise UserError(f"exit code {done.returncode}: {last}", file=command[0], remedy=remedy)


def _assisted(target: Path, draft: Path, eos_ids: Collection[int]) -> Callable[[list[int], int, int], Run]:
    """Assisted generation in transformers, which does not report how many tokens it accepted."""
    network, assistant = map(hub_network, (target, draft))
    settings = assistant.generation_config
    settings.num_assistant_tokens_schedule, settings.assistant_confidence_threshold = "constant", 0.0

    def run(ids: list[int], draft_len: int, most: int) -> Run:
        settings.num_assistant_tokens = draft_len
        batch = torch.tensor([ids])
        options = {"attention_mask": torch.ones_like(batch), "do_sample": False, "pad_token_id": 0}
        options |= {"max_new_tokens": most, "eos_token_id": list(eos_ids)}
        begun = time.perf_counter()
        tokens = network.generate(batch, assistant_model=assistant, **options).shape[1] - len(ids)
        return Run(tokens / (time.perf_counter() - begun), None, tokens)

    return run


def main(
    settings: Flat[LlamaCppBench],
    *,
    target: Path,
    draft: Path,
    tools: Path | None = None,
    prompts: Path | None = None,
    out: Path | None = None,
) -> None:
    """Time the loop on llama.cpp beside llama.cpp's own C++ tools (--tools: the folder of the binaries) and transformers, in turns, on one core."""
    frame = bench(target, draft, tools, prompts, settings)
    show(frame, table(frame), out)


if __name__ == "__main__":
    run(main)
