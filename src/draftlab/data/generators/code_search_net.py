"""Documented Python functions over lists of records, as CodeSearchNet's rows on the hub."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random
from typing import Any

NOUNS = {
    "service": ("order", "user", "invoice", "sensor", "ticket", "player", "parcel", "course", "employee", "product"),
    "public": ("book", "track", "recipe", "planet", "vehicle", "message", "garden", "lesson", "bottle", "photo"),
}
ATTRIBUTES = ("price", "name", "date", "weight", "score", "status", "owner", "size", "rating")
Function = tuple[str, str, str, str]  # docstring, name, arguments, body: the body's lines are indented by four spaces


def _filter(draw: Random, noun: str, attribute: str, rows: str, row: str) -> Function:
    sign, words = draw.choice((("<", "below"), (">", "above"), (">=", "at least"), ("<=", "at most")))
    doc = draw.choice((f"Return the {noun}s with {attribute} {words} the limit.",
                       f"Keep only {noun}s whose {attribute} is {words} a given limit."))  # fmt: skip
    body = draw.choice((
        f"    return [{row} for {row} in {rows} if {row}.{attribute} {sign} limit]\n",
        f"    kept = []\n    for {row} in {rows}:\n        if {row}.{attribute} {sign} limit:\n"
        f"            kept.append({row})\n    return kept\n",
        f"    return list(filter(lambda {row}: {row}.{attribute} {sign} limit, {rows}))\n",
    ))  # fmt: skip
    return doc, f"filter_{noun}s_by_{attribute}", f"{rows}, limit", body


def _sort(draw: Random, noun: str, attribute: str, rows: str, row: str) -> Function:
    down = draw.random() < 0.5
    order = draw.choice(("in descending order", "from high to low")) if down else draw.choice(
        ("in ascending order", "from low to high")
    )  # fmt: skip
    doc = draw.choice(
        (f"Sort the {noun}s by {attribute} {order}.", f"Return all {noun}s sorted by {attribute}, {order}.")
    )
    reverse = ", reverse=True" if down else ""
    body = draw.choice((
        f"    return sorted({rows}, key=lambda {row}: {row}.{attribute}{reverse})\n",
        f"    result = list({rows})\n    result.sort(key=lambda {row}: {row}.{attribute}{reverse})\n    return result\n",
    ))  # fmt: skip
    return doc, f"sort_{noun}s_by_{attribute}", rows, body


def _sum(draw: Random, noun: str, attribute: str, rows: str, row: str) -> Function:
    start = draw.choice((0, 0, 1, 10, 100))
    extra = f" plus {start}" if start else ""
    doc = draw.choice(
        (f"Compute the total {attribute} of all {noun}s{extra}.", f"Add up the {attribute} of the {noun}s{extra}.")
    )
    body = draw.choice((
        f"    return sum({row}.{attribute} for {row} in {rows})" + (f" + {start}\n" if start else "\n"),
        f"    total = {start}\n    for {row} in {rows}:\n        total += {row}.{attribute}\n    return total\n",
    ))  # fmt: skip
    return doc, f"total_{attribute}_of_{noun}s", rows, body


def _best(draw: Random, noun: str, attribute: str, rows: str, row: str) -> Function:
    function, words = draw.choice((("max", "largest"), ("min", "smallest")))
    other = draw.choice(ATTRIBUTES)
    doc = draw.choice((f"Find the {noun} with the {words} {attribute} and return its {other}.",
                       f"Return the {other} of the {noun} that has the {words} {attribute}."))  # fmt: skip
    body = draw.choice((
        f"    best = {function}({rows}, key=lambda {row}: {row}.{attribute})\n    return best.{other}\n",
        f"    return {function}({rows}, key=lambda {row}: {row}.{attribute}).{other}\n",
    ))  # fmt: skip
    return doc, f"{words}_{noun}_by_{attribute}", rows, body


def _group(draw: Random, noun: str, attribute: str, rows: str, row: str) -> Function:
    other = draw.choice(ATTRIBUTES)
    doc = draw.choice((f"Group the {other} of the {noun}s by {attribute}.",
                       f"Build a dict from {attribute} to the list of {other} of the {noun}s."))  # fmt: skip
    body = draw.choice((
        f"    groups = {{}}\n    for {row} in {rows}:\n"
        f"        groups.setdefault({row}.{attribute}, []).append({row}.{other})\n    return groups\n",
        f"    groups = defaultdict(list)\n    for {row} in {rows}:\n"
        f"        groups[{row}.{attribute}].append({row}.{other})\n    return dict(groups)\n",
    ))  # fmt: skip
    return doc, f"group_{noun}s_by_{attribute}", rows, body


def _count(draw: Random, noun: str, attribute: str, rows: str, row: str) -> Function:
    doc = draw.choice((f"Count how many {noun}s have the given {attribute}.",
                       f"Return the number of {noun}s whose {attribute} equals value.",
                       f"Count the {noun}s for one {attribute}."))  # fmt: skip
    body = draw.choice((
        f"    return sum(1 for {row} in {rows} if {row}.{attribute} == value)\n",
        f"    count = 0\n    for {row} in {rows}:\n        if {row}.{attribute} == value:\n"
        f"            count += 1\n    return count\n",
        f"    return len([{row} for {row} in {rows} if {row}.{attribute} == value])\n",
    ))  # fmt: skip
    return doc, f"count_{noun}s_with_{attribute}", f"{rows}, value", body


def _index(draw: Random, noun: str, attribute: str, rows: str, row: str) -> Function:
    other = draw.choice(ATTRIBUTES)
    doc = draw.choice((f"Map the {attribute} of each {noun} to its {other}.",
                       f"Return a dict of {other} by {attribute} for the {noun}s."))  # fmt: skip
    body = draw.choice((
        f"    return {{{row}.{attribute}: {row}.{other} for {row} in {rows}}}\n",
        f"    table = {{}}\n    for {row} in {rows}:\n        table[{row}.{attribute}] = {row}.{other}\n    return table\n",
    ))  # fmt: skip
    return doc, f"map_{noun}_{attribute}", rows, body


def _average(draw: Random, noun: str, attribute: str, rows: str, row: str) -> Function:
    empty = draw.choice(("None", "0", "0.0", "-1"))
    doc = draw.choice((f"Compute the average {attribute} of the {noun}s, or {empty} if there are none.",
                       f"Return the mean {attribute} of all {noun}s; {empty} when empty."))  # fmt: skip
    body = draw.choice((
        f"    if not {rows}:\n        return {empty}\n"
        f"    return sum({row}.{attribute} for {row} in {rows}) / len({rows})\n",
        f"    values = [{row}.{attribute} for {row} in {rows}]\n"
        f"    return sum(values) / len(values) if values else {empty}\n",
    ))  # fmt: skip
    return doc, f"average_{attribute}_of_{noun}s", rows, body


def _first(draw: Random, noun: str, attribute: str, rows: str, row: str) -> Function:
    count = draw.choice((2, 3, 5, 10, 20, 50))
    doc = draw.choice((f"Return the first {count} {noun}s ordered by {attribute}.",
                       f"Get the top {count} {noun}s by {attribute}."))  # fmt: skip
    body = draw.choice((
        f"    ranked = sorted({rows}, key=lambda {row}: {row}.{attribute})\n    return ranked[:{count}]\n",
        f"    return sorted({rows}, key=lambda {row}: {row}.{attribute})[:{count}]\n",
    ))  # fmt: skip
    return doc, f"top_{noun}s_by_{attribute}", rows, body


Family = Callable[[Random, str, str, str, str], Function]
FAMILIES: tuple[Family, ...] = (_filter, _sort, _sum, _best, _group, _count, _index, _average, _first)
TOKEN = re.compile(r"\"\"\".*?\"\"\"|\w+|[^\w\s]", re.DOTALL)


def code_search_net(draw: Random, space: str) -> dict[str, Any]:
    """Draw one row with the fields of ``code-search-net/code_search_net``, configuration ``python``."""
    noun, attribute = draw.choice(NOUNS[space]), draw.choice(ATTRIBUTES)
    rows, row = draw.choice((f"{noun}s", "items", "rows")), draw.choice((noun, "item", "x"))
    doc, name, arguments, body = draw.choice(FAMILIES)(draw, noun, attribute, rows, row)
    docstring = f'    """{doc}"""\n' if draw.random() < 0.5 else ""
    code = f"def {name}({arguments}):\n{docstring}{body}".rstrip()
    repository, path = f"{space}/{noun}s", f"{noun}s/{attribute}.py"
    return {
        "repository_name": repository,
        "func_path_in_repository": path,
        "func_name": name,
        "whole_func_string": code,
        "language": "python",
        "func_code_string": code,
        "func_code_tokens": TOKEN.findall(code),
        "func_documentation_string": doc,
        "func_documentation_tokens": TOKEN.findall(doc),
        "split_name": "",
        "func_code_url": f"https://example.org/{repository}/blob/main/{path}",
    }
