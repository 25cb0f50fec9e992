"""Routing: mistakes are counted, made on purpose at a set rate, and every request goes to one draft."""

import numpy as np
import pytest

from draftlab.data import routing
from draftlab.data.classify import UNKNOWN
from draftlab.data.prompts import Prompt
from draftlab.errors import UserError


def stream(*names):
    return [Prompt(f"d/{i}", "d", "train", name, None, {"group": name}) for i, name in enumerate(names)]


def test_each_request_is_routed_alone_and_mistakes_are_counted():
    seen = []

    def classifier(texts):
        seen.append(len(texts))
        return ["a" if text == "x" else text for text in texts]

    marked, facts = routing.routed(stream("a", "b", "x", "b"), classifier)
    assert [prompt.meta["route"] for prompt in marked] == ["a", "b", "a", "b"]
    assert [prompt.meta["group"] for prompt in marked] == ["a", "b", "x", "b"]
    assert seen == [1, 1, 1, 1]
    assert (facts["correct"], facts["accuracy"], facts["unknown"]) == (3, 0.75, 0)
    assert facts["classifier_ms"] >= 0


def test_an_unknown_request_goes_where_most_went():
    marked, facts = routing.routed(
        stream("u", "b", "b", "u", "a"), lambda texts: [UNKNOWN if text == "u" else text for text in texts]
    )
    assert [prompt.meta["route"] for prompt in marked] == ["u", "b", "b", "b", "a"]
    assert facts["unknown"] == 2


def test_an_empty_stream_is_refused():
    with pytest.raises(UserError, match="empty"):
        routing.routed([], lambda texts: [])


@pytest.mark.parametrize("rate", [0.0, 0.2, 1.0])
def test_misroutes_at_the_rate_and_never_to_the_right_draft(rate):
    routes = ["a", "b", "c", "d"] * 1000
    found = routing.misroute(routes, rate, np.random.default_rng(0))
    wrong = [(new, old) for new, old in zip(found, routes, strict=True) if new != old]
    assert len(wrong) / len(routes) == pytest.approx(rate, abs=0.03)
    if rate:
        assert len(set(wrong)) == 12  # every wrong pair
    assert routing.misroute(["a"] * 3, 1.0, np.random.default_rng(0)) == ["a"] * 3


def test_every_request_has_one_route():
    parts = routing.by_route(["b", "a", "b", "c"])
    assert parts == {"b": [0, 2], "a": [1], "c": [3]}
