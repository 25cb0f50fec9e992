"""Hardware profiles: what a step of a model costs on a machine, as YAML files that state the source of their numbers.

A step of n tokens costs ``f(n) + head(rows) + attention``, where attention is ``fixed + per_sequence B + per_cached (sum of lengths)``.
A step that also reads c tokens of prompts runs another kernel, and adds ``per_token c + per_pair (pairs of tokens) + per_mix B c``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import yaml
from pydantic import Field, field_validator

from draftlab.core.settings import Count, Settings
from draftlab.errors import UserError
from draftlab.files.atomic import write_text
from draftlab.files.validated import validated
from draftlab.files.yaml_files import Place, read_yaml

SHIPPED = Path(__file__).parent / "profiles"
Milliseconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
LONGEST = 16_384
"""Costs of up to so many tokens are tabulated, or up to the last known one; beyond, the last slope goes on."""
MOST = 1 << 20
"""The largest number of tokens that a profile may name."""


class Attention(Settings):
    """Milliseconds of all layers' attention in one step."""

    fixed: Milliseconds = 0.0
    per_sequence: Milliseconds = 0.0
    per_cached: Milliseconds = 0.0
    per_token: Milliseconds = 0.0
    per_pair: Milliseconds = 0.0
    per_mix: Milliseconds = 0.0


class Costs(Settings):
    """Milliseconds of one model's step: ``tokens`` and ``rows`` map a number to a time, with straight lines between."""

    tokens: dict[int, Milliseconds]
    rows: dict[int, Milliseconds] = Field(default={1: 0.0})
    decode: Attention = Attention()
    mixed: Attention | None = None
    """Attention in a step that also reads prompts; None: as ``decode``."""

    @field_validator("tokens", "rows")
    @classmethod
    def _ascending(cls, table: dict[int, float]) -> dict[int, float]:
        if not table or min(table) < 1 or max(table) > MOST:
            raise ValueError(f"needs at least one number of tokens, each from 1 to {MOST}")
        return dict(sorted(table.items()))

    @cached_property
    def _by_count(self) -> tuple[np.ndarray, np.ndarray]:
        return _filled(self.tokens), _filled(self.rows)

    def step(self, tokens: int, rows: int, sequences: int, cached: float, chunk: int = 0, pairs: float = 0.0) -> float:
        """Milliseconds of a step that reads ``tokens`` in all and computes logits at ``rows`` places.

        ``sequences`` decode with ``cached`` tokens before them. ``chunk`` tokens are of prompts, with ``pairs`` pairs of tokens.
        """
        linear, head = self._by_count
        attention = self.mixed if chunk and self.mixed else self.decode
        return float(
            _at(linear, tokens)
            + (_at(head, rows) if rows else 0.0)
            + attention.fixed
            + attention.per_sequence * sequences
            + attention.per_cached * cached
            + attention.per_token * chunk
            + attention.per_pair * pairs
            + attention.per_mix * sequences * chunk
        )

    def scaled(self, by: float) -> Costs:
        """The costs of a model that takes ``by`` times as long in everything."""
        return Costs.model_validate(_each_float(self.model_dump(exclude_none=True), lambda ms: ms * by))


def _filled(table: Mapping[int, float]) -> np.ndarray:
    """The times for 0 to ``LONGEST`` tokens or more: constant below the first known one, and extrapolated with the last slope."""
    known = np.array(list(table))
    times = np.array(list(table.values()))
    wanted = np.arange(max(LONGEST, known[-1]) + 1)
    filled = np.interp(wanted, known, times)
    if len(known) > 1:
        # Between the last two of many points noise decides; the slope is that over the second half of the range.
        half = np.searchsorted(known, known[-1] / 2)
        half = min(int(half), len(known) - 2)
        # More tokens never cost less, whatever noise says.
        slope = max(0.0, (times[-1] - times[half]) / (known[-1] - known[half]))
        filled[known[-1] :] = times[-1] + slope * (wanted[known[-1] :] - known[-1])
    return np.asarray(filled)


def _at(filled: np.ndarray, tokens: int) -> float:
    last = len(filled) - 1
    if tokens <= last:
        return float(filled[tokens])
    return float(filled[-1] + (filled[-1] - filled[-2]) * (tokens - last))


class Profile(Settings):
    """A machine with a model on it, and the source of its numbers.

    The limits are those of ``engine``: ``kv_tokens`` in the cache, ``max_sequences`` at once, ``max_tokens`` in a step.
    ``overhead`` is the time of a step outside the models, ``per_block`` the additional time if the step drafts (ms). The draft takes a step
    for each token of a block; a ``parallel`` one proposes the block in one step, which also reads a mask for each token after the first.
    """

    name: str
    hardware: str
    model: str
    engine: str
    source: str
    commit: str = ""
    licence: str
    note: str = ""
    target: Costs
    draft: Costs | None = None
    parallel: bool = False
    overhead: Milliseconds = 0.0
    per_block: Milliseconds = 0.0
    kv_tokens: Count
    kv_block: Count = 16
    max_sequences: Count = 256
    max_tokens: Count = 2048

    @field_validator("target")
    @classmethod
    def _takes_time(cls, target: Costs) -> Costs:
        attention = target.decode
        # Not `step`, which keeps its tables: two equal models would then differ.
        if not min(target.tokens.values()) + min(target.rows.values()) + attention.fixed + attention.per_sequence > 0:
            raise ValueError("a step takes no time")
        return target

    def block_ms(self, batch: int, context: float, draft_len: int) -> float:
        """Milliseconds of drafting and verifying one block of each of ``batch`` requests with ``context`` tokens before them."""
        read, cached = batch * (draft_len + 1), batch * context
        ms = self.overhead + (self.per_block if draft_len else 0.0) + self.target.step(read, read, batch, cached)
        return ms + (self.drafting_ms(read, batch, draft_len, cached) if draft_len else 0.0)

    def drafting_ms(
        self, read: int, batch: int, draft_len: int, cached: float, chunk: int = 0, pairs: float = 0.0
    ) -> float:
        """Milliseconds in which the draft reads what the target ``read``, and drafts ``draft_len`` tokens for each of ``batch`` requests."""
        if self.draft is None:
            return 0.0
        if self.parallel:
            return self.draft.step(read + batch * (draft_len - 1), batch * draft_len, batch, cached, chunk, pairs)
        first = self.draft.step(read, batch, batch, cached, chunk, pairs)
        return first + (draft_len - 1) * self.draft.step(batch, batch, batch, cached)


def shipped() -> list[str]:
    """The names of the profiles that come with draftlab."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def load(name: str | Path) -> Profile:
    """A shipped profile by its name, or a user's by its path; a wrong value is an error that gives its line."""
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        path = SHIPPED / f"{name}.yaml"
        if not path.is_file():
            raise UserError(f"no profile {str(name)!r}", remedy=f"give a YAML file, or one of {', '.join(shipped())}")
    return validated(Profile, read_yaml(path), Place(path))


def save(profile: Profile, out: Path) -> None:
    """Write a profile as YAML, times rounded to a tenth of a microsecond."""
    unsaid = None if profile.parallel else {"parallel"}  # few drafts are
    values = _each_float(profile.model_dump(exclude_none=True, exclude=unsaid), lambda value: float(f"{value:.6g}"))
    write_text(out, yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=10_000))


def _each_float(value: Any, change: Callable[[float], float]) -> Any:
    """Change every float in nested mappings."""
    if isinstance(value, dict):
        return {key: _each_float(inner, change) for key, inner in value.items()}
    return change(value) if isinstance(value, float) else value
