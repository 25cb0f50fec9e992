"""Prompts that a target cannot read are rejections with a reason."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from tokenizers import processors

from draftlab.data.prompts import Prompt
from draftlab.engine import held_out
from draftlab.engine.fitting import fitting
from draftlab.engine.settings import Answers
from draftlab.errors import UserError
from draftlab.files.json_files import write_jsonl
from draftlab.models.tokenizer import train_tokenizer

STRICT = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% for m in messages %}[{{ m.content }}]{% endfor %}"
)
TALK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many?"}]
TOKENIZER = dataclasses.replace(train_tokenizer(["How many are there?"], 300), chat_template=STRICT)
OWN = Answers(template="own", max_new_tokens=4)


def test_a_conversation_that_the_template_refuses_is_rejected_with_its_reason(tmp_path: Path) -> None:
    asked = [
        Prompt("a", "prompts", "train", "How many?"),
        Prompt("b", "prompts", "train", "How many?", conversation=TALK),
        Prompt("c", "prompts", "train", "How many are there? " * 9),
    ]
    write_jsonl(tmp_path / "prompts.jsonl", asked)
    kept, rejected = fitting(tmp_path / "prompts.jsonl", 3, TOKENIZER, OWN, 60)
    assert [name for name, _ in kept] == ["a"]
    length = len(TOKENIZER.encode_prompt(asked[2].text, "own"))
    assert [(each.line, each.row, each.reason) for each in rejected] == [
        (2, "b", "the chat template fails: no system role"),
        (3, "c", f"{length} tokens, but the context has room for 56"),
    ]
    (batch,) = held_out._batches(tmp_path / "prompts.jsonl", 3, 3, TOKENIZER, "own", 56)
    assert [request.number for request in batch] == [0]


def test_a_prompt_without_a_token_is_rejected(tmp_path: Path) -> None:
    """A model cannot answer it. Tokenizers that begin no text with bos, as many do, give none for a text that is dropped."""
    silent = "{% for m in messages if m.content != 'Hidden' %}{{ m.content }}{% endfor %}"
    tokenizer = dataclasses.replace(train_tokenizer(["How many are there?"], 300), chat_template=silent)
    tokenizer.backend.post_processor = processors.Sequence([])
    asked = [Prompt(name, "prompts", "train", text) for name, text in {"a": "Hidden", "b": "How many?"}.items()]
    write_jsonl(tmp_path / "prompts.jsonl", asked)
    kept, rejected = fitting(tmp_path / "prompts.jsonl", 2, tokenizer, OWN, 60)
    assert [name for name, _ in kept] == ["b"]
    assert [(each.row, each.reason.partition(":")[0]) for each in rejected] == [("a", "no token")]
    (batch,) = held_out._batches(tmp_path / "prompts.jsonl", 2, 2, tokenizer, "own", 56)
    assert [request.number for request in batch] == [1]
    write_jsonl(tmp_path / "prompts.jsonl", asked[:1])
    with pytest.raises(UserError, match="no prompt can be used: no token"):
        fitting(tmp_path / "prompts.jsonl", 1, tokenizer, OWN, 60)


def test_a_template_that_refuses_all_is_an_error(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "prompts.jsonl", [Prompt("b", "prompts", "train", "How many?", conversation=TALK)])
    with pytest.raises(UserError, match="no prompt can be used: the chat template fails: no system role"):
        fitting(tmp_path / "prompts.jsonl", 1, TOKENIZER, OWN, 60)
    broken = dataclasses.replace(TOKENIZER, chat_template="{{ raise_exception('never') }}")
    write_jsonl(tmp_path / "prompts.jsonl", [Prompt("a", "prompts", "train", "How many?")])
    with pytest.raises(UserError, match=r"^the chat template fails: never"):
        fitting(tmp_path / "prompts.jsonl", 1, broken, OWN, 60)


def test_the_tools_that_a_prompt_offers_are_read(tmp_path: Path) -> None:
    tokenizer = dataclasses.replace(TOKENIZER, chat_template="{{ tools | tojson if tools }}{{ messages[0].content }}")
    tools = [{"type": "function", "function": {"name": "count"}}]
    write_jsonl(tmp_path / "prompts.jsonl", [Prompt("a", "prompts", "train", "How many?", tools=tools)])
    ((_, ids),), _ = fitting(tmp_path / "prompts.jsonl", 1, tokenizer, OWN, 900)
    assert tokenizer.decode(ids) == f"{json.dumps(tools)}How many?"


@pytest.mark.parametrize("requests", [0, -1])
def test_fewer_than_one_request_is_refused(requests: int, tmp_path: Path) -> None:
    """The first 0 prompts fit no context, and a number below 0 was never reached."""
    write_jsonl(tmp_path / "prompts.jsonl", [Prompt("a", "prompts", "train", "How many?")])
    with pytest.raises(UserError, match=f"requests is {requests}"):
        fitting(tmp_path / "prompts.jsonl", requests, TOKENIZER, OWN, 60)
