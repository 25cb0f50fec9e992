"""The datasets' repositories in the hub's layout, Parquet or JSON, with rows drawn by the project's generators."""

from __future__ import annotations

import io
import itertools
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from draftlab.data import generators
from draftlab.data.registry import Dataset

FILES = {
    "spider": "spider/{split}-00000-of-00001.parquet",
    "gsm8k": "main/{split}-00000-of-00001.parquet",
    "code_search_net": "python/{split}-{part:05}-of-{parts:05}.parquet",
    "finance_alpaca": "Cleaned_date.json",
    "arena": "data/{split}-00000-of-00001-cced8514c7ed782a.parquet",
    "cnn_dailymail": "3.0.0/{split}-{part:05}-of-{parts:05}.parquet",
    "xsum": "default/{split}/0000.parquet",
    "dolly": "databricks-dolly-15k.jsonl",
    "wmt16": "de-en/{split}-{part:05}-of-{parts:05}.parquet",
}
"""The file of a split, or each ``part`` of it."""
LARGEST = 40_000
"""The most rows that a generated dataset stands for: no experiment reads more of a large one."""


def files_of(dataset: Dataset, rows: dict[str, int]) -> dict[str, bytes]:
    """The files of a dataset's repository with the given number of ``rows`` in each of the hub's splits."""
    pattern, files = FILES[dataset.name], {}
    for split, count in rows.items():
        ours = "train" if split == dataset.train else "eval"
        drawn = list(itertools.islice(generators.rows(dataset.name, ours, seed=0), count))
        if dataset.name == "arena":  # only the generator knows topics
            drawn = [{key: value for key, value in row.items() if key != "topic"} for row in drawn]
        parts = 2 if "{part" in pattern and ours == "train" else 1
        for part in range(parts):
            name = pattern.format(split=split, part=part, parts=parts)
            files[name] = _encoded(name, drawn[part::parts])
    return files | ({} if dataset.revision.startswith("refs/") else {"README.md": _card(dataset, pattern, rows)})


def _encoded(name: str, rows: list[dict[str, Any]]) -> bytes:
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(rows), out := io.BytesIO())
        return out.getvalue()
    if name.endswith(".jsonl"):
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    return json.dumps(rows, ensure_ascii=False, indent=1).encode()


def _card(dataset: Dataset, pattern: str, rows: dict[str, int]) -> bytes:
    """README.md, which assigns Parquet files to configurations and splits."""
    lines = ["---", f"license: {dataset.licence.lower() if ' ' not in dataset.licence else 'other'}"]
    if pattern.endswith(".parquet"):
        folder = pattern.partition("/")[0]
        lines += ["configs:", f"- config_name: {dataset.config or 'default'}", "  data_files:"]
        lines += [line for split in rows for line in (f"  - split: {split}", f"    path: {folder}/{split}-*")]
    return "\n".join([*lines, "---", f"# {dataset.hub_id}", ""]).encode()
