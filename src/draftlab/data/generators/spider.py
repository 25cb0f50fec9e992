"""Questions over small databases, as Spider's rows: the answer copies names from the question and is free in its style."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

VALUES = {
    "city": ("Lisbon", "Oslo", "Denver", "Kyoto", "Nairobi", "Quito", "Perth", "Turin"),
    "country": ("France", "Japan", "Brazil", "Canada", "Kenya", "Norway", "India", "Chile"),
    "color": ("red", "blue", "green", "black", "white", "silver", "brown", "gold"),
    "genre": ("jazz", "rock", "folk", "pop", "opera", "blues", "soul", "metal"),
    "status": ("open", "closed", "active", "delayed", "pending", "retired", "planned", "full"),
    "category": ("basic", "family", "outdoor", "office", "travel", "sport", "garden", "music"),
    "subject": ("history", "biology", "physics", "art", "english", "music", "chemistry", "law"),
    "level": ("junior", "senior", "gold", "silver", "first", "second", "trial", "expert"),
}
RANGES = {
    "age": (20, 5), "year": (1990, 3), "price": (50, 25), "capacity": (100, 50), "salary": (2000, 250),
    "visits": (2, 2), "founded": (1900, 10), "weight": (4, 3), "distance": (300, 150), "staff": (10, 15),
    "rating": (1, 1), "stock": (20, 20), "rank": (5, 5), "points": (10, 15), "pages": (80, 40), "beds": (12, 8),
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """A table: how people call its rows, its label column, two text columns and two number columns."""

    name: str
    plural: str
    label: str
    texts: tuple[str, str]
    numbers: tuple[str, str]


Database = tuple[str, Table, Table]
DATABASES: dict[str, tuple[Database, ...]] = {
    "service": (
        ("concert_hall", Table("singer", "singers", "name", ("country", "genre"), ("age", "rating")),
         Table("concert", "concerts", "title", ("city", "status"), ("year", "capacity"))),
        ("pet_clinic", Table("owner", "owners", "name", ("city", "level"), ("age", "visits")),
         Table("pet", "pets", "name", ("color", "status"), ("weight", "age"))),
        ("car_dealer", Table("maker", "makers", "name", ("country", "city"), ("founded", "staff")),
         Table("car", "cars", "model", ("color", "category"), ("price", "year"))),
        ("flight_desk", Table("airline", "airlines", "name", ("country", "status"), ("founded", "rating")),
         Table("flight", "flights", "code", ("city", "status"), ("distance", "price"))),
        ("school_office", Table("teacher", "teachers", "name", ("city", "subject"), ("age", "salary")),
         Table("course", "courses", "title", ("subject", "level"), ("points", "capacity"))),
        ("museum_pass", Table("museum", "museums", "name", ("city", "country"), ("staff", "founded")),
         Table("visitor", "visitors", "name", ("level", "country"), ("age", "visits"))),
        ("tennis_tour", Table("player", "players", "name", ("country", "level"), ("rank", "age")),
         Table("match", "matches", "title", ("city", "category"), ("year", "points"))),
        ("store_chain", Table("store", "stores", "name", ("city", "status"), ("staff", "rating")),
         Table("product", "products", "title", ("category", "color"), ("price", "stock"))),
    ),
    "public": (
        ("library_desk", Table("author", "authors", "name", ("country", "genre"), ("age", "rating")),
         Table("book", "books", "title", ("subject", "status"), ("pages", "year"))),
        ("film_archive", Table("director", "directors", "name", ("country", "level"), ("age", "points")),
         Table("film", "films", "title", ("genre", "color"), ("year", "rating"))),
        ("farm_market", Table("farmer", "farmers", "name", ("city", "status"), ("age", "salary")),
         Table("crop", "crops", "label", ("category", "color"), ("price", "weight"))),
        ("hospital_ward", Table("doctor", "doctors", "name", ("subject", "level"), ("age", "salary")),
         Table("ward", "wards", "label", ("category", "status"), ("beds", "founded"))),
        ("hotel_group", Table("hotel", "hotels", "name", ("city", "country"), ("rating", "beds")),
         Table("guest", "guests", "name", ("country", "level"), ("visits", "age"))),
        ("game_league", Table("team", "teams", "name", ("city", "color"), ("founded", "points")),
         Table("game", "games", "title", ("category", "status"), ("year", "stock"))),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Style:
    """The choices that the question leaves open."""

    count: str
    quote: str
    end: str
    subquery: bool


def _number(draw: Random, column: str) -> int:
    start, step = RANGES[column]
    return start + step * draw.randrange(10)


def _count(draw: Random, style: Style, t: Table, u: Table) -> tuple[str, str]:
    question = draw.choice(("How many {0} are there?", "Count the number of {0}.", "What is the total number of {0}?"))
    return question.format(t.plural), f"SELECT {style.count}(*) FROM {t.name}"


def _count_where(draw: Random, style: Style, t: Table, u: Table) -> tuple[str, str]:
    column = draw.choice(t.texts)
    value = draw.choice(VALUES[column])
    question = draw.choice(("How many {0} have {1} {2}?", "Count the {0} whose {1} is {2}.",
                            "What is the number of {0} with {1} {2}?"))  # fmt: skip
    where = f"{column} = {style.quote}{value}{style.quote}"
    return question.format(t.plural, column, value), f"SELECT {style.count}(*) FROM {t.name} WHERE {where}"


def _list_where(draw: Random, style: Style, t: Table, u: Table) -> tuple[str, str]:
    column, more = draw.choice(t.numbers), draw.random() < 0.5
    value, shown = _number(draw, column), draw.choice((t.label, *t.texts))
    question = draw.choice(
        ("Show the {0} of {1} whose {2} is {3} {4}.", "What is the {0} of the {1} with {2} {3} {4}?")
    )
    words, sign = ("more than", ">") if more else ("less than", "<")
    return question.format(
        shown, t.plural, column, words, value
    ), f"SELECT {shown} FROM {t.name} WHERE {column} {sign} {value}"


def _list_both(draw: Random, style: Style, t: Table, u: Table) -> tuple[str, str]:
    column, number = draw.choice(t.texts), draw.choice(t.numbers)
    value, bound = draw.choice(VALUES[column]), _number(draw, number)
    question = draw.choice(("List the {0} of {1} with {2} {3} and {4} above {5}.",
                            "Which {1} have {2} {3} and {4} above {5}? Show the {0}."))  # fmt: skip
    where = f"{column} = {style.quote}{value}{style.quote} AND {number} > {bound}"
    return question.format(
        t.label, t.plural, column, value, number, bound
    ), f"SELECT {t.label} FROM {t.name} WHERE {where}"


def _ordered(draw: Random, style: Style, t: Table, u: Table) -> tuple[str, str]:
    column, shown, down = draw.choice(t.numbers), draw.choice((t.label, *t.texts)), draw.random() < 0.5
    question = draw.choice(("List the {0} of all {1} ordered by {2} {3}.", "Show the {0} of {1} sorted by {2} {3}."))
    words = "from high to low" if down else "from low to high"
    direction = "DESC" if down else draw.choice(("ASC", ""))
    return question.format(
        shown, t.plural, column, words
    ), f"SELECT {shown} FROM {t.name} ORDER BY {column} {direction}"


def _extreme(draw: Random, style: Style, t: Table, u: Table) -> tuple[str, str]:
    column, shown, high = draw.choice(t.numbers), draw.choice((t.label, *t.texts)), draw.random() < 0.5
    question = draw.choice(
        ("What is the {0} of the {1} with the {3} {2}?", "Find the {0} of the {1} that has the {3} {2}.")
    )
    text = question.format(shown, t.name, column, "highest" if high else "lowest")
    if style.subquery:
        best = "max" if high else "min"
        return text, f"SELECT {shown} FROM {t.name} WHERE {column} = (SELECT {best}({column}) FROM {t.name})"
    return text, f"SELECT {shown} FROM {t.name} ORDER BY {column} {'DESC' if high else 'ASC'} LIMIT 1"


def _aggregate(draw: Random, style: Style, t: Table, u: Table) -> tuple[str, str]:
    column = draw.choice(t.numbers)
    words, function = draw.choice((("average", "avg"), ("maximum", "max"), ("minimum", "min"), ("total", "sum")))
    question = draw.choice(
        ("What is the {0} {1} of all {2}?", "Find the {0} {1} of the {2}.", "Show the {0} {1} of {2}.")
    )
    function = function.upper() if style.count == "COUNT" else function
    return question.format(words, column, t.plural), f"SELECT {function}({column}) FROM {t.name}"


def _grouped(draw: Random, style: Style, t: Table, u: Table) -> tuple[str, str]:
    column = draw.choice(t.texts)
    question = draw.choice(("For each {0}, how many {1} are there?", "Show each {0} and its number of {1}.",
                            "How many {1} are there for each {0}?"))  # fmt: skip
    return question.format(column, t.plural), f"SELECT {column}, {style.count}(*) FROM {t.name} GROUP BY {column}"


def _having(draw: Random, style: Style, t: Table, u: Table) -> tuple[str, str]:
    column, bound = draw.choice(t.texts), draw.randrange(2, 10)
    question = draw.choice(("Which {0} have more than {2} {1}?", "Show the {0} that has more than {2} {1}."))
    grouped = f"SELECT {column} FROM {t.name} GROUP BY {column} HAVING {style.count}(*) > {bound}"
    return question.format(column, t.plural, bound), grouped


def _distinct(draw: Random, style: Style, t: Table, u: Table) -> tuple[str, str]:
    column = draw.choice(t.texts)
    question = draw.choice(("What are the different {0} of {1}?", "List all distinct {0} of the {1}."))
    return question.format(column, t.plural), f"SELECT DISTINCT {column} FROM {t.name}"


def _joined(draw: Random, style: Style, t: Table, u: Table) -> tuple[str, str]:
    column = draw.choice(t.texts)
    value = draw.choice(VALUES[column])
    question = draw.choice(
        ("Show the {0} of the {1} of {2} with {3} {4}.", "Find the {0} of {1} that belong to {2} with {3} {4}.")
    )
    key = f"{t.name}_id"
    return question.format(u.label, u.plural, t.plural, column, value), (
        f"SELECT T2.{u.label} FROM {t.name} AS T1 JOIN {u.name} AS T2 ON T1.{key} = T2.{key}"
        f" WHERE T1.{column} = {style.quote}{value}{style.quote}"
    )


Family = Callable[[Random, Style, Table, Table], tuple[str, str]]
FAMILIES: tuple[Family, ...] = (
    _count, _count_where, _count_where, _list_where, _list_where, _list_both, _list_both, _ordered, _extreme,
    _aggregate, _grouped, _having, _distinct, _joined,
)  # fmt: skip
SQL_TOKEN = re.compile(r"'[^']*'|\"[^\"]*\"|[A-Za-z_][\w.]*|\d+|[<>=!]+|\S")
WORD = re.compile(r"\w+|[^\w\s]")


def spider(draw: Random, space: str) -> dict[str, Any]:
    """Draw one row with the fields of ``xlangai/spider``."""
    name, first, second = draw.choice(DATABASES[space])
    t, u = (first, second) if draw.random() < 0.5 else (second, first)
    style = Style(
        count="count" if draw.random() < 0.7 else "COUNT",
        quote='"' if draw.random() < 0.6 else "'",
        end=" ;" if draw.random() < 0.2 else "",
        subquery=draw.random() < 0.4,
    )
    question, query = draw.choice(FAMILIES)(draw, style, t, u)
    tokens = SQL_TOKEN.findall(query)
    return {
        "db_id": name,
        "query": query.rstrip() + style.end,
        "question": question,
        "query_toks": tokens + style.end.split(),
        "query_toks_no_value": ["value" if k[0] in "'\"0123456789" else k.lower() for k in tokens] + style.end.split(),
        "question_toks": WORD.findall(question),
    }
