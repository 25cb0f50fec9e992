"""The benchmark of the llama.cpp loop: its table, a stand-in for a C++ tool, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.llama_cpp import ASSISTED, TOOLS, LlamaCppBench, bench, table
from draftlab.errors import UserError
from draftlab.latency.loop import Block, Generation
from draftlab.models.cores import can_pin
from draftlab.models.llama import Llama, LlamaConfig
from draftlab.models.tokenizer import train_tokenizer

SIZES = {"draft_len": [2], "max_new_tokens": 6, "repeats": 2, "inflated_layers": 2, "inflated_ffn": 64}
ONE = LlamaCppBench.model_validate(SIZES | {"requests": 1})
TWO = LlamaCppBench.model_validate(SIZES | {"requests": 2})


def model(folder: Path, layers: int) -> Path:
    tokenizer = train_tokenizer(["some text, and a question?"] * 3, 300)
    config = LlamaConfig(tokenizer.vocab_size, 32, 64, layers, 1, 1, 512)
    Llama(config).initialise(torch.Generator().manual_seed(0)).save(folder)
    tokenizer.save(folder)
    return folder


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return model(tmp_path / "target", 2), model(tmp_path / "draft", 1)


def tools(folder: Path, said: str) -> Path:
    """Tools that answer every call with ``said`` and note how they were called."""
    folder.mkdir()
    for name in TOOLS:
        (folder / name).write_text(
            f"#!/bin/sh\necho \"$@\" >>{folder}/calls\ngrep Cpus_allowed_list /proc/self/status >>{folder}/cores\nprintf '{said}'\n"
        )
        (folder / name).chmod(0o755)
    return folder


SAID = "decoded    7 tokens in    0.100 seconds, speed:   70.000 t/s\\nn_accept  = 3\\n"


def test_every_contender_is_timed_next_to_the_loop(pair: tuple[Path, Path], tmp_path: Path) -> None:
    folder = tools(tmp_path / "bin", SAID)
    frame = bench(*pair, folder, settings=TWO)
    rows = frame.set_index("contender")
    assert list(rows.index) == [ASSISTED, *TOOLS]
    assert (rows["loop_tokens_per_second"] > 0).all()
    assert rows.loc["llama-speculative-simple", "tokens_per_second"] == 70
    assert rows.loc["llama-speculative", "tokens_per_second"] == pytest.approx(
        60
    )  # one of seven tokens was given to it
    assert ((rows["low"] <= rows["ratio"]) & (rows["ratio"] <= rows["high"])).all()
    assert (rows["prompts"] == 2).all()
    assert rows.loc[ASSISTED, "same_accepted"] == 2
    assert (rows.loc[list(TOOLS), "same_accepted"] < 2).all()  # what they say is made up
    calls = (folder / "calls").read_text().splitlines()
    if can_pin():
        assert len(set((folder / "cores").read_text().splitlines())) == 1
        assert (folder / "cores").read_text().splitlines()[0].split()[-1].isdigit()  # one core, no range
    assert len(calls) == 2 * 2 * 3  # tools, prompts, turns with one to warm up
    assert all("--spec-draft-n-max 2" in call and "-t 1" in call for call in calls)
    assert len(table(frame).splitlines()) == 4


def test_without_tools_they_are_left_out(pair: tuple[Path, Path]) -> None:
    assert list(bench(*pair, settings=ONE)["contender"]) == [ASSISTED]


def test_what_cannot_be_measured_is_refused(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="llama-speculative-simple: No such file"):
        bench(*pair, tmp_path, settings=ONE)
    with pytest.raises(UserError, match="exit code 0: nothing of use"):
        bench(*pair, tools(tmp_path / "bin", "nothing of use\\n"), settings=ONE)


def test_the_loop_cuts_a_text_as_each_tool_does() -> None:
    simple, tree = TOOLS["llama-speculative-simple"], TOOLS["llama-speculative"]
    block = Block(8, 8, 8, 8, 0, 0)
    assert [simple.draft_lens(8, 30)([block] * done) for done in range(4)] == [8, 8, 8, 2]
    assert simple.draft_lens(8, 28)([block] * 3) == 8  # no room left is no limit to it
    assert [tree.draft_lens(8, 30)([block] * done) for done in range(4)] == [0, 8, 8, 8]


def test_tokens_are_counted_as_each_tool_does() -> None:
    simple, tree = TOOLS["llama-speculative-simple"], TOOLS["llama-speculative"]
    blocks = [
        Block(0, 0, 0, 0, 0, 0),
        Block(3, 3, 2, 1, 0, 0),
        Block(3, 3, 3, 3, 0, 0),
    ]  # 1 + 2 + 4 tokens, the fifth ends the text
    ended, cut = Generation([5, 6, 7, 8, 2], 1, blocks), Generation([5, 6, 7, 8, 9], 1, blocks)
    assert simple.counts(ended, {2}) == (2, 5)
    assert simple.counts(cut, {2}) == (4, 7)  # cut by the loop's own limit: the tool keeps its last block
    assert tree.counts(ended, {2}) == (4, 6)  # the first of seven was given
