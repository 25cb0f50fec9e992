"""Conversations: odd orders have a stated outcome, and user text never becomes a special token."""

from __future__ import annotations

import pytest

from draftlab.data.conversations import Turn, first_request, last_request, turns
from draftlab.data.fields import BadRow


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


def test_the_last_request_comes_with_all_that_was_said_before_it() -> None:
    earlier = (("system", "Be brief."), ("user", "u"), ("assistant", "a"))
    found = last_request(said(*earlier, ("user", "more"), ("assistant", "b")))
    assert (found.text, found.reference, found.meta, found.before) == ("more", "b", {"turns": 2}, said(*earlier))
    alone = last_request(said(("assistant", "Hello!"), ("user", "u")), system="Be brief.")
    assert (alone.text, alone.before) == ("u", said(("system", "Be brief.")))
    with pytest.raises(BadRow, match="no user turn"):
        last_request(said(("assistant", "Hello!")))


def test_messages_without_text_are_not_part_of_what_was_said() -> None:
    call = [{"role": "assistant", "content": None, "tool_calls": []}, {"role": "tool", "content": "4"}]
    found = last_request([*said(("user", "u")), *call, *said(("user", "more"))])
    assert (found.text, found.before) == ("more", said(("user", "u"), ("tool", "4")))
    joined = last_request([*said(("user", "u")), call[0], *said(("user", "more"))])
    assert (joined.text, joined.before, joined.meta) == ("u\nmore", [], {"turns": 1})
