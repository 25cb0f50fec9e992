"""Raw files: every kind of damage has a stated outcome (docs/data.md), and good rows survive it."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from draftlab.data import json_rows, raw_rows
from draftlab.data.raw_rows import RawRow, excerpt
from draftlab.data.readers import read_rows
from draftlab.errors import UserError
from draftlab.files.atomic import atomic_path

GOOD = {"question": "How many?", "answer": "Two."}
LINE = json.dumps(GOOD).encode()
LONE = "not UTF-8, or a lone surrogate"
UNREAD = "the rest of the file is unread"


def read(tmp_path: Path, content: bytes, name: str = "train.jsonl") -> list[RawRow]:
    file = tmp_path / name
    file.write_bytes(content)
    return list(read_rows(file))


def good(rows: list[RawRow]) -> list[int]:
    return [row.line for row in rows if row.problem is None]


def problems(rows: list[RawRow]) -> list[tuple[int, str]]:
    return [(row.line, row.problem) for row in rows if row.problem is not None]


@pytest.mark.parametrize(
    ("content", "good_lines", "bad"),
    [
        pytest.param(b"\xef\xbb\xbf" + LINE + b"\n" + LINE, [1, 2], [], id="byte order mark"),
        pytest.param(LINE + b"\r\n" + LINE + b"\r\n", [1, 2], [], id="CRLF"),
        pytest.param(b"\n" + LINE + b"\n \n" + LINE, [2, 4], [], id="blank lines"),
        pytest.param(LINE + b'\n{"question": \n' + LINE, [1, 3], [(2, "broken JSON")], id="broken line"),
        pytest.param(LINE + b"\n" + LINE[:12], [1], [(2, "broken JSON")], id="truncated last line"),
        pytest.param(b"garbage\n" + LINE, [2], [(1, "broken JSON")], id="broken first line"),
        pytest.param(LINE + b'\n{"a": 1, "a": 2}\n', [1], [(2, "duplicate key")], id="duplicate key"),
        pytest.param(LINE + b'\n{"a": NaN}\n', [1], [(2, "NaN is not JSON")], id="not a number"),
        pytest.param(b'{"n": 1e999}\n{"n": 1e9}\n', [2], [(1, "a number that no float holds")], id="beyond a float"),
        pytest.param(LINE + b"\n" + LINE + LINE + b"\n", [1], [(2, "more than one")], id="two values in a line"),
        pytest.param(LINE + b"\n[1, 2]\n7\n" + LINE, [1, 4], [(2, "JSON list"), (3, "JSON int")], id="no objects"),
        pytest.param(LINE + b'\n{"q": "caf\xe9"}\n' + LINE, [1, 3], [(2, "not UTF-8")], id="Latin-1"),
        pytest.param(LINE + b'\n{"q": "\\ud83d"}\n' + LINE, [1, 3], [(2, "lone surrogate")], id="lone surrogate"),
        pytest.param(b'{"q": "\\ud83d\\ude00"}', [1], [], id="surrogate pair"),
        pytest.param('{"q": "one\u2028two"}\n'.encode() + LINE, [1, 2], [], id="line separator in a string"),
        pytest.param(b"[" * 100_000 + b"\n", [], [(1, "nested too deeply")], id="deep nesting"),
        pytest.param(b'{"q": ' + b"9" * 5000 + b"}\n" + LINE, [2], [(1, "too many digits")], id="endless number"),
        pytest.param(
            b'{"a": ' + b"[" * 300 + b'"\\u0041"' + b"]" * 300 + b"}\n" + LINE,
            [2],
            [(1, "nested too deeply")],
            id="deep escape",
        ),
        pytest.param(b'{"a": ' + b"[" * 90 + b"]" * 90 + b"}\n" + LINE, [1, 2], [], id="nested, but not too deeply"),
        pytest.param(b"", [], [], id="empty file"),
    ],
)
def test_damaged_lines(tmp_path: Path, content: bytes, good_lines: list[int], bad: list[tuple[int, str]]) -> None:
    rows = read(tmp_path, content)
    assert good(rows) == good_lines
    found = problems(rows)
    assert [line for line, _ in found] == [line for line, _ in bad]
    assert all(want in what for (_, what), (_, want) in zip(found, bad, strict=True))


def test_string_with_line_separator_is_whole(tmp_path: Path) -> None:
    assert read(tmp_path, '{"q": "one\u2028two"}\n'.encode())[0].row == {"q": "one\u2028two"}


def test_array_in_a_jsonl(tmp_path: Path) -> None:
    rows = read(tmp_path, json.dumps([GOOD, GOOD], indent=1).encode())
    assert [row.row for row in rows] == [GOOD, GOOD]
    assert good(rows) == [2, 6]


def test_array_keeps_the_good_rows(tmp_path: Path) -> None:
    rows = read(tmp_path, b'[\n{"q": "caf\xe9"},\n' + LINE + b",\n3,\n" + LINE + b"\n]\n" + LINE, "dev.json")
    assert good(rows) == [3, 5, 7]
    assert [line for line, _ in problems(rows)] == [2, 4]


@pytest.mark.parametrize("cut", [b"[" + LINE + b",\n" + LINE[:9], b"[" + LINE + b",\n" + LINE])
def test_array_cut_off(tmp_path: Path, cut: bytes) -> None:
    rows = read(tmp_path, cut, "dev.json")
    assert good(rows)[0] == 1
    assert len(problems(rows)) == 1


def test_an_array_in_each_line_is_no_row_of_any(tmp_path: Path) -> None:
    """The first conversation must not pass for rows with a field ``content``."""
    lines = b"".join(b'[{"role": "user", "content": "q%d"}]\n' % number for number in range(3))
    for name in ("log.jsonl", "log"):
        rows = read(tmp_path, lines, name)
        assert problems(rows) == [(number, "a JSON list, not an object") for number in (1, 2, 3)]
    assert good(read(tmp_path, b'[{"prompt": "a"}]\n{"prompt": "b"}\n')) == [1, 2], "an array, then lines"


def test_lines_after_an_array_are_read_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_rows, "LONGEST", 100)
    monkeypatch.setattr(json_rows, "CHUNK", 64)
    rows = read(tmp_path, b"[]\n" + (LINE + b"\n") * 20)
    assert good(rows) == list(range(2, 22))


def test_gzip_by_content(tmp_path: Path) -> None:
    assert read(tmp_path, gzip.compress(LINE), "train.jsonl")[0].row == GOOD
    assert read(tmp_path, LINE, "train.jsonl.gz")[0].row == GOOD


def test_gzip_cut_off(tmp_path: Path) -> None:
    lines = [json.dumps({"q": f"{random.Random(i).random()}"}).encode() for i in range(5000)]
    whole = gzip.compress(b"\n".join(lines))
    rows = read(tmp_path, whole[: len(whole) // 2], "train.jsonl.gz")
    assert 100 < len(good(rows)) < 5000
    line, problem = problems(rows)[-1]
    assert line == len(rows)
    assert "broken gzip" in problem


def test_a_gzipped_file_gives_every_row_before_it_is_cut_off_or_something_else_follows(tmp_path: Path) -> None:
    """A small file comes in one read with its end."""
    whole = gzip.compress((LINE + b"\n") * 9)
    assert good(read(tmp_path, whole[:-8], "train.jsonl.gz")) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    followed = read(tmp_path, whole + b"garbage", "train.jsonl.gz")
    assert good(followed) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert [line for line, problem in problems(followed) if "broken gzip" in problem] == [10]


def test_a_gzipped_tsv_that_is_cut_off_keeps_the_rows_before(tmp_path: Path) -> None:
    lines = [f"{random.Random(i).random()}\t{i}\n" for i in range(5000)]
    whole = gzip.compress("".join(["prompt\tn\n", *lines]).encode())
    rows = read(tmp_path, whole[: len(whole) // 2], "mine.tsv.gz")
    assert 100 < len(good(rows)) < 5000
    assert "broken gzip" in problems(rows)[-1][1]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("name", ["train.jsonl", "mine.csv", "mine.txt"])
def test_utf16_is_refused(tmp_path: Path, name: str, encoding: str) -> None:
    with pytest.raises(UserError, match="UTF-16"):
        read(tmp_path, "prompt\nHow many?\n".encode(encoding), name)


def test_tables(tmp_path: Path) -> None:
    rows = read(tmp_path, b'prompt,answer\n"a, b",c\nonly one\n"two\nlines",d\none,too,many\n', "mine.csv")
    assert [row.row for row in rows if row.problem is None] == [
        {"prompt": "a, b", "answer": "c"},
        {"prompt": "two\nlines", "answer": "d"},
    ]
    assert good(rows) == [2, 4]
    assert problems(rows) == [(line, "more or fewer columns than the header") for line in (3, 6)]
    assert rows[1].row == "1 columns, not 2: only one"
    tsv = read(tmp_path, b'prompt\tanswer\nWhat is "x"?\t18\n', "mine.tsv")
    assert [row.row for row in tsv] == [{"prompt": 'What is "x"?', "answer": "18"}]
    assert "not UTF-8" in problems(read(tmp_path, b"prompt,answer\ncaf\xe9,1\n", "mine.csv"))[0][1]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("columns", [["prompt"], ["n", "prompt"]])
def test_quoted_cells_of_a_tsv(tmp_path: Path, columns: list[str], pack: Callable[[bytes], bytes]) -> None:
    """As pandas writes them: one that holds a tab, a line break or a quote is in quotes."""
    texts = ['say "hi"', "one\ntwo\nthree", "a\tb", "plain", '"To be"', ""]
    rows = [{name: text if name == "prompt" else str(n) for name in columns} for n, text in enumerate(texts, 1)]
    content = io.StringIO()
    writer = csv.DictWriter(content, columns, dialect="excel-tab")
    writer.writeheader()
    writer.writerows(rows)
    given = content.getvalue().encode()
    found = read(tmp_path, pack(given), "mine.tsv")
    assert [row.row for row in found] == rows[: 5 + (len(columns) > 1)]
    assert [row.line for row in found[:3]] == [2, 3, 6]
    found = read(tmp_path, pack(given + b"too\tmany\tcells\r\n"), "mine.tsv")
    assert [row.row for row in found if row.problem is None] == rows[: 5 + (len(columns) > 1)]


@pytest.mark.parametrize(
    "texts",
    [
        ['"Hello" she said', 'say "hi"'],
        ['"To be"', "or not"],
        ['"I wonder', 'why "so"'],
        ['"So ""what?"" is', '6" and "7'],
    ],
)
def test_quotes_in_a_tsv_are_text_where_they_enclose_no_cell(tmp_path: Path, texts: list[str]) -> None:
    content = "".join(f"{text}\t{number}\n" for number, text in enumerate(["prompt", *texts]))
    assert [row.row["prompt"] for row in read(tmp_path, content.encode(), "mine.tsv")] == texts


@pytest.mark.parametrize(
    ("content", "want"),
    [
        (b"Prompt,Response\nhow?,so\n", {"prompt": "how?", "response": "so"}),
        (b"id, request text ,PROMPT\n1,x,how?\n", {"id": "1", "request text": "x", "prompt": "how?"}),
        (b'\xef\xbb\xbf"Question"\nhow?\n', {"question": "how?"}),
        (b"id,prompt,a;b\n1,how?,x\n", {"id": "1", "prompt": "how?", "a;b": "x"}),
        (b",prompt,\n0,how?,\n", {"": "", "prompt": "how?"}),
        (b"sep=;\nprompt;n\nhow, or why?;1\n", {"prompt": "how, or why?", "n": "1"}),
        (b'\xef\xbb\xbf"SEP=\t"\r\nprompt\tn\r\nhow?\t1\r\n', {"prompt": "how?", "n": "1"}),
        (b"\nprompt;n\nhow?;1\n", {"prompt": "how?", "n": "1"}),
        (b'prompt\tn\n"how\nor why?"\t1\n', {"prompt": "how\nor why?", "n": "1"}),
        (b"prompt,a;b;c\nhow?,x\n", {"prompt": "how?", "a;b;c": "x"}),
        (b'"this, that, or what";prompt\n1;how?\n', {"this, that, or what": "1", "prompt": "how?"}),
    ],
)
def test_the_header_of_a_table(tmp_path: Path, content: bytes, want: dict[str, str]) -> None:
    assert [row.row for row in read(tmp_path, content, "mine.csv")] == [want]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"id,request text\n1,how are you\n", "mine.csv:1: no column is called prompt, .*: id, request text"),
        (b"\nWhat is two and two?,4\n", "mine.csv:2: no column is called prompt"),
        (b"how are you\n", "no column"),
        (b"prompt|answer\na|b\n", "no column"),
        (b"prompt,caf\xe9\na,b\n", "mine.csv:1: the names of the columns are not UTF-8"),
        (b"prompt,Prompt\na,b\n", "two columns are called 'prompt'"),
    ],
)
def test_a_table_without_known_columns_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path, content, "mine.csv")


def test_lines_below_the_name_of_a_separator_are_counted_from_it(tmp_path: Path) -> None:
    rows = read(tmp_path, b"sep=;\nprompt;n\nhow?;1\nwhy?\n", "mine.csv")
    assert (good(rows), problems(rows)) == ([3], [(4, "more or fewer columns than the header")])


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("mine.csv", b'prompt,n\nhow?,1\n"two\nlines",2\n'),
        ("mine.tsv", b"prompt\tn\nhow?\t1\nwhy?\t2\n"),
        ("mine.txt", b"how?\n\nwhy?\n" * 5000),
        ("mine.jsonl", b'{"prompt": "how?"}\n{"prompt": "why?"\n{"prompt": "where?"}\n'),
        ("mine.json", b'{"data": [\n{"prompt": "how?"},\n{"prompt": "how?", "prompt": 1},\n{"prompt": "why?"}\n]}'),
    ],
)
def test_lines_that_end_as_on_old_macs(
    tmp_path: Path, name: str, content: bytes, pack: Callable[[bytes], bytes]
) -> None:
    want = read(tmp_path, pack(content), name)
    assert len(want) > 1
    assert read(tmp_path, pack(content.replace(b"\n", b"\r")), name) == want


def test_columns_of_a_dataset_need_no_header(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("how?\t1\n")
    (tmp_path / "b.tsv").write_text("Question\tAnswer\nhow?\t1\n")
    for file in sorted(tmp_path.iterdir()):
        rows = list(read_rows(file, ("question", "answer")))
        assert [row.row for row in rows] == [{"question": "how?", "answer": "1"}]


def test_a_quote_that_is_not_closed_is_named_where_it_opens(tmp_path: Path) -> None:
    rows = read(tmp_path, b'prompt,n\na,1\nb,"2\nc,3\nd,4\n', "mine.csv")
    assert good(rows) == [2]
    assert problems(rows) == [(3, "broken CSV: a quote in this row is not closed; the rest of the file is unread")]
    assert rows[-1].row == "lines 3 to 5"
    rows = read(tmp_path, b'prompt,n\n"b,2\n"c",3\nd,4\n', "mine.csv")  # closed by the next quote: two lines are lost
    assert good(rows) == [4]
    assert (rows[0].line, rows[0].row) == (2, "lines 2 to 3")


def test_lines_are_counted_beyond_one_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_rows, "LONGEST", 100)
    rows = read(tmp_path, b"prompt,n\na,1\n" + b"x" * 200 + b",2\nc,3\nd\n", "mine.csv")
    assert good(rows) == [2, 4]
    assert [line for line, _ in problems(rows)] == [3, 5]
    assert rows[1].row == "lines 3 to 3"


def test_a_long_cell_of_a_table(tmp_path: Path) -> None:
    assert len(read(tmp_path, b"prompt\n" + b"x" * 200_000 + b"\n", "mine.csv")[0].row["prompt"]) == 200_000


def test_parquet(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pandas.DataFrame([GOOD] * 3).to_parquet(tmp_path / "train.parquet")
    assert [row.row for row in read_rows(tmp_path / "train.parquet")] == [GOOD] * 3
    content = (tmp_path / "train.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(content[:-40])
    [(line, problem)] = problems(list(read_rows(tmp_path / "cut.parquet")))
    assert line == 1
    assert "broken Parquet" in problem


def test_parquet_with_two_columns_of_one_name_is_refused(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = [pyarrow.array(["how?"]), pyarrow.array(["why?"])]
    parquet.write_table(pyarrow.Table.from_arrays(columns, ["prompt", "prompt"]), tmp_path / "mine.parquet")
    with pytest.raises(UserError, match=r"mine.parquet: two columns are called 'prompt'"):
        list(read_rows(tmp_path / "mine.parquet"))


def test_parquet_of_what_json_has_not(tmp_path: Path) -> None:
    import datetime
    import decimal

    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    when = datetime.datetime(2024, 5, 6, 7, 8, 9)
    row = {"prompt": b"how?", "when": when, "day": when.date(), "image": b"\xff\xd8", "cost": decimal.Decimal("1.50")}
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "mine.parquet")
    want = {"prompt": "how?", "when": str(when), "day": "2024-05-06", "image": None, "cost": "1.50"}
    assert [found.row for found in read_rows(tmp_path / "mine.parquet")] == [want]


def test_parquet_gives_no_tool_the_arguments_of_another(tmp_path: Path) -> None:
    """Arrow gives all objects of a column the same fields, as pandas does with a log of requests."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    def request(tool: str, argument: str, *said: str | None) -> dict[str, object]:
        schema = {"type": "object", "properties": {argument: {"type": "string"}}}
        call = {"function": {"name": tool, "arguments": {argument: "x"}}}
        return {
            "messages": [{"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": [call]}],
            "tools": [{"type": "function", "function": {"name": tool, "parameters": schema}}],
            "history": [list(said)],
            "system": None,
        }

    rows = [request("weather", "city", "a", "b"), request("search", "query", None, "b")]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "mine.parquet")
    assert [found.row for found in read_rows(tmp_path / "mine.parquet")] == rows


def test_a_bad_value_in_parquet_loses_no_other_row(tmp_path: Path) -> None:
    """Spark writes texts that are not UTF-8, and pyarrow reads times that Python has not."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    texts = pyarrow.array([b"caf\xe9" if number == 1100 else b"ok" for number in range(2000)])
    texts = pyarrow.StringArray.from_buffers(2000, *texts.buffers()[1:])
    times = pyarrow.array([2**50 if number == 30 else 0 for number in range(2000)], pyarrow.timestamp("s"))
    parquet.write_table(pyarrow.table({"prompt": texts, "time": times}), tmp_path / "mine.parquet")
    found = list(read_rows(tmp_path / "mine.parquet"))
    assert problems(found) == [(31, "a value that cannot be read"), (1101, "not UTF-8")]
    assert [row.line for row in found] == list(range(1, 2001))
    assert found[-1].row == {"prompt": "ok", "time": "1970-01-01 00:00:00"}


def test_reasons_do_not_grow_with_the_file(tmp_path: Path) -> None:
    lines = [b"x" * i + b"\xff" for i in range(20)] + [b'{"k%d": 1, "k%d": 2}' % (i, i) for i in range(20)]
    found = read(tmp_path, b"\n".join(lines))
    assert {problem for _, problem in problems(found)} == {"not UTF-8", "duplicate key"}
    assert found[7].row.startswith("byte 7: ")
    assert found[25].row.startswith("'k5': {")
    (row,) = read(tmp_path, b'{"k": 1, "k": 2} 3')
    assert (row.problem, row.row) == ("more than one JSON value in a line", '{"k": 1, "k": 2} 3')


@pytest.mark.parametrize("first", [b"[sic] is that right?", b"{name}, how are you?"])
def test_text_that_looks_like_json_is_text(tmp_path: Path, first: bytes) -> None:
    rows = read(tmp_path, first + b"\nsecond\n", "mine.txt")
    assert [row.row for row in rows] == [{"text": first.decode()}, {"text": "second"}]


def test_text_is_one_prompt_a_line(tmp_path: Path) -> None:
    rows = read(tmp_path, b"first\r\n\nsecond\n", "mine.txt")
    assert [(row.line, row.row) for row in rows] == [(1, {"text": "first"}), (3, {"text": "second"})]


VLLM = "(APIServer pid=7) INFO 11-26 09:52:11 [logger.py:39] Received request chatcmpl-0: prompt: {}, params: SamplingParams(n=1)"


@pytest.mark.parametrize("name", ["server.log", "server.txt", "server.jsonl"])
def test_the_prompts_in_a_log_of_vllm(tmp_path: Path, name: str) -> None:
    texts = ["It's \"so\", prompt: 'x', params: SamplingParams(n=2)\n\\", 'a "b"', "it's", "", None]
    lines = ["INFO 11-26 09:52:01 [api_server.py:1] vLLM API server version 0.9.1", "Traceback"]
    lines += [VLLM.format(repr(text)) for text in texts]
    lines += ["DEBUG 11-26 09:52:11 [logger.py:39] Request cmpl-1 details: prompt: 'late', prompt_token_ids: [1]"]
    rows = read(tmp_path, "\n".join(lines).encode(), name)
    assert [row.row for row in rows] == [{"prompt": text} for text in (*texts, "late")]
    assert rows[0].line == 3


def test_a_logged_prompt_with_a_lone_surrogate_is_a_rejected_row(tmp_path: Path) -> None:
    """Half an emoji in one request must not end a run."""
    texts = ["good", "half an emoji: \ud83d", "good too"]
    rows = read(tmp_path, "\n".join(VLLM.format(repr(text)) for text in texts).encode(), "server.log")
    assert good(rows) == [1, 3]
    assert problems(rows) == [(2, "not UTF-8, or a lone surrogate")]
    assert all(raw_rows.well_formed(str(row.row)) for row in rows)


def test_a_prompt_that_python_cannot_read_is_a_broken_line(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_text("\n".join(VLLM.format(text) for text in ("'one'", r"'\x'", "'two'")))
    rows = list(read_rows(path))
    assert [(row.row, row.problem is None) for row in rows][::2] == [
        ({"prompt": "one"}, True),
        ({"prompt": "two"}, True),
    ]
    assert rows[1].problem == "a prompt that is not as Python writes it"


@pytest.mark.parametrize(
    "line",
    [
        'INFO:     10.0.0.1:51234 - "POST /v1/completions HTTP/1.1" 200 OK',
        "[2025-11-26 09:52:11 TP0] Prefill batch. #new-seq: 1",
        "2025-11-26T09:52:11.123Z  WARN text_generation_router: late",
        "Nov  6 09:52:11 host vllm[7]: Application startup complete.",
        '10.0.0.1 - - [26/Nov/2025:09:52:11 +0000] "POST /v1/completions HTTP/1.1" 200',
        "INFO 11-26 09:52:11 [logger.py:39] Received request cmpl-0: params: SamplingParams(n=1)",
        "INFO:     Started server process [1]",
    ],
)
def test_a_log_without_prompts_is_refused(tmp_path: Path, line: str) -> None:
    for name in ("server.log", "server.txt"):
        with pytest.raises(UserError, match=rf"{name}: a log without prompts: .*give the requests as JSON lines"):
            read(tmp_path, f"a banner\n{line}\n{line}\n".encode(), name)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", "INFO is what?\nWhy?\nThe time is 12:30:45. And then?\n"),
        ("a.txt", "2025-11-26 09:52:11 what is it?\nWhy?\n"),
        ("a.txt", "Information on 2025-11-26\nAn ERROR occurs\n"),
        ("a.txt", "CRITICAL thinking: name three rules.\nERROR handling in Go?\nINFO: what does this mean?\n"),
        ("a.txt", "Fix my cron 2024-01-01T10:00:00\nThe meeting is at 3 10:00:00 today?\n"),
        ("a.log", '{"time": "2025-11-26 09:52:11", "prompt": "one"}\n' * 2),
        ("a.json", '[\n{"t": "2025-11-26 09:52:11", "prompt": "one"}\n]'),
    ],
)
def test_prompts_that_tell_a_time_or_a_level_are_no_log(tmp_path: Path, name: str, text: str) -> None:
    assert all({"text", "prompt"} & row.row.keys() for row in read(tmp_path, text.encode(), name))


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that cannot be read")
def test_a_file_that_fails_while_it_is_read_is_named_although_another_is_being_written(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="/proc/self/mem"), atomic_path(tmp_path / "out"):
        list(read_rows(Path("/proc/self/mem")))


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        list(read_rows(tmp_path / "absent.jsonl"))
    with pytest.raises(UserError, match="a folder"):
        list(read_rows(tmp_path))


def test_nothing_that_is_printed_can_move_the_cursor() -> None:
    shown = excerpt("a\x1b[2Jb\r\n\x00\x7f\x9b\u202e\u2028\ud800 é")
    assert shown.isprintable()
    assert shown.endswith(" é")
    assert len(excerpt("x" * 10_000)) < 300


def test_a_line_too_long_is_a_rejected_row_at_bounded_memory(tmp_path: Path) -> None:
    """200 MB in 0.2 MB of gzip: in each format the rows around it are kept."""
    huge = gzip.compress(b"x" * (100 << 20), 1)  # a file may be several that were compressed one by one
    files = {
        "lines.jsonl.gz": (b'{"prompt": "one"}\n{"prompt": "', b'"}\n{"prompt": "two"}\n'),
        "table.csv.gz": (b"prompt\none\n", b"\ntwo\n"),
        "text.txt.gz": (b"one\n", b"\ntwo\n"),
        "array.json.gz": (b'[{"prompt": "one"}, {"prompt": "', b'"}, {"prompt": "two"}]'),
    }
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (150 << 20,) * 2)\n"
        "from pathlib import Path; from draftlab.data.readers import read_rows\n"
        "rows = list(read_rows(Path(sys.argv[1])))\n"
        "print([row.problem or 'kept' for row in rows])"
    )
    for name, (head, tail) in files.items():
        (tmp_path / name).write_bytes(gzip.compress(head) + 2 * huge + gzip.compress(tail))
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path / name)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-500:]
        assert done.stdout.startswith("['kept'"), (name, done.stdout)
        assert "a row of more than 16 MB" in done.stdout
        assert done.stdout.count("kept") == (2 if "array" not in name else 1)


@pytest.mark.parametrize("chunk", [1, 2, 7, 64])
def test_an_array_is_read_alike_in_any_chunks(chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "array.json"
    rows = [{"prompt": f"é{number}", "n": number} for number in range(19)] + [12345]
    file.write_bytes(b"\xef\xbb\xbf" + ("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n").encode())
    whole = list(read_rows(file))
    assert [row.row for row in whole] == [*rows[:-1], "12345"], "a number is no row"
    assert [row.line for row in whole] == list(range(2, 22))
    monkeypatch.setattr(json_rows, "CHUNK", chunk)
    assert list(read_rows(file)) == whole


@pytest.mark.parametrize(
    ("name", "content"), [("a.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"), ("a-1.0.whl", b"PK\x03\x04\x14\0\0\0\x08\0")]
)
def test_a_file_of_another_kind_is_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match="neither text nor Parquet"):
        list(read_rows(tmp_path / name))


ROWS = [{"prompt": "one"}, {"prompt": "two"}]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"data": ROWS}),
        json.dumps({"version": 1, "examples": ROWS}, indent=2),
        "\n".join(json.dumps(row, indent=1) for row in ROWS),
        json.dumps(ROWS[0], indent=1) + json.dumps(ROWS[1]),
        '{"data": [\n{"prompt": "one"},\n{"prompt": "two"}\n]}',
    ],
)
def test_rows_in_one_object_and_objects_over_several_lines(tmp_path: Path, text: str) -> None:
    assert [row.row for row in read(tmp_path, text.encode(), "rows.json")] == ROWS


@pytest.mark.parametrize(
    ("text", "good_lines", "bad"),
    [
        ('{"data": [{"prompt": "a", "score": NaN}, {"prompt": "b"}]}', [1], [(1, "NaN is not JSON")]),
        ('{"n": 1, "rows": [\n{"prompt": "a"},\n{"prompt": "\\ud83d"}, 3]}', [2], [(3, LONE), (3, "a JSON int, not an object")]),
        ('{\n"data": [\n{"prompt": 1, "prompt": 2},\n{"prompt": "b"}\n]\n}\n', [4], [(3, "duplicate key")]),
        ('{"mean": NaN, "data": [{"prompt": "a"}, {"prompt": "b"}]}', [1, 1], []),
        ('{"data": [{"prompt": "a"}, {"prompt": ', [1], [(1, f"broken JSON: Expecting value; {UNREAD}")]),
        ('{\n"data": [\n{"prompt": "a"},\n{"prompt": "b"}\n', [3, 4], [(1, f"broken JSON: Expecting ',' delimiter; {UNREAD}")]),
        ('{"data": [{"prompt": "a"}], "mean": }', [1], [(1, "broken JSON: Expecting value")]),
        ('{"data": 3, "mean": NaN}', [], [(1, "NaN is not JSON")]),
        ('{"prompt": "a", "data": [{"prompt": "b"}], "mean": NaN}', [], [(1, "NaN is not JSON")]),
    ],
)  # fmt: skip
def test_a_bad_row_in_an_object_loses_no_good_one(
    tmp_path: Path, text: str, good_lines: list[int], bad: list[tuple[int, str]]
) -> None:
    for name in ("rows.json", "rows.json.gz"):
        rows = read(tmp_path, gzip.compress(text.encode()) if name.endswith("gz") else text.encode(), name)
        assert (good(rows), problems(rows)) == (good_lines, bad)


def test_an_object_is_a_row_if_it_holds_a_prompt_or_others_follow(tmp_path: Path) -> None:
    one = {"prompt": "one", "data": ROWS}
    assert [row.row for row in read(tmp_path, json.dumps(one).encode(), "rows.json")] == [one]
    two = "\n".join(json.dumps({"data": ROWS}) for _ in range(2))
    assert [row.row for row in read(tmp_path, two.encode(), "rows.jsonl")] == [{"data": ROWS}] * 2
    mixed = read(tmp_path, json.dumps({"data": [ROWS[0], 3]}).encode(), "rows.json")
    assert [row.problem for row in mixed] == [None, "a JSON int, not an object"]
    opened = read(tmp_path, b'{\n{"prompt": "one"}\n{"prompt": "two"}\n', "rows.jsonl")
    assert [row.row for row in opened if row.problem is None] == ROWS
    broken = read(tmp_path, b'{\n"prompt": "one"}\n{\n"prompt": ', "rows.json")
    assert [row.problem is None for row in broken] == [True, False]
    assert "the rest of the file is unread" in str(broken[1].problem)


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_an_object_that_holds_more_rows_than_fit_in_memory_is_read_row_by_row(tmp_path, monkeypatch, indent, mark):
    monkeypatch.setattr(raw_rows, "LONGEST", 1000)
    monkeypatch.setattr(json_rows, "CHUNK", 300)
    rows = [{"prompt": f"é {number}"} for number in range(200)]
    text = json.dumps({"version": "1", "data": rows}, indent=indent, ensure_ascii=False)
    (tmp_path / "log.json").write_text(mark + text, encoding="utf-8")
    read = list(read_rows(tmp_path / "log.json"))
    assert [row.row for row in read] == rows
    assert not any(row.problem for row in read)
    assert [row.line for row in read[:2]] == ([4, 7] if indent else [1, 1])
