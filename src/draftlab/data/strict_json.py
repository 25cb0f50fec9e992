"""Strict JSON: a value with a duplicate key, a number that is not finite or a lone surrogate is none that a row may hold."""

from __future__ import annotations

import json
from typing import Any

from draftlab.data.raw_rows import EXCERPT, LONE, well_formed

DEEPEST = 100  # levels of nesting: Python's json gives up at a few hundred


class Decoder:
    """A strict JSON decoder: after duplicate keys or a number that is not finite, the text can still be read on."""

    def __init__(self) -> None:
        self._faults: list[tuple[str, str]] = []
        self._decoder = json.JSONDecoder(
            object_pairs_hook=self._pairs, parse_constant=self._constant, parse_float=self._float
        )

    def _pairs(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        row = dict(pairs)
        if len(row) < len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            self._faults.append(("duplicate key", repr(twice)))
        return row

    def _float(self, digits: str) -> float:
        value = float(digits)
        if value in (float("inf"), -float("inf")):
            self._faults.append(("a number that no float holds", digits[:EXCERPT]))
        return value

    def _constant(self, name: str) -> None:
        self._faults.append((f"{name} is not JSON", ""))

    def value(self, text: str, start: int) -> tuple[Any, int, str | None, str]:
        """The value at ``start``, where it ends, what is wrong with it if anything, and a detail; ``ValueError`` if it is broken."""
        self._faults.clear()
        try:
            value, end = self._decoder.raw_decode(text, start)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        except json.JSONDecodeError as error:
            raise ValueError(error.msg) from None
        except ValueError:
            raise ValueError("a number with too many digits") from None
        if not isinstance(value, dict):
            return value, end, f"a JSON {type(value).__name__}, not an object", ""
        part = text[start:end]
        if part.count("[") + part.count("{") > DEEPEST and _too_deep(value):
            self._faults.append(("nested too deeply", ""))
        elif not well_formed(part) or ("\\u" in part and not well_formed(json.dumps(value, ensure_ascii=False))):
            self._faults.append((LONE, ""))
        return value, end, *(self._faults[0] if self._faults else (None, ""))


def _too_deep(value: Any) -> bool:
    """Whether lists and objects in ``value`` are nested more than ``DEEPEST`` levels deep."""
    inside = [value]
    for _ in range(DEEPEST):
        inside = [v for i in inside for v in (i.values() if isinstance(i, dict) else i) if isinstance(v, dict | list)]
    return bool(inside)


def decoded(text: str) -> Any:
    """The JSON value that ``text`` holds, or ``text`` itself if it is none, or one that no row may hold."""
    row = f'{{"value": {text}}}'
    try:
        value, end, problem, _ = Decoder().value(row, 0)
    except ValueError:
        return text
    return value["value"] if problem is None and end == len(row) and value.keys() == {"value"} else text
