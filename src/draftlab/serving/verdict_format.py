"""The contents of ``verdict.json``: the outcome of each option, with the numbers behind it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Outcome = Literal["yes", "no", "not yet known"]
NAMES = {
    "lookup": "prompt lookup",
    "suffix": "suffix decoding",
    "suffix_confident": "suffix decoding while it is sure",
    "as_it_comes": "the undistilled draft",
    "distilled": "the draft distilled on this traffic",
    "kept_learning": "the draft that keeps learning on it",
    "lookup_first": "prompt lookup before the distilled draft",
    "distilled_confident": "the distilled draft while it is sure",
    "lookup_first_confident": "prompt lookup, else the distilled draft while it is sure",
}
SEARCHES = ("lookup", "suffix")
"""How the names of options begin that search texts, and draft nothing without a model where they find nothing."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def decimals(*values: float) -> int:
    """Two, or up to five where a value that is not 1 would be rounded to 1: on which side of it a speed-up lies is the verdict."""
    near = [value for value in values if round(value, 5) != 1]
    return next(n for n in range(2, 6) if all(round(value, n) != 1 for value in near))


def per_second(rate: float) -> str:
    """A rate as text, with three digits and without an exponent where it is large.

    >>> per_second(0.00123456), per_second(4.0), per_second(1234.5)
    ('0.00123', '4', '1234')
    """
    return f"{rate:.3g}" if rate < 999.5 else f"{rate:.0f}"


class Range(_Record):
    """An estimate and its 95 % interval."""

    estimate: float
    low: float
    high: float

    def show(self) -> str:
        """The estimate and its interval, with as many ``decimals`` as its ends need.

        >>> Range(estimate=1.0012, low=1.0004, high=1.002).show()
        '1.0012 [1.0004, 1.0020]'
        """
        digits = decimals(self.low, self.high)
        # Adding 0 turns a negative zero into zero.
        values = (round(value, digits) + 0.0 for value in (self.estimate, self.low, self.high))
        estimate, low, high = (f"{value:.{digits}f}" for value in values)
        return f"{estimate} [{low}, {high}]"


class AtLength(_Record):
    """One draft length and way to propose; a block ends early where the draft's token has a probability below ``threshold``."""

    draft_len: int
    proposal: str
    speedup: Range
    threshold: float = 0.0


class Part(_Record):
    """The verdict on one part of the log."""

    name: str
    requests: int
    verdict: Outcome
    speedup: Range


class Ceiling(_Record):
    """The best possible speed-up at these costs with a ``perfect`` draft (alpha = 1), and an estimate of it with an ``optimum`` of several drafts.

    The optimum is that of 2 and 4 drafts from the same distribution, if verifying the additional drafts were free (empty if not computed). Its
    mean acceptance is used as if all positions were alike; where easy positions follow hard ones, the speed-up may be higher.
    """

    perfect: float
    optimum_alpha: dict[int, float] = {}
    optimum: dict[int, float] = {}


class Forecast(_Record):
    """Acceptance of a draft that keeps learning, ``after`` these numbers of requests.

    ``enough`` is the number of requests after which twice as many add less than 0.01 (none: beyond the forecast). ``refused`` says why there is
    no forecast.
    """

    seen: int
    after: dict[int, Range] = {}
    enough: int | None = None
    refused: str = ""


class Learning(_Record):
    """Acceptance on the held-out requests, at one draft length, of drafts that were distilled on the first ``n`` requests of the stream.

    ``twice_adds``: what twice the requests would add to the last of them, and ``twice`` the acceptance then; ``refused`` says why that is not known.
    """

    alpha: dict[int, Range]
    twice_adds: Range | None = None
    twice: Range | None = None
    refused: str = ""

    @property
    def points(self) -> dict[int, Range]:
        """The curve, and its forecast for twice the requests."""
        return self.alpha if self.twice is None else self.alpha | {2 * max(self.alpha): self.twice}

    @property
    def sentence(self) -> str:
        """The curve in words."""
        counts, alphas = (
            ", ".join(words) for words in (map(str, self.alpha), (f"{a.estimate:.2f}" for a in self.alpha.values()))
        )
        known = f"Distilled on the first {counts} requests, the draft has an acceptance of {alphas}"
        if self.twice_adds is None:
            return f"{known}. What more requests would add is not known: {self.refused}"
        return f"{known}. Twice the requests would add about {self.twice_adds.show()}"


class Option(_Record):
    """The verdict on one option, at its best length.

    ``tips_at`` is the acceptance from which some length pays off. It is empty if none does, and for blocks that end early, because their
    acceptance does not determine their number. ``recorded_bytes``: the target's recorded distributions that the draft learnt from;
    ``sent_bytes``: the weights sent to the server, once after distillation, and after every update of a draft that keeps learning.
    ``by_batch`` and ``gain_by_batch``: the draft length that emits most tokens a second by requests in a step, and its speed-up (1: no length pays).
    ``payback_requests``: the requests that win back ``update_seconds`` of this machine; none if they never do, or if ``payback_unknown`` says
    why that is not known.
    """

    name: str
    verdict: Outcome
    reason: str
    requests: int
    draft_len: int
    proposal: str
    speedup: Range
    alpha: Range
    acceptance_length: Range
    tips_at: float | None
    ceiling: Ceiling
    by_length: list[AtLength]
    over_time: list[Range]
    thirds: list[Part]
    categories: list[Part]
    by_batch: dict[int, int] = {}
    gain_by_batch: dict[int, Range] = {}
    forecast: Forecast | None = None
    learning: Learning | None = None
    update_seconds: float | None = None
    payback_requests: float | None = None
    payback_unknown: str = ""
    recorded_bytes: int | None = None
    sent_bytes: int | None = None
    threshold: float = 0.0


class AtLoad(_Record):
    """The mean time of a request without a draft over that with one, at ``rate`` requests a second; draft length 0 if no length pays.

    The interval covers chance in the acceptance of requests, and in their arrivals if these do not come from a trace. ``left_out``: requests
    that are not simulated, by reason. ``overloaded``: requests come faster than the server can serve them without a draft, so that its queue grows
    for as long as this lasts, and the speed-up with it.
    """

    rate: float
    draft_len: int
    speedup: Range
    by_length: dict[int, float]
    left_out: dict[str, int] = {}
    overloaded: bool = False

    @property
    def best_drafted(self) -> str:
        """The speed-up of the best draft length other than 0, in words."""
        drafted = {k: gain for k, gain in self.by_length.items() if k}
        if not drafted:
            return ""
        best = max(drafted, key=lambda k: drafted[k])
        return f"{drafted[best]:.{decimals(drafted[best])}f} with {best} drafted"


class MonitorPromise(_Record):
    """What ``draftlab monitor`` reads as its ``Promise``; ``acceptance_length`` leaves out blocks for which nothing was drafted.

    ``requests``: how many it is measured on. ``by_length``: the acceptance length at the other draft lengths that pay for some batch.
    """

    option: str
    draft_len: int
    acceptance_length: Range
    requests: int = 0
    alpha: Range
    threshold: float = 0.0
    by_length: dict[int, Range] = {}


class Judged(_Record):
    """What a verdict is about: a log and its digest, the models, and how the answers were sampled."""

    format: Literal["draftlab verdict 1"] = "draftlab verdict 1"
    log: str
    log_sha256: str = ""
    target: str
    draft: str
    temperature: float
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0

    @property
    def sampled(self) -> str:
        """How the answers were sampled, in words."""
        cuts = {"top-p": (self.top_p, 1), "top-k": (self.top_k, 0), "min-p": (self.min_p, 0)}
        given = [f"{name} {value:g}" for name, (value, without) in cuts.items() if value != without]
        return ", ".join([f"temperature {self.temperature:g}", *given])


class Verdict(Judged):
    """What ``verdict.json`` contains; ``cut``: held-out answers that reached the limit of ``cut_at`` tokens.

    ``conversations``: how many the held-out ``requests`` belong to, 0 if unknown. ``verdict``, ``options`` and ``monitor`` are of one request
    at a time, ``load_verdict`` of the given load. ``commands``: what to run next. ``costs_vary``: whether intervals cover how costs drift, as where they were measured. ``parameters``: weights of the
    ``target`` and of the ``draft``.
    """

    requests: int
    conversations: int = 0
    left_out: dict[str, int]
    cut: int = 0
    cut_at: int = 0
    costs: str
    costs_vary: bool = True
    parameters: dict[str, int] = {}
    step_seconds: float
    cost_ratio: dict[int, float]
    verify_ratio: dict[int, float]
    verdict: Outcome
    sentence: str
    best: str | None
    options: list[Option]
    load: dict[str, list[AtLoad]]
    load_verdict: Outcome | None = None
    load_sentence: str = ""
    monitor: MonitorPromise | None
    commands: list[str] = []

    @property
    def measured_on(self) -> str:
        """The held-out requests, in words."""
        of = f" of {self.conversations} conversations" if 0 < self.conversations < self.requests else ""
        return f"{self.requests} held-out requests{of}"

    @property
    def cut_off(self) -> str:
        """How many answers were cut, in words."""
        return f"; {self.cut} of {self.requests} answers were cut at {self.cut_at} tokens" if self.cut else ""
