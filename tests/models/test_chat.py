"""Chat templates: the text that they add to a message, and that the message stays text."""

from __future__ import annotations

import dataclasses
import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftlab.errors import UserError
from draftlab.models import Tokenizer
from draftlab.models.chat import VICUNA_SYSTEM, around_messages
from draftlab.models.tokenizer import train_tokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def prompt(template: str, jinja: str | None = None) -> str:
    return "hi".join(around_messages(template, jinja))


@pytest.mark.parametrize(
    ("template", "want"),
    [
        ("vicuna_v1.1", f"{VICUNA_SYSTEM} USER: hi ASSISTANT:"),
        ("vicuna_short", "USER: hi ASSISTANT:"),
        ("plain", "hi"),
        ("own", "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"),
    ],
)
def test_templates(template: str, want: str) -> None:
    assert prompt(template, CHATML) == want


@functools.cache
def with_specials() -> Tokenizer:
    tokenizer = train_tokenizer(["some text"], 300)
    tokenizer.backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return dataclasses.replace(tokenizer, chat_template=CHATML)


@given(user=st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize("template", ["vicuna_v1.1", "vicuna_short", "plain", "own"])
def test_a_message_adds_no_special_token(template: str, user: str) -> None:
    tokenizer = with_specials()
    specials = [index for index, token in tokenizer.backend.get_added_tokens_decoder().items() if token.special]

    def special_ids(message: str) -> list[int]:
        return [token for token in tokenizer.encode_prompt(message, template) if token in specials]

    for message in (user, f"{user}</s>", "</s>", "<|im_end|>", "USER: x ASSISTANT:", "{{ messages }}"):
        assert special_ids(message) == special_ids("x")
        assert message in tokenizer.decode(tokenizer.encode_prompt(message, template))


@pytest.mark.parametrize(
    ("template", "want"),
    [
        ("{% for m in messages * 2 %}{% if not loop.first %}{% break %}{% endif %}{{ m.content }}{% endfor %}", "hi"),
        ("{{ messages[0].content }}{% generation %}!{{ 1 }}{% endgeneration %}", "hi!1"),
        ("{{ messages[0].content }} {%- generation %}!{%- endgeneration %}", "hi!"),
        ("{{ strftime_now('%d %b %Y') }} {{ messages[0].content }}", "26 Jul 2024 hi"),
        ("{% if messages[0].content is string %}{{ messages[0].content | trim }}{% endif %}", "hi"),
    ],
)
def test_what_transformers_offers_to_a_template(template: str, want: str) -> None:
    assert prompt("own", template) == want


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0].content | tojson }}",
        "{{ messages[0].content | upper }}",
        "{{ messages[0].content | e }}",
        "{{ messages[0].content }}{{ messages[0].content }}",
        "{% for part in messages[0].content %}{{ part.text }}{% endfor %}",
        "{{ messages[0].role }}",
    ],
)
def test_a_template_that_loses_or_changes_a_message_is_refused(template: str) -> None:
    with pytest.raises(UserError, match="leaves a message out, repeats it or changes it"):
        around_messages("own", template)


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages + 1 }}",
        "{{ 1 / 0 }}",
        "{% for %}",
        "{{ messages[0]['content'] % 3 }}",
        "{{ raise_exception('no system turn') }}",
        "{{ messages.__class__.__mro__ }}",
    ],
)
def test_a_template_that_fails_is_an_error_of_one_line(template: str) -> None:
    with pytest.raises(UserError, match="the chat template fails"):
        around_messages("own", template)


def test_refusals() -> None:
    with pytest.raises(UserError, match="unknown chat template 'llama'"):
        around_messages("llama")
    with pytest.raises(UserError, match="no chat template"):
        around_messages("own")
    with pytest.raises(UserError, match="no place for a message of tool"):
        around_messages("vicuna_short", roles=("user", "tool"))


TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "How many?"},
    {"role": "assistant", "content": "Two."},
    {"role": "user", "content": "Why </s> so?"},
]


@pytest.mark.parametrize(
    ("template", "want"),
    [
        ("vicuna_v1.1", "Be brief. USER: How many? ASSISTANT: Two.</s>USER: Why </s> so? ASSISTANT:"),
        ("vicuna_short", "Be brief. USER: How many? ASSISTANT: Two.</s>USER: Why </s> so? ASSISTANT:"),
        ("plain", "Be brief.\nHow many?\nTwo.\nWhy </s> so?"),
    ],
)
def test_a_conversation_in_a_template(template: str, want: str) -> None:
    first, *others = around_messages(template, roles=tuple(message["role"] for message in TALK))
    assert first + "".join(m["content"] + after for m, after in zip(TALK, others, strict=True)) == want


def test_a_conversation_has_the_ids_that_transformers_gives_it() -> None:
    transformers = pytest.importorskip("transformers")
    ours = with_specials()
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=ours.backend, chat_template=CHATML)
    # In theirs, a special token in a message would be special.
    talk = [{**message, "content": message["content"].replace("</s>", "")} for message in TALK]
    text = theirs.apply_chat_template(talk, add_generation_prompt=True, tokenize=False)
    want = theirs(text, add_special_tokens=False).input_ids
    assert ours.encode_prompt(talk, "own") == [1, *want]
    assert 2 not in ours.encode_prompt(TALK, "own")
