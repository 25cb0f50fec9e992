"""Cleaners: any row gives a prompt that can be written, or a reason; never an exception."""

from __future__ import annotations

import dataclasses
import json
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftlab.data import cleaners, fields, formats
from draftlab.data.cleaners import CLEANERS, OSD_REPO_CLEANERS, Cleaner
from draftlab.data.fields import BadRow
from draftlab.data.own_prompts import prompts
from draftlab.data.prompts import Prompt, Rejection
from draftlab.data.raw_rows import RawRow
from draftlab.errors import UserError
from tests.data import raw_rows

CASES = [pytest.param(name, cleaner, id=name) for name, cleaner in CLEANERS.items()]
CASES.append(pytest.param("finance_alpaca", OSD_REPO_CLEANERS["finance_alpaca"], id="finance_alpaca-osd"))
FIELDS = sorted(
    {key for name in raw_rows.GENERATORS for key in raw_rows.rows(name, 1)[0]}
    | {"table", "paragraphs", "questions", "instances", "cluster", "docstring", "translation", "messages", "system"}
)
TEXT = st.text(st.characters(codec=None), max_size=20) | st.sampled_from(
    ["", " ", "\x00", "\ud800", "</s>", "USER: x ASSISTANT:", "user", "human", "gpt", "assistant", "system", "tool",
     "developer", "word " * 160]
)  # fmt: skip
LEAF = st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([10**400, -(10**400)]) | st.floats() | TEXT
PARTS = st.lists(st.fixed_dictionaries({}, optional={"type": TEXT, "text": LEAF}) | LEAF, max_size=3)
MESSAGE = st.fixed_dictionaries({}, optional={"role": TEXT, "content": LEAF | PARTS, "from": TEXT, "value": LEAF})
VALUE = st.recursive(
    LEAF | st.lists(MESSAGE, max_size=4),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.sampled_from([*FIELDS, "en", "de", "text", "input"]), v, max_size=3),
    max_leaves=8,
)  # fmt: skip
ROW = st.dictionaries(st.sampled_from(FIELDS), VALUE, max_size=6)


def outcome(name: str, cleaner: Cleaner, row: Any) -> Prompt | Rejection:
    (record,) = cleaners.clean(name, "train", [RawRow("f", 1, row)], cleaner=cleaner, max_chars=50_000)
    return record


def assert_sound(record: Prompt | Rejection) -> None:
    json.dumps(dataclasses.asdict(record), ensure_ascii=False, allow_nan=False).encode()
    if isinstance(record, Prompt):
        assert record.text.strip()
        assert record.text == record.text.strip() or record.dataset == "humaneval"
        assert record.reference is None or record.reference.strip()
    else:
        assert record.reason
        assert record.reason.isprintable()
        assert record.row.isprintable()


@pytest.mark.parametrize(("name", "cleaner"), CASES)
@settings(max_examples=40, deadline=None)
@given(row=ROW | VALUE)
def test_any_row(name: str, cleaner: Cleaner, row: Any) -> None:
    assert_sound(outcome(name, cleaner, row))


@pytest.mark.parametrize(("name", "cleaner"), [case for case in CASES if case.values[0] in raw_rows.GENERATORS])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_damaged_row(name: str, cleaner: Cleaner, data: st.DataObject) -> None:
    row = raw_rows.GENERATORS[name](Random(data.draw(st.integers(0, 50))), "service")
    assert isinstance(outcome(name, cleaner, row), Prompt)
    for key in data.draw(st.lists(st.sampled_from(sorted(row)), min_size=1, max_size=3)):
        if data.draw(st.booleans()):
            row.pop(key, None)
        else:
            row[key] = data.draw(VALUE)
    assert_sound(outcome(name, cleaner, row))


@pytest.mark.parametrize(
    ("name", "row", "reason"),
    [
        ("gsm8k", {"answer": "1"}, "no question"),
        ("gsm8k", {"question": None}, "question is null"),
        ("gsm8k", {"question": " \n"}, "question is empty"),
        ("gsm8k", {"question": 7}, "question is int, not text"),
        ("gsm8k", {"question": "q", "answer": 72}, "answer is int, not text"),
        ("gsm8k", {"question": "x" * 200_000}, "longer than 50000 characters"),
        ("gsm8k", ["question"], "the row is list, not an object"),
        ("gsm8k", {"question": "\ud800"}, "lone surrogate"),
        ("starcoder", {"content": "word " * 150}, "no more than 150 words"),
        ("wmt16", {"translation": "Hallo"}, "translation is str, not an object"),
        ("oasst", {"text": "yes", "parent_id": "a"}, "a reply"),
        ("oasst", {"text": "t", "role": "assistant"}, "a reply"),
        ("sharegpt", {"conversations": [{"from": "gpt", "value": "hi"}]}, "no user turn"),
        ("sharegpt", {"conversations": [{"from": "robot", "value": "hi"}]}, "unknown role"),
        ("sharegpt", {"id": "1"}, "the conversation is NoneType, not a list"),
        ("tatqa", {"table": {"table": []}}, "table is empty"),
    ],
)
def test_reasons(name: str, row: Any, reason: str) -> None:
    found = outcome(name, CLEANERS[name], row)
    assert isinstance(found, Rejection)
    assert reason in found.reason


@pytest.mark.parametrize(
    ("name", "row", "text", "reference"),
    [
        ("spider", {"question": "How many?", "query": "SELECT 1"}, f"{cleaners.SPIDER}How many?", "SELECT 1"),
        ("gsm8k", {"question": "q", "answer": None}, "q", None),
        ("gsm8k", {"question": "q", "answer": ""}, "q", None),
        ("gsm8k", {"question": "say </s> USER:", "answer": "a"}, "say </s> USER:", "a"),
        ("gsm8k", {"question": "bell\x07", "answer": "a"}, "bell\x07", "a"),
        ("finance_alpaca", {"instruction": "i", "input": "more", "output": "o"}, "i\nmore", "o"),
        ("code_search_net", {"docstring": "Add.", "code": "+"},
         "Please generate code based on the following doc:\nAdd.", "+"),
        ("code_search_net", {"func_documentation_string": "Add.", "func_code_string": "+"},
         "Please generate code based on the following doc:\nAdd.", "+"),
        ("piqa", {"goal": "g", "sol1": "a", "sol2": "b", "label": 1}, "g", "b"),
        ("piqa", {"goal": "g", "sol1": "a", "sol2": "b", "label": -1}, "g", None),
        ("piqa", {"goal": "g", "sol1": "a", "sol2": "b"}, "g", None),
        ("piqa", {"goal": "g", "sol1": "a", "sol2": "b", "label": True}, "g", None),
        ("humaneval", {"prompt": "def f():\n", "canonical_solution": "\n    x = 1\n    return x\n"}, "def f():\n",
         "    x = 1\n    return x"),
        ("humaneval", {"prompt": "def f():\n", "canonical_solution": "  \n"}, "def f():\n", None),
        ("mbpp", {"prompt": "p", "code": "c"}, "p", "c"),
        ("cnn_dailymail", {"article": "d", "highlights": "s"}, "summarize: d", "s"),
        ("xsum", {"document": "d", "summary": "s"}, "summarize: d", "s"),
        ("mgsm", {"question": "q", "answer": "Step 1", "answer_number": "12"}, "q", "12"),
        ("mgsm", {"question": "q", "answer": None, "answer_number": 12, "equation_solution": None}, "q", "12"),
        ("starcoder", {"content": " ".join(map(str, range(160)))}, " ".join(map(str, range(100, 150))),
         " ".join(map(str, range(150, 160)))),
        ("wmt16", {"translation": {"en": "yes", "de": "ja"}}, "translate English to German: yes", "ja"),
        ("dolly", {"instruction": "i", "context": "c", "response": "r"}, "i\nc", "r"),
        ("mt_bench", {"turns": ["one", "two"], "reference": ["r"]}, "one", "r"),
        ("spec_bench", {"turns": ["one"], "reference": [["r", "s"]]}, "one", "r"),
        ("spec_bench", {"turns": ["one"], "reference": [[]]}, "one", None),
        ("oasst", {"message_tree_id": "t", "prompt": {"text": "q", "role": "prompter", "replies": [{"text": "r"}]}}, "q", "r"),
        ("prompts", {"question": "q", "docs": ["one", {"text": "two"}], "answer": "a"}, "one\n\ntwo\n\nq", "a"),
        ("prompts", {"question": "q", "docs": []}, "q", None),
        ("prompts", {"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]}, "u", "a"),
        *(("prompts", {"prompt": "u", "response": {"choices": [{"message": {"role": role, "content": "a"}}]}}, "u", "a")
          for role in (None, "Assistant")),
        ("prompts", {"turns": ["one", "two"]}, "one", None),
        ("prompts", {"prompt": ["one"]}, "one", None),
        ("prompts", {"prompt": "one", "text": ["what a server wrote"]}, "one", None),
        ("prompts", {"prompt": "one", "input": []}, "one", None),
        ("prompts", {"prompt": "good", "messages": None}, "good", None),
        ("prompts", {"prompt": "good", "conversations": None, "messages": []}, "good", None),
        ("prompts", {"text": "t", "response": "r"}, "t", "r"),
        ("prompts", {"instruction": "i", "input": "x", "output": "o"}, "i\nx", "o"),
    ],
)  # fmt: skip
def test_prompts(name: str, row: Any, text: str, reference: str | None) -> None:
    found = outcome(name, CLEANERS[name], row)
    assert isinstance(found, Prompt)
    assert (found.text, found.reference) == (text, reference)


def test_the_length_of_a_prompt_is_that_of_its_conversation() -> None:
    said = [{"role": role, "content": text} for role, text in (("user", "x" * 90), ("assistant", "y"), ("user", "z"))]
    for most, kind in ((90, Rejection), (200, Prompt)):
        [found] = cleaners.clean(
            "prompts", "train", [RawRow("f", 1, {"messages": said})], cleaner=CLEANERS["prompts"], max_chars=most
        )
        assert isinstance(found, kind)


@pytest.mark.parametrize(
    ("cleaner", "fault"),
    [
        (lambda row: fields.Cleaned(row["text"], row["nothing"]), "KeyError: 'nothing'"),
        (lambda row: {"text": row["text"]}, "TypeError: it returned dict, not Cleaned"),
        (lambda row: None, "TypeError: it returned NoneType, not Cleaned"),
        (lambda row: fields.Cleaned(row["text"], 0), "TypeError: its reference is int, not text"),
    ],
)
def test_a_cleaner_that_fails_is_named_with_its_line_and_the_row(cleaner: Any, fault: str) -> None:
    rows = [RawRow("faq.jsonl", 7, {"text": "hello"})]
    with pytest.raises(UserError, match=f"the cleaner of faq failed on faq.jsonl:7: {fault}") as error:
        list(cleaners.clean("faq", "train", rows, cleaner=cleaner, max_chars=0))
    assert error.value.line
    assert str(error.value.file).endswith(("test_cleaners.py", "cleaners.py"))


def test_a_conversation_of_sharegpt_that_was_cut_gives_its_first_request_alone() -> None:
    row = {"conversations": [{"from": "human", "value": "continue"}, {"from": "gpt", "value": "So:"}]}
    for name in ("hRPPgZT_0", "hRPPgZT", "identity_12", "local_000012", 7):
        assert isinstance(outcome("sharegpt", CLEANERS["sharegpt"], {"id": name, **row}), Prompt)
    found = outcome("sharegpt", CLEANERS["sharegpt"], {"id": "hRPPgZT_11", **row})
    assert isinstance(found, Rejection)
    assert found.reason == "a later part of a conversation"
    assert isinstance(outcome("sharegpt", OSD_REPO_CLEANERS["sharegpt"], {"id": "hRPPgZT_11", **row}), Prompt)


def test_osd_leaves_the_input_out() -> None:
    assert OSD_REPO_CLEANERS["finance_alpaca"]({"instruction": "i", "input": "more", "output": "o"}).text == "i"


def test_labels_come_along() -> None:
    conversation = [{"role": "user", "content": "u"}]
    row = {"conversation_a": conversation, "language": "English", "tstamp": 5.0, "model": "m", "topic": None}
    assert CLEANERS["arena"](row).meta == {"turns": 1, "language": "English", "time": 5.0, "model": "m"}
    assert CLEANERS["arena_hard"]({"prompt": "p", "cluster": "c", "category": "hard", "language": "English"}).meta == {
        "topic": "c",
        "language": "English",
    }
    assert CLEANERS["prompts"]({"messages": conversation, "language": "English"}).meta == {
        "turns": 1,
        "language": "English",
    }
    never = {"conversation": conversation, "tstamp": float("nan"), "language": "\ud800"}
    assert CLEANERS["arena"](never).meta == {"turns": 1}
    with pytest.raises(BadRow):
        CLEANERS["arena"]({"language": "English"})


def test_a_reason_is_the_same_for_all_rows_of_its_kind() -> None:
    found = [
        outcome("sharegpt", CLEANERS["sharegpt"], {"conversations": [{"from": f"r{i}", "value": "hi"}]})
        for i in range(9)
    ]
    assert {record.reason for record in found if isinstance(record, Rejection)} == {"unknown role"}
    assert isinstance(found[3], Rejection)
    assert found[3].row.startswith("'r3': {")


def test_a_time_may_be_any_number() -> None:
    assert "time" not in fields.labels({"time": 10**400})
    assert fields.labels({"time": 10**15})["time"] == 10**15


def test_ids_are_the_rows_places() -> None:
    rows = [RawRow("f", i, {"question": q}) for i, q in enumerate(["a", "", "b"], 1)]
    found = list(cleaners.clean("gsm8k", "train", rows, cleaner=CLEANERS["gsm8k"], max_chars=0))
    assert [r.id for r in found if isinstance(r, Prompt)] == ["gsm8k/train/00000", "gsm8k/train/00002"]
    assert [(r.file, r.line) for r in found if isinstance(r, Rejection)] == [("f", 2)]


RESPONSE = {"choices": [{"message": {"role": "assistant", "content": "Paris."}}]}
TURN = [{"role": "user", "content": "The capital of France?"}]
ANSWERED = {"role": "assistant", "content": "Paris."}


@pytest.mark.parametrize(
    "row",
    [
        {"messages": TURN, "response": RESPONSE, "startTime": 1.0, "model": "m"},
        {"request": {"model": "m", "messages": TURN}, "response": RESPONSE},
        {"custom_id": "1", "body": {"messages": TURN}, "response": {"body": RESPONSE}},
        {"messages": [*TURN, {"role": "assistant", "content": "Paris."}]},
    ],
)
def test_a_servers_log_gives_request_and_answer(row: dict[str, object]) -> None:
    found = prompts(row)
    assert (found.text, found.reference) == ("The capital of France?", "Paris.")


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"role": "system", "content": "Be brief."}, *TURN]},
        {
            "input": [{"role": "user", "content": [{"type": "input_text", "text": TURN[0]["content"]}]}],
            "instructions": "Be brief.",
        },
        {"system": [{"type": "text", "text": "Be brief."}], "messages": TURN},
        {"prompt": [{"role": "developer", "content": "Be brief."}, *TURN]},
        {"turns": [{"from": "system", "value": "Be brief."}, *TURN]},
        {"request": {"body": {"system": "Be brief.", "messages": TURN}}},
        {"input": {"system": "Be brief.", "messages": TURN}, "output": {"role": "assistant"}},
        {
            "instructions": "Be brief.",
            "input": TURN[0]["content"],
            "text": {"format": {"type": "text"}},
            "prompt": None,
        },
        {"conversation": {"id": "conv_1"}, "instructions": "Be brief.", "input": TURN},
        {"messages": {}, "proxy_server_request": {"system": "Be brief.", "messages": TURN}},
    ],
)
def test_a_system_prompt_comes_before_the_request(row: dict[str, object]) -> None:
    found = prompts(row)
    assert (found.text, found.conversation) == (TURN[0]["content"], [{"role": "system", "content": "Be brief."}, *TURN])


@pytest.mark.parametrize("system", [" ", [{"type": "text", "text": ""}], [3], {"os": "linux"}, None])
def test_a_system_prompt_without_text_is_none(system: object) -> None:
    assert prompts({"messages": TURN, "system": system}).conversation == []


@pytest.mark.parametrize(
    "cut",
    [
        [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
        [{"role": "robot", "content": "x"}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}],
    ],
)
def test_a_response_answers_the_last_message_alone(cut: list[object]) -> None:
    answer = {"choices": [{"message": {"content": "Paris."}}]}
    assert prompts({"messages": [*TURN, *cut], "response": answer}).reference is None


@pytest.mark.parametrize(
    "response", [None, "x", [], {"choices": []}, {"choices": [3]}, {"choices": [{"message": None}]}, {"error": "e"}]
)
def test_a_response_without_text_is_no_answer(response: object) -> None:
    assert prompts({"messages": TURN, "response": response}).reference is None


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ({"question": "q", "answer": "a", "docs": ["d"]}, "prompts"),
        ({"question": "q", "answer": "a"}, "gsm8k"),
        ({"message_tree_id": "t", "tree_state": "ready", "prompt": {"text": "q"}}, "oasst"),
        ({"prompt_id": 1, "category": "math", "prompt": ["one", "two"], "reference": []}, "mt_bench"),
        ({"category": "math", "prompt": "one", "reference": "a"}, "prompts"),
    ],
)
def test_formats_that_other_fields_than_the_prompts_tell(row: dict[str, Any], name: str) -> None:
    assert formats.detect([RawRow("f", line, row) for line in range(3)]) == name


SPOKEN = [{"role": "system", "content": "Be brief."}, *TURN]


@pytest.mark.parametrize(
    "row",
    [
        {"input": json.dumps(SPOKEN)},
        {"input": json.dumps({"messages": SPOKEN})},
        {"messages": json.dumps(SPOKEN)},
        {"request": json.dumps({"messages": TURN, "system": "Be brief."})},
        {"body": {"messages": json.dumps(SPOKEN)}},
        {"custom_id": "a", "params": {"messages": TURN, "system": "Be brief."}},
        {"id": "run", "inputs": {"messages": SPOKEN}},
        {"prompt": TURN[0]["content"], "system_prompt": "Be brief."},
        {"input": TURN, "instructions": [{"role": "developer", "content": "Be brief."}]},
        {"input": TURN, "system": [{"role": "system", "content": [{"type": "text", "text": "Be brief."}]}]},
        {"request": json.dumps({"model": "m", "input": SPOKEN})},
        {"proxy_server_request": json.dumps({"body": {"messages": SPOKEN}})},
    ],
)
def test_a_conversation_may_be_json_text_and_its_system_prompt_beside_it(row: dict[str, object]) -> None:
    assert prompts(row).conversation == SPOKEN


@pytest.mark.parametrize(
    "text",
    [
        '{"from": "Berlin", "to": "Paris"}',
        '{"role": "user", "content": "hi"}',
        "[]",
        '[{"role": "admin", "name": "Ann"}]',
        '[{"a": 1}]',
        '{"a": 1}',
        "[1, 2]",
        '{"prompt": "x"}',
        "[ unfinished",
        '[{"parts": [1, 2]}]',
        '[{"type": "function", "content": "x"}]',
        '[[{"role": "user", "content": "x"}]]',
    ],
)
def test_json_that_is_no_conversation_is_a_prompt(text: str) -> None:
    assert prompts({"prompt": text}).text == text


@pytest.mark.parametrize("name", ["history", "chat_history"])
@pytest.mark.parametrize("pairs", [True, False])
def test_a_history_comes_before_the_prompt(name: str, pairs: bool) -> None:
    before = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]
    history: object = [["Hi.", "Hello."]] if pairs else before
    found = prompts({"prompt": "So?", "system": "Be brief.", name: history, "output": "a"})
    assert found.conversation == [SPOKEN[0], *before, {"role": "user", "content": "So?"}]
    assert (found.text, found.reference) == ("So?", "a")


def test_a_history_may_name_who_speaks() -> None:
    """LangChain writes pairs of a role and a text; the role is no text of the user's."""
    named = [["system", "Be brief."], ["human", "Hi."], ["ai", "Hello."]]
    found = prompts({"input": "So?", "chat_history": named})
    assert found.conversation == [*SPOKEN[:1], *({"role": role, "content": text} for role, text in (
        ("user", "Hi."), ("assistant", "Hello."), ("user", "So?")
    ))]  # fmt: skip
    explained = prompts({"input": "So?", "chat_history": [["AI", "That is artificial intelligence."]]})
    assert [message["content"] for message in explained.conversation] == [
        "AI",
        "That is artificial intelligence.",
        "So?",
    ]


@pytest.mark.parametrize("history", ["Human: Hi.\nAI: Hello.", {"internal": [["Hi.", "Hello."]]}])
def test_a_history_that_is_no_list_rejects_the_row(history: object) -> None:
    with pytest.raises(BadRow, match=r"the history is \w+, not a list"):
        prompts({"prompt": "So?", "history": history})
    for nothing in (True, " ", None):
        assert not prompts({"prompt": "So?", "history": nothing}).conversation


def test_json_beside_an_instruction_is_its_context() -> None:
    talk = json.dumps([{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}])
    found = prompts({"instruction": "Summarize this.", "input": talk, "system": "Be brief.", "output": "A talk."})
    assert (found.text, found.reference) == (f"Summarize this.\n{talk}", "A talk.")
    plan = prompts({"prompt": "Flights?", "output": '{"from": "BER", "to": "CDG"}'})
    assert plan.reference == '{"from": "BER", "to": "CDG"}'


@pytest.mark.parametrize("context", [[1, 2, 3], 4096, {"user_id": 5}, {"title": ["a"]}, None])
def test_a_context_that_is_no_passage_is_ignored(context: object) -> None:
    assert prompts({"prompt": "Why?", "context": context}).text == "Why?"


@pytest.mark.parametrize("name", ["params", "inputs"])
def test_parameters_beside_a_prompt_do_not_replace_it(name: str) -> None:
    row = {"prompt": "Q", name: {"prompt": "You are {x}", "messages": TURN, "context": 8192}}
    assert (prompts(row).text, prompts(row).conversation) == ("Q", [])


@pytest.mark.parametrize(
    "turn", [[3, "A2"], {"role": "moderator", "content": "x"}, {"role": "user", "content": [{"type": "image"}]}]
)
def test_a_history_that_cannot_be_read_rejects_the_row(turn: object) -> None:
    with pytest.raises(BadRow, match="a turn of the history cannot be read"):
        prompts({"prompt": "Q3", "history": [["Q1", "A1"], turn]})


def test_a_greeting_and_the_prompt_itself_in_a_history() -> None:
    asked = {"role": "user", "content": "Q"}
    greeted = prompts({"prompt": "Q", "history": [[None, "Hello!"], ["Q1", "A1"]]})
    assert [message["content"] for message in greeted.conversation] == ["Q1", "A1", "Q"]
    assert prompts({"prompt": "Q", "chat_history": [asked]}).text == "Q"


def test_a_row_whose_history_is_elsewhere_is_rejected() -> None:
    with pytest.raises(BadRow, match="previous_response_id"):
        prompts({"input": "So?", "previous_response_id": "resp_1"})
    with pytest.raises(BadRow, match="previous_response_id"):
        prompts({"input": "So?", "response": {"previous_response_id": "resp_1", "output": []}})


def test_the_space_around_a_prompt_is_the_users() -> None:
    assert prompts({"prompt": "def f(x):\n    "}).text == "def f(x):\n    "
    with pytest.raises(BadRow, match="prompt is empty"):
        prompts({"prompt": " \n"})


def test_a_passage_comes_before_its_question() -> None:
    assert prompts({"question": "Who?", "context": "She."}).text == "She.\n\nWho?"
    assert prompts({"instruction": "Who?", "context": "She."}).text == "Who?\nShe."


@pytest.mark.parametrize(
    "answer",
    [
        {"response": {"content": [{"type": "text", "text": "Paris."}], "role": "assistant"}},
        {"response": {"output": [{"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]}, {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Paris."}]}]}},
        {"output": {"role": "assistant", "content": "Paris."}},
        {"output": json.dumps({"role": "assistant", "content": "Paris."})},
        {"response": json.dumps({"choices": [{"message": {"content": "Paris."}}]})},
        {"response": {"body": {"choices": [{"text": "Paris."}]}}},
    ],
)  # fmt: skip
def test_answers_of_other_servers(answer: dict[str, object]) -> None:
    assert prompts({"messages": TURN, **answer}).reference == "Paris."


@pytest.mark.parametrize(
    "row",
    [
        {"inputs": "The capital of France?", "parameters": {}, "generated_text": "Paris."},
        {"request": {"inputs": "The capital of France?"}, "response": [{"generated_text": "Paris."}]},
        {"request_body": json.dumps({"messages": TURN}), "response_body": json.dumps(RESPONSE)},
        {"requestBody": {"messages": TURN}, "responseBody": RESPONSE, "request": "id"},
        {"message": json.dumps({"request": {"messages": TURN}, "response": RESPONSE}), "level": "info"},
        {"log": json.dumps({"messages": TURN, **RESPONSE}) + "\n", "stream": "stdout"},
        {"messages": TURN, "message": ANSWERED, "done": True},
        {"request": {"prompt": "The capital of France?"}, "response": {"response": "Paris.", "done": True}},
        {
            "contents": [{"parts": [{"text": "The capital of France?"}]}],
            "response": {"candidates": [{"content": {"role": "model", "parts": [{"text": "Paris."}]}}]},
        },
        {
            "input": {"inputBodyJson": {"messages": [{"role": "user", "content": [{"text": "The capital of France?"}]}]}},
            "output": {"outputBodyJson": {"output": {"message": {"role": "assistant", "content": [{"text": "Paris."}]}}}},
        },
        {
            "gen_ai.input.messages": [{"role": "user", "parts": [{"type": "text", "content": "The capital of France?"}]}],
            "gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": "Paris."}]}]),
        },
        {"inputs": {"messages": [[{"lc": 1, "type": "constructor", "kwargs": {"type": "human", "content": TURN[0]["content"]}}]]},
         "output": ANSWERED},
    ],
)  # fmt: skip
def test_logs_of_other_servers_and_shippers(row: dict[str, object]) -> None:
    found = prompts(row)
    assert (found.text, found.reference, found.conversation) == ("The capital of France?", "Paris.", [])


@pytest.mark.parametrize("text", ['{"done": true, "action": "click"}', '{"candidates": ["a", "b"]}', '{"done": false}'])
def test_an_answer_that_is_json_stays_text(text: str) -> None:
    assert prompts({"prompt": "Do it.", "response": text}).reference == text
    assert prompts({"instruction": "Do it.", "output": text}).reference == text


def test_other_fields_are_neither_the_message_nor_its_answer() -> None:
    message = {"role": "user", "content": "x", "type": "message", "data": {"content": "other"}}
    assert prompts({"messages": [message]}).text == "x"
    event = {"type": "web_search_call", "content": []}
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"refusal": "no"}]}, event, message]
    assert prompts({"messages": turns}).text == "x"
    assert prompts({"prompt": "A", "message": {"text": "a line of a log", "level": "info"}}).reference is None
    assert prompts({"prompt": "A", "response": "gold", "response_body": "x"}).reference == "gold"


SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
ADD = {"name": "add", "description": "Adds."}
OFFERED = [{"type": "function", "function": {**ADD, "parameters": SCHEMA}}]


@pytest.mark.parametrize(
    "offered",
    [
        {"tools": OFFERED},
        {"tools": json.dumps(OFFERED)},
        {"tools": [{"type": "function", **ADD, "parameters": SCHEMA, "strict": True}, {"type": "web_search"}]},
        {"tools": [{**ADD, "input_schema": SCHEMA}]},
        {"functions": [{**ADD, "parameters": SCHEMA}]},
        {"tools": [{**ADD, "inputSchema": SCHEMA}]},
        {"model_parameters": {"tools": OFFERED}},
    ],
)
def test_the_tools_of_a_request(offered: dict[str, Any]) -> None:
    assert prompts({"messages": TURN, **offered}).tools == OFFERED
    assert prompts({"request": {"messages": TURN, **offered}}).tools == OFFERED


QUIET = {"enable_thinking": False}


@pytest.mark.parametrize(
    "given",
    [
        {"chat_template_kwargs": QUIET},
        {"chat_template_kwargs": '{"enable_thinking": false}'},  # as a table holds it
        {"extra_body": {"chat_template_kwargs": QUIET}},
        {"model_parameters": {"chat_template_kwargs": QUIET}},
        {"optional_params": {"extra_body": {"chat_template_kwargs": QUIET}}},
    ],
)
def test_the_template_options_of_a_request(given: dict[str, Any]) -> None:
    for row in ({"messages": TURN}, {"prompt": "x"}, {"turns": ["x"]}):
        assert prompts({**row, **given}).template_options == QUIET
        assert prompts({"request": {**row, **given}}).template_options == QUIET


def test_template_options_that_are_no_object_are_ignored_and_odd_texts_refused() -> None:
    for odd in (None, "x", 3, ["enable_thinking"]):
        assert prompts({"prompt": "x", "chat_template_kwargs": odd}).template_options == {}
    of_table = {"enable_thinking": None, "effort": "low"}
    assert prompts({"prompt": "x", "chat_template_kwargs": of_table}).template_options == {"effort": "low"}
    with pytest.raises(BadRow, match="chat_template_kwargs holds a lone surrogate"):
        prompts({"prompt": "x", "chat_template_kwargs": {"\ud800": 1}})


@pytest.mark.parametrize(
    "tools",
    [
        "add",
        '"add"',
        {"name": "add"},
        ["add"],
        [ADD],
        [{"function": 3}],
        [{"type": "function"}],
        "[" * 5000,
        '[{"name": "f", "parameters": {"x": NaN}}]',
        7,
        None,
    ],
)
def test_names_without_a_schema_are_no_tools(tools: object) -> None:
    assert prompts({"messages": TURN, "tools": tools}).tools == []


CALLED = {"name": "add", "arguments": {"x": 1}}
SAID = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Add."},
    {
        "role": "assistant",
        "content": "So.",
        "reasoning_content": "Hm.",
        "tool_calls": [{"id": "a", "type": "function", "function": CALLED}],
    },
    {"role": "tool", "content": '{"y": 2}', "tool_call_id": "a"},
]
GEMINI = {
    "systemInstruction": {"parts": [{"text": "Be brief."}]},
    "contents": [
        {"role": "user", "parts": [{"text": "Add."}]},
        {
            "role": "model",
            "parts": [
                {"text": "Hm.", "thought": True},
                {"text": "So."},
                {"functionCall": {"id": "a", "name": "add", "args": {"x": 1}}},
            ],
        },
        {"role": "user", "parts": [{"functionResponse": {"id": "a", "response": {"y": 2}}}]},
    ],
    "tools": [{"functionDeclarations": [{**ADD, "parameters": SCHEMA}]}],
}
BEDROCK = {
    "system": [{"text": "Be brief."}, {"cachePoint": {"type": "default"}}],
    "messages": [
        {"role": "user", "content": [{"text": "Add."}, {"cachePoint": {"type": "default"}}]},
        {
            "role": "assistant",
            "content": [
                {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "s"}}},
                {"text": "So."},
                {"toolUse": {"toolUseId": "a", "name": "add", "input": {"x": 1}}},
            ],
        },
        {"role": "user", "content": [{"toolResult": {"toolUseId": "a", "content": [{"json": {"y": 2}}]}}]},
    ],
    "toolConfig": {"tools": [{"toolSpec": {**ADD, "inputSchema": {"json": SCHEMA}}}]},
}
SPOKEN_PARTS = [
    {"role": "user", "parts": [{"type": "text", "content": "Add."}]},
    {
        "role": "assistant",
        "parts": [
            {"type": "reasoning", "content": "Hm."},
            {"type": "text", "content": "So."},
            {"type": "tool_call", "id": "a", "name": "add", "arguments": {"x": 1}},
        ],
    },
    {"role": "tool", "parts": [{"type": "tool_call_response", "id": "a", "response": {"y": 2}}]},
]
OPENTELEMETRY = {
    "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "Be brief."}]),
    "gen_ai.input.messages": json.dumps(SPOKEN_PARTS),
    "gen_ai.tool.definitions": json.dumps([{"type": "function", **ADD, "parameters": SCHEMA}]),
}
LANGCHAIN_CALL = {"name": "add", "args": {"x": 1}, "id": "a", "type": "tool_call"}
LANGCHAIN = [
    {"type": "system", "content": "Be brief."},
    {"type": "human", "content": "Add."},
    {
        "type": "ai",
        "content": [{"type": "text", "text": "So."}, {"type": "tool_use", "id": "a", "name": "add", "input": {"x": 1}}],
        "tool_calls": [LANGCHAIN_CALL],
        "additional_kwargs": {"reasoning_content": "Hm."},
    },
    {"type": "tool", "content": '{"y": 2}', "tool_call_id": "a"},
]
FORMATS = {
    "gemini": GEMINI,
    "bedrock": BEDROCK,
    "opentelemetry": {"name": "chat", "attributes": OPENTELEMETRY},
    "langchain": {"messages": LANGCHAIN, "tools": OFFERED},
    "langchain_data": {"messages": [{"type": m["type"], "data": m} for m in LANGCHAIN], "tools": OFFERED},
}


@pytest.mark.parametrize("name", FORMATS)
def test_conversations_of_other_apis_lose_nothing(name: str) -> None:
    found = prompts(FORMATS[name])
    assert (found.conversation, found.tools) == (SAID, OFFERED)


@pytest.mark.parametrize(
    "row",
    [
        {"contents": [{"role": "user", "parts": [{"text": "See?"}, {"inlineData": {"data": "x"}}]}]},
        {"messages": [{"role": "user", "content": [{"text": "See?"}, {"image": {"format": "png"}}]}]},
        {"gen_ai.input.messages": [{"role": "user", "parts": [{"type": "text", "content": "See?"}, {"type": "blob"}]}]},
        {"messages": [{"role": "user", "content": "See?", "images": ["x"]}]},
        {"prompt": "See?", "images": ["x"]},
        {"inputs": ["one", "two"]},
        {"prompt": ["one", "two"]},
        {"prompt": ["one", 2]},
        {"request": {"prompt": ["one", "two"]}, "response": {"choices": [{"text": "1"}, {"text": "2"}]}},
        {"instruction": "Add.", "input": ["one", "two"]},
    ],
)
def test_what_is_no_text_rejects_the_row(row: dict[str, Any]) -> None:
    with pytest.raises(BadRow, match=r"not text|where text is expected|several prompts"):
        prompts(row)


def test_a_picture_of_a_model_or_a_tool_ends_the_conversation() -> None:
    for said in (
        {"role": "model", "parts": [{"inlineData": {}}]},
        {"role": "user", "parts": [{"functionResponse": {"response": [{"image": {}}]}}]},
    ):
        found = prompts({"contents": [{"role": "user", "parts": [{"text": "See?"}]}, said]})
        assert (found.text, found.meta["cut"]) == ("See?", True)


def test_data_that_a_tool_returned_is_json() -> None:
    result = {"role": "tool", "content": [{"title": "a"}]}
    assert prompts({"messages": [*TURN, result]}).text == '[{"title": "a"}]'


@pytest.mark.parametrize(
    "row",
    [
        {"message": ANSWERED, "done": True},
        {"message": json.dumps({"level": "info", "text": "Started."})},
        {"message": "Started.", "level": "info"},
    ],
)
def test_other_logs_are_no_prompts_and_their_columns_are_named(row: dict[str, Any]) -> None:
    found = outcome("prompts", prompts, row)
    assert isinstance(found, Rejection)
    assert found.reason.startswith("no prompt or text")
    assert found.row.startswith(f"it has {', '.join(row)}: ")


def test_json_in_a_prompt_or_an_answer_stays_text() -> None:
    text = '{"text": "x"}'
    assert prompts({"inputs": text, "parameters": {}}).text == text
    assert prompts({"prompt": "q", "response": '{"message": "m"}'}).reference == '{"message": "m"}'
    asked = prompts({"messages": TURN, "system": "Be brief.", "systemInstruction": None, "contents": "x"})
    assert asked.conversation == SPOKEN


def test_a_function_may_have_no_arguments() -> None:
    found = prompts({"messages": TURN, "tools": [{"type": "function", "function": {"name": "now"}}]}).tools
    assert found == [{"type": "function", "function": {"name": "now"}}]
    flat = prompts({"messages": TURN, "tools": [{"type": "function", "name": "now"}]}).tools
    assert flat == [{"type": "function", "function": {"name": "now", "parameters": {}}}]


def test_a_tool_that_cannot_be_written_rejects_the_row() -> None:
    with pytest.raises(BadRow, match="a tool holds a lone surrogate"):
        prompts({"messages": TURN, "tools": [{**ADD, "parameters": {"\ud800": 1}}]})
