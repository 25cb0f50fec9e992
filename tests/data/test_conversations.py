"""Conversations: odd orders have a stated outcome, and user text never becomes a special token."""

from __future__ import annotations

import json

import pytest

from draftlab.data.continuations import conversation_numbers
from draftlab.data.conversations import first_request, last_request, turns
from draftlab.data.fields import BadRow
from draftlab.data.messages import Turn


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
        ([{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "tool_use", "name": "f"}]}], "a"),
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


def test_the_last_request_comes_with_all_that_was_said_before_it() -> None:
    earlier = (("system", "Be brief."), ("user", "u"), ("assistant", "a"))
    found = last_request(said(*earlier, ("user", "more"), ("assistant", "b")))
    want = said(*earlier, ("user", "more"))
    assert (found.text, found.reference, found.meta, found.conversation) == ("more", "b", {"turns": 2}, want)
    alone = last_request(said(("assistant", "Hello!"), ("user", "u")), system="Be brief.")
    assert (alone.text, alone.conversation) == ("u", said(("system", "Be brief."), ("user", "u")))
    with pytest.raises(BadRow, match="no user turn"):
        last_request(said(("assistant", "Hello!")))


def test_messages_without_text_are_not_part_of_what_was_said() -> None:
    call = [{"role": "assistant", "content": None, "tool_calls": []}, {"role": "tool", "content": "4"}]
    found = last_request([*said(("user", "u")), *call, *said(("user", "more"))])
    assert (found.text, found.conversation) == ("more", said(("user", "u"), ("tool", "4"), ("user", "more")))
    joined = last_request([*said(("user", "u")), call[0], *said(("user", "more"))])
    assert (joined.text, joined.conversation, joined.meta) == ("u\nmore", [], {"turns": 1})


def call(name: str, number: str | None = None, **arguments: object) -> dict[str, object]:
    known = {"id": number} if number else {}
    return {**known, "type": "function", "function": {"name": name, "arguments": arguments}}


ASKED: dict[str, object] = {"role": "user", "content": "2 + 3?"}
CALLED = {
    "role": "assistant",
    "content": "Wait.",
    "reasoning_content": "hm",
    "tool_calls": [call("add", "a", x=2), call("add", "b", x=3)],
}


@pytest.mark.parametrize(
    "messages",
    [
        [  # OpenAI
            {**CALLED, "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"x": 2}'}},
                {"id": "b", "type": "function", "function": {"name": "add", "arguments": '{"x": 3}'}},
            ]},
            {"role": "tool", "tool_call_id": "a", "content": "5"},
            {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "6"}]},
        ],
        [  # Anthropic
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm"},
                {"type": "text", "text": "Wait."},
                {"type": "tool_use", "id": "a", "name": "add", "input": {"x": 2}},
                {"type": "tool_use", "id": "b", "name": "add", "input": {"x": 3}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "5"},
                {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "6"}]},
            ]},
        ],
        [  # OpenAI's Responses
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Wait."}]},
            {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "add", "arguments": '{"x": 2}'},
            {"type": "function_call", "id": "fc_2", "call_id": "b", "name": "add", "arguments": '{"x": 3}'},
            {"type": "function_call_output", "call_id": "a", "output": "5"},
            {"type": "function_call_output", "call_id": "b", "output": "6"},
        ],
    ],
)  # fmt: skip
def test_the_result_of_a_tool_is_a_request(messages: list[object]) -> None:
    results = [{"role": "tool", "content": text, "tool_call_id": number} for text, number in (("5", "a"), ("6", "b"))]
    found = last_request([ASKED, *messages, {"role": "assistant", "content": "11"}])
    assert (found.text, found.reference, found.meta) == ("6", "11", {"turns": 1})
    assert found.conversation == [ASKED, CALLED, *results]
    more = last_request([ASKED, *messages, {"role": "user", "content": "Sure?"}])
    assert more.conversation == [ASKED, CALLED, *results, {"role": "user", "content": "Sure?"}]


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        ({"reasoning_content": " hm\n"}, "hm"),
        ({"reasoning_content": None, "reasoning": "hm"}, "hm"),
        ({"thinking": "hm"}, "hm"),
        ({"thinking": {"type": "enabled"}}, None),
        ({"reasoning": " "}, None),
        ({"content": [{"type": "thinking", "thinking": "one"}, {"type": "thinking", "thinking": "two"}]}, "one\ntwo"),
        ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]}, "hm"),
        ({"content": [{"type": "redacted_thinking", "data": "x"}, "plain"]}, None),
        ({"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}, "hm"),
        ({"type": "reasoning", "summary": [], "content": None, "encrypted_content": "x"}, None),
    ],
)
def test_what_an_assistant_thought_is_read_wherever_it_stands(fields: dict[str, object], want: str | None) -> None:
    speaker = {} if fields.get("type") == "reasoning" else {"role": "assistant", "content": None}
    found = last_request([ASKED, {**speaker, **fields}, {"role": "tool", "content": "5"}]).conversation[1:-1]
    said_by_it = [{key: value for key, value in message.items() if key != "content"} for message in found]
    assert [message.get("reasoning_content") for message in said_by_it if len(message) > 1] == [want] * bool(want)


@pytest.mark.parametrize(
    ("messages", "want"),
    [
        (  # ShareGPT's files with tools
            [
                {"from": "human", "value": "2 + 3?"},
                {"from": "function_call", "value": '{"name": "add", "arguments": {"x": 2}}'},
                {"from": "observation", "value": "5"},
            ],
            [ASKED, {"role": "assistant", "content": "", "tool_calls": [call("add", x=2)]}, {"role": "tool", "content": "5"}],
        ),
        (
            [{"role": "User", "content": "2 + 3?"}, {"role": "model", "content": "5"}, {"role": "USER", "content": "So?"}],
            [ASKED, {"role": "assistant", "content": "5"}, {"role": "user", "content": "So?"}],
        ),
        (
            [ASKED, {"role": "assistant", "content": None, "refusal": "No."}, {"role": "user", "content": "So?"}],
            [ASKED, {"role": "assistant", "content": "No."}, {"role": "user", "content": "So?"}],
        ),
        (
            [ASKED, {"role": "assistant", "content": [{"type": "reasoning", "text": "hm"}, {"type": "refusal", "refusal": "No."}]}, {"role": "user", "content": "So?"}],
            [ASKED, {"role": "assistant", "content": "No.", "reasoning_content": "hm"}, {"role": "user", "content": "So?"}],
        ),
        (
            [ASKED, {"role": "assistant", "content": None, "refusal": False}, {"role": "tool", "content": "5"}],
            [ASKED, {"role": "tool", "content": "5"}],
        ),
        ([ASKED, {"role": "assistant", "content": "a\n"}, {"role": "user", "content": " b "}], [ASKED, *said(("assistant", "a\n"), ("user", " b "))]),
    ],
)  # fmt: skip
def test_messages_in_other_spellings(messages: list[object], want: list[object]) -> None:
    assert last_request(messages).conversation == want


PICTURE = {"type": "image_url", "image_url": {"url": "x"}}


@pytest.mark.parametrize(
    "last",
    [
        {"role": "user", "content": [{"type": "text", "text": "And this?"}, PICTURE]},
        {"role": "tool", "content": [PICTURE]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}]},
        {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_image"}]},
        {"role": "assistant", "content": [PICTURE]},
        {"role": "robot", "content": "b"},
    ],
)
def test_a_conversation_ends_before_what_cannot_be_read(last: dict[str, object]) -> None:
    found = last_request([ASKED, {"role": "assistant", "content": "5"}, last, {"role": "user", "content": "So?"}])
    assert (found.text, found.reference, found.meta) == (ASKED["content"], "5", {"turns": 1, "cut": True})


def test_a_response_beside_a_conversation_that_ends_with_a_thought() -> None:
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    assert last_request([ASKED, thought], response="5").reference == "5"
    assert last_request([ASKED, {"role": "assistant", "content": "4"}], response="5").reference == "4"
    only = {"role": "assistant", "content": "", "reasoning_content": "hm"}
    more = {"role": "user", "content": "So?"}
    tool = {"role": "tool", "content": "5"}
    assert conversation_numbers([[ASKED, CALLED, tool, only, more], [ASKED, CALLED, tool, more, only, more]]) == [0, 0]


def test_reasoning_that_is_left_out_later_is_still_the_same_conversation() -> None:
    thought, answered = ({"role": "assistant", "content": "5", **more} for more in ({"reasoning_content": "hm"}, {}))
    more = [{"role": "user", "content": text} for text in ("Sure?", "So?")]
    assert conversation_numbers([[ASKED, thought, more[0]], [ASKED, answered, more[0], answered, more[1]]]) == [0, 0]


def test_a_message_that_only_thinks_keeps_its_place() -> None:
    thinks = {"role": "assistant", "content": "", "reasoning_content": "hm"}
    more = {"role": "user", "content": "So?"}
    assert last_request([ASKED, thinks, more]).conversation == [ASKED, thinks, more]
    broken = {**thinks, "reasoning_content": "\ud800"}
    assert last_request([ASKED, broken, more]).text == ASKED["content"]


def test_the_older_call_of_a_function() -> None:
    called = {"role": "assistant", "content": None, "function_call": {"name": "add", "arguments": "{}"}}
    found = last_request([ASKED, called, {"role": "function", "name": "add", "content": "5"}])
    assert found.conversation == [
        ASKED,
        {"role": "assistant", "content": "", "tool_calls": [call("add")]},
        {"role": "tool", "content": "5", "name": "add"},
    ]


def test_results_without_text_and_calls_that_cannot_be_read() -> None:
    nobody = {"role": "tool", "tool_call_id": "\ud800", "name": 3, "content": "5"}
    assert last_request([ASKED, CALLED, nobody]).conversation[-1] == {"role": "tool", "content": "5"}
    empty = {"role": "tool", "tool_call_id": "b", "content": ""}
    found = last_request([ASKED, CALLED, {"role": "tool", "content": "5"}, empty], response="11")
    assert (found.text, found.reference, found.conversation[-1]) == ("", "11", empty)
    later = last_request([ASKED, CALLED, empty, {"role": "user", "content": "So?"}])
    assert later.conversation[2] == empty
    nameless = {"role": "assistant", "content": "a", "tool_calls": [{"function": {"arguments": "{}"}}]}
    assert last_request([ASKED, nameless, {"role": "tool", "content": "5"}]).text == "2 + 3?"
    table = {**CALLED, "tool_calls": json.dumps(CALLED["tool_calls"])}
    assert last_request([ASKED, table, {"role": "tool", "content": 5}]).conversation == [
        ASKED,
        CALLED,
        {"role": "tool", "content": "5"},
    ]
    deep = {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": "[" * 5000}}]}
    assert last_request([ASKED, deep, empty]).conversation[1]["tool_calls"][0]["function"]["arguments"] == "[" * 5000
    wild = {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": "{x"}}]}
    spoken = last_request([ASKED, wild, {"role": "tool", "content": "5"}]).conversation[1]
    assert spoken["tool_calls"][0]["function"] == {"name": "add", "arguments": "{x"}
    blank = {"role": "user", "content": [{"type": "tool_result", "content": "5"}, {"type": "text", "text": ""}]}
    assert [turn.text for turn in turns([ASKED, CALLED, blank])] == ["2 + 3?", "Wait.", "5"]
    answered = {"role": "user", "content": [{"type": "tool_result", "content": "5"}, {"type": "text", "text": "So?"}]}
    assert [turn.text for turn in turns([ASKED, CALLED, answered])] == ["2 + 3?", "Wait.", "5", "So?"]


def test_prompts_belong_to_a_conversation_if_one_continues_the_other() -> None:
    system, shots = ("system", "Be brief."), (("user", "one"), ("assistant", "1"))
    later = said(system, ("user", "a"), ("assistant", "x"), ("user", "b"), ("assistant", "y"), ("user", "c"))
    retold = said(system, ("user", "a"), ("assistant", "another"), ("user", "b"))
    asked = [
        later[:4],
        said(system, *shots, ("user", "p")),
        later[:2],
        said(system, *shots, ("user", "q")),
        later,
        retold,
    ]
    assert conversation_numbers(asked[:5]) == [0, 1, 0, 3, 0]
    assert conversation_numbers(asked) == [0, 1, 2, 3, 0, 5]  # two continue the third, each in its own way
    assert conversation_numbers([retold, later[:4], later, later[:4]]) == [0, 1, 1, 1]


def test_identifiers_of_calls_do_not_tell_conversations_apart() -> None:
    results = [{"role": "tool", "content": "5", "tool_call_id": number} for number in "ab"]
    calls = [{"role": "assistant", "content": "", "tool_calls": [call("add", number, x=2)]} for number in "ab"]
    more = {"role": "user", "content": "So?"}
    assert conversation_numbers([[ASKED, calls[0], results[0]], [ASKED, calls[1], results[1], more]]) == [0, 0]


@pytest.mark.parametrize(
    ("items", "want"),
    [
        ([{"type": "web_search_call", "id": "ws"}, {"type": "item_reference", "id": "x"}], []),
        (
            [
                {"type": "custom_tool_call", "call_id": "a", "name": "patch", "input": "*** Begin"},
                {"type": "custom_tool_call_output", "call_id": "a", "output": "Done"},
            ],
            [
                {"role": "assistant", "content": "", "tool_calls": [call("patch", "a", input="*** Begin")]},
                {"role": "tool", "content": "Done", "tool_call_id": "a"},
            ],
        ),
        (
            [{"role": "assistant", "tool_calls": [{"type": "custom", "custom": {"name": "patch", "input": "x"}}]}],
            [{"role": "assistant", "content": "", "tool_calls": [call("patch", input="x")]}],
        ),
    ],
)
def test_custom_tools_are_read_and_those_of_the_server_are_left_out(items: list[object], want: list[object]) -> None:
    more = {"role": "tool", "content": "more"}
    assert last_request([ASKED, *items, more]).conversation == [ASKED, *want, more]
