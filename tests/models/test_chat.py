"""Chat templates: the text that they add to a message, and that the message stays text."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftlab.errors import UserError
from draftlab.models import Tokenizer
from draftlab.models.chat import VICUNA_SYSTEM, Piece, pieces
from draftlab.models.tokenizer import train_tokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


HI = [{"role": "user", "content": "hi"}]


def text_of(found: list[Piece]) -> str:
    return "".join(piece.text for piece in found)


def prompt(template: str, jinja: str | None = None) -> str:
    return text_of(pieces(template, HI, jinja))


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
        assert message.strip() in tokenizer.decode(tokenizer.encode_prompt(message, template))


@pytest.mark.parametrize(
    ("template", "want"),
    [
        ("{% for m in messages * 2 %}{% if not loop.first %}{% break %}{% endif %}{{ m.content }}{% endfor %}", "hi"),
        ("{{ messages[0].content }}{% generation %}!{{ 1 }}{% endgeneration %}", "hi!1"),
        ("{{ messages[0].content }} {%- generation %}!{%- endgeneration %}", "hi!"),
        ("{{ strftime_now('%d %b %Y') }} {{ messages[0].content }}", "26 Jul 2024 hi"),
        ("{% if messages[0].content is string %}{{ messages[0].content | trim }}{% endif %}", "hi"),
        ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", "hi</s>"),
        ("{% if tools is none and documents is none %}{{ messages[0].content | tojson }}{% endif %}", '"hi"'),
    ],
)
def test_what_transformers_offers_to_a_template(template: str, want: str) -> None:
    assert prompt("own", template) == want


@pytest.mark.parametrize(
    "template",
    [
        "{% for part in messages[0].content %}{{ part.text }}{% endfor %}",
        "{{ messages[0].role }}",
    ],
)
def test_a_template_that_loses_what_is_asked_is_refused(template: str) -> None:
    with pytest.raises(UserError, match="leaves out what is asked"):
        pieces("own", HI, template)


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages + 1 }}",
        "{{ 1 / 0 }}",
        "{% for %}",
        "{{ messages[0]['content'] % 3 }}",
        "{{ raise_exception('no system turn') }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ raise_exception('') }}",
    ],
)
def test_a_template_that_fails_is_an_error_of_one_line(template: str) -> None:
    with pytest.raises(UserError, match=r"the chat template fails: \w"):
        pieces("own", HI, template)


def test_refusals() -> None:
    with pytest.raises(UserError, match="unknown chat template 'llama'"):
        pieces("llama", HI)
    with pytest.raises(UserError, match="no chat template"):
        pieces("own", HI)
    with pytest.raises(UserError, match="no place for a message of tool"):
        pieces("vicuna_short", [*HI, {"role": "tool", "content": "4"}])


def test_a_rendered_prompt_has_the_special_tokens_of_its_template() -> None:
    tokenizer = with_specials()
    prompt = tokenizer.encode_prompt("hi", "own")
    whole = text_of(pieces("own", HI, CHATML))
    for text in (whole, f"<s>{whole}"):  # bos is not doubled
        assert tokenizer.encode_prompt(text, "rendered") == prompt
        assert tokenizer.encode_prompt(text, "plain") != prompt
    assert tokenizer.encode_prompt("hi", "rendered") == tokenizer.encode_prompt("hi", "plain")
    for messages, tools in ((TALK, []), (HI, [{"name": "f"}])):
        with pytest.raises(UserError, match="a conversation or tools"):
            tokenizer.encode_prompt(messages, "rendered", tools)


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
    assert text_of(found := pieces(template, TALK)) == want
    assert [piece.text for piece in found if not piece.is_template] == [message["content"] for message in TALK]


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


LAST = "{{ messages[-1].content }}"


@pytest.mark.parametrize(
    ("template", "want"),
    [
        # the system prompt comes last, as in some releases of Mistral
        ("[{{ messages[1].content }}|{{ messages[0].content }}]" + LAST, ["How many?", "Be brief.", "Why </s> so?"]),
        (
            "{{ messages[1].content | trim }}{{ messages[1].content }}" + LAST,
            ["How many?", "How many?", "Why </s> so?"],
        ),
        # a content is cut anywhere: then all is the template's, as for a server
        ("{{ messages[2].content.split('w')[-1] }}" + LAST, []),
        ("{{ messages[2].content | tojson }}" + LAST, ["Two.", "Why </s> so?"]),
        ("{{ messages[2].content }}{{ messages[-1].content | upper }}", []),
        (LAST + "{% if 'so' in messages[-1].content %}!{% endif %}", []),
        (
            "{% if '\ue000' in LAST %}{{ raise_exception('a mark') }}{% endif %}LAST".replace(
                "LAST", "messages[-1].content", 1
            ).replace("LAST", LAST),
            [],
        ),
    ],
)
def test_a_template_may_move_repeat_and_change_what_was_said_before(template: str, want: list[str]) -> None:
    found = pieces("own", TALK, template)
    assert [piece.text for piece in found if not piece.is_template] == want
    assert text_of(found) == transformers_text(TALK, template)


def test_a_content_that_is_written_as_json_stays_text() -> None:
    talk = [{"role": "user", "content": 'say "hi"\n</s>'}, {"role": "tool", "content": '{"é": "<b>\\n"}'}]
    template = "{% for m in messages %}{{ m.content | tojson }}{% endfor %}"
    found = pieces("own", talk, template)
    assert [piece.text for piece in found if not piece.is_template] == [r"say \"hi\"\n</s>", r"{\"é\": \"<b>\\n\"}"]
    assert text_of(found) == transformers_text(talk, template)


def test_the_space_around_a_content_goes_where_the_template_trims_it() -> None:
    talk = [{"role": "user", "content": "\nhi </s> "}]
    assert [piece.text for piece in pieces("own", talk, CHATML)][1] == "hi </s>"
    assert [piece.text for piece in pieces("own", talk, LAST)] == ["\nhi </s> "]


TOOLS = [{"type": "function", "function": {"name": "add", "description": "<b> & é", "parameters": {"type": "object"}}}]
AGENT = [
    {"role": "user", "content": "2 + 3?"},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "add", "arguments": {"x": [2, 3]}}}]},
    {"role": "tool", "content": "</s>5", "tool_call_id": "a"},
]  # fmt: skip
CALLS = (
    "{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "{% for m in messages %}{{ m.role }}{% if m.content %}: {{ m.content }}{% endif %}"
    "{% for call in m.tool_calls %}{{ call.function.name }} {{ call.function.arguments | tojson(indent=2) }}{% endfor %}"
    "{% if m.tool_call_id %} for {{ m.tool_call_id }}{% endif %}\n{% endfor %}"
)


def test_calls_and_tools_stand_where_the_template_writes_them() -> None:
    found = pieces("own", AGENT, CALLS, TOOLS)
    assert text_of(found) == transformers_text(AGENT, CALLS, TOOLS)
    assert "<b> & é" in text_of(found)
    assert [piece.text for piece in found if not piece.is_template] == ["2 + 3?", "</s>5"]
    assert text_of(pieces("plain", AGENT, tools=TOOLS)) == "2 + 3?\n</s>5"
    tokenizer = dataclasses.replace(with_specials(), chat_template=CALLS)
    ids = tokenizer.encode_prompt(AGENT, "own", TOOLS)
    assert tokenizer.decode(ids) == text_of(found)
    assert 2 not in ids


EACH = "{% for m in messages %}WHAT|{% endfor %}"
AS_TEXT = "{{ m.content }}{% for c in m.tool_calls %}{{ c.function.name + c.function.arguments }}{% endfor %}"
WITHOUT_CONTENT = "{% if m.content is none %}{{ m.tool_calls[0].function.WHAT }}{% else %}{{ m.content }}{% endif %}"


@pytest.mark.parametrize(
    ("what", "want"),
    [
        (AS_TEXT, 'add{"é": [2, 3]}'),
        (WITHOUT_CONTENT.replace("WHAT", "name"), "add"),
        (WITHOUT_CONTENT.replace("WHAT", "name + m.tool_calls[0].function.arguments"), 'add{"é": [2, 3]}'),
        (WITHOUT_CONTENT.replace("WHAT", "arguments | length"), ""),  # no name: not known as a call
        ("{{ m.content }}{% for c in m.tool_calls %}{{ '' + c.function.arguments }}{% endfor %}", '{"é": [2, 3]}'),
        ("{{ '' + m.content }}", ""),
    ],
)
def test_calls_have_the_form_that_the_template_reads(what: str, want: str) -> None:
    called = {"function": {"name": "add", "arguments": {"é": [2, 3]}}}
    talk = [AGENT[0], {"role": "assistant", "content": "", "tool_calls": [called]}, AGENT[2]]
    found = pieces("own", talk, EACH.replace("WHAT", what))
    assert text_of(found) == f"2 + 3?|{want}|</s>5|"
    assert [piece.text for piece in found if not piece.is_template] == ["2 + 3?", "</s>5"]


def test_the_form_with_most_calls_is_written() -> None:
    """Beside a content this template writes none, in whatever form."""
    calls = [{"function": {"name": "add", "arguments": {}}}]
    talk = [
        AGENT[0],
        *({"role": "assistant", "content": said, "tool_calls": calls} for said in ("", "Wait.")),
        AGENT[2],
    ]
    found = pieces("own", talk, EACH.replace("WHAT", WITHOUT_CONTENT.replace("WHAT", "name")))
    assert text_of(found) == "2 + 3?|add|Wait.|</s>5|"


def test_a_content_that_a_template_refuses_beside_reasoning_and_calls_is_left_out() -> None:
    refuses = "{% if m.content and m.thinking %}{{ raise_exception('both') }}{% endif %}"
    both = {**AGENT[1], "content": "Wait.", "reasoning_content": "hm"}
    template = EACH.replace("WHAT", refuses + "{{ m.content }}{{ m.thinking }}")
    assert text_of(pieces("own", [AGENT[0], both, AGENT[2]], template)) == "2 + 3?|hm|</s>5|"
    kept = EACH.replace("WHAT", "{{ m.content }}{{ m.thinking }}")
    assert text_of(pieces("own", [AGENT[0], both, AGENT[2]], kept)) == "2 + 3?|Wait.hm|</s>5|"
    with pytest.raises(UserError, match="both"):  # without calls there is no other form
        pieces("own", [AGENT[0], {"role": "assistant", "content": "a", "reasoning_content": "b"}, AGENT[2]], template)


def test_calls_beside_a_content_and_arguments_that_are_text_stay_as_they_are() -> None:
    calls = [{"function": {"name": "add", "arguments": arguments}} for arguments in ("{x", {})]
    talk = [AGENT[0], {"role": "assistant", "content": "Wait.", "tool_calls": calls}, AGENT[2]]
    assert text_of(pieces("own", talk, EACH.replace("WHAT", AS_TEXT))) == "2 + 3?|Wait.add{xadd{}|</s>5|"
    with pytest.raises(UserError, match="the chat template fails: no calls"):
        pieces("own", talk, "{% if messages[1].tool_calls %}{{ raise_exception('no calls') }}{% endif %}")


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_stands_where_the_template_writes_it(name: str) -> None:
    thinks = {"role": "assistant", "content": "Two.", "reasoning_content": "\nhm </s>\n"}
    talk = [{"role": "user", "content": "How many?"}, thinks, {"role": "user", "content": "Why?"}]
    template = "{% for m in messages %}[{{ m.NAME | trim }}]{{ m.content }}{% endfor %}".replace("NAME", name)
    found = pieces("own", talk, template)
    theirs = [{**message, name: message["reasoning_content"]} if message is thinks else message for message in talk]
    assert text_of(found) == transformers_text(theirs, template) == "[]How many?[hm </s>]Two.[]Why?"
    assert [piece.text for piece in found if not piece.is_template] == ["How many?", "hm </s>", "Two.", "Why?"]
    assert text_of(pieces("plain", talk)) == "How many?\nTwo.\nWhy?"


def test_a_template_may_leave_out_earlier_reasoning() -> None:
    thinks = [{"role": "assistant", "content": text, "reasoning_content": f"{text}?"} for text in ("one", "two")]
    talk = [{"role": "user", "content": "a"}, thinks[0], {"role": "user", "content": "b"}, thinks[1]]
    talk.append({"role": "tool", "content": "5"})
    template = (
        "{% for m in messages %}{% if loop.index0 > 2 %}<think>{{ m.reasoning_content }}</think>{% endif %}"
        "{{ m.content }} {% endfor %}"
    )
    found = pieces("own", talk, template)
    assert text_of(found) == "a one b <think>two?</think>two <think></think>5 "
    assert [piece.text for piece in found if not piece.is_template] == ["a", "one", "b", "two?", "two", "5"]


def test_contents_stay_text_where_the_template_cuts_the_reasoning_out_of_one() -> None:
    """As Qwen3's and DeepSeek R1's do with earlier answers, which many servers log with their reasoning."""
    answers = ["<think>\nhm </s>\n</think>\n\nTwo. ", "\n\nno reasoning\n"]
    for answer in answers:
        talk = [{"role": "user", "content": "How many </s>?"}, {"role": "assistant", "content": answer}, *HI]
        template = (
            "{% for m in messages %}[{{ m.content.split('</think>')[-1].lstrip('\n') if m.role == 'assistant' else m.content }}]"
            "{% endfor %}"
        )
        found = pieces("own", talk, template)
        said = answer.rpartition("</think>")[2].lstrip("\n")
        assert text_of(found) == transformers_text(talk, template) == f"[How many </s>?][{said}][hi]"
        assert [piece.text for piece in found if not piece.is_template] == ["How many </s>?", said, "hi"]


def test_reasoning_stays_text_without_the_line_breaks_around_it() -> None:
    """As Qwen3's template writes that of the turn that it continues."""
    thinks = {"role": "assistant", "content": "\n\nWait. ", "reasoning_content": "\n hm </s>\n"}
    template = (
        "{% for m in messages %}{% if m.reasoning_content is string %}<think>\n{{ m.reasoning_content.strip('\n') }}\n</think>\n\n"
        "{{ m.content.lstrip('\n') }}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    talk = [*HI, thinks, {"role": "tool", "content": "5"}]
    found = pieces("own", talk, template)
    assert text_of(found) == transformers_text(talk, template) == "hi<think>\n hm </s>\n</think>\n\nWait. 5"
    assert [piece.text for piece in found if not piece.is_template] == ["hi", " hm </s>", "Wait. ", "5"]


THINKS = "{% for m in messages %}{{ m.content }}|{% endfor %}{% if not (enable_thinking | default(true)) %}<think></think>{% endif %}"


def test_options_are_variables_of_the_template() -> None:
    assert text_of(pieces("own", HI, THINKS)) == "hi|"
    assert text_of(pieces("own", HI, THINKS, options={"enable_thinking": False})) == "hi|<think></think>"
    mine = {"messages": [{"role": "user", "content": "other"}], "add_generation_prompt": False, "self": 1}
    assert text_of(pieces("own", HI, THINKS, options=mine)) == "hi|", "what the run says of a prompt prevails"
    tokenizer = with_specials()
    asked = dataclasses.replace(tokenizer, chat_template=THINKS)
    plain, answers_at_once = (
        asked.encode_prompt(HI, "own", options=given) for given in (None, {"enable_thinking": False})
    )
    assert asked.decode(answers_at_once) == f"{asked.decode(plain)}<think></think>"


def transformers_text(messages: list[dict[str, Any]], template: str, tools: list[dict[str, Any]] | None = None) -> str:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    found, _ = utils.render_jinja_template([messages], tools=tools, chat_template=template, add_generation_prompt=True)
    return str(found[0])
