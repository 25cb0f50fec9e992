"""Reads the prompts in vLLM's log, and knows a log from other text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import IO

from draftlab.data.raw_rows import LONE, RawRow, bad_row, text_lines, well_formed
from draftlab.errors import UserError

LEVEL = "TRACE|DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL"
TIME = r"(?:[A-Z][a-z]{2} +\d{1,2} |\d[\d/.-]*[T ,]*)?\d\d:\d\d:\d\d"
ACCESS = r"\S+ \S+ \S+ \[\d\d/\w{3}/\d{4}:\d\d:"
LOG = re.compile(rf"[\s\[(]*(?:\w[\w =]*\) *)?(?:(?:{LEVEL})(?:\]|\t|:\s\s|:?\s+[\[\d])|{TIME})|{ACCESS}".encode())
"""A line of a log begins with a level and a number, or with a time, or it is a web server's."""
WRITTEN = r"""None|'[^'\\]*(?:\\.[^'\\]*)*'|"[^"\\]*(?:\\.[^"\\]*)*\""""
VLLM = re.compile(rf"equest \S+(?: details)?: prompt: ({WRITTEN}), ")
"""A request in vLLM's log, with the prompt as Python writes it."""


def is_log(start: bytes) -> bool:
    """Whether most lines of a file's beginning are a log's."""
    lines = [line for line in start.splitlines() if line.strip()]
    return 2 * sum(LOG.match(line) is not None for line in lines) > len(lines)


def log_rows(file: IO[bytes], name: str) -> Iterator[RawRow]:
    """Yield the prompts in vLLM's log; ``UserError`` for a log without them."""
    found = False
    for line in text_lines(file, name):
        if line.problem:
            yield line
        elif request := VLLM.search(line.row):
            found = True
            try:
                prompt = ast.literal_eval(request[1])
            except (SyntaxError, ValueError):
                yield bad_row(name, line.line, "a prompt that is not as Python writes it", line.row)
                continue
            if prompt is None or well_formed(prompt):
                yield replace(line, row={"prompt": prompt})
            else:
                yield bad_row(name, line.line, LONE, line.row)
    if not found:
        remedy = "give the requests as JSON lines, or the prompts alone, one per line; vLLM's lines are read if they hold the prompt"
        raise UserError("a log without prompts: most lines begin with a time or a level", file=name, remedy=remedy)
