"""Streams: every request once, in the order that the kind of stream promises."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from draftlab.data.prompts import Prompt
from draftlab.data.streams import Stream, arrange, shares_over_time
from draftlab.errors import UserError


def requests(**sizes: int) -> list[Prompt]:
    return [
        Prompt(f"{name}/train/{i:05d}", name, "train", f"{name} {i}") for name, n in sizes.items() for i in range(n)
    ]


def groups(stream: list[Prompt]) -> list[str]:
    return [prompt.meta["group"] for prompt in stream]


@given(
    kind=st.sampled_from(["concatenated", "linear", "shuffled", "recurring", "iid"]),
    sizes=st.dictionaries(st.sampled_from("abcd"), st.integers(1, 20), min_size=1),
    seed=st.integers(0, 5),
    period=st.integers(1, 7),
)
def test_every_request_once_and_in_its_groups_order(kind: Any, sizes: dict[str, int], seed: int, period: int) -> None:
    prompts = requests(**sizes)
    found = arrange(prompts, Stream(kind=kind, seed=seed, period=period))
    assert sorted(p.id for p in found) == sorted(p.id for p in prompts)
    for name in sizes:
        ids = [p.id for p in found if p.dataset == name]
        assert ids == sorted(ids)
    assert all(p.meta["update"] for p in found)
    assert found == arrange(prompts, Stream(kind=kind, seed=seed, period=period))


def test_concatenated_is_sharp() -> None:
    found = arrange(requests(a=3, b=2), Stream(kind="concatenated", groups=("b", "a"), per_group=2))
    assert groups(found) == ["b", "b", "a", "a"]
    assert [p.meta["segment"] for p in found] == [0, 0, 1, 1]


def test_recurring_comes_back() -> None:
    found = arrange(requests(a=5, b=3), Stream(kind="recurring", period=2))
    assert groups(found) == list("aabbaaba")
    assert [p.meta["segment"] for p in found] == [0, 0, 1, 1, 2, 2, 3, 4]


def test_linear_fades_from_one_to_the_other() -> None:
    found = arrange(requests(a=2000, b=2000), Stream(kind="linear"))
    share = np.array([p.dataset == "b" for p in found], dtype=float).reshape(10, 400).mean(1)
    np.testing.assert_allclose(share, np.arange(0.05, 1, 0.1), atol=0.08)


def test_linear_passes_through_its_knots() -> None:
    # OSD's three-way mix: gsm8k .1 to .8, spider .8 to .1, finance .1 throughout
    stream = Stream(kind="linear", knots=(0.1, 0.8, 0.1, 0.8, 0.1, 0.1))
    found = arrange(requests(gsm8k=3000, spider=3000, finance=3000), stream)[:3000]
    tenths = [Counter(groups(found[at : at + 300])) for at in range(0, 3000, 300)]
    assert tenths[0]["spider"] > 0.7 * 300
    assert tenths[0]["gsm8k"] < 0.2 * 300
    assert 20 < np.mean([t["finance"] for t in tenths]) < 40


def test_linear_through_many_groups_gives_each_its_share() -> None:
    found = arrange(requests(**{f"g{i}": 500 for i in range(8)}), Stream(kind="linear"))
    ranks = np.array([int(p.dataset[1:]) for p in found])
    eighths = ranks.reshape(8, 500).mean(1)
    assert (np.diff(eighths) > 0.5).all()
    assert eighths[0] < 0.3
    assert eighths[-1] > 6.7
    assert np.flatnonzero(ranks == 0).max() < 1500  # nothing of the first group is left for the end


def test_iid_follows_its_weights() -> None:
    found = arrange(requests(a=4000, b=4000), Stream(kind="iid", weights=(1.0, 3.0)))[:2000]
    assert groups(found).count("b") == pytest.approx(1500, abs=80)


def test_two_mix_updates_behind_its_gates() -> None:
    found = arrange(requests(a=200, b=200), Stream(kind="two_mix", gates=((200, "a"), (400, "b"))))
    for position, prompt in enumerate(found):
        assert prompt.meta["update"] == (prompt.dataset == ("a" if position < 200 else "b"))
    assert 60 < groups(found)[:200].count("a") < 140
    closed = arrange(requests(a=20, b=20), Stream(kind="two_mix", gates=((10, "a"),)))
    assert not any(p.meta["update"] for p in closed[10:])


def labelled(n: int) -> list[Prompt]:
    names = ("English", "Spanish")
    return [
        Prompt(f"arena/train/{i:05d}", "arena", "train", f"{i}", None, {"language": names[i % 2], "time": float(n - i)})
        for i in range(n)
    ]


def test_by_time_and_by_language() -> None:
    found = arrange(labelled(10), Stream(kind="by_time", group_by="language"))
    assert [p.meta["time"] for p in found] == sorted(p.meta["time"] for p in found)
    found = arrange(labelled(10), Stream(kind="concatenated", group_by="language", groups=("Spanish",)))
    assert groups(found) == ["Spanish"] * 5


def test_by_length_drifts_inside_one_dataset() -> None:
    prompts = [Prompt(f"a/{i}", "a", "train", "x" * (1 + i * 7 % 64)) for i in range(64)]
    sharp = arrange(prompts, Stream(kind="concatenated", group_by="length"))
    lengths = np.array([len(p.text) for p in sharp]).reshape(8, 8)
    assert (lengths.max(1)[:-1] < lengths.min(1)[1:]).all()
    assert groups(sharp)[::8] == [f"length {i}" for i in range(1, 9)]
    smooth = np.array([len(p.text) for p in arrange(prompts, Stream(kind="linear", group_by="length"))])
    assert smooth[:16].mean() < smooth[-16:].mean() / 2


def test_rows_skipped_are_those_before_what_is_kept() -> None:
    first = arrange(requests(a=5, b=5), Stream(kind="concatenated", per_group=2))
    rest = arrange(requests(a=5, b=5), Stream(kind="shuffled", skip=2, per_group=3))
    assert len(first) + len(rest) == 10
    assert not {p.id for p in first} & {p.id for p in rest}
    with pytest.raises(UserError, match=r"needs 1 requests of each dataset after 5 that are skipped, but b has 5 \("):
        arrange(requests(a=9, b=5), Stream(kind="shuffled", skip=5))


def test_a_group_with_fewer_requests_than_the_stream_needs_stops_it_unless_told_to_go_on() -> None:
    few, stream = requests(a=9, b=5), Stream(kind="concatenated", per_group=6)
    with pytest.raises(UserError, match=r"needs 6 requests of each dataset, but b has 5 \(.*fewer: true"):
        arrange(few, stream)
    found = arrange(few, stream.model_copy(update={"fewer": True}))
    assert [prompt.dataset for prompt in found] == ["a"] * 6 + ["b"] * 5
    with pytest.raises(UserError, match=r"but b has 5 \(fetch more rows .*, or lower skip or per_group\)"):
        arrange(few, stream.model_copy(update={"fewer": True, "skip": 5}))


def test_a_group_without_a_request_is_left_out_where_fewer_are_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    """A rare topic may have none among the held-out requests: that must not end a run after days."""
    some = requests(a=6, b=5)
    stream = Stream(kind="concatenated", groups=("c", "b", "a"), per_group=6)
    with pytest.raises(UserError, match="no request has dataset c"):
        arrange(some, stream)
    found = arrange(some, stream.model_copy(update={"fewer": True}))
    assert Counter(prompt.meta["group"] for prompt in found) == {"b": 5, "a": 6}
    assert "no request has dataset c: left out" in capsys.readouterr().out
    with pytest.raises(UserError, match="no request has dataset c, d"):
        arrange(some, stream.model_copy(update={"fewer": True, "groups": ("c", "d")}))


def test_a_class_with_the_name_of_the_row_that_pools_all_is_refused() -> None:
    named = [
        replace(p, meta=p.meta | {"topic": name}) for p, name in zip(requests(a=2), ("all together", "b"), strict=True)
    ]
    with pytest.raises(UserError, match="a topic is called 'all together'"):
        arrange(named, Stream(kind="shuffled", group_by="topic"))


def test_rows_without_a_label_stay_out() -> None:
    found = arrange([*labelled(4), *requests(gsm8k=3)], Stream(kind="shuffled", group_by="language"))
    assert len(found) == 4


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (Stream(kind="shuffled", groups=("c",)), "no request has dataset c .use one of a, b"),
        (Stream(kind="shuffled", group_by="topic"), "no request has topic at all"),
        (Stream(kind="linear", knots=(1.0, 0.0, 1.0)), "shares"),
        (Stream(kind="linear", knots=(0.0, 0.0)), "shares"),
        (Stream(kind="iid", weights=(-1.0, 2.0)), "shares"),
        (Stream(kind="recurring", period=0), "period is 0"),
        (Stream(kind="two_mix"), "gates"),
        (Stream(kind="shuffled", gates=((1, "a"),)), "gates"),
        (Stream(kind="two_mix", gates=((1, "c"),)), "a gate names c"),
        (Stream(kind="by_time"), "no time"),
    ],
)
def test_refusals(stream: Stream, message: str) -> None:
    with pytest.raises(UserError, match=message):
        arrange(requests(a=2, b=2), stream)


@pytest.mark.parametrize("numbers", [{"per_group": -1}, {"skip": -1}, {"weights": (float("nan"), 1.0)}])
def test_numbers_that_mean_nothing_are_refused(numbers: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Stream(kind="iid", **numbers)


def test_no_requests_at_all_are_said_to_be_none() -> None:
    with pytest.raises(UserError, match="there are no requests"):
        arrange([], Stream(kind="shuffled"))


def test_shares_over_time() -> None:
    rows = shares_over_time(labelled(100), "language", 4)
    assert len(rows) == 8
    assert sum(int(row["count"]) for row in rows) == 100
    assert all(row["total"] == 25 for row in rows)
    with pytest.raises(UserError, match="no request has a time"):
        shares_over_time(requests(a=2), "language", 4)


def test_what_is_aside_follows_the_stream_and_what_is_held_out_is_whole():
    rows = [Prompt(f"{name}/{i}", name, "train", "") for name in "ab" for i in range(6)]
    stream = Stream(kind="two_mix", per_group=2, skip=1, gates=((3, "a"),), groups=("b", "a"), seed=5)
    served, aside, held_out = (
        [prompt.id for prompt in arrange(rows, own)] for own in (stream, stream.aside(2), stream.held_out())
    )
    assert sorted(served) == ["a/1", "a/2", "b/1", "b/2"]
    assert sorted(aside) == ["a/3", "a/4", "b/3", "b/4"]
    assert held_out == [f"{name}/{i}" for name in "ba" for i in range(6)]
    assert all(prompt.meta["update"] for prompt in arrange(rows, stream.aside(2)))
