"""Sources: generator, raw files, hub and fetched files give the same rows through one interface."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from draftlab.data import registry, sources, splits
from draftlab.data.cleaners import CLEANERS
from draftlab.data.raw_rows import RawRow
from draftlab.data.sources import Fetched, Hub, RawFiles, fetch, open_source, provenance_path
from draftlab.errors import UserError
from draftlab.files import hub
from draftlab.files.digests import sha256
from draftlab.files.json_files import read_json, read_jsonl

GSM8K = registry.find("gsm8k")


def write(path: Path, *rows: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return path


def test_fetched_rows_clean_like_the_rows_they_came_from(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    good = [{"question": "a", "answer": "1"}, {"question": "b", "answer": "2"}]
    write(raw / "gsm8k/train.jsonl", good[0], {"question": ""}, good[1])
    (raw / "gsm8k/train.jsonl").open("a").write('{"question": \n')
    write(raw / "gsm8k/test.jsonl", {"question": "c", "answer": "3"})
    for split in ("train", "eval"):
        fetch("gsm8k", split, "raw", raw=raw, rows=0, seed=0, out=tmp_path / "fetched" / f"{split}.jsonl")
    for name, source in (("direct", RawFiles(GSM8K, raw)), ("again", Fetched(tmp_path / "fetched"))):
        splits.make("gsm8k", source, tmp_path / name, splits.Options())
    for file in ("prompts.jsonl", "eval.jsonl", "rejected.jsonl"):
        assert (tmp_path / "direct" / file).read_text() == (tmp_path / "again" / file).read_text()
    rejected = [json.loads(line) for line in (tmp_path / "again/rejected.jsonl").read_text().splitlines()]
    assert [(Path(r["file"]).name, r["line"]) for r in rejected] == [("train.jsonl", 2), ("train.jsonl", 4)]


def test_provenance_tells_where_rows_come_from(tmp_path: Path) -> None:
    raw, out = tmp_path / "raw", tmp_path / "train.jsonl"
    file = write(raw / "gsm8k/train.jsonl", {"question": "a"}, {"question": "b"})
    fetch("gsm8k", "train", "raw", raw=raw, rows=1, seed=0, out=out)
    note = read_json(provenance_path(out))
    assert (note["source"], note["rows"], note["sha256"]) == ("raw", 1, sha256(out))
    assert note["files"] == [{"file": "train.jsonl", "bytes": file.stat().st_size, "sha256": sha256(file)}]
    fetch("gsm8k", "train", "generator", raw=None, rows=5, seed=3, out=out)
    assert read_json(provenance_path(out)) == {
        "dataset": "gsm8k", "split": "train", "source": "generator", "seed": 3, "rows": 5, "sha256": sha256(out)
    }  # fmt: skip


def test_provenance_names_the_file_beside(tmp_path: Path) -> None:
    write(tmp_path / "piqa/train.jsonl", {"goal": "g", "sol1": "a", "sol2": "b"})
    (tmp_path / "piqa/train-labels.lst").write_text("1\n")
    files = RawFiles(registry.find("piqa"), tmp_path).provenance("train")["files"]
    assert [file["file"] for file in files] == ["train.jsonl", "train-labels.lst"]


def test_a_dataset_without_an_eval_split_has_no_eval_rows(tmp_path: Path) -> None:
    fetch("finance_alpaca", "eval", "generator", raw=None, rows=5, seed=0, out=tmp_path / "eval.jsonl")
    assert list(read_jsonl(tmp_path / "eval.jsonl", RawRow)) == []


def test_files_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    folder = tmp_path / "code_search_net/python/final/jsonl/train"
    for name in ("b", "a"):
        write(folder / f"{name}.jsonl.gz", {"docstring": name})
    rows = list(RawFiles(registry.find("code_search_net"), tmp_path).rows("train"))
    assert [row.row["docstring"] for row in rows] == ["a", "b"]


def test_a_hidden_file_is_not_the_datasets(tmp_path: Path) -> None:
    """macOS writes ``._NAME`` beside each file on a disk of another system."""
    (tmp_path / "mgsm").mkdir()
    (tmp_path / "mgsm/._mgsm_de.tsv").write_bytes(b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X        ")
    mgsm = registry.find("mgsm")
    assert not mgsm.files_in(tmp_path, "train")
    (tmp_path / "mgsm/mgsm_de.tsv").write_text("Wie viele?\t3\n")
    assert [row.row for row in RawFiles(mgsm, tmp_path).rows("train")] == [{"question": "Wie viele?", "answer": "3"}]


def test_files_that_are_not_read_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "b.jsonl", {"prompt": "b"})
    write(tmp_path / "a.jsonl", {"prompt": "a"})
    fetch("prompts", "train", "raw", raw=tmp_path, rows=0, seed=0, out=tmp_path / "out/train.jsonl")
    assert capsys.readouterr().err == ""
    (tmp_path / "more.csv").write_text("prompt\nc\n")
    (tmp_path / "te\x1bxt.txt").write_text("d\n")
    fetch("prompts", "train", "raw", raw=tmp_path, rows=0, seed=0, out=tmp_path / "out/train.jsonl")
    assert capsys.readouterr().err == "prompts: read a.jsonl, ignored te\\x1bxt.txt, more.csv\n"
    assert [row.row["prompt"] for row in read_jsonl(tmp_path / "out/train.jsonl", RawRow)] == ["a", "b"]


def test_one_file_of_the_users_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("".join(f"question {i}\n" for i in range(10)))
    summary = splits.make_from("prompts", "raw", raw=file, out=tmp_path / "out", options=splits.Options(eval=3))
    assert (summary["counts"]["train"]["kept"], summary["counts"]["eval"]["kept"]) == (7, 3)


def test_labels_stand_in_a_file_beside(tmp_path: Path) -> None:
    piqa = registry.find("piqa")
    rows = [{"goal": g, "sol1": "one", "sol2": "two"} for g in "abc"]
    write(tmp_path / "piqa/train.jsonl", *rows)
    labels = tmp_path / "piqa/train-labels.lst"
    labels.write_text("0\n1\n0\n")
    assert [r.row["label"] for r in RawFiles(piqa, tmp_path).rows("train")] == [0, 1, 0]
    labels.write_text("-1\n1\n0\n")  # not known
    assert [r.row["label"] for r in RawFiles(piqa, tmp_path).rows("train")] == [-1, 1, 0]
    for content, message in {
        "0\n1\n": r"labels.lst: 2 labels for 3 rows of train.jsonl",
        '{"label": 0}\n{"label": 1}\n{"label": 1}\n': r"labels.lst:1: a label is neither 0 nor 1",
        "0\n1\nright\n": r"labels.lst:3: a label is neither",
    }.items():
        labels.write_text(content)
        with pytest.raises(UserError, match=message):
            list(RawFiles(piqa, tmp_path).rows("train"))
    labels.unlink()
    assert [r.row for r in RawFiles(piqa, tmp_path).rows("train")] == rows


def test_schemas_stand_in_a_file_beside(tmp_path: Path) -> None:
    row = {"db_id": "zoo", "question": "How many?", "query": "SELECT 1"}
    write(tmp_path / "spider/train_spider.json", row, row | {"db_id": "unknown"}, row | {"db_id": ["zoo"]})
    source = RawFiles(registry.find("spider_schema"), tmp_path)
    with pytest.raises(UserError, match=r"no tables.json"):
        list(source.rows("train"))
    columns = [[-1, "*"], [0, "id"], [0, "name"], [1, "day"]]
    names = {"table_names_original": ["animal", "visit"], "column_names_original": columns}
    write(tmp_path / "spider/tables.json", {"db_id": "zoo", **names})
    schemas = [raw.row.get("db_schema") for raw in source.rows("train")]
    assert schemas == ["animal(id, name); visit(day)", None, None]
    for damaged in ({}, {"column_names_original": columns}, names | {"column_names_original": [1]}):
        write(tmp_path / "spider/tables.json", {"db_id": "zoo", **damaged})
        with pytest.raises(UserError, match=r"tables.json:1: a database without table_names_original and column_names"):
            list(source.rows("train"))


def test_hub_reads_a_repository_in_its_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    write(tmp_path / "repository/train.jsonl", {"question": "a", "answer": "1"}, {"question": "b", "answer": "2"})
    local = dataclasses.replace(GSM8K, hub_id=str(tmp_path / "repository"), config="")
    assert [row.row["question"] for row in Hub(local).rows("train")] == ["a", "b"]
    assert Hub(local).provenance("train")["revision"] == GSM8K.revision
    assert list(Hub(registry.find("finance_alpaca")).rows("eval")) == []


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_an_empty_split_of_the_hub_has_no_rows_and_the_others_are_read(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library reads neither the empty split nor, of Parquet, any other."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(hub, "WAITS", ())
    repository = tmp_path / "repository"
    for name, rows in (("train", [{"question": "a", "answer": "1"}] * 3), ("test", [])):
        file = write(repository / f"{name}.{kind}", *rows)
        if kind == "parquet":
            schema = pyarrow.schema([("question", pyarrow.string()), ("answer", pyarrow.string())])
            parquet.write_table(pyarrow.Table.from_pylist(rows, schema), file)
        elif not rows:
            file.write_bytes(b"")
    local = Hub(dataclasses.replace(GSM8K, hub_id=str(repository), config=""))
    assert [raw.row["question"] for raw in local.rows("train")] == ["a"] * 3
    assert list(local.rows("eval")) == []


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-99])


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("*.arrow", Path.unlink),
        ("*.arrow", cut),
        ("dataset_info.json", Path.unlink),
        ("dataset_info.json", cut),
        ("dataset_info.json", lambda file: file.write_bytes(b"")),
    ],
)
def test_cached_rows_that_are_damaged_are_made_again(
    name: str, damage: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clusters delete files that were long unused one by one."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(hub, "WAITS", (0.0,))
    write(tmp_path / "repository/train.jsonl", *({"question": f"{n}", "answer": "1"} for n in range(99)))
    local = dataclasses.replace(GSM8K, hub_id=str(tmp_path / "repository"), config="")
    before = [row.row for row in Hub(local).rows("train")]
    [cached] = (tmp_path / "cache").rglob(name)
    damage(cached)
    again = dataclasses.replace(local, notes="another run")
    assert [row.row for row in Hub(again).rows("train")] == before


def test_offline_without_a_cache_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def refuse(*_: object, **__: object) -> None:
        raise ConnectionError("Couldn't reach it with token hf_abcDEF123\nsecond line")

    monkeypatch.setattr(datasets, "load_dataset_builder", refuse)
    with pytest.raises(UserError, match="cannot read dataset openai/gsm8k") as caught:
        list(Hub(GSM8K).rows("train"))
    assert "abcDEF" not in str(caught.value)
    assert "second line" not in str(caught.value)


@pytest.mark.parametrize(
    ("dataset", "source", "options", "message"),
    [
        ("nope", "raw", {}, "unknown dataset 'nope'"),
        ("../gsm8k", "raw", {}, "unknown dataset"),
        ("gsm8k", "raw", {}, "needs a folder"),
        ("gsm8k", "raw", {"raw": Path("/absent")}, "no such folder"),
        ("gsm8k", "generator", {}, "has no last row"),
    ],
)
def test_refusals(dataset: str, source: sources.SourceName, options: dict[str, Path], message: str) -> None:
    with pytest.raises(UserError, match=message):
        open_source(dataset, source, **({"raw": None, "train_rows": 0, "eval_rows": 0, "seed": 0} | options))


def test_missing_raw_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"looked for gsm8k/train.jsonl"):
        list(RawFiles(GSM8K, tmp_path).rows("train"))
    assert list(RawFiles(GSM8K, tmp_path).rows("eval")) == []


def test_a_folder_without_files_of_a_packaged_dataset_has_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = write(tmp_path / "cache" / "HumanEval.jsonl", {"prompt": "def f():", "canonical_solution": " pass"})
    monkeypatch.setattr(sources.packages, "fetch", lambda name: held)
    raw, out = tmp_path / "raw", tmp_path / "train.jsonl"
    raw.mkdir()
    content = sources.content_of("humaneval", "train", "raw", raw)
    assert content == sources.content_of("humaneval", "train", "generator", None)
    fetch("humaneval", "train", "raw", raw=raw, out=out, content=content)
    assert read_json(provenance_path(out))["files"][0]["sha256"] == sha256(held)
    write(raw / "humaneval" / "own.jsonl", {"prompt": "def g():"})
    assert sources.content_of("humaneval", "train", "raw", raw) != content


def test_every_dataset_of_the_table_has_a_cleaner() -> None:
    assert set(registry.load()) == set(CLEANERS)
    for row in registry.load().values():
        assert row.hub_id or row.raw_train
        assert not row.hub_id or row.revision


def test_the_tables_markdown_has_a_line_for_each_dataset() -> None:
    lines = registry.table_markdown().splitlines()
    assert len(lines) == 2 + len(registry.load())
    assert len({line.count(" | ") for line in lines[2:]}) == 1


def test_the_package_does_without_torch() -> None:
    code = (
        "import sys; from draftlab.data import check, classify, streams, splits;"
        " assert not {'torch', 'transformers', 'datasets'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    file = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.jsonl"))
    file.write_text('{"prompt": "how?"}\n')
    message = r"caf\\udce9.jsonl: the name of the file is not UTF-8 \(rename"
    with pytest.raises(UserError, match=message):
        sources.fetch("prompts", "train", "raw", raw=file, out=tmp_path / "out/train.jsonl")
    with pytest.raises(UserError, match=message):
        sources.content_of("prompts", "train", "raw", tmp_path)
    assert not (tmp_path / "out/train.jsonl").exists()


@pytest.mark.parametrize("source", ["hub", "raw", "generator"])
def test_what_is_said_about_a_dataset_is_not_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: sources.SourceName
) -> None:
    write(tmp_path / "gsm8k/train.jsonl", {"question": "q", "answer": "a"})
    said = ("gated", "licence", "prompt", "reference", "citation", "notes")
    contents = {}
    for field in dataclasses.fields(GSM8K):
        if field.name not in ("name", "raw_train"):  # another name or pattern finds no file
            edited = dataclasses.replace(GSM8K, **{field.name: "edited"})
            monkeypatch.setattr(registry, "find", lambda name, edited=edited: edited)
            contents[field.name] = sources.content_of("gsm8k", "train", source, tmp_path)
    assert len({contents[name] for name in said}) == 1
    assert len(set(contents.values())) == 1 + len(contents) - len(said)
