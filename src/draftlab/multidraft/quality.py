"""How good an answer is: ROUGE-L of summaries and BLEU of translations, against the dataset's own answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import sacrebleu
from rouge_score.rouge_scorer import RougeScorer


@dataclass(frozen=True)
class Score:
    """``rouge_l``: F-measure of the longest common subsequence of words; ``bleu``: sentence BLEU, both from 0 to 1. None without a reference."""

    rouge_l: float | None
    bleu: float | None

    @staticmethod
    def of(text: str, reference: str | None) -> Score:
        """Score one answer. Sentence BLEU leaves out orders of n-grams that a short answer has none of (``effective_order``)."""
        if not reference:
            return Score(None, None)
        rouge = _rouge().score(reference, text)["rougeL"].fmeasure
        return Score(float(rouge), float(_bleu().sentence_score(text, [reference]).score) / 100)


@cache
def _rouge() -> RougeScorer:
    return RougeScorer(["rougeL"])


@cache
def _bleu() -> sacrebleu.BLEU:
    return sacrebleu.BLEU(effective_order=True)
