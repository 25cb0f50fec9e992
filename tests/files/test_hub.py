"""The hub's path against a server on localhost that misbehaves: retried, resumed, or one clear message; no token anywhere."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save

from draftlab import cli
from draftlab.data.prompts import Prompt
from draftlab.errors import UserError
from draftlab.files import hub
from draftlab.files.json_files import write_jsonl
from tests.conftest import ROOT
from tests.fake_hub import FAULTS, FakeHub, Repository, serve

COMMIT = Repository.commit
TOKEN = "secret-4f2a91"  # not of the hub's own form: only the value can give it away
WEIGHTS = save({"weight": torch.arange(128_000, dtype=torch.int32)})
MODEL = {"config.json": b'{"model_type": "llama"}', "tokenizer.json": b"{}", "model.safetensors": WEIGHTS}
ROWS = b"".join(json.dumps({"question": f"q{n}", "answer": f"{n}"}).encode() + b"\n" for n in range(500))

CLIENT = """
import dataclasses, json, sys, time
from pathlib import Path
from draftlab.data import registry, sources
from draftlab.errors import UserError
from draftlab.models.hub import copy_model
from huggingface_hub import constants
constants.DOWNLOAD_CHUNK_SIZE = 1024                    # files here are smaller than the 10 MB that are written at once
time.sleep = lambda seconds: None                       # waits between attempts: ours and the libraries'
kind, folder, *faults = sys.argv[1:]
results = {}
for fault in faults:
    try:
        if kind == "models":
            copy_model(f"faulty/{fault}", Path(folder) / fault)
            results[fault] = (Path(folder) / fault / "model.safetensors").stat().st_size
        else:
            name, _, revision = fault.partition("@")
            registry.load()[fault] = dataclasses.replace(
                registry.find("gsm8k"), hub_id=f"faulty/{name}", config="", revision=revision or "main"
            )
            sources.fetch(dataset=fault, split="train", source="hub", out=Path(folder) / f"{fault}.jsonl")
            results[fault] = len((Path(folder) / f"{fault}.jsonl").read_text().splitlines())
    except UserError as error:
        results[fault] = str(error)
print(json.dumps(results))
"""

EXPECTED = {  # what the message says; None: it works
    "fine": None,
    "busy": None,
    "down": None,
    "dead": "Server error '500",
    "slow": None,
    "cut": None,
    "torn": "peer closed connection",
    "wrong": "is not what the hub announced",
    "short": "should be of size",
    "gated": "it is gated (ask for access at https://huggingface.co/",
    "asks": "it is gated (ask for access at https://huggingface.co/",
    "private": "it does not exist or is private (check its name",
    "moved": None,
}


def client(hub: FakeHub, kind: str, folder: Path, faults: list[str], **environment: str) -> tuple[dict[str, Any], str]:
    """What happened to each repository, in a process of its own (the endpoint is read at import), and all that it printed."""
    variables = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(folder / "home"),
        "HF_TOKEN": TOKEN,
        "HF_HUB_DOWNLOAD_TIMEOUT": "1",
        "HF_HUB_ETAG_TIMEOUT": "1",
        "NO_PROXY": "127.0.0.1",
        "PYTHONPATH": str(ROOT / "src"),
    }
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, kind, str(folder), *faults],
        env=os.environ | variables | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stdout + done.stderr


@pytest.mark.parametrize(("kind", "size"), [("models", len(WEIGHTS)), ("datasets", 500)])
def test_every_fault_is_overcome_or_one_clear_message(kind: str, size: int, tmp_path: Path) -> None:
    with serve({"models": MODEL, "datasets": {"train.jsonl": ROWS}}) as hub:
        said, printed = client(hub, kind, tmp_path, list(FAULTS))
        assert set(said) == set(EXPECTED) == set(FAULTS)
        for fault, message in EXPECTED.items():
            if message is None:
                assert said[fault] == size, fault
            else:
                assert message in said[fault], fault
                assert "\n" not in said[fault]
                assert not (tmp_path / fault).exists()
                assert not (tmp_path / f"{fault}.jsonl").exists()
        large = "model.safetensors" if kind == "models" else "train.jsonl"
        parts = [r.range for r in hub.asked("cut") if r.method == "GET" and r.path.endswith(large)]
        assert parts[0] is None, "the whole file is asked for first"
        assert int(parts[1].removeprefix("bytes=").removesuffix("-")) > 1000, "then from where it was cut"
        assert sum(r.path.endswith(large) and r.method == "GET" for r in hub.asked("wrong")) > 1, "fetched anew"
        assert len(hub.asked("gated")) < 8, "what is refused is not asked for again and again"

        # Offline: what is in the cache is used, what is not is refused, and nobody is asked.
        hub.requests.clear()
        # The library of datasets would take the rows of any revision.
        other = f"fine@{'b' * 40}"
        offline, more = client(hub, kind, tmp_path, ["fine", "dead", other], HF_HUB_OFFLINE="1")
        assert hub.requests == []
        assert offline["fine"] == size
        assert "unset HF_HUB_OFFLINE" in offline["dead"]
        assert "unset HF_HUB_OFFLINE" in str(offline[other])
        if kind == "datasets":
            assert f"the local cache holds revision {COMMIT}, not {'b' * 40}" in offline[other]
            provenance = json.loads((tmp_path / "fine.provenance.json").read_text())
            assert provenance["revision"] == COMMIT, "that of the rows, also offline"
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 5
    assert TOKEN not in printed + more
    assert not [path for path in written if TOKEN.encode() in path.read_bytes()]


def test_the_server_was_sent_the_token_a_revision_is_part_of_a_name_and_a_damaged_cache_is_found(
    tmp_path: Path,
) -> None:
    """The token does travel (so its absence elsewhere means something). Bytes that change in the cache are fetched again, also those of a small
    file (a poisoned config.json or tokenizer), whose name there is git's digest."""
    with serve({"models": MODEL, "datasets": {}}) as hub:
        said, _ = client(hub, "models", tmp_path, ["fine", "fine@refs/pr/7", "fine@absent"])
        assert f"Bearer {TOKEN}" in {request.authorization for request in hub.requests}
        assert said["fine@refs/pr/7"] == len(WEIGHTS)
        assert "it does not exist or is private (check its name and revision" in said["fine@absent"]
        assert "/api/models/faulty/fine/revision/refs%2Fpr%2F7" in {request.path for request in hub.requests}
        weights = (tmp_path / "fine" / "model.safetensors").resolve()
        weights.write_bytes(WEIGHTS[:-1] + b"?")
        [small] = [path for path in (tmp_path / "home").rglob("blobs/*") if path.read_bytes() == MODEL["config.json"]]
        assert len(small.name) == 40
        small.write_bytes(MODEL["config.json"].replace(b"llama", b"pwned"))
        said, _ = client(hub, "models", tmp_path, ["fine"])
        assert said["fine"] == len(WEIGHTS)
        assert weights.read_bytes() == WEIGHTS
        assert (tmp_path / "fine" / "config.json").read_bytes() == MODEL["config.json"]


PICKLED = "pytorch_model.bin"


def test_pickled_weights_are_made_safetensors_where_there_are_no_others(tmp_path: Path) -> None:
    torch.save({"weight": torch.arange(3.0)}, tmp_path / "weights")
    files = {"config.json": b"{}", "tokenizer.json": b"{}", PICKLED: (tmp_path / "weights").read_bytes()}
    with serve({"models": files, "datasets": {}}) as hub:
        said, _ = client(hub, "models", tmp_path, ["fine"])
    assert isinstance(said["fine"], int), said["fine"]
    made = load_file(tmp_path / "fine" / "model.safetensors")
    assert made["weight"].tolist() == [0, 1, 2]
    assert not list((tmp_path / "fine").glob("*.bin"))


def test_a_second_copy_of_the_weights_is_not_fetched(tmp_path: Path) -> None:
    """Many repositories hold pickled ones too, and Mistral's ``consolidated``, of 14.5 GB for a 7B."""
    others = dict.fromkeys([PICKLED, "consolidated.safetensors"], WEIGHTS)
    with serve({"models": MODEL | others, "datasets": {}}) as hub:
        assert client(hub, "models", tmp_path, ["fine"])[0] == {"fine": len(WEIGHTS)}
        asked = {request.path.rpartition("/")[2] for request in hub.asked("fine")}
    assert "model.safetensors" in asked
    assert not asked & set(others)
    assert sorted(file.name for file in (tmp_path / "fine").glob("*.safetensors")) == ["model.safetensors"]


def test_the_classifier_offline_is_one_line(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    write_jsonl(tmp_path / "p.jsonl", [Prompt("0", "arena", "train", "hello")])
    words = "data classify --prompts p.jsonl --label topic --method hub --model owner/topics@abc --out o --report r"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["draftlab", *words.split()])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    what = r"draftlab: error: cannot read model owner/topics.* \(unset HF_HUB_OFFLINE, or use naive_bayes\)"
    assert re.fullmatch(what, str(stop.value.code))
    assert capfd.readouterr().err == ""


def test_an_error_that_is_not_the_systems_has_no_remedy_of_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = []
    errors = [
        OSError(2, "No such file", "run/a.csv"),
        OSError(17, "File exists", "file"),
        OSError(20, "Not a directory", "file/x"),
        OSError(21, "Is a directory", "folder"),
    ]
    for error in (OSError("the hub\nis far"), OSError(28, "No space left on device", "out"), *errors):

        def fail(*_: object, error: OSError = error, **__: object) -> None:
            raise error

        monkeypatch.setattr("draftlab.data.check.check", fail)
        monkeypatch.setattr(sys, "argv", ["draftlab", "data", "check", "file"])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        said.append(stop.value.code)
    assert said == [
        r"draftlab: error: the hub\nis far",
        "draftlab: error: No space left on device: out (free space or fix permissions, run again)",
        "draftlab: error: run/a.csv: no such file or folder (check the path)",
        "draftlab: error: file: a file, not a folder (name a folder)",
        "draftlab: error: file/x: its folder is a file (name a folder)",
        "draftlab: error: folder: a folder, not a file (name a file in it)",
    ]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The blobs of a model in a cache of its own; nobody waits."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "WAITS", (0.0, 0.0, 0.0))
    blobs = tmp_path / "models--owner--name/blobs"
    blobs.mkdir(parents=True)
    return blobs


@pytest.mark.parametrize("offline", [False, True])
def test_a_damaged_blob_of_another_revision_fails_nothing(
    offline: bool, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    (cache / ("a" * 64)).write_text("other bytes")
    asked: list[bool] = []
    assert hub.ask("model", "owner/name", lambda again: asked.append(again) or "found", otherwise="x") == "found"
    assert asked == [False, not offline]  # offline nothing can be fetched anew
    assert list(cache.iterdir()) == []


def test_what_a_killed_download_left_is_removed_and_what_another_process_writes_is_not(cache: Path) -> None:
    abandoned, under_way = (cache / f"{'a' * 64}.{n}.incomplete" for n in ("1b2c", "3d4e"))
    for part in (abandoned, under_way):
        part.write_text("half of the bytes")
    os.utime(abandoned, (0, 0))
    assert hub.ask("model", "owner/name", lambda again: "found", otherwise="x") == "found"
    assert list(cache.iterdir()) == [under_way]


def test_a_blob_that_is_elsewhere_or_gone_fails_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library links to files that several repositories share; another process may remove a damaged blob at the same time."""
    (cache / ("a" * 64)).symlink_to("absent")
    (cache / ("b" * 64)).write_text("other bytes")
    unlink = Path.unlink

    def both(path: Path, missing_ok: bool = False) -> None:
        unlink(path)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", both)
    asked: list[bool] = []
    assert hub.ask("model", "owner/name", lambda again: asked.append(again) or "found", otherwise="x") == "found"
    assert asked == [False, True]
    assert [blob.name for blob in cache.iterdir()] == ["a" * 64]


def test_bare_errors_of_xet_are_tried_again(cache: Path) -> None:
    asked: list[bool] = []

    def request(again: bool) -> str:
        asked.append(again)
        if len(asked) < 3:
            raise RuntimeError("Data processing error: connection reset")
        return "found"

    assert hub.ask("model", "owner/name", request, otherwise="x") == "found"


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), RuntimeError("I/O error: No space left on device (os error 28)")]
)
def test_a_full_disk_is_not_the_network(error: Exception, cache: Path) -> None:
    asked: list[bool] = []

    def request(again: bool) -> str:
        asked.append(again)
        raise error

    with pytest.raises(UserError, match=r"cannot write model owner/name .*No space left on device \S*.*\(free space"):
        hub.ask("model", "owner/name", request, otherwise="x")
    assert len(asked) == 1


def explained(error: Exception) -> str:
    """The message after an error that is not tried again, or too often."""

    def request(_: bool) -> str:
        raise error

    with pytest.raises(UserError) as stop:
        hub.ask("model", "owner/name", request, otherwise="x")
    return str(stop.value)


def test_a_cache_without_access_is_not_the_network(cache: Path) -> None:
    denied = OSError(30, "Read-only file system", "/shared/hub/models--owner--name/refs")
    said = explained(denied)
    assert "cannot use the cache of model owner/name: [Errno 30] Read-only file system: '/shared/hub" in said
    assert "(allow reading and writing there, or name another folder with HF_HOME, and run again)" in said
    refused = PermissionError(13, "Permission denied")  # of a connection, by a firewall: it names no file
    assert "check the network" in explained(refused)


@pytest.mark.parametrize(
    ("error", "cause", "reason"),
    [
        ("An error occurred while generating", ValueError("BatchSize must be\ngreater"), "BatchSize must be"),
        ("An error occurred while generating", AssertionError(), "AssertionError"),
        (
            "An error occurred\n\nTwo new columns ({'prompt'})\n\nThis",
            TypeError("Couldn't cast"),
            "Two new columns ({'prompt'})",
        ),
    ],
)
def test_rows_that_cannot_be_read_are_not_the_network(error: str, cause: Exception, reason: str, cache: Path) -> None:
    from datasets.exceptions import DatasetGenerationError

    def request(_: bool) -> str:
        raise DatasetGenerationError(error) from cause

    with pytest.raises(UserError) as stop:
        hub.ask("dataset", "owner/name", request, otherwise="x")
    remedy = "(check the files at https://huggingface.co/datasets/owner/name, or x)"
    assert str(stop.value).endswith(f"local cache: {reason} {remedy}")


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        (401, "check your token"),
        (403, "check your token"),
        (429, "run again in some minutes"),
        (503, "check the network"),
    ],
)
def test_signatures_are_hidden_and_a_refusal_is_not_the_network(status: int, remedy: str, cache: Path) -> None:
    """The address of a file is signed, and gives access to it."""
    from huggingface_hub.errors import HfHubHTTPError, HTTPError  # type: ignore[attr-defined]

    client = sys.modules[HTTPError.__module__]
    address = "https://cdn.example/file?X-Amz-Signature=4f2a91&Policy=p"
    response = client.Response(status, request=client.Request("GET", address))
    said = explained(HfHubHTTPError(f"error {status} for url '{address}'", response=response))
    assert f"error {status} for url 'https://cdn.example/file?…' ({remedy}" in said


def test_what_the_hubs_library_logs_is_without_tokens(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logger, said = logging.getLogger("huggingface_hub.file_download"), io.StringIO()
    [handler] = logging.getLogger("huggingface_hub").handlers
    monkeypatch.setattr(handler, "stream", said)

    def request(_: bool) -> str:
        logger.warning("Error while downloading from %s: %s", "https://cdn.example/file?Signature=4f2a91", "hf_4f2a91")
        return "found"

    assert hub.ask("model", "owner/name", request, otherwise="x") == "found"
    assert said.getvalue() == "Error while downloading from https://cdn.example/file?… hf_…\n"


def test_a_page_of_a_proxy_is_told_from_the_hub(cache: Path) -> None:
    said = explained(json.JSONDecodeError("Expecting value", "<html>", 0))
    assert "the answer is not the hub's, but perhaps a page of a proxy (check the network" in said


def test_a_blocked_store_of_xet_is_given_up_soon_and_can_be_avoided(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_XET_CLIENT_RETRY_MAX_DURATION", raising=False)
    said = explained(RuntimeError("Task error: CAS Client Error: error sending request"))
    assert "(check the network, set HF_HUB_DISABLE_XET=1, or x)" in said
    assert os.environ["HF_XET_CLIENT_RETRY_MAX_DURATION"] == "20s"
