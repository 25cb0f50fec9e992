"""A draft with a trimmed head has the same logits and counts in llama.cpp, and widened to the whole vocabulary in any engine."""

import shutil
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from draftlab.core.sampling_numpy import Sampling
from draftlab.engine.recording import record
from draftlab.engine.replay import replay
from draftlab.errors import UserError
from draftlab.files.gguf_header import read_header
from draftlab.latency.inflate import inflate
from draftlab.latency.loop import decode, fixed, speculate
from draftlab.models import gguf, hf, llama_cpp, load_model
from draftlab.models.backend import check_pair
from draftlab.models.gguf import export
from draftlab.models.llama import Llama, LlamaConfig
from draftlab.models.llama_cpp import LlamaCpp
from draftlab.models.tokenizer import train_tokenizer
from draftlab.models.trimmed import read_head, table_path, widen
from draftlab.train.designs import trim_head
from tests.models.test_lookup import passages
from tests.pair import small_llama

KEPT = list(range(2, 200, 3))
OTHERS = sorted(set(range(320)) - set(KEPT))
TOKENS = [5, 9, 300, 11]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    target = small_llama(32, 0, scale=4.0)
    target.save(folder / "target")
    trim_head(target, KEPT).save(folder / "draft")
    for name in ("target", "draft"):
        export(folder / name, folder / f"{name}.gguf", vocabulary=False)
    return {name: folder / name for name in ("target", "draft")}


def logits_of(folder: Path) -> np.ndarray:
    with torch.no_grad():
        return load_model(folder).answer_logits([TOKENS[:1]], [[*TOKENS[1:], 0]]).numpy()


def test_llama_cpp_computes_the_logits_of_a_trimmed_head(models: dict[str, Path]) -> None:
    """Tokens outside the head are read, and never proposed."""
    expected = logits_of(models["draft"])
    with LlamaCpp(models["draft"].with_suffix(".gguf")) as draft:
        assert draft.vocab_size == 320
        assert draft.describe()["head_tokens"] == len(KEPT)
        found = draft.extend(TOKENS)
        np.testing.assert_allclose(found[:, KEPT], expected[:, KEPT], atol=1e-4)
        assert (found[:, OTHERS] == -np.inf).all()
        draft.trim(0)
        assert draft.greedy(TOKENS).tolist() == expected.argmax(-1).tolist()
        for read in (1, len(TOKENS)):
            draft.trim(0)
            highest = expected[read - 1].argmax()
            confidence = np.exp(expected[read - 1, highest]) / np.exp(expected[read - 1, KEPT]).sum()
            assert draft.guess(TOKENS[:read], 0.99 * confidence) == highest
            draft.trim(0)
            assert draft.guess(TOKENS[:read], 1.01 * confidence) is None
            assert draft.tokens == TOKENS[:read], "the tokens are cached in both cases"


def test_it_accepts_what_replay_counts(models: dict[str, Path]) -> None:
    target, draft = (load_model(models[name]) for name in ("target", "draft"))
    recorded = record(target, [(str(i), p) for i, p in enumerate(passages())], max_new_tokens=16, eos_ids={2})
    walked = replay(draft, recorded, 3)
    with (
        LlamaCpp(models["target"].with_suffix(".gguf")) as big,
        LlamaCpp(models["draft"].with_suffix(".gguf")) as small,
    ):
        check_pair(big, small)
        blocks = []
        for answer in recorded.answers:
            request = (answer.prompt_ids, len(answer.answer_ids))
            run = speculate(big, small, *request, fixed(3))
            assert run.tokens == answer.answer_ids == decode(big, *request).tokens
            blocks.append(len(run.blocks))
        sampled = speculate(big, small, [5, 9], 30, fixed(3), sampling=Sampling(1.0), rng=np.random.default_rng(0))
    assert blocks == walked.blocks.tolist()
    assert walked.accepted.sum() > 20
    assert len(sampled.tokens) == 30


def test_a_file_without_its_table_is_refused_and_freed(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed, free = [], llama_cpp.lib.llama_model_free
    monkeypatch.setattr(llama_cpp.lib, "llama_model_free", lambda model: freed.append(free(model)))
    file = tmp_path / "draft.gguf"
    file.write_bytes(models["draft"].with_suffix(".gguf").read_bytes())
    with pytest.raises(
        UserError, match=f"table of its trimmed head.*{table_path(file).name}|{table_path(file).name}.*table"
    ):
        LlamaCpp(file)
    assert len(freed) == 1


def test_a_file_with_text_has_the_whole_vocabulary(models: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(models["draft"], tmp_path / "draft")
    train_tokenizer(["some text"], 320).save(folder)
    expected = logits_of(folder)
    export(folder, tmp_path / "text.gguf")
    assert not table_path(tmp_path / "text.gguf").exists()
    assert "tokenizer.ggml.tokens" in read_header(tmp_path / "text.gguf").metadata
    with LlamaCpp(tmp_path / "text.gguf") as engine:
        assert engine.greedy(TOKENS).tolist() == expected.argmax(-1).tolist()


def test_a_table_of_another_head_is_refused(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export that is killed after it wrote the table leaves the old file beside it."""
    trim_head(load_model(models["target"]), [token + 1 for token in KEPT]).save(tmp_path / "other")
    file = tmp_path / "draft.gguf"
    export(models["draft"], file, vocabulary=False)
    assert read_head(file, len(KEPT), None).kept.tolist() == KEPT, "files of old versions name no digest"
    with pytest.raises(UserError, match=r"another head than draft\.gguf.*export the draft again"):
        read_head(file, len(KEPT) - 1, None)
    with monkeypatch.context() as patch:
        patch.setattr(gguf, "_write", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            export(tmp_path / "other", file, vocabulary=False)
    with pytest.raises(UserError, match="another head"):
        LlamaCpp(file)
    export(tmp_path / "other", file, vocabulary=False)
    LlamaCpp(file).close()


@pytest.mark.parametrize(("heads", "family"), [(2, "llama"), (3, "llama"), (3, "qwen2"), (3, "qwen3")])
def test_a_widened_draft_computes_the_same_and_proposes_no_other_token(
    models: dict[str, Path], tmp_path: Path, heads: int, family: str
) -> None:
    """In our Llama, in transformers, and in llama.cpp."""
    draft = models["draft"]
    if heads == 3:  # SmolLM2 has 9: 32 added channels are no multiple
        draft, generator = tmp_path / "draft", torch.Generator().manual_seed(0)
        config = LlamaConfig(
            320, 96, 64, 1, heads, heads, 64,
            tie_word_embeddings=False, qkv_bias=family == "qwen2", qk_norm=family == "qwen3",
            rms_norm_eps=0.01 if family == "qwen3" else 1e-5,
        )  # fmt: skip
        model = Llama(config).initialise(generator)
        for name, weight in model.layers[0].named_parameters():
            if name in ("qkv_bias", "query_norm", "key_norm"):
                torch.nn.init.normal_(weight, generator=generator)
            elif name == "output" and family != "llama":
                torch.nn.init.normal_(weight, std=0.3, generator=generator)
        trim_head(model, KEPT).save(draft)
        (draft / "chat_template.jinja").write_text("{{ messages }}")
    (draft / "README.md").write_text("a card")
    expected = logits_of(draft)
    widen(draft, tmp_path / "wide")
    assert (tmp_path / "wide/README.md").read_text() == "a card"
    found = logits_of(tmp_path / "wide")
    np.testing.assert_allclose(found[:, KEPT], expected[:, KEPT], atol=1e-4)
    assert (found[:, OTHERS] < -50).all()
    other = hf.load(tmp_path / "wide", torch.float32, torch.device("cpu"))
    with torch.no_grad():
        theirs = other.answer_logits([TOKENS[:1]], [[*TOKENS[1:], 0]]).numpy()
    np.testing.assert_allclose(theirs, found, atol=1e-3, rtol=1e-4)
    export(tmp_path / "wide", tmp_path / "wide.gguf", "q8_0" if family == "llama" else "f16", vocabulary=False)
    with LlamaCpp(tmp_path / "wide.gguf") as engine:
        theirs = engine.extend(TOKENS).copy()
    assert (theirs[:, OTHERS] < -50).all()
    np.testing.assert_allclose(theirs[:, KEPT], expected[:, KEPT], atol=0.02 * np.abs(expected[:, KEPT]).max())
    if heads == 3:
        assert (tmp_path / "wide/chat_template.jinja").read_text() == "{{ messages }}"
    with pytest.raises(UserError, match="whole vocabulary"):
        widen(models["target"], tmp_path / "again")


@pytest.mark.parametrize("weights", ["f32", "f16", "q8_0", "q4_0"])
def test_a_widened_draft_proposes_no_other_token_where_its_states_are_large(
    tmp_path: Path, weights: gguf.Weights
) -> None:
    config = LlamaConfig(320, 96, 64, 1, 3, 3, 64, tie_word_embeddings=False, rms_norm_eps=1e-6)
    model = Llama(config).initialise(torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.embed.mul_(20_000)  # the last norm divides by about 400
    trim_head(model, KEPT).save(tmp_path / "draft")
    widen(tmp_path / "draft", tmp_path / "wide")
    export(tmp_path / "wide", tmp_path / "wide.gguf", weights, vocabulary=False)
    with LlamaCpp(tmp_path / "wide.gguf") as engine:
        theirs = engine.extend(TOKENS).copy()
    for logits in (logits_of(tmp_path / "wide"), theirs):
        assert (logits[:, OTHERS] < -50).all()


def test_a_folder_that_is_no_model_is_not_replaced(models: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    with pytest.raises(UserError, match=r"it holds mine\.txt, which would be lost"):
        widen(models["draft"], tmp_path)
    with pytest.raises(UserError, match=r"it holds mine\.txt, which would be lost"):
        inflate(models["target"], tmp_path, layers=2)
    widen(models["draft"], tmp_path / "wide")
    widen(models["draft"], tmp_path / "wide")
