"""A padded Llama costs more and computes the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftlab.errors import UserError
from draftlab.latency.inflate import inflate
from draftlab.models.gguf import export
from draftlab.models.llama_cpp import LlamaCpp
from draftlab.models.tokenizer import load_tokenizer
from tests.models.test_gguf import llama_logits, our_logits, toy


@pytest.mark.parametrize("weights", ["f32", "f16", "bf16", "q8_0", "q4_0"])
@pytest.mark.parametrize("widths", [1, 4, 16])
def test_inflation_changes_no_logit(tmp_path: Path, weights: Any, widths: int) -> None:
    folder = toy(tmp_path / "toy")
    inflate(folder, tmp_path / "big", layers=5, ffn=256, widths=widths)
    export(folder, tmp_path / "toy.gguf", weights)
    export(tmp_path / "big", tmp_path / "big.gguf", weights)
    np.testing.assert_array_equal(llama_logits(tmp_path / "big.gguf"), llama_logits(tmp_path / "toy.gguf"))
    with LlamaCpp(tmp_path / "big.gguf") as big, LlamaCpp(tmp_path / "toy.gguf") as small:
        assert big.describe()["parameters"] > 4 * small.describe()["parameters"]
        assert json.loads(big.describe()["inflated_from"]) | {"hidden_size": 0} == {
            "num_hidden_layers": 2,
            "intermediate_size": 64,
            "hidden_size": 0,
        }
        assert small.describe()["inflated_from"] is None


def test_deeper_inflation_changes_no_logit_in_torch(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy")
    inflate(folder, tmp_path / "deep", layers=4)
    np.testing.assert_array_equal(our_logits(tmp_path / "deep"), our_logits(folder))


def test_a_padded_model_keeps_its_chat_template(tmp_path: Path) -> None:
    (toy(tmp_path / "toy") / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    inflate(tmp_path / "toy", tmp_path / "big", layers=3)
    assert load_tokenizer(tmp_path / "big").chat_template == "{{ messages[0]['content'] }}"


def test_inflation_does_not_shrink(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot inflate"):
        inflate(toy(tmp_path / "toy"), tmp_path / "small", layers=1)
    with pytest.raises(UserError, match="widths is 2"):
        inflate(tmp_path / "toy", tmp_path / "small", layers=4, widths=2)
    shutil.rmtree(tmp_path / "toy")
    with pytest.raises(UserError, match="no such file"):
        inflate(tmp_path / "toy", tmp_path / "small", layers=4)
