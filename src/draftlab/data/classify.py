"""Classifies requests by language or topic, with py3langid, naive Bayes or the paper's classifier."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from draftlab.data.prompts import Prompt
from draftlab.errors import UserError, first_line
from draftlab.files.json_files import read_jsonl, write_json, write_jsonl

Method = Literal["langid", "naive_bayes", "hub"]
Label = Literal["language", "topic", "group"]
Classifier = Callable[[Sequence[str]], list[str]]

MAX_TOKENS = 512  # tokens that the paper's DistilBERT reads; OSD dropped longer prompts, here they are cut
UNKNOWN = "unknown"
LANGUAGES = {  # more languages only cost accuracy on short requests
    "en": "English", "zh": "Chinese", "ja": "Japanese", "es": "Spanish", "pt": "Portuguese", "ru": "Russian",
    "de": "German", "fr": "French", "it": "Italian", "ko": "Korean", "nl": "Dutch", "pl": "Polish", "tr": "Turkish",
    "ar": "Arabic", "fa": "Persian", "he": "Hebrew", "uk": "Ukrainian", "vi": "Vietnamese", "th": "Thai",
    "id": "Indonesian", "hi": "Hindi", "cs": "Czech", "sv": "Swedish", "da": "Danish", "fi": "Finnish",
    "hu": "Hungarian", "ro": "Romanian", "el": "Greek", "bg": "Bulgarian", "ca": "Catalan",
}  # fmt: skip


def languages(texts: Sequence[str]) -> list[str]:
    """The language of each text, one of ``LANGUAGES`` by name, or ``unknown`` below 50 % confidence."""
    identifier = _identifier()
    return [LANGUAGES.get(identifier.classify(text)[0], UNKNOWN) for text in texts]


@functools.cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True, min_confidence=0.5)
    identifier.set_languages(LANGUAGES)
    return identifier


def naive_bayes(prompts: Iterable[Prompt], label: Label) -> Classifier:
    """Multinomial naive Bayes on words and pairs of words, trained on the prompts that carry ``label``.

    A request is ``unknown`` if no class has a posterior of 50 %, for example if it is in another language.
    """
    from sklearn.feature_extraction.text import HashingVectorizer
    from sklearn.naive_bayes import MultinomialNB
    from sklearn.pipeline import make_pipeline

    labelled = [(prompt.text, prompt.meta[label]) for prompt in prompts if label in prompt.meta]
    if len({name for _, name in labelled}) < 2:
        raise UserError(f"fewer than two classes of {label} to learn", remedy="give labelled requests of each class")
    counts = HashingVectorizer(ngram_range=(1, 2), alternate_sign=False, norm=None, n_features=2**18)
    model = make_pipeline(counts, MultinomialNB(alpha=0.1)).fit(*zip(*labelled, strict=True))

    def classifier(texts: Sequence[str]) -> list[str]:
        posterior = model.predict_proba(list(texts))
        best = posterior.argmax(axis=1)
        sure = posterior[range(len(best)), best] >= 0.5
        return [str(model.classes_[i]) if certain else UNKNOWN for i, certain in zip(best, sure, strict=True)]

    return classifier


def hub_classifier(name: str, device: str) -> Classifier:
    """A text classifier ``owner/name@revision`` from the hub, whose classes are the topics; the paper's is a DistilBERT for web pages."""
    from transformers import pipeline

    from draftlab.models import hub

    folder = hub.fetch(name, otherwise="use naive_bayes")
    try:
        run = pipeline("text-classification", str(folder), device=device, trust_remote_code=False, use_safetensors=True)
    except Exception as error:  # the libraries behind it share no base
        remedy = "use a classifier that needs no code of its own, or naive_bayes"
        raise UserError(f"cannot read the classifier: {first_line(error)}", file=name, remedy=remedy) from None
    return lambda texts: [
        str(best["label"]) for best in run(list(texts), truncation=True, max_length=MAX_TOKENS, batch_size=32)
    ]


def classifier_of(
    method: Method, label: Label, labelled: Iterable[Prompt] | None, model: str | None, device: str
) -> Classifier:
    """The classifier of a ``method``: naive Bayes learns from the ``labelled`` requests, and ``model`` names one on the hub."""
    if method == "langid":
        if label == "topic":
            raise UserError("langid finds languages, not topics", remedy="use naive_bayes or hub")
        return languages
    if method == "hub":
        if not model:
            raise UserError("no classifier from the hub is named", remedy="name it with --model OWNER/NAME@REVISION")
        return hub_classifier(model, device)
    if labelled is None:
        raise UserError("naive Bayes learns from labelled requests", remedy="name them with --train")
    return naive_bayes(labelled, label)


@dataclass(frozen=True)
class Evaluation:
    """How often a classifier agrees with the true labels; ``confusion`` counts predicted labels by true label."""

    label: str
    correct: int
    labelled: int
    confusion: dict[str, dict[str, int]]

    @property
    def accuracy(self) -> float | None:
        """The share of labelled requests whose predicted label is the true one; None without labelled requests."""
        return self.correct / self.labelled if self.labelled else None


def classify(prompts: Sequence[Prompt], classifier: Classifier, label: Label) -> tuple[list[Prompt], Evaluation]:
    """The prompts with the predicted ``label`` in ``meta``, and a report; a true label stays in ``meta[f"true_{label}"]``."""
    predicted = classifier([prompt.text for prompt in prompts])
    confusion: dict[str, dict[str, int]] = {}
    marked = []
    for prompt, guess in zip(prompts, predicted, strict=True):
        truth = prompt.meta.get(label)
        meta = prompt.meta | {label: guess}
        if truth is not None:
            meta[f"true_{label}"] = truth
            row = confusion.setdefault(truth, {})
            row[guess] = row.get(guess, 0) + 1
        marked.append(replace(prompt, meta=meta))
    correct = sum(row.get(truth, 0) for truth, row in confusion.items())
    labelled = sum(sum(row.values()) for row in confusion.values())
    return marked, Evaluation(label, correct, labelled, confusion)


def classify_file(
    *,
    prompts: Path,
    label: Literal["language", "topic"],
    method: Method,
    train: Path | None = None,
    model: str | None = None,
    device: str = "cpu",
    out: Path,
    report: Path,
) -> None:
    """Label each request with its language or topic, and report how often this agrees with the label that it came with.

    **Arguments:**
    - `prompts`: a file of prompts that draftlab data make wrote
    - `label`: what to find
    - `method`: langid finds languages; naive_bayes learns labels from --train; hub finds topics with the classifier --model
    - `train`: the labelled prompts that naive_bayes learns from
    - `model`: the classifier on the hub, OWNER/NAME@REVISION
    - `device`: where the classifier from the hub runs: cpu or cuda
    - `out`: the file of labelled prompts to write
    - `report`: a JSON file for the agreement with the labels
    """
    labelled = read_jsonl(train, Prompt) if train else None
    classifier = classifier_of(method, label, labelled, model, device)
    requests = list(read_jsonl(prompts, Prompt))
    if not requests:
        raise UserError("no requests", file=prompts, remedy="give prompts that draftlab data make has written")
    marked, agreement = classify(requests, classifier, label)
    write_jsonl(out, marked)
    write_json(report, {"method": method, "accuracy": agreement.accuracy, **asdict(agreement)})
    if agreement.labelled:
        print(f"{label}: {agreement.correct} of {agreement.labelled} predictions agree with the label")
    else:
        print(f"{label}: {len(marked)} requests labelled; none came with a label to compare with")
