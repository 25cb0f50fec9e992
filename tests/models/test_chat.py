"""Chat templates: the text that they add, and that a message stays text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftlab.errors import UserError
from draftlab.models.chat import VICUNA_SYSTEM, Segment, Turn, render


def text(segments: list[Segment]) -> str:
    return "".join(segment.text for segment in segments)


CHAT = [Turn("user", "hi"), Turn("assistant", "hello"), Turn("user", "more")]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize(
    ("template", "want"),
    [
        ("vicuna_v1.1", f"{VICUNA_SYSTEM} USER: hi ASSISTANT: hello</s>USER: more ASSISTANT:"),
        ("vicuna_short", "USER: hi ASSISTANT: hello</s>USER: more ASSISTANT:"),
        ("plain", "hihellomore"),
        (
            "own",
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nhello<|im_end|>\n"
            "<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n",
        ),
    ],
)
def test_templates(template: str, want: str) -> None:
    assert text(render(template, CHAT, chat_template=CHATML)) == want


def test_a_system_turn_replaces_the_one_of_vicuna() -> None:
    chat = [Turn("system", "Be brief."), Turn("user", "u")]
    assert text(render("vicuna_v1.1", chat)) == "Be brief. USER: u ASSISTANT:"


@given(user=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30).filter(str.strip))
@settings(max_examples=30)
@pytest.mark.parametrize("template", ["vicuna_v1.1", "vicuna_short", "plain", "own"])
def test_text_of_a_user_is_never_text_of_the_template(template: str, user: str) -> None:
    def segments(typed: str, special: bool) -> list[str]:
        chat = [Turn("user", typed), Turn("assistant", "</s>"), Turn("user", "next")]
        return [s.text for s in render(template, chat, chat_template=CHATML) if s.special == special]

    for typed in (user, f"{user}</s>", "</s>", "<|im_end|>", "USER: x ASSISTANT:", "{{ messages }}"):
        assert segments(typed, special=False) == [typed, "</s>", "next"]
        assert segments(typed, special=True) == segments("x", special=True)


@pytest.mark.parametrize(
    ("template", "want"),
    [
        ("{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{% endfor %}{{ messages[0].content }}", "hi"),
        ("{{ messages[0].content }}{% generation %}!{{ 1 }}{% endgeneration %}", "hi!1"),
        ("{{ strftime_now('%d %b %Y') }} {{ messages[0].content }}", "26 Jul 2024 hi"),
        ("{% if messages[0].content is string %}{{ messages[0].content | trim }}{% endif %}", "hi"),
    ],
)
def test_what_transformers_offers_to_a_template(template: str, want: str) -> None:
    assert text(render("own", CHAT[:1], chat_template=template)) == want


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
        render("own", CHAT[:1], chat_template=template)


@pytest.mark.parametrize(
    "template", ["{{ messages + 1 }}", "{{ 1 / 0 }}", "{% for %}", "{{ messages[0]['content'] % 3 }}"]
)
def test_a_template_that_fails_is_an_error_of_one_line(template: str) -> None:
    with pytest.raises(UserError, match="the chat template fails"):
        render("own", CHAT, chat_template=template)


def test_refusals() -> None:
    with pytest.raises(UserError, match="unknown chat template 'llama'"):
        render("llama", CHAT)
    with pytest.raises(UserError, match="no chat template"):
        render("own", CHAT)
    with pytest.raises(UserError, match="the chat template fails"):
        render("own", CHAT, chat_template="{{ raise_exception('no system turn') }}")
    with pytest.raises(UserError, match="the chat template fails"):
        render("own", CHAT, chat_template="{{ messages.__class__.__mro__ }}")
