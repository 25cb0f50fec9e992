"""Conversations: odd orders have a stated outcome, and user text never becomes a special token."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftlab.data.conversations import VICUNA_SYSTEM, Segment, Turn, first_request, render, turns
from draftlab.data.fields import BadRow
from draftlab.errors import UserError


def said(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": text} for role, text in pairs]


def test_both_spellings_of_a_message() -> None:
    shared = [{"from": "human", "value": "u"}, {"from": "gpt", "value": "a"}]
    assert (
        turns(shared) == turns(said(("user", "u"), ("assistant", "a"))) == [Turn("user", "u"), Turn("assistant", "a")]
    )


def test_the_assistant_first_is_left_out() -> None:
    found = first_request(said(("assistant", "Hello!"), ("user", "u"), ("assistant", "a")))
    assert (found.text, found.reference) == ("u", "a")


def test_two_user_turns_running_become_one() -> None:
    found = first_request(said(("user", "one"), ("user", "two"), ("assistant", "a"), ("user", "three")))
    assert (found.text, found.reference, found.meta["turns"]) == ("one\ntwo", "a", 2)


def test_the_system_turn_is_kept_apart() -> None:
    found = first_request(said(("system", "Be brief."), ("user", "u")))
    assert (found.text, found.reference, found.meta["system"]) == ("u", None, "Be brief.")


def test_an_empty_answer_is_no_answer() -> None:
    assert first_request(said(("user", "u"), ("assistant", " "))).reference is None
    with pytest.raises(BadRow, match="the text of user is empty"):
        first_request(said(("user", " ")))


@pytest.mark.parametrize(
    ("after", "answer"),
    [
        ([{"role": "assistant", "content": None, "tool_calls": []}, {"role": "tool", "content": "4"}], None),
        ([{"role": "assistant", "content": None}, {"role": "user", "content": "more"}], None),
        ([{"role": "assistant", "content": "a"}, {"role": "robot", "content": "b"}], "a"),
        ([{"role": "assistant", "content": "a"}, {"role": "user", "content": None}], "a"),
        ([{"role": "assistant", "content": "a"}, 7, {"role": "assistant", "content": "b"}], "a"),
        ([{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "tool_use"}]}], "a"),
        ([{"role": "assistant", "content": 7}], None),
        ([{"role": "assistant"}], None),
    ],
)
def test_what_follows_the_first_request_never_loses_it(after: list[object], answer: str | None) -> None:
    found = first_request([{"role": "user", "content": "u"}, *after])
    assert (found.text, found.reference) == ("u", answer)


def test_others_than_the_user_may_say_nothing() -> None:
    call = [{"role": "assistant", "content": None}, {"role": "tool", "content": "4"}]
    found = first_request([{"role": "system", "content": None}, *said(("user", "u")), *call, *said(("user", "more"))])
    assert (found.text, found.reference, found.meta) == ("u", None, {"turns": 2})


def test_parts_of_text_are_joined() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert first_request([{"role": "user", "content": parts}]).text == "one\ntwo"
    with pytest.raises(BadRow, match="a part of what the user says is not text"):
        first_request([{"role": "user", "content": [*parts, {"type": "image_url", "image_url": {}}]}])
    with pytest.raises(BadRow, match="the text of user is empty"):
        first_request([{"role": "user", "content": []}])


def test_a_developer_speaks_as_the_system() -> None:
    found = first_request(said(("system", ""), ("developer", "Be brief."), ("user", "u")))
    assert (found.text, found.meta["system"]) == ("u", "Be brief.")


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
    assert text(render(template, CHAT, own=CHATML)) == want


def test_a_system_turn_replaces_vicunas() -> None:
    assert (
        text(render("vicuna_v1.1", [Turn("system", "Be brief."), Turn("user", "u")])) == "Be brief. USER: u ASSISTANT:"
    )


@given(user=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30).filter(str.strip))
@settings(max_examples=30)
@pytest.mark.parametrize("template", ["vicuna_v1.1", "vicuna_short", "plain", "own"])
def test_what_a_user_types_is_never_the_templates(template: str, user: str) -> None:
    def segments(typed: str, special: bool) -> list[str]:
        chat = [Turn("user", typed), Turn("assistant", "</s>"), Turn("user", "next")]
        return [s.text for s in render(template, chat, own=CHATML) if s.special == special]

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
    assert text(render("own", CHAT[:1], own=template)) == want


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
def test_a_template_that_loses_what_is_said_is_refused(template: str) -> None:
    with pytest.raises(UserError, match="leaves a message out, repeats it or changes it"):
        render("own", CHAT[:1], own=template)


@pytest.mark.parametrize(
    "template", ["{{ messages + 1 }}", "{{ 1 / 0 }}", "{% for %}", "{{ messages[0]['content'] % 3 }}"]
)
def test_a_template_that_fails_is_one_line(template: str) -> None:
    with pytest.raises(UserError, match="the chat template fails"):
        render("own", CHAT, own=template)


def test_refusals() -> None:
    with pytest.raises(UserError, match="unknown chat template 'llama'"):
        render("llama", CHAT)
    with pytest.raises(UserError, match="no chat template"):
        render("own", CHAT)
    with pytest.raises(UserError, match="the chat template fails"):
        render("own", CHAT, own="{{ raise_exception('no system turn') }}")
    with pytest.raises(UserError, match="the chat template fails"):
        render("own", CHAT, own="{{ messages.__class__.__mro__ }}")
