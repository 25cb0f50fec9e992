"""Every parser reads any bytes or raises a ``UserError`` of one line: `make test-fuzz`, 11,750 inputs in bounded memory."""

from __future__ import annotations

import gzip
import io
import json
import os
import resource
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftlab import plan
from draftlab.conformance import Budget, command
from draftlab.data import check, sources, splits
from draftlab.data.cleaners import CLEANERS
from draftlab.data.formats import FORMATS
from draftlab.data.readers import read_rows
from draftlab.engine.answers import Answer
from draftlab.engine.recorded_pairs import Pairs, load_pairs
from draftlab.engine.recording import load_pass
from draftlab.errors import UserError
from draftlab.files.gguf_header import read_header
from draftlab.files.json_files import read_json, read_jsonl
from draftlab.files.tables import read_table
from draftlab.files.validated import validated
from draftlab.files.yaml_files import Place, read_yaml
from draftlab.models import load_tokenizer
from draftlab.models.config import read_config, read_eos_ids
from draftlab.models.gguf import export
from draftlab.models.weights import read_weights
from draftlab.plan.scale import ScaleSettings
from draftlab.serving import emit, monitor, profiles, records, traces
from tests.pair import make_results

pytestmark = pytest.mark.fuzz

MEMORY = 4 << 30
TIMES = float(os.environ.get("DRAFTLAB_FUZZ", "1"))
"""How many times 10,000 inputs."""

TRIED: Counter[str] = Counter()

TOKENS = [
    b"{", b"}", b"[", b"]", b'"', b",", b":", b"\n", b"\r", b"\0", b"\xff", b"\xef\xbb\xbf", b"null", b"NaN", b"1e999", b"-1", b"0",
    b"9" * 5000, b"[" * 3000, b'{"a":' * 2000, b"\\ud800", b"'", b"\t", b"---\n", b"&a *a", b"!!python/object/apply:os.system ['true']",
    b"\x1f\x8b\x08", b"PAR1", b"GGUF", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\xff\xff\xff\xff", b"../", b"%s{0}", b"\xe2\x80\xa8", b"=1+1",
]  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """A seed with up to four damages, or noise."""
    data = bytearray(draw(st.sampled_from(seeds)) if draw(st.integers(0, 9)) else draw(st.binary(max_size=200)))
    for _ in range(draw(st.integers(0, 4))):
        at, end = sorted((draw(st.integers(0, len(data))), draw(st.integers(0, len(data)))))
        match draw(st.integers(0, 5)):
            case 0 if data:
                data[min(at, len(data) - 1)] = draw(st.integers(0, 255))
            case 1:
                del data[at : min(end, at + 40)]
            case 2:
                data[at:at] = draw(st.sampled_from(TOKENS))
            case 3:
                data[at:at] = data[at : min(end, at + 200)]
            case 4:
                del data[at:]
            case _:
                data[at : at + 8] = draw(st.binary(min_size=8, max_size=8))
    return bytes(data)


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.sampled_from(["train", "user", "human", "", "1"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["content", "role", "value", "from", "text"]), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def bounded_memory() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)
    print(f"\n{TRIED.total()} inputs:", ", ".join(f"{name} {count}" for name, count in TRIED.items()))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    make_results(folder)
    zeros = torch.zeros(5, dtype=torch.int64)
    Pairs(torch.rand(5, 9), torch.rand(5, 9), zeros, zeros + 1).save(folder / "pairs.safetensors")
    export(folder / "models/draft", folder / "model.gguf")
    for record in folder.rglob("*sealed.json"):  # bytes that the seal refuses would reach no parser
        record.unlink()
    return folder


def ends_well(parse: Callable[[], object]) -> None:
    try:
        result = parse()
        if isinstance(result, Iterator):
            list(result)
    except UserError as error:
        if "\n" in str(error) or not str(error).isprintable():
            raise AssertionError(f"not one line: {error!r}") from error


def fuzz(name: str, count: int, cases: st.SearchStrategy[Any], parse: Callable[[Any], object]) -> None:
    """Give a parser ``count`` inputs; the first that ends badly is shrunk and shown."""

    @settings(max_examples=int(count * TIMES), deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(cases)
    def attempt(case: Any) -> None:
        TRIED[name] += 1
        ends_well(lambda: parse(case))

    attempt()


def parquet(rows: list[dict[str, Any]]) -> bytes:
    import pyarrow
    from pyarrow import parquet as writer

    out = io.BytesIO()
    writer.write_table(pyarrow.Table.from_pylist(rows), out)
    return out.getvalue()


ROWS = [{"prompt": f"question {number}", "answer": "é"} for number in range(3)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
RAW = {
    "jsonl": [LINES, b'{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}\n'],
    "json": [json.dumps(ROWS).encode(), json.dumps(ROWS, indent=1).encode()],
    "csv": [b'prompt,answer\n"a ""quoted"" one",b\n"two\nlines",c\n'],
    "tsv": [b"prompt\tanswer\na\tb\n"],
    "txt": [b"one\ntwo\n"],
    "parquet": [parquet(ROWS)],
    "jsonl.gz": [gzip.compress(LINES)],
}


@pytest.mark.parametrize("suffix", RAW)
def test_raw_files(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"file.{suffix}"

    def parse(data: bytes) -> object:
        file.write_bytes(data)
        return read_rows(file)

    fuzz(f"raw {suffix}", 500, mutated(RAW[suffix]), parse)


def test_prompts_of_a_user(tmp_path: Path) -> None:
    """The same bytes through detection, cleaners and splits."""
    file = tmp_path / "mine.jsonl"

    def parse(data: bytes) -> object:
        file.write_bytes(data)
        ends_well(lambda: check.check(file))
        return splits.make_from("prompts", "raw", raw=file, out=tmp_path / "out", options=splits.Options(eval=1))

    fuzz("prompts", 400, mutated([LINES * 2, *RAW["json"]]), parse)


def test_rows_of_known_datasets(tmp_path: Path) -> None:
    known = {field for _, fields in FORMATS for field in fields}
    names = sorted(known | {"prompt", "choices", "table", "meta", "language"})
    rows = st.lists(st.dictionaries(st.sampled_from(names), ODD, max_size=6), max_size=3)
    file = tmp_path / "rows.jsonl"

    def parse(case: tuple[str, list[dict[str, Any]]]) -> object:
        file.write_text("".join(json.dumps(row) + "\n" for row in case[1]))
        return check.check(file, dataset=case[0])

    fuzz("cleaners", 1500, st.tuples(st.sampled_from(sorted(CLEANERS)), rows), parse)


@pytest.mark.parametrize(
    "name",
    ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"],
)
def test_files_of_a_model(name: str, run: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(run / "models/draft", tmp_path / "model"))
    seed = (model / name).read_bytes() if (model / name).exists() else b'{"eos_token_id": 2}'

    def parse(data: bytes) -> object:
        (model / name).write_bytes(data)
        ends_well(lambda: read_config(model))
        ends_well(lambda: read_eos_ids(model))
        return load_tokenizer(model)

    fuzz(name, 300, mutated([seed]), parse)


WEIGHTS = "models/draft/model.safetensors"
BINARY: dict[str, tuple[str, Callable[[Path], object]]] = {
    "weights": (WEIGHTS, lambda file: read_weights(file.parent, torch.device("cpu"))),
    "weights of an export": (WEIGHTS, lambda file: export(file.parent, file.parent / "out.gguf")),
    "pairs": ("pairs.safetensors", load_pairs),
    "distributions": ("answers/toy.eval/distributions.safetensors", lambda file: load_pass(file.parent)),
    "pass.json": ("answers/toy.eval/pass.json", lambda file: load_pass(file.parent)),
    "answers": ("answers/toy.eval/answers.jsonl", lambda file: load_pass(file.parent)),
    "gguf": ("model.gguf", lambda file: ends_well(lambda: read_header(file)) or load_tokenizer(file)),
}


@pytest.mark.parametrize("name", BINARY)
def test_files_of_a_run(name: str, run: Path, tmp_path: Path) -> None:
    place, read = BINARY[name]
    folder = Path(shutil.copytree((run / place).parent, tmp_path / "folder")) if "/" in place else tmp_path
    file = folder / Path(place).name
    whole = (run / place).read_bytes()
    head = 6000 if name == "gguf" else 1500  # damages fall where the structure is

    def parse(data: bytes) -> object:
        file.write_bytes(data + whole[head:])
        return read(file)

    fuzz(name, 700 if name == "gguf" else 150, mutated([whole[:head]]), parse)


TEXTS: dict[str, tuple[list[bytes], Callable[[Path], object]]] = {
    "json": ([b'{"a": [1, 2.5, null], "b": "c"}'], read_json),
    "jsonl": (
        [b'{"id": "1", "prompt_ids": [1], "answer_ids": [2], "finished": true}\n'],
        lambda file: read_jsonl(file, Answer),
    ),
    "table": ([b"a,b\n1,x\n2,y\n", b'a\n"1\n2"\n'], read_table),
    "samples": ([b'{"target_probs": [0.5, 0.5], "token": 1}\n' * 5], lambda file: command.run_on_file(file, Budget())),
    "provenance": ([b'{"source": "raw"}'], lambda file: sources.Fetched(file.parent).provenance("train")),
}


SPECULATION = {
    "num_spec_steps": 10,
    "num_draft_tokens": 30,
    "num_accepted_draft_tokens": 15,
    "acceptance_histogram": [2, 3, 3, 2],
}
RECORDS = [
    json.dumps({"metrics": {"speculative_decoding": SPECULATION | {"acceptance_histogram_by_draft_length": {"3": [2, 3, 3, 2]}}}}).encode(),
    json.dumps({"meta_info": {"spec_verify_ct": 10, "spec_accept_length": 2.5, "completion_tokens": 26, "spec_accept_histogram": [2, 3, 5]}}).encode(),
    json.dumps({"response": {"timings": {"draft_n": 30, "draft_n_accepted": 15, "predicted_n": 26}}}).encode(),
    b"".join(b"vllm:spec_decode_num_%s_total 9\n" % name for name in (b"drafts", b"draft_tokens", b"accepted_tokens"))
    + b'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 5\n',
]  # fmt: skip
TRACES = [
    b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n2023-11-16 18:15:50,396,109\n",
    b"arrived_at,num_prefill_tokens,num_decode_tokens\n0.1,10,20\n0.4,20,30\n",
    b'{"timestamp": 0, "input_length": 6758, "output_length": 500}\n{"timestamp": 3000, "input_length": 7, "output_length": 4}\n',
]
BEST = [{"batch": 1, "context": 512, "best_draft_len": 4}, {"batch": 2, "context": 512, "best_draft_len": 0}]
LOAD = [json.dumps({"known": True, "draft_ratio": 0.1, "best_by_batch_and_context": BEST}, indent=1).encode()]
PROFILE = [(profiles.SHIPPED / "rtx4090-llama-3.1-8b.yaml").read_bytes()]


def judged(file: Path) -> object:
    ends_well(lambda: records.acceptance(file))
    return monitor.judge(
        records.read(file), monitor.Promise(draft_len=3, acceptance_length=monitor.Bounds(low=2, high=3))
    )


SERVING: dict[str, tuple[int, str, list[bytes], Callable[[Path], object]]] = {
    "records": (400, "jsonl", [(seed + b"\n") * 40 for seed in RECORDS[:-1]] + RECORDS[-1:], judged),
    "traces": (200, "csv", TRACES[:-1], traces.read_trace),
    "lines of traces": (100, "jsonl", TRACES[-1:], traces.read_trace),
    "profiles": (150, "yaml", PROFILE, profiles.load),
    "load": (150, "json", LOAD, lambda file: emit.from_load(file, 1024)),
}


@pytest.mark.parametrize("name", SERVING)
def test_files_of_servers(name: str, tmp_path: Path) -> None:
    count, suffix, seeds, read = SERVING[name]
    file = tmp_path / f"file.{suffix}"

    def parse(data: bytes) -> object:
        file.write_bytes(data)
        return read(file)

    fuzz(name, count, mutated(seeds), parse)


@pytest.mark.parametrize("name", TEXTS)
def test_texts(name: str, tmp_path: Path) -> None:
    seeds, read = TEXTS[name]
    file = tmp_path / ("train.provenance.json" if name == "provenance" else "file.csv")

    def parse(data: bytes) -> object:
        file.write_bytes(data)
        return read(file)

    fuzz(name, 250, mutated(seeds), parse)


def test_scales(tmp_path: Path) -> None:
    file = tmp_path / "scale.yaml"

    def parse(data: bytes) -> object:
        file.write_bytes(data)
        return validated(ScaleSettings, read_yaml(file), Place(file))

    fuzz("scales", 400, mutated([(plan.WORKFLOW / "scales/smoke.yaml").read_bytes()]), parse)


def test_experiments(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"

    def parse(data: bytes) -> object:
        file.write_bytes(data)
        return plan.load_experiment(file)

    seeds = [(plan.WORKFLOW / f"experiments/{name}.yaml").read_bytes() for name in ("osd_offline", "mdss_acceptance")]
    fuzz("experiments", 400, mutated(seeds), parse)


def test_configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cases = st.dictionaries(st.sampled_from([*plan.RunConfig.model_fields, "other"]), ODD, max_size=3)
    fuzz("--config", 200, cases, lambda case: plan.load_run({"scale": "smoke"} | case, plan.WORKFLOW))
