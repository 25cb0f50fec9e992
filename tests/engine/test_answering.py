"""Answers from llama.cpp in process and from a server: the record that torch gives, whatever the network does."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from urllib3 import Retry

from draftlab import plan
from draftlab.core.sampling import Sampling, to_probs
from draftlab.data.prompts import Prompt
from draftlab.engine import answering, llama_cpp, server
from draftlab.engine.recording import TargetPass, load_pass
from draftlab.engine.replay import agree_along
from draftlab.engine.settings import Answers
from draftlab.errors import UserError
from draftlab.files.json_files import read_object, write_json, write_jsonl
from draftlab.models import load_model, load_tokenizer, products
from draftlab.models.config import read_sizes
from draftlab.models.gguf import export
from draftlab.models.gguf_import import write_folder
from draftlab.models.llama_cpp import LlamaCpp
from draftlab.models.tokenizer import train_tokenizer
from tests.fake_server import FakeServer, serve
from tests.pair import VOCAB, small_llama

KEEP, REQUESTS = 24, 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with sharp answers that are not text, a tokenizer and prompts."""
    folder = tmp_path_factory.mktemp("served")
    small_llama(32, 0, scale=6.0).save(folder / "target")
    train_tokenizer([f"some text {i * i}" for i in range(400)], VOCAB).save(folder / "target")
    write_jsonl(folder / "prompts.jsonl", [Prompt(f"p/{i}", "toy", "train", f"text {i * i}") for i in range(REQUESTS)])
    return folder


@pytest.fixture(autouse=True)
def _in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "RETRIES", server.RETRIES.new(backoff_factor=0.0))


def answers(folder: Path, parts: Path | None = None, temperature: float = 0.0, **settings: Any) -> TargetPass:
    how = Answers.model_validate({"max_new_tokens": 12, "template": "plain", "batch": 4, "keep": KEEP} | settings)
    prompts, sampling = folder / "prompts.jsonl", how.sampling(temperature)
    return answering.answer(folder / "target", prompts, REQUESTS, how, sampling=sampling, parts=parts)[0]


def toy(folder: Path, **settings: Any) -> FakeServer:
    return FakeServer(load_model(folder / "target"), load_tokenizer(folder / "target"), **settings)


def asked(server: FakeServer, folder: Path, **settings: Any) -> TargetPass:
    return answers(folder, engine="openai", url=server.url, **settings)


def assert_same(found: TargetPass, exact: TargetPass) -> None:
    """The same answers, the same probabilities of the kept tokens, and the same mass of all others."""
    assert found.answers == exact.answers
    assert found.ids is not None
    whole, ids = exact.target_logits(range(REQUESTS)).exp(), found.ids.long()
    assert ids.shape[1] == KEEP
    probs = found.log_probs.float().exp()
    torch.testing.assert_close(probs[:, :-1], whole.gather(-1, ids), atol=1e-3, rtol=0)
    others = whole.scatter(-1, ids, 0.0)
    torch.testing.assert_close(probs[:, -1], others.sum(-1), atol=1e-3, rtol=0)
    emitted = torch.tensor([token for answer in found.answers for token in answer.answer_ids])
    assert (ids == emitted[:, None]).any(-1).all()
    assert (others.topk(2).values[:, 1] <= whole.gather(-1, ids).min(-1).values + 1e-3).all()


@pytest.mark.parametrize("dialect", ["llama.cpp", "vllm"])
def test_a_server_gives_the_record_that_torch_gives(dialect: str, folder: Path, tmp_path: Path) -> None:
    with serve(toy(folder, dialect=dialect)) as toys:
        found = asked(toys, folder)
    exact = answers(folder)
    assert_same(found, exact)
    assert toys.hidden > 0 or dialect == "vllm"
    assert 1 < toys.together <= 4
    version = "b7-abc" if dialect == "llama.cpp" else "0.11"
    by = {"llama.cpp": "llamacpp", "vllm": "vllm"}[dialect]
    assert found.engine == {"name": "openai", "model": "toy", "server": by, "version": version}
    found.save(tmp_path / "pass")
    assert load_pass(tmp_path / "pass").engine == found.engine
    one, other = (agree_along(small_llama(16, 1), record) for record in (exact, load_pass(tmp_path / "pass")))
    np.testing.assert_array_equal(other.ratio, one.ratio)


def test_llama_cpp_in_process_gives_the_record_that_torch_gives(folder: Path, tmp_path: Path) -> None:
    exact, found = answers(folder), answers(folder, engine="llama_cpp")
    assert found.answers == exact.answers
    torch.testing.assert_close(found.log_probs.float().exp(), exact.log_probs.float().exp(), atol=2e-3, rtol=0)
    assert found.forwards == exact.forwards
    assert found.engine["name"] == "llama_cpp"
    assert found.engine["weights"] == "f32"
    export(folder / "target", tmp_path / "target.gguf")
    (tmp_path / "prompts.jsonl").symlink_to(folder / "prompts.jsonl")
    how = Answers(max_new_tokens=12, template="plain", batch=4, engine="llama_cpp")
    again, _ = answering.answer(tmp_path / "target.gguf", tmp_path / "prompts.jsonl", REQUESTS, how)
    assert again.answers == exact.answers


def test_answers_above_temperature_0_stay_among_the_tokens_that_top_k_and_top_p_leave() -> None:
    how = Answers(max_new_tokens=12, top_k=2, top_p=0.9, min_p=0.1)
    assert how.sampling(0) == Sampling(0.0)
    assert how.sampling(0.7) == Sampling(0.7, top_k=2, top_p=0.9, min_p=0.1)


def test_recorded_tokens_are_among_the_most_probable_two(folder: Path, tmp_path: Path) -> None:
    how = Answers(max_new_tokens=12, template="plain", batch=4, keep=KEEP, top_k=2)
    places = {"target": folder / "target", "prompts": folder / "prompts.jsonl", "out": tmp_path / "answers"}
    answering.answer_file(how, **places, requests=REQUESTS, temperature=1.0)
    found = load_pass(tmp_path / "answers")
    assert found.sampling == Sampling(1.0, top_k=2)
    written = torch.tensor([token for answer in found.answers for token in answer.answer_ids])
    ranks = (found.log_probs > found.log_probs.gather(1, written[:, None])).sum(1)
    assert 0 < ranks.max() <= 1


@pytest.mark.parametrize(("is_fast", "weights"), [(True, "bf16"), (False, "f32")])
def test_fast_weights_in_llama_cpp_are_not_quantized(
    is_fast: bool, weights: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "has_fast_bfloat16", lambda device: is_fast)
    assert answers(folder, engine="llama_cpp", dtype="fast").engine["weights"] == weights


def test_a_file_that_is_gone_is_not_replaced_by_other_weights(folder: Path, tmp_path: Path) -> None:
    """An export of the folder would have the number type of the settings, and write other answers."""
    export(folder / "target", tmp_path / "target.gguf", "q8_0")
    write_folder(tmp_path / "target.gguf", tmp_path / "target")
    how = Answers(max_new_tokens=12, engine="llama_cpp")
    with llama_cpp.open_gguf(tmp_path / "target", how) as target:
        target.prefill([[1, 2]], 1)
        assert target.description["weights"] == "q8_0"
    (tmp_path / "target.gguf").unlink()
    gone = pytest.raises(UserError, match=r"target\.gguf .put it back, or set answers\.engine to transformers")
    with gone, llama_cpp.open_gguf(tmp_path / "target", how):
        pytest.fail("it has other weights")


def test_a_model_is_not_opened_again_where_its_cache_has_room(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(folder / "target", tmp_path / "target.gguf", vocabulary=False)
    opened: list[LlamaCpp] = []

    def watched(*given: Any) -> LlamaCpp:
        opened.append(LlamaCpp(*given))
        return opened[-1]

    monkeypatch.setattr(llama_cpp, "LlamaCpp", watched)
    target = llama_cpp.GgufTarget(tmp_path / "target.gguf", read_sizes(folder / "target"))
    for length in (10, 40, 256, 257):
        target.decoder().prefill([[1] * 4], length - 4)
    target.close()
    assert len(opened) == 2, "llama.cpp makes room for a multiple of 256 tokens"


def test_a_server_leaves_out_the_tokens_that_min_p_does(folder: Path) -> None:
    with serve(toy(folder, dialect="vllm")) as toys:
        found = asked(toys, folder, temperature=1.0, min_p=1.0)
    assert found.sampling == Sampling(1.0, min_p=1.0)
    assert found.answers == answers(folder).answers, "the most probable token alone is left"


def test_sampled_answers_follow_the_seed_and_keep_the_distribution_before_sampling(folder: Path) -> None:
    with serve(toy(folder, dialect="vllm")) as toys:
        one, other = (asked(toys, folder, temperature=0.7) for _ in range(2))
    assert one.answers == other.answers
    assert one.answers != answers(folder).answers
    model = load_model(folder / "target")
    pairs = [(answer.prompt_ids, answer.answer_ids) for answer in one.answers]
    whole = model.answer_logits(*zip(*pairs, strict=True)).softmax(-1)
    torch.testing.assert_close(one.log_probs[:, :-1].float().exp(), whole.gather(-1, one.ids.long()), atol=1e-3, rtol=0)
    emitted = torch.tensor([token for answer in one.answers for token in answer.answer_ids])
    assert (one.ids == emitted[:, None]).any(-1).all()
    with serve(toy(folder)) as toys, pytest.raises(UserError, match="leaves out sampled tokens"):
        asked(toys, folder, temperature=0.7)


def test_a_server_that_draws_tokens_which_it_does_not_name_is_refused_where_they_weigh_much(folder: Path) -> None:
    with serve(toy(folder, dialect="vllm")) as toys:
        with pytest.raises(UserError, match=r"temperature 1\.5 also draws tokens that it does not name"):
            asked(toys, folder, temperature=1.5)
        assert asked(toys, folder, temperature=1.5, top_k=4).sampling == Sampling(1.5, top_k=4)


def test_a_server_names_all_tokens_that_are_drawn_from(folder: Path) -> None:
    """With fewer, replay would draw the others of top-k from the whole vocabulary."""
    with serve(toy(folder, dialect="vllm")) as toys:
        found = asked(toys, folder, temperature=1.5, top_k=4 * KEEP)
    prompts, written = zip(*[(answer.prompt_ids, answer.answer_ids) for answer in found.answers], strict=True)
    exact = to_probs(load_model(folder / "target").answer_logits(prompts, written), found.sampling)
    replayed = to_probs(found.target_logits(range(REQUESTS), to_sample=True), found.sampling)
    torch.testing.assert_close(replayed, exact, atol=1e-3, rtol=0)


def test_a_server_that_leaves_out_a_whole_answer_is_asked_for_its_tokens(folder: Path) -> None:
    for length in (1, 2, 3):
        with serve(toy(folder)) as toys:
            found = asked(toys, folder, max_new_tokens=length)
        assert found.answers == answers(folder, max_new_tokens=length).answers


def test_a_llama_cpp_server_that_says_nothing_of_any_token_is_one_line(folder: Path) -> None:
    def silent(reply: dict[str, Any]) -> None:
        reply["choices"][0]["logprobs"] = None

    with serve(toy(folder, change=silent)) as toys, pytest.raises(UserError, match="has no log-probabilities"):
        asked(toys, folder)


def test_an_answer_ends_where_the_folder_says_even_if_the_server_stops_later(folder: Path) -> None:
    with serve(toy(folder, dialect="vllm", stops=False)) as toys:
        assert_same(asked(toys, folder), answers(folder))


def test_every_version_of_vllm_understands_that_no_top_k_is_set(folder: Path) -> None:
    """Those before 0.9 refuse 0: "top_k must be -1 (disable), or at least 1"."""

    def fault(_: int, body: dict[str, Any]) -> int:
        return 200 if body["top_k"] == -1 or body["top_k"] >= 1 else 400

    with serve(toy(folder, dialect="vllm", fault=fault)) as toys:
        assert_same(asked(toys, folder), answers(folder))
        assert asked(toys, folder, temperature=1.0, top_k=4).sampling == Sampling(1.0, top_k=4)


def test_a_busy_server_is_asked_again(folder: Path) -> None:
    def fault(number: int, _: object) -> int:
        return {1: 429, 2: 500, 3: 0, 5: 503}.get(number, 200)

    with serve(toy(folder, dialect="vllm", fault=fault)) as toys:
        found = asked(toys, folder)
    assert_same(found, answers(folder))
    assert toys.number == REQUESTS + 4
    assert set(toys.requests.values()) == {1}


def test_a_killed_server_loses_and_doubles_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a server that comes back at another address; another version of the server starts again."""
    monkeypatch.setattr(server, "RETRIES", Retry(1, status_forcelist=[], allowed_methods=None))
    with (
        serve(toy(folder, dialect="vllm", fault=lambda number, _: 200 if number <= 5 else 0)) as toys,
        pytest.raises(UserError, match=r"the server does not answer.*finished answers are kept"),
    ):
        asked(toys, folder, parts=tmp_path)
    kept = len(list(tmp_path.rglob("*.safetensors")))
    assert kept == 5
    with serve(toy(folder, dialect="vllm")) as again:
        found = asked(again, folder, parts=tmp_path, batch=3)
    assert_same(found, answers(folder))
    assert sum(again.requests.values()) == REQUESTS - kept
    assert not set(toys.requests) & set(again.requests)
    with serve(toy(folder)) as other:
        asked(other, folder, parts=tmp_path)
    assert len(other.requests) >= REQUESTS


@pytest.mark.parametrize("change", ["eos_token_id", "rms_norm_eps"])
def test_answers_are_not_continued_with_another_end_or_another_config(
    folder: Path, tmp_path: Path, change: str
) -> None:
    """The weights stay the same, and only the first batch was answered."""
    shutil.copytree(folder, tmp_path / "own")
    file = tmp_path / "own/target/config.json"
    before = answers(tmp_path / "own", tmp_path / "parts")
    for part in sorted((tmp_path / "parts").rglob("*.safetensors"))[1:]:
        part.unlink()
    value = before.answers[0].answer_ids[4] if change == "eos_token_id" else 0.1
    write_json(file, read_object(file) | {change: value})
    after = answers(tmp_path / "own", tmp_path / "parts")
    assert after.answers == answers(tmp_path / "own").answers != before.answers


def _texts(reply: dict[str, Any]) -> None:
    said = reply["choices"][0]["logprobs"]
    said["tokens"] = ["the"] * len(said["tokens"])


def _nothing_likely(reply: dict[str, Any]) -> None:
    said = reply["choices"][0]["logprobs"]
    said["top_logprobs"] = [None] * len(said["top_logprobs"])


@pytest.mark.parametrize(
    ("settings", "asks", "message"),
    [
        ({"shift": 1}, {}, "reads a text as tokens"),
        ({"change": lambda reply: reply["choices"][0].pop("logprobs")}, {}, "no log-probabilities by token id"),
        ({"change": lambda reply: reply["choices"][0].update(logprobs=None)}, {}, "no log-probabilities by token id"),
        ({"change": _texts}, {}, "no log-probabilities by token id"),
        ({"change": _nothing_likely}, {}, "no log-probabilities by token id"),
        (
            {"change": lambda reply: [top.popitem() for top in reply["choices"][0]["logprobs"]["top_logprobs"]]},
            {},
            f"names {KEEP - 1} tokens at a position, but {KEEP} were asked for",
        ),
        ({"fault": lambda *_: 400}, {}, r"says 400: no luck.*answers\.keep"),
        ({"key": "secret-of-mine"}, {}, "says 401.*DRAFTLAB_API_KEY"),
        ({}, {"served": "other"}, "other was expected, but it serves toy"),
        ({"room": 12}, {}, "the target's context of 12 tokens"),
    ],
)
def test_a_server_that_cannot_serve_is_one_line(
    settings: dict[str, Any], asks: dict[str, Any], message: str, folder: Path, tmp_path: Path
) -> None:
    with serve(toy(folder, dialect="vllm", **settings)) as toys, pytest.raises(UserError, match=message) as error:
        asked(toys, folder, parts=tmp_path, **asks)
    assert "\n" not in str(error.value)


def test_the_key_is_sent_and_never_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("DRAFTLAB_API_KEY", "secret-of-mine")
    with serve(
        toy(folder, dialect="vllm", key="secret-of-mine", fault=lambda number, _: 429 if number == 1 else 200)
    ) as toys:
        found = asked(toys, folder)
    assert len(found.answers) == REQUESTS
    with (
        serve(toy(folder, dialect="vllm", fault=lambda *_: 400)) as toys,
        pytest.raises(UserError, match="no luck with Bearer …") as error,
    ):
        asked(toys, folder)
    assert "secret-of-mine" not in f"{error.value}{found.engine}{caplog.text}"
    assert caplog.records


def test_prompts_that_are_too_long_for_the_server_are_left_out(folder: Path) -> None:
    lengths = [len(answer.prompt_ids) for answer in answers(folder).answers]
    with serve(toy(folder, dialect="vllm", room=12 + min(lengths))) as toys:
        found = asked(toys, folder)
    assert 0 < len(found.answers) == lengths.count(min(lengths)) < REQUESTS


def test_a_target_without_a_limit_on_a_server_without_a_limit_has_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A T5 has relative positions."""
    monkeypatch.setattr(server, "read_sizes", lambda _: {"vocab_size": VOCAB})
    with serve(toy(folder, dialect="vllm", room=0)) as toys:
        assert_same(asked(toys, folder), answers(folder))


def test_answers_replace_nothing_but_answers(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistyped folder costs neither its files nor hours of answers."""
    shutil.copytree(folder / "target", tmp_path / "target")
    (tmp_path / "notes.txt").touch()
    monkeypatch.chdir(tmp_path)
    given = {"target": Path("target"), "prompts": folder / "prompts.jsonl", "requests": 2}
    how = Answers(max_new_tokens=1, template="plain")
    real = answering.answer
    monkeypatch.setattr(answering, "answer", lambda *_, **__: pytest.fail("the target answered"))
    for out, held in ((".", "notes.txt"), ("target", "config.json")):
        with pytest.raises(UserError, match=f"it holds {held}, which would be lost"):
            answering.answer_file(how, **given, out=Path(out))
    monkeypatch.setattr(answering, "answer", real)
    save = answering.save

    def saved_beside_another(*written: Any) -> None:
        save(*written)
        shutil.rmtree(".answers.parts")

    monkeypatch.setattr(answering, "save", saved_beside_another)
    for _ in range(2):
        answering.answer_file(how, **given, out=Path("answers"))
    assert {path.name for path in tmp_path.iterdir()} == {"answers", "notes.txt", "target"}


@pytest.mark.parametrize(
    "settings",
    [
        {"engine": "openai"},
        {"url": "http://localhost/v1"},
        {"engine": "openai", "url": "localhost:8000"},
        {"engine": "openai", "url": "http://me:secret@localhost/v1"},
        {"engine": "openai", "url": "http://localhost/v1?key=secret"},
    ],
)
def test_a_url_is_given_with_its_engine_and_without_a_key(settings: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="url is"):
        Answers(max_new_tokens=1, **settings)


def test_a_run_names_its_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    chosen = {"engine": "openai", "url": "http://localhost:8000/v1", "batch": 8}
    pairs = plan.load_run({"scale": "smoke", "answers": chosen}, plan.WORKFLOW).settings.pairs
    assert {key: getattr(pairs["main"].answers, key) for key in chosen} == chosen
    assert pairs["main"].answers.max_new_tokens == 32
    assert {pair.answers.engine for name, pair in pairs.items() if name != "main"} == {"transformers"}
    for wrong, message in ({"engine": "openai"}, "give both or neither"), ({"motor": "x"}, "unknown key 'motor'"):
        with pytest.raises(UserError, match=f"--config: answers.*{message}"):
            plan.load_run({"scale": "smoke", "answers": wrong}, plan.WORKFLOW)
