"""llama.cpp's own server: answers recorded from it, killed in the middle, and a pair that it serves: `make test-server` builds it first."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import platformdirs
import pytest
import torch
import urllib3

from draftlab.core.stats import ratio
from draftlab.data.prompts import Prompt
from draftlab.engine import answering
from draftlab.engine.recording import TargetPass
from draftlab.engine.replay import agree_along, walk
from draftlab.engine.settings import Answers
from draftlab.files.json_files import write_jsonl
from draftlab.models import load_model, load_tokenizer
from draftlab.models.gguf import export
from draftlab.models.tokenizer import train_tokenizer
from draftlab.serving.engines import Deployment
from draftlab.serving.engines import llama_cpp as emit_llama_cpp
from tests.pair import VOCAB, small_llama

pytestmark = pytest.mark.server

BINARY = Path(platformdirs.user_cache_dir("draftlab")) / f"server-{version('llama-cpp-python')}" / "llama-server"
EXACT = "-t 1 -tb 1 -fa off -ctk f32 -ctv f32 -ngl 0 --no-webui -fit off"
"""As the engine in process has it: sums in float32."""
ROOM, DRAFT_LEN = 48, 3


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    if not BINARY.is_file():
        pytest.skip(f"{BINARY} is not there: make test-server compiles it")


@contextlib.contextmanager
def serving(command: str, port: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``llama-server`` with these flags; it is ready in the block and ends with it."""
    env = os.environ | {"LD_LIBRARY_PATH": str(Path(llama_cpp.__file__).parents[1] / "lib")}
    words = [str(BINARY), *shlex.split(command), "--host", "127.0.0.1", "--port", str(port)]
    with log.open("ab") as out, subprocess.Popen(words, env=env, stdout=out, stderr=out) as process:
        try:
            for _ in range(600):
                with contextlib.suppress(urllib3.exceptions.HTTPError):
                    if urllib3.request("GET", f"http://127.0.0.1:{port}/health", retries=False).status == 200:
                        break
                assert process.poll() is None, log.read_text(errors="replace")[-2000:]
                time.sleep(0.1)
            yield process
        finally:
            process.kill()


def free_port() -> int:
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return int(own.getsockname()[1])


@pytest.fixture(scope="module", params=["toy", "stories260K"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file: sharp answers that are not text, so that characters are cut; and a trained model with SentencePiece."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "toy":
        make_toy(folder / "target")
        export(folder / "target", folder / "target.gguf")
        texts = [f"text {i * i}" for i in range(40)]
    else:
        found = request.getfixturevalue("shared") / "models/stories260K/stories260K-f32.gguf"
        (folder / "target.gguf").symlink_to(found)
        texts = [f"Once upon a time there were {i} little" for i in range(40)]
    write_jsonl(folder / "prompts.jsonl", [Prompt(f"p/{i}", "toy", "train", text) for i, text in enumerate(texts)])
    return folder / "target.gguf"


def make_toy(folder: Path, noise: float = 0.0) -> None:
    """A random model with sharp answers; with noise it is a draft of the model without."""
    model = small_llama(32, 0, scale=6.0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(noise * weight.std() * torch.randn(weight.shape, generator=generator))
    model.save(folder)
    train_tokenizer([f"some text {i * i}" for i in range(400)], VOCAB).save(folder)


def answers(target: Path, parts: Path | None = None, **settings: Any) -> TargetPass:
    room = 12 if target.parent.name.startswith("toy") else ROOM
    how = Answers(max_new_tokens=room, template="plain", batch=4, keep=32, **settings)
    return answering.answer(target, target.parent / "prompts.jsonl", 40, how, parts=parts)[0]


def test_the_server_killed_in_the_middle_gives_the_record_of_llama_cpp_in_process(target: Path, tmp_path: Path) -> None:
    exact = answers(target, engine="llama_cpp")
    port, log, parts = free_port(), tmp_path / "log", tmp_path / "parts"
    command = f"-m {target} -c 2048 -np 4 {EXACT}"
    with ThreadPoolExecutor(1) as pool:
        with serving(command, port, log) as process:
            recorded = pool.submit(answers, target, parts, engine="openai", url=f"http://127.0.0.1:{port}/v1")
            while (kept := len(list(parts.rglob("*.safetensors")))) < 4:
                assert not recorded.done(), recorded.result()
                time.sleep(0.002)
            process.kill()
        time.sleep(0.5)
        assert kept <= len(list(parts.rglob("*.safetensors"))) < 40
        with serving(command, port, log):
            found = recorded.result()
    assert found.answers == exact.answers
    assert found.ids is not None
    whole, ids = exact.target_logits(range(40)).exp(), found.ids.long()
    probs = found.log_probs.float().exp()
    torch.testing.assert_close(probs[:, :-1], whole.gather(-1, ids), atol=1e-3, rtol=0)
    torch.testing.assert_close(probs[:, -1], whole.scatter(-1, ids, 0.0).sum(-1), atol=1e-3, rtol=0)
    assert found.engine["server"] == "llamacpp"
    assert found.engine["version"]


def test_the_server_accepts_what_replay_predicts(tmp_path: Path) -> None:
    """An exported pair, served with the flags that `draftlab emit` writes."""
    for name, noise in (("target", 0.0), ("draft", 0.12)):
        make_toy(tmp_path / name, noise)
        export(tmp_path / name, tmp_path / f"{name}.gguf")
    write_jsonl(tmp_path / "prompts.jsonl", [Prompt(f"p/{i}", "toy", "train", f"text {i * i}") for i in range(40)])
    how = Answers(max_new_tokens=40, template="plain", batch=8)
    found, _ = answering.answer(tmp_path / "target", tmp_path / "prompts.jsonl", 40, how)
    assert load_tokenizer(tmp_path / "target").eos_ids == (2,)
    # The server drafts from its second token on: the first comes out of the prompt.
    longer = [n for n, answer in enumerate(found.answers) if len(answer.answer_ids) > 1]
    rest = dataclasses.replace(
        found,
        answers=[
            dataclasses.replace(a, prompt_ids=[*a.prompt_ids, a.answer_ids[0]], answer_ids=a.answer_ids[1:])
            for a in (found.answers[n] for n in longer)
        ],
        begins=found.first_positions[longer] + 1,
    )
    blocks = walk(agree_along(load_model(tmp_path / "draft"), rest), DRAFT_LEN)
    predicted = ratio(blocks.accepted, DRAFT_LEN * blocks.blocks)
    assert 0.2 < predicted.estimate < 0.8
    deployment = Deployment(
        target=str(tmp_path / "target.gguf"), draft=str(tmp_path / "draft.gguf"), draft_len=DRAFT_LEN, sampled=False
    )
    command = emit_llama_cpp(deployment).text.removeprefix("llama-server ")
    port, drafted = free_port(), np.zeros((len(longer), 2))
    with serving(f"{command} -c 2048 -np 1 {EXACT} -ctkd f32 -ctvd f32", port, tmp_path / "log"):
        for row, n in enumerate(longer):
            asked = {"prompt": found.answers[n].prompt_ids, "max_tokens": 40, "temperature": 0}
            said = urllib3.request("POST", f"http://127.0.0.1:{port}/v1/completions", json=asked, timeout=60).json()
            timings = said["timings"]
            assert said["usage"]["completion_tokens"] == found.lengths[n]
            drafted[row] = timings.get("draft_n_accepted", 0), timings.get("draft_n", 0)
    accepted, total = drafted.sum(0)
    print(json.dumps({"served": accepted / total, "predicted": dataclasses.asdict(predicted)}))
    assert predicted.low <= accepted / total <= predicted.high
