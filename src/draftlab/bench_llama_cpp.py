"""Speed of the llama.cpp loop beside llama.cpp's own C++ tools and assisted generation in ``transformers``: one thread, wall time, in turns.

    draftlab bench llama-cpp --target FOLDER --draft FOLDER --tools BUILD/bin --prompts eval.jsonl

``llama-speculative-simple`` and ``llama-speculative`` (the tree tool, with one branch) are built from llama.cpp's source with the flags of
the installed binding; without ``--tools`` they are left out. All decode the same prompts greedily to the end of text, the tools and the loop
from the same two GGUF files, with the same fixed draft length; a prompt's own computation is not counted. A tool counts its last block
whole, and decodes on to the end of it; beside a tool the loop does so too, so that accepted tokens can be compared one by one.
"""

from __future__ import annotations

import functools
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from draftlab.datasets.conversations import Turn, render
from draftlab.errors import UserError
from draftlab.experiments import Template
from draftlab.latency.backend import Settings
from draftlab.latency.comparison import compare
from draftlab.latency.llama_cpp import LlamaCpp
from draftlab.latency.loop import begin, fixed, speculate
from draftlab.latency.pair import inflated
from draftlab.models import hf, load_tokenizer
from draftlab.models.gguf import export
from draftlab.records import Prompt, read_jsonl

TOOLS = {"llama-speculative-simple": (["--spec-type", "draft-simple"], 0), "llama-speculative": (["-np", "1"], 1)}
"""Their flags, and how many tokens they count that the prompt's own computation gave them."""
ASSISTED = "transformers assisted"
CONTEXT = 512
ATTEMPTS = 5  # the tools' log is written by a thread of its own, and its end is lost now and then
TEXTS = (
    "Tom has 5 apples and buys 7 more. How many apples does he have?",
    "List the names of all singers who are older than 20.",
    "Write a function that returns the largest number of a list.",
)


def bench(
    target: Path,
    draft: Path,
    tools: Path | None = None,
    prompts: Path | None = None,
    *,
    template: Template = "vicuna_short",
    draft_len: Iterable[int] = (3, 5, 8),
    requests: int = 3,
    max_new_tokens: int = 96,
    repeats: int = 4,
    inflated_layers: int = 6,
    inflated_ffn: int = 8192,
    inflated_widths: int = 4,
) -> pd.DataFrame:
    """Time every contender on every prompt ``repeats`` times, each next to the loop; one row per (``draft_len, contender``).

    Columns: ``tokens_per_second`` of the loop and of the contender (medians), ``ratio, low, high``: how much faster the loop is, from pairs
    of neighbouring runs, with the 99 % interval, and ``same_accepted``: prompts on which both accepted as many tokens.
    """
    if repeats < 2:
        raise UserError(f"repeats is {repeats}", remedy="give 2 or more: an interval needs them")
    torch.set_num_threads(1)
    tokenizer = load_tokenizer(target)
    asked = [prompt.text for prompt in read_jsonl(prompts, Prompt)] if prompts else list(TEXTS)
    # What a tool reads, and its tokens: it adds the start token itself.
    turns = ["".join(part.text for part in render(template, [Turn("user", text)])) for text in asked[:requests]]
    texts = {turn: tokenizer.encode_prompt(turn, "plain") for turn in turns}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="draftlab-") as name:
        scratch = Path(name)
        dear = inflated(target, scratch / "target", inflated_layers, inflated_ffn, inflated_widths)
        files = {"-m": scratch / "target.gguf", "-md": scratch / "draft.gguf"}
        for folder, file in zip((dear, draft), files.values(), strict=True):
            export(folder, file)
        assisted = _assisted(dear, draft, tokenizer.eos_ids)
        with (
            LlamaCpp(files["-m"], Settings(CONTEXT)) as big,
            LlamaCpp(files["-md"], Settings(CONTEXT)) as small,
        ):

            def loop(ids: list[int], length: int, tokens: int) -> tuple[float, int, int]:
                for model in (big, small):
                    model.trim(0)
                    begin(model, ids)
                begun = time.perf_counter()
                found = speculate(big, small, ids, tokens, fixed(length), eos=tokenizer.eos_ids)
                seconds = time.perf_counter() - begun
                accepted = sum(block.accepted for block in found.blocks)
                return seconds, accepted, accepted + len(found.blocks)

            contenders: dict[str, Callable[[str, int], tuple[float, int, int]]] = {
                ASSISTED: lambda text, length: assisted(texts[text], length, max_new_tokens)
            }
            for tool in TOOLS if tools else ():
                command = [str(Path(tools or "") / tool), *(str(word) for pair in files.items() for word in pair)]
                flags, given = TOOLS[tool]
                contenders[tool] = functools.partial(_tool, [*command, *flags], max_new_tokens, given)
            for turn in range(repeats + 1):
                for length in draft_len:
                    for number, text in enumerate(texts):
                        for contender, run in contenders.items():
                            speed, accepted, tokens = run(text, length)
                            seconds, own, whole = loop(texts[text], length, tokens)
                            row = {"draft_len": length, "contender": contender, "prompt": number, "turn": turn}
                            ours = (tokens if contender == ASSISTED else whole) / seconds
                            same = contender == ASSISTED or (accepted, tokens) == (own, whole)
                            rows.append(row | {"loop": ours, "speed": speed, "same": same})
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
    found = []
    for (length, contender), group in rows.groupby(["draft_len", "contender"], sort=False):
        against = compare(group["loop"], group["speed"])
        row = {"draft_len": length, "contender": contender, "tokens_per_second": group["speed"].median()}
        row |= {"loop_tokens_per_second": group["loop"].median(), "ratio": against.ratio, "low": against.low}
        same = group.groupby("prompt")["same"].all()
        found.append(row | {"high": against.high, "same_accepted": int(same.sum()), "prompts": len(same)})
    return pd.DataFrame(found)


def _tool(command: list[str], tokens: int, given: int, text: str, draft_len: int) -> tuple[float, int, int]:
    """Tokens per second, accepted and decoded tokens of one run of a C++ tool, without the first ``given`` tokens."""
    threads = [word for flag in ("-t", "-tb", "-td", "-tbd") for word in (flag, "1")]
    cache = [word for flag in ("-ctk", "-ctv", "-ctkd", "-ctvd") for word in (flag, "f32")]
    limits = ["-n", tokens, "-c", CONTEXT, "--spec-draft-n-max", draft_len, "--spec-draft-p-min", 0, "--temp", 0]
    words = [*command, *threads, *cache, *map(str, limits), "-fa", "off", "-ngl", "0", "-p", text]
    for _ in range(ATTEMPTS):
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=False)
        except OSError as error:
            remedy = "build llama.cpp's tools, and name their folder"
            raise UserError(f"{error.strerror}", file=command[0], remedy=remedy) from None
        said = done.stdout + done.stderr
        decoded = re.search(r"decoded\s+(\d+) tokens in\s+[\d.]+ seconds, speed:\s+([\d.]+)", said)
        accepted = re.search(r"n_accept\s*=\s*(\d+)", said)
        if decoded is not None and accepted is not None:
            count = int(decoded[1]) - given
            return float(decoded[2]) * count / (count + given), int(accepted[1]), count
        if done.returncode:
            break
    last = (said.strip().splitlines() or ["no output"])[-1]
    remedy = "build it from the binding's source"
    raise UserError(f"exit code {done.returncode}: {last}", file=command[0], remedy=remedy)


def _assisted(
    target: Path, draft: Path, eos_ids: Collection[int]
) -> Callable[[list[int], int, int], tuple[float, int, int]]:
    """Assisted generation in transformers, which does not say how many tokens it accepted (-1)."""
    network, assistant = (hf.load(folder).network for folder in (target, draft))
    settings = assistant.generation_config
    settings.num_assistant_tokens_schedule, settings.assistant_confidence_threshold = "constant", 0.0

    def run(ids: list[int], draft_len: int, most: int) -> tuple[float, int, int]:
        settings.num_assistant_tokens = draft_len
        batch = torch.tensor([ids])
        options = {"attention_mask": torch.ones_like(batch), "do_sample": False, "pad_token_id": 0}
        options |= {"max_new_tokens": most, "eos_token_id": list(eos_ids)}
        begun = time.perf_counter()
        found = network.generate(batch, assistant_model=assistant, **options)
        tokens = found.shape[1] - len(ids)
        return tokens / (time.perf_counter() - begun), -1, tokens

    return run
