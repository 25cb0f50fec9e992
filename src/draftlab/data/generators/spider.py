"""Generates questions over small databases, as rows of Spider; the SQL copies names from the question and varies in style."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from draftlab.files.yaml_files import read_yaml_of_module


@dataclass(frozen=True)
class SqlTable:
    """A database table: its name, the plural noun for its rows, its label column, two text columns and two number columns."""

    name: str
    plural: str
    label: str
    texts: tuple[str, str]
    numbers: tuple[str, str]


@dataclass(frozen=True)
class Style:
    """The choices of SQL style that the question leaves open."""

    count: str
    quote: str
    end: str
    subquery: bool


Slots = dict[str, Any]


def _value(draw: Random, column: str) -> str:
    return str(draw.choice(read_yaml_of_module(__file__)["values"][column]))


def _number(draw: Random, column: str) -> int:
    start, step = read_yaml_of_module(__file__)["ranges"][column]
    return int(start + step * draw.randrange(10))


def _text(draw: Random, style: Style, t: SqlTable) -> Slots:
    return {"column": draw.choice(t.texts)}


def _where(draw: Random, style: Style, t: SqlTable) -> Slots:
    column = draw.choice(t.texts)
    return {"column": column, "value": _value(draw, column)}


def _list_where(draw: Random, style: Style, t: SqlTable) -> Slots:
    column, more = draw.choice(t.numbers), draw.random() < 0.5
    phrase, sign = ("more than", ">") if more else ("less than", "<")
    value, shown = _number(draw, column), draw.choice((t.label, *t.texts))
    return {"column": column, "words": phrase, "sign": sign, "value": value, "shown": shown}


def _list_both(draw: Random, style: Style, t: SqlTable) -> Slots:
    column, number = draw.choice(t.texts), draw.choice(t.numbers)
    return {"column": column, "number": number, "value": _value(draw, column), "bound": _number(draw, number)}


def _ordered(draw: Random, style: Style, t: SqlTable) -> Slots:
    column, shown, down = draw.choice(t.numbers), draw.choice((t.label, *t.texts)), draw.random() < 0.5
    phrase = "from high to low" if down else "from low to high"
    return {"column": column, "shown": shown, "words": phrase, "form": "down" if down else "up"}


def _extreme(draw: Random, style: Style, t: SqlTable) -> Slots:
    column, shown, high = draw.choice(t.numbers), draw.choice((t.label, *t.texts)), draw.random() < 0.5
    phrase, best, direction = ("highest", "max", "DESC") if high else ("lowest", "min", "ASC")
    form = "subquery" if style.subquery else "limit"
    return {"column": column, "shown": shown, "words": phrase, "best": best, "direction": direction, "form": form}


def _aggregate(draw: Random, style: Style, t: SqlTable) -> Slots:
    column = draw.choice(t.numbers)
    phrase, function = draw.choice((("average", "avg"), ("maximum", "max"), ("minimum", "min"), ("total", "sum")))
    return {"column": column, "words": phrase, "function": function.upper() if style.count == "COUNT" else function}


def _having(draw: Random, style: Style, t: SqlTable) -> Slots:
    return {"column": draw.choice(t.texts), "bound": draw.randrange(2, 10)}


Family = tuple[str, Callable[[Random, Style, SqlTable], Slots]]
FAMILIES: tuple[Family, ...] = (
    ("count", lambda draw, style, t: {}), ("count_where", _where), ("count_where", _where), ("list_where", _list_where),
    ("list_where", _list_where), ("list_both", _list_both), ("list_both", _list_both), ("ordered", _ordered),
    ("extreme", _extreme), ("aggregate", _aggregate), ("grouped", _text), ("having", _having), ("distinct", _text),
    ("joined", _where),
)  # fmt: skip
SQL_TOKEN = re.compile(r"'[^']*'|\"[^\"]*\"|[A-Za-z_][\w.]*|\d+|[<>=!]+|\S")
WORD = re.compile(r"\w+|[^\w\s]")


def spider(draw: Random, space: str) -> dict[str, Any]:
    """Draw one row with the fields of ``xlangai/spider``."""
    name, first, second = draw.choice(read_yaml_of_module(__file__)["databases"][space])
    t, u = (SqlTable(*table) for table in ((first, second) if draw.random() < 0.5 else (second, first)))
    style = Style(
        count="count" if draw.random() < 0.7 else "COUNT",
        quote='"' if draw.random() < 0.6 else "'",
        end=" ;" if draw.random() < 0.2 else "",
        subquery=draw.random() < 0.4,
    )
    family, draw_slots = draw.choice(FAMILIES)
    templates = read_yaml_of_module(__file__)["families"][family]
    slots = {"form": "query", **draw_slots(draw, style, t)}
    slots |= {"t": t, "u": u, "count": style.count, "quote": style.quote}
    question = draw.choice(templates["questions"]).format(**slots)
    queries = templates[slots["form"]]
    query = (draw.choice(queries) if isinstance(queries, list) else queries).format(**slots)
    tokens = SQL_TOKEN.findall(query)
    return {
        "db_id": name,
        "query": query.rstrip() + style.end,
        "question": question,
        "query_toks": tokens + style.end.split(),
        "query_toks_no_value": ["value" if k[0] in "'\"0123456789" else k.lower() for k in tokens] + style.end.split(),
        "question_toks": WORD.findall(question),
    }
