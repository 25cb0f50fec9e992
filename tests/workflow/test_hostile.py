"""What data, models and files on disk may try: each ends in one line and exit code 1, or in a correct result. docs/robustness.md lists them."""

from __future__ import annotations

import ast
import json
import os
import pickle
import pickletools
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from draftlab import cli, plan
from draftlab.data.prompts import Prompt
from draftlab.errors import UserError
from draftlab.files.json_files import write_jsonl
from draftlab.files.tables import read_table, table_bytes
from draftlab.models.gguf import export
from draftlab.report import page as report_page
from tests.conftest import ROOT
from tests.pair import make_results, small_llama

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x1b[31m red \u202e right to left <script>alert(1)</script> $(touch ran) `touch ran`; touch ran"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, answers and prompts of a run."""
    folder = tmp_path_factory.mktemp("made")
    make_results(folder, lambda hidden, seed: small_llama(64 if hidden == 32 else 32, seed))
    write_jsonl(folder / "prompts.jsonl", [Prompt(str(n), "toy", "train", f"count to {n}", f"{n}") for n in range(9)])
    export(folder / "models/target", folder / "target.gguf")
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to damage, in which commands run."""
    folder = Path(shutil.copytree(made, tmp_path / "made"))
    monkeypatch.chdir(folder)
    return folder


Draftlab = Callable[..., tuple[int, str]]


@pytest.fixture
def draftlab(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Draftlab:
    """Run one draftlab command in this process; its exit code, and all that it wrote to the terminal."""

    def run(*words: str | Path) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["draftlab", *map(str, words)])
        code, said = 0, ""
        try:
            cli.main()
        except SystemExit as error:
            code, said = (1, str(error.code)) if isinstance(error.code, str) else (int(error.code or 0), "")
        printed = capfd.readouterr()
        return code, printed.out + printed.err + said

    return run


ANSWER = "answer --target models/target --prompts prompts.jsonl --requests 4 --max-new-tokens 4 --out out"
TRAIN = (
    "pretrain target --prompts prompts.jsonl --tokenizer models/target --out out --vocabulary 320 --hidden 16 --layers 1 "
    "--heads 2 --ffn 32 --context 64 --steps 2 --batch 4 --documents 10 --template plain"
)
VIEW = "token-view --before models/draft --after models/draft --answers answers/toy.eval --dataset toy --draft-len 3 --out out"
EXPORT = "gguf export --model models/target --out out"
CHECK = "data check prompts.jsonl"
COPY = f"{TRAIN} --model models/target"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def noise(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00garbage" * 20)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def no_longer_json(path: Path) -> None:
    path.write_text("[1, 2")


def another_type(path: Path) -> None:
    path.write_text("[1, 2]")


DAMAGES: dict[str, Callable[[Path], None]] = {
    "vanished": Path.unlink,
    "cut": cut,
    "noise": noise,
    "empty": empty,
    "json cut": no_longer_json,
    "another type": another_type,
}
BAD_FILES = [
    (ANSWER, "models/target/model.safetensors", ("vanished", "cut", "noise", "empty")),
    (ANSWER, "models/target/config.json", ("vanished", "cut", "noise", "empty", "json cut", "another type")),
    (ANSWER, "models/target/tokenizer.json", ("vanished", "cut", "noise", "empty", "another type")),
    (ANSWER, "models/target/tokenizer_config.json", ("cut", "noise", "another type")),
    (ANSWER, "prompts.jsonl", ("vanished", "cut", "noise", "empty", "json cut", "another type")),
    (TRAIN, "prompts.jsonl", ("vanished", "cut", "noise", "empty", "another type")),
    (VIEW, "answers/toy.eval/distributions.safetensors", ("vanished", "cut", "noise", "empty")),
    (VIEW, "answers/toy.eval/answers.jsonl", ("vanished", "cut", "noise", "empty", "another type")),
    (VIEW, "answers/toy.eval/pass.json", ("vanished", "cut", "noise", "empty", "json cut", "another type")),
    (VIEW, "models/draft/model.safetensors", ("vanished", "cut", "noise", "empty")),
    (EXPORT, "models/target/model.safetensors", ("vanished", "cut", "noise", "empty")),
    (EXPORT, "models/target/tokenizer.json", ("vanished", "cut", "noise", "another type")),
    (COPY, "models/target/model.safetensors", ("vanished",)),
    (COPY, "models/target/config.json", ("vanished",)),
    ("collect --rows rows.csv --out out", "rows.csv", ("vanished", "cut", "noise", "empty")),
    ("claims --tables . --scale laptop --out out", "mdss_region.csv", ("cut", "noise", "empty")),
    (
        "figure mdss_region --table mdss_region.csv --scale laptop --out out",
        "mdss_region.csv",
        ("vanished", "cut", "noise", "empty"),
    ),
    ("report --results . --scale laptop --out out", "claims.csv", ("vanished", "cut", "noise", "empty")),
]


@pytest.mark.parametrize(
    ("command", "file", "damage"), [(command, file, name) for command, file, names in BAD_FILES for name in names]
)
def test_a_damaged_file_is_one_line_and_exit_code_1(
    command: str, file: str, damage: str, folder: Path, draftlab: Draftlab
) -> None:
    (folder / "rows.csv").write_text("a,b\n10,20\n")
    (folder / "claims.csv").write_text("claim_id\n")
    (folder / "mdss_region.csv").write_bytes(table_bytes(ROOT / "paper_figures/laptop/data/mdss_region.csv.gz"))
    DAMAGES[damage](folder / file)
    code, said = draftlab(*command.split())
    assert code == 1, said
    errors = [line for line in said.splitlines() if line.startswith("draftlab: error:")]
    assert len(errors) == 1, said
    assert "Traceback" not in said
    assert not list(folder.glob("out*"))


@pytest.mark.parametrize(
    ("text", "message"), [("a,b\n10,20\n30,4", "t.csv:3: cut short"), ("a,b\n10\n3,4\n", "t.csv:2: 1 fields")]
)
def test_a_table_that_lost_a_digit_or_a_column_is_not_read(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(UserError, match=message):
        read_table(tmp_path / "t.csv")


TRAINED = "--answers a --models m --max-new-tokens 3 --epochs 1 --learning-rate 0.1"
LEARNS = "--answers a --models m --max-new-tokens 3 --update-interval 2 --learning-rate 0.1"
MEASURED = "--blocks 1 --rounds 1 --target t --draft d"
BAD_SETTINGS = [
    (f"offline --batch 0 {TRAINED}", "batch: Input should be greater than 0, not 0"),
    (f"online --batch 1 --dataset spider --stream 5 {LEARNS}", "stream: give a mapping"),
    (f"latency-alpha --alpha --draft-len 3 {MEASURED}", "alpha: .* at least 1 item"),
    (f"latency-alpha --alpha 0.5 --draft-len 0 {MEASURED}", "draft_len.0: .* greater than 0"),
    (f"latency-alpha --alpha 0.5 --draft-len -2 {MEASURED}", "draft_len.0: .*, not -2"),
    (f"latency-alpha --alpha 0.5 --draft-len 3 --inflated-layers -3 {MEASURED}", "inflated_layers: "),
    (f"latency-length --alpha 0.5 --length 8 --draft-len 0 {MEASURED}", "draft_len: "),
    ("region --num-drafts 2 --points 0", "points: .* greater than 1, not 0"),
    ("collect --rows", "no rows to collect"),
    ("publish --results . --tables", "no tables to publish"),
    ("figures --data . --scale smoke --drawn drawn --processes 0", "processes is 0"),
    ("data make --dataset spider --train 5 --eval -5", ".*less than 0"),
    (
        "record-pairs --target t --draft d --prompts p --positions 5 --max-new-tokens 4 --seed 4294967296",
        "seed is 4294967296",
    ),
    ("cone --num-tokens 2 --num-drafts 2 --cases 1 --seed 4294967296", "seed: .* less than 4294967296"),
    ("gguf inflate --model m --layers 1025", r"layers is 1025 \(give at most 1024"),
    ("bench verify --vocabs 0", "vocabs.0: .* greater than 0, not 0"),
]


@pytest.mark.parametrize(("command", "message"), BAD_SETTINGS)
def test_a_setting_that_cannot_work_is_one_line_and_writes_nothing(
    command: str, message: str, tmp_path: Path, draftlab: Draftlab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, said = draftlab(*command.split(), "--out", "out")
    assert code == 1, said
    assert re.fullmatch(rf"draftlab: error: {message}.*", said)
    assert list(tmp_path.iterdir()) == []


def test_answers_are_refused_a_place_that_is_a_file_before_they_are_made(folder: Path, draftlab: Draftlab) -> None:
    (folder / "out").write_text("mine")
    code, said = draftlab(*ANSWER.split())
    assert code == 1
    assert "out: a file, not a folder (name a new folder)" in said
    assert (folder / "out").read_text() == "mine"
    assert not list(folder.glob(".out*")), "answers were recorded"


class Payload:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch ran",)


def test_the_payload_would_run() -> None:
    """Else the tests below prove nothing: its opcodes fetch ``os.system`` and call it."""
    opcodes = [(opcode.name, argument) for opcode, argument, _ in pickletools.genops(pickle.dumps(Payload()))]
    assert ("SHORT_BINUNICODE", os.system.__module__) in opcodes
    assert ("SHORT_BINUNICODE", "system") in opcodes
    assert ("REDUCE", None) in opcodes


@pytest.mark.parametrize("command", [ANSWER, EXPORT, COPY])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.safetensors"])
def test_a_pickle_in_a_model_folder_is_never_loaded(command: str, name: str, folder: Path, draftlab: Draftlab) -> None:
    (folder / "models/target/model.safetensors").unlink()
    (folder / "models/target" / name).write_bytes(pickle.dumps(Payload()))
    code, said = draftlab(*command.split())
    assert code == 1, said
    assert "Traceback" not in said
    assert not (folder / "ran").exists()
    assert not (folder / "out").exists()


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "EvilForCausalLM"])
def test_code_in_a_model_folder_is_neither_run_nor_copied(architecture: str, folder: Path, draftlab: Draftlab) -> None:
    model = folder / "models/target"
    for name in ("modeling_evil.py", "configuration_evil.py", "tokenization_evil.py"):
        (model / name).write_text("open('ran', 'w')\nclass Evil: pass\n")
    for name in ("config.json", "tokenizer_config.json"):
        fields = json.loads((model / name).read_text())
        classes = ("AutoConfig", "AutoModelForCausalLM", "AutoTokenizer")
        fields |= {"auto_map": {kind: "modeling_evil.Evil" for kind in classes}}
        if name == "config.json":
            fields |= {"architectures": [architecture]}
            fields |= {"model_type": "evil"} if architecture.startswith("Evil") else {}
        (model / name).write_text(json.dumps(fields))
    code, said = draftlab(*ANSWER.split())
    assert code == (0 if architecture.startswith("Llama") else 1), said  # a known architecture needs no code of its own
    assert "Traceback" not in said
    code, said = draftlab(*COPY.replace("--out out", "--out copy").split())
    assert code == 0, said
    assert (folder / "copy/config.json").exists()
    assert not list((folder / "copy").glob("*.py"))
    assert not (folder / "ran").exists()


AUTO = (
    "AutoConfig",
    "AutoModel",
    "AutoModelForCausalLM",
    "AutoModelForSequenceClassification",
    "AutoTokenizer",
    "AutoProcessor",
)
CLASSIFY = "data classify --prompts prompts.jsonl --label topic --method hub --model models/target --out q --report r"
ENTRY_POINTS = {
    "answer": ANSWER,
    "export": EXPORT,
    "copy": COPY,
    "tokenizer": "pretrain tokenizer --model models/target --vocabulary 320 --hidden 16 --layers 1 --heads 2 --ffn 32 --context 64 "
    "--steps 2 --batch 4 --documents 10 --prompts prompts.jsonl --out out",
    "draft": COPY.replace("pretrain target", "pretrain draft"),
    "view": VIEW,
    "pairs": "record-pairs --target models/target --draft models/draft --prompts prompts.jsonl --positions 4 --max-new-tokens 4 --out out",
    "check": f"{CHECK} --tokenizer models/target",
    "classify": CLASSIFY,
}


@pytest.mark.parametrize("slow_tokenizer", [False, True])
@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_code_of_a_model_folder_runs_at_no_entry_point(
    entry: str, slow_tokenizer: bool, folder: Path, draftlab: Draftlab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even when somebody says yes to every question."""
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    for model in (folder / "models/target", folder / "models/draft"):
        (model / "evil.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\nclass Evil: pass\n")
        for name in ("config.json", "tokenizer_config.json"):
            fields = json.loads((model / name).read_text())
            fields |= {"auto_map": dict.fromkeys(AUTO, "evil.Evil"), "model_type": "evil", "architectures": ["Evil"]}
            fields |= {"tokenizer_class": "Evil", "custom_pipelines": {"text-classification": {"impl": "evil.Evil"}}}
            (model / name).write_text(json.dumps(fields))
        if slow_tokenizer:  # one is made of the older files
            (model / "tokenizer.json").unlink()
            (model / "vocab.json").write_text(json.dumps({"a": 0, "b": 1}))
            (model / "merges.txt").write_text("#version: 0.2\n")
    _, said = draftlab(*ENTRY_POINTS[entry].split())
    assert "Traceback" not in said
    assert not (folder / "ran").exists(), said


def test_every_call_of_transformers_refuses_code() -> None:
    loading = {"pipeline", "from_pretrained", "from_config"}
    calls = [
        (path, node)
        for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in loading
    ]
    assert len(calls) >= 4
    for path, call in calls:
        said = {word.arg: ast.unparse(word.value) for word in call.keywords}
        assert said.get("trust_remote_code") == "False", f"{path}:{call.lineno}"


def test_a_template_of_the_models_own_runs_in_a_sandbox(folder: Path, draftlab: Draftlab) -> None:
    escape = "{{ ''.__class__.__mro__[1].__subclasses__() }}{{ cycler.__init__.__globals__.os.system('touch ran') }}"
    (folder / "models/target/chat_template.jinja").write_text(escape)
    code, said = draftlab(*ANSWER.split(), "--template", "own")
    assert code == 1, said
    assert "Traceback" not in said
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("fault", ["weights", "template"])
def test_the_model_that_answers_is_named_with_what_is_wrong_in_it(fault: str, folder: Path, draftlab: Draftlab) -> None:
    weights = folder / "models/target/model.safetensors"
    if fault == "weights":
        save_file({name: tensor * float("nan") for name, tensor in load_file(weights).items()}, weights)
        (weights.parent / "sealed.json").unlink(missing_ok=True)
    else:
        (weights.parent / "chat_template.jinja").write_text("{% for %}")
    code, said = draftlab(*ANSWER.split(), "--template", "plain" if fault == "weights" else "own")
    assert code == 1
    wrong = "logits.* hold NaN" if fault == "weights" else "the chat template fails: "
    assert re.search(f"draftlab: error: models/target: {wrong}", said)


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "sub/part.safetensors"])
@pytest.mark.parametrize("command", [ANSWER, EXPORT])
def test_an_index_of_weights_names_no_file_elsewhere(command: str, name: str, folder: Path, draftlab: Draftlab) -> None:
    weights = folder / "models/target/model.safetensors"
    (weights.parent / "sub").mkdir()
    for place in ("../secret.safetensors", "sub/part.safetensors"):
        save_file(load_file(weights), weights.parent / place)
    index = {"weight_map": dict.fromkeys(load_file(weights), name)}
    (weights.parent / "model.safetensors.index.json").write_text(json.dumps(index))
    weights.unlink()  # it would prevail
    code, said = draftlab(*command.split())
    assert code == 1
    assert "not an index of weights in its folder" in said


@pytest.mark.parametrize("name", ["../../escape", "/etc/passwd", "gsm8k/../../escape", "gsm8k\x00", "~/x", "", "-h"])
@pytest.mark.parametrize("source", ["generator", "hub"])
def test_a_dataset_name_is_no_path(
    name: str, source: str, tmp_path: Path, draftlab: Draftlab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--split", "train", "--source", source, "--rows", "1", "--out", "out/raw.jsonl", f"--dataset={name}"]
    code, said = draftlab("data", "fetch", *words)
    assert code == 1
    assert "unknown dataset" in said
    assert list(tmp_path.iterdir()) == []


def test_text_of_requests_reaches_no_terminal_as_it_is(folder: Path, draftlab: Draftlab) -> None:
    """Prompts, ids, keys, names of files: in what is printed and in what is refused."""
    mine = folder / f"mine{HOSTILE[:12]}.jsonl"
    rows = [{"prompt": f"{HOSTILE} {n}", "id": HOSTILE} for n in range(4)]
    mine.write_text("\n".join([*map(json.dumps, rows), "{broken " + HOSTILE]), encoding="utf-8")
    outputs = [draftlab("data", "check", mine)]
    words = ["--dataset", "prompts", "--source", "raw", "--raw", mine, "--eval", "1", "--out", "data"]
    outputs.append(draftlab("data", "make", *words))
    (folder / "prompts.jsonl").write_text(json.dumps({HOSTILE: 1}) + "\n")
    outputs.append(draftlab(*ANSWER.split()))
    outputs.append(draftlab("data", "fetch", "--dataset", HOSTILE, "--split", "train", "--out", "x"))
    outputs.append(draftlab("gguf", "export", "--model", folder / HOSTILE[:20], "--out", "x"))
    assert [code for code, _ in outputs] == [0, 0, 1, 1, 1]
    for _, said in outputs:
        assert said
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", said)
        assert not (folder / "ran").exists()
    kept = (folder / "data/prompts.jsonl").read_text(encoding="utf-8") + (folder / "data/eval.jsonl").read_text()
    assert json.dumps(HOSTILE)[1:20] in kept, "the text itself is kept, escaped as JSON"


def test_html_in_prompts_and_answers_stays_text(folder: Path) -> None:
    """The report's tests look at a whole page; here is every place where a request's own words stand."""
    (folder / "claims.csv").write_text((ROOT / "paper_figures/laptop/data/claims.csv").read_text())
    (folder / "mdss_region.csv").write_bytes(table_bytes(ROOT / "paper_figures/laptop/data/mdss_region.csv.gz"))
    token = {"token": HOSTILE, "kind": "accepted"}
    view = {
        "dataset": HOSTILE,
        "request_id": HOSTILE,
        "prompt": HOSTILE,
        "draft_len": 3,
        "before": [token],
        "after": [token],
    }
    (folder / "tokens.json").write_text(json.dumps(view))
    record = {"settings": {HOSTILE: HOSTILE, "path": "</script><script>alert(1)</script>"}}
    (folder / "cells/mdss_region/one").mkdir(parents=True)
    (folder / "cells/mdss_region/one/run.json").write_text(json.dumps(record))
    (folder / "cells/mdss_region.txt").write_text("one\n")
    report_page.write(folder, "laptop", folder / "report.html")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert page.count("&lt;script&gt;alert(1)") >= 5
    assert "<script>alert(1)" not in page
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202e]", page)


def test_every_value_in_a_rules_command_is_quoted() -> None:
    """``:q`` quotes for the shell; the workflow's tests run a file named ``mine; touch hacked.jsonl`` through the rules."""
    seen = 0
    for file in sorted((ROOT / "workflow").rglob("*.smk")):
        for block in re.findall(r'shell:\s+r?"""(.*?)"""', file.read_text(encoding="utf-8"), re.DOTALL):
            for value in re.findall(r"(?<![{$])\{([^{}]+)\}(?!\})", block):
                assert value.endswith(":q"), f"{file.name}: {{{value}}}"
                seen += 1
    assert seen > 80


@pytest.mark.parametrize("name", ["../escape", "/tmp/escape", "a/b", "a b; touch ran", "$(touch ran)", ".hidden", ""])
def test_a_runs_name_is_one_folder_below_results(name: str) -> None:
    with pytest.raises(UserError, match="name"):
        plan.load_run({"scale": "smoke", "name": name}, plan.WORKFLOW)
