"""When requests arrive and how long they are: from a trace in one of the usual formats, or drawn at random."""

from __future__ import annotations

import contextlib
import csv
import datetime
import gzip
import json
import math
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from jaxtyping import Bool, Float64, Int

from draftlab.data.raw_rows import LONGEST, bounded_lines
from draftlab.data.table_rows import check_distinct
from draftlab.errors import UserError


@dataclass(frozen=True)
class Arrivals:
    """Requests in order of arrival: seconds since the first, tokens read and tokens written; what was left out, by reason.

    ``classes`` are their classes of acceptance; None: acceptance is drawn apart from the lengths. ``repeated``: the share of the tokens read that
    repeats the beginning of an earlier prompt, as far as the trace says (``hash_ids``).
    """

    seconds: Float64[np.ndarray, " requests"]
    prompt: Int[np.ndarray, " requests"]
    output: Int[np.ndarray, " requests"]
    left_out: Mapping[str, int]
    classes: Int[np.ndarray, " requests"] | None = None
    repeated: float = 0.0

    @property
    def rate(self) -> float:
        """Requests a second, from the gaps between them."""
        span = float(self.seconds[-1] - self.seconds[0])
        return (len(self.seconds) - 1) / span if span > 0 else math.inf

    def at_rate(self, rate: float) -> Arrivals:
        """The same requests, with the time between them stretched so that ``rate`` arrive per second; a single one comes at 0."""
        if not 0 < rate < math.inf:
            raise UserError(f"a rate of {rate} requests a second", remedy="give a rate above 0")
        if len(self.seconds) == 1:
            return self
        if not math.isfinite(self.rate):
            raise UserError("all requests come at once", remedy="give a trace of several times")
        return replace(self, seconds=self.seconds * (self.rate / rate))

    def take(self, chosen: Int[np.ndarray, " some"] | Bool[np.ndarray, " requests"]) -> Arrivals:
        """Only the ``chosen`` ones."""
        classes = None if self.classes is None else self.classes[chosen]
        kept = {name: getattr(self, name)[chosen] for name in ("seconds", "prompt", "output")}
        return replace(self, **kept, classes=classes)


@dataclass(frozen=True)
class Columns:
    """The columns of a format: the time of arrival (in units of ``unit`` seconds), tokens read and tokens written."""

    arrived: str
    prompt: str
    output: str
    unit: float = 1.0


FORMATS = {
    "azure": Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    "burstgpt": Columns("Timestamp", "Request tokens", "Response tokens"),
    "qwen-bailian": Columns("timestamp", "input_length", "output_length"),
    "mooncake": Columns("timestamp", "input_length", "output_length", 1e-3),
    "llmservingsim": Columns("arrival_time_ns", "input_toks", "output_toks", 1e-9),
    "vllm": Columns("arrival_time", "input_toks", "output_toks"),
    "vidur": Columns("arrived_at", "num_prefill_tokens", "num_decode_tokens"),
    "litellm": Columns("startTime", "prompt_tokens", "completion_tokens"),
    "openai": Columns("timestamp", "prompt_tokens", "completion_tokens"),
}
"""Mooncake and Qwen-Bailian name their columns alike; rows of Qwen-Bailian have a ``chat_id``, and seconds in place of milliseconds."""


UNITS = {1.0: "seconds", 1e-3: "milliseconds", 1e-9: "nanoseconds"}
"""What the units of the formats are called."""
LATEST = 253_402_300_800
"""Seconds from 1970 to the year 10000. A later time is in another unit, and the rate of its trace would be a thousandth."""
UNKNOWN = "no time, or no numbers of tokens"
REPEATED = 0.01
"""Of how many of the tokens read it is said that they repeat the beginning of an earlier prompt."""


def _columns_of(row: Mapping[str, Any], path: Path, line: int) -> Columns:
    """The columns of the first format that a row fits."""
    for name, columns in FORMATS.items():
        needed = {columns.arrived, columns.prompt, columns.output}
        if needed <= row.keys() and (name != "qwen-bailian" or "chat_id" in row):
            return columns
    known = "; ".join(f"{n}: {c.arrived}, {c.prompt}, {c.output}" for n, c in FORMATS.items())
    raise UserError("no known columns of a trace", file=path, line=line, remedy=f"name them as one of {known}")


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A file of bytes, plain or gzipped, that one can ``peek`` into; it is opened once, so it may be a pipe."""
    try:
        with path.open("rb") as raw:
            yield gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == b"\x1f\x8b" else raw
    except FileNotFoundError:
        raise UserError("no such file", file=path, remedy="check the path") from None
    except (EOFError, gzip.BadGzipFile, zlib.error, csv.Error) as error:
        raise UserError(f"broken: {error}", file=path, remedy="fetch the file again") from None


def rows(path: Path) -> Iterator[tuple[int, Any]]:
    """The rows of a CSV or a JSONL file, plain or gzipped, one at a time with their line; a broken or too long line is ``None``."""
    with opened(path) as file:
        yield from rows_of(file, path)


def rows_of(file: IO[bytes], path: Path) -> Iterator[tuple[int, Any]]:
    """The rows of an ``opened`` file."""
    # A line that is too long becomes a short one that is broken: no JSON, and a single cell in a table.
    lines = ((line or b"too long\n").decode("utf-8-sig", "replace") for line in bounded_lines(file))
    if _is_table(path):
        csv.field_size_limit(LONGEST)
        table = csv.reader(lines)
        names = [name.strip() for name in next(table, [])]
        check_distinct(names, str(path), 1)
        for cells in filter(None, table):
            fits = len(cells) == len(names)
            yield table.line_num, dict(zip(names, cells, strict=True)) if fits else None
        return
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, _object(line)


def _is_table(path: Path) -> bool:
    """Whether the first line of a file names its columns."""
    return path.name.lower().removesuffix(".gz").endswith(".csv")


def _object(line: str) -> Any:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def unwrapped(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row with the fields of its ``response``, and of the ``body`` in that, as a log of a server's requests has them.

    An outer field prevails, unless it is null.
    """
    for name in ("response", "body"):
        row = _over(row, row.get(name))
    return row


def _over(row: Mapping[str, Any], inner: Any) -> Mapping[str, Any]:
    """The fields of ``inner``, if it is an object, and over them those of ``row`` that are not null."""
    if not isinstance(inner, Mapping):
        return row
    return {**inner, **{name: value for name, value in row.items() if value is not None or name not in inner}}


def read_trace(path: Path, *, limit: int = 0) -> Arrivals:
    """The requests of a trace, 24 bytes each in memory; broken and empty rows are left out and counted.

    A row out of order is an error, because sorting the times would produce a different load from the recorded one; so is a time after the year
    9999, because its unit is another.
    """
    seconds, prompt, output = array("d"), array("q"), array("q")
    left_out: Counter[str] = Counter()
    repeated, known_blocks = 0.0, set[Any]()
    columns: Columns | None = None
    unknown: UserError | None = None
    for line, row in rows(path):
        if row is None:
            left_out["broken line"] += 1
            continue
        row = _over(row, unwrapped(row).get("usage"))
        row = {name.removesuffix("(s)").strip(): value for name, value in row.items()}
        if columns is None:
            try:
                columns = _columns_of(row, path, 1 if _is_table(path) else line)
            except UserError as error:
                if _is_table(path):
                    raise
                unknown = unknown or error  # a request that failed has no usage; a later one may
                left_out[UNKNOWN] += 1
                continue
        try:
            at = _seconds(row.get(columns.arrived), columns.unit)
            # An array of integers refuses a number that is too large.
            read, written = array("i", [int(float(row[name])) for name in (columns.prompt, columns.output)])
        except (KeyError, TypeError, ValueError, OverflowError):
            left_out[UNKNOWN] += 1
            continue
        if read < 1 or written < 1:
            left_out["no tokens read or written"] += 1
            continue
        if at > LATEST:
            what = f"a time of {at:.6g} s since 1970 is after the year 9999"
            remedy = f"give {columns.arrived} in {UNITS[columns.unit]}, as this format has it"
            raise UserError(what, file=path, line=line, remedy=remedy)
        if seconds and at < seconds[-1]:
            what = f"comes {seconds[-1] - at:g} s before the request above it"
            raise UserError(what, file=path, line=line, remedy="sort the rows by time, or repair the clock")
        seconds.append(at)
        prompt.append(read)
        output.append(written)
        repeated += read * _repeated(row.get("hash_ids"), known_blocks)
        if len(seconds) == limit:
            break
    if columns is None and unknown:
        raise unknown
    if not seconds:
        reasons = ", ".join(f"{n} {why}" for why, n in left_out.items()) or "it is empty"
        raise UserError(f"no usable request: {reasons}", file=path, remedy="give a trace with times and lengths")
    times, lengths = np.frombuffer(seconds), np.frombuffer(prompt, np.int64)
    share = repeated / float(lengths.sum())
    return Arrivals(times - times[0], lengths, np.frombuffer(output, np.int64), left_out, repeated=share)


def _repeated(blocks: Any, known: set[Any]) -> float:
    """The share of a prompt's ``blocks`` at its beginning that are ``known`` from earlier prompts; adds them all."""
    if not isinstance(blocks, list) or not blocks or not all(isinstance(block, int | str) for block in blocks):
        return 0.0
    new = next((place for place, block in enumerate(blocks) if block not in known), len(blocks))
    known.update(blocks)
    return new / len(blocks)


def _seconds(value: Any, unit: float) -> float:
    """A time in seconds: a number, or a date (to the microsecond)."""
    try:
        at = float(value) * unit
    except ValueError:
        date = datetime.datetime.fromisoformat(str(value).strip())
        at = date.replace(tzinfo=date.tzinfo or datetime.UTC).timestamp()
    if not math.isfinite(at):
        raise ValueError("not a finite time")
    return at


def poisson(lengths: Arrivals, requests: int, rate: float, rng: np.random.Generator, burst: float = 1.0) -> Arrivals:
    """``requests`` at ``rate`` a second with lengths drawn from ``lengths``.

    Gaps between them are Gamma with ``burst`` as the squared coefficient of variation: exponential for 1.
    """
    if not (0 < rate < math.inf and 0 < burst < math.inf and 1 / burst < math.inf):
        raise UserError(f"a rate of {rate} and a burst of {burst}", remedy="give finite numbers above 0")
    gaps = rng.gamma(1 / burst, burst / rate, requests)
    chosen = lengths.take(rng.integers(len(lengths.prompt), size=requests))
    return replace(chosen, seconds=np.cumsum(gaps) - gaps[0])


def constant(prompt: int, output: int) -> Arrivals:
    """One request of these lengths, for ``poisson`` to draw from."""
    return Arrivals(np.zeros(1), np.array([prompt]), np.array([output]), {})
