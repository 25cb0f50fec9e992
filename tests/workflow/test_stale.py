"""What a run was given and what it wrote before: other bytes rerun what depends on them, and nothing else does."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.checkout import copy_checkout, jobs, snakemake
from tests.pair import small_llama

pytestmark = [pytest.mark.workflow, pytest.mark.slow]


def write_prompts(file: Path, word: str) -> None:
    rows = [{"prompt": f"{word} {number}", "answer": f"{number} {word}"} for number in range(400)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def ran(output: str) -> set[str]:
    """The rules that ran."""
    assert ("Nothing to be done" in output) != bool(jobs(output)), output
    return set(jobs(output))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with prompts and a draft of one's own, whose answers are recorded."""
    from draftlab.models.tokenizer import train_tokenizer

    folder = copy_checkout(tmp_path_factory.mktemp("stale") / "checkout")
    write_prompts(folder / "mine.jsonl", "count")
    for name, seed in (("target", 0), ("draft", 1)):
        small_llama(16, seed).save(folder / "own" / name)
        train_tokenizer(["some text"], 320).save(folder / "own" / name)
    make(folder)
    return folder


WORDS = ("--config", "scale=smoke", "name=mine", "dataset=mine.jsonl", "target=own/target", "draft=own/draft")
WANTED = ("results/mine/main/answers/prompts.eval/answers.jsonl", "results/mine/main/models/draft/config.json")


def make(folder: Path, check: bool = True) -> str:
    return snakemake(folder, *WANTED, "--quiet", "host", "reason", "--show-failed-logs", *WORDS, check=check)


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of it, as old as it was."""
    return Path(shutil.copytree(made, tmp_path / "copy", symlinks=False))


def test_nothing_reruns_when_nothing_changed_nor_after_a_touch(made: Path) -> None:
    assert ran(make(made)) == set()
    for file in (made / "mine.jsonl", *(made / "own").rglob("*.*")):
        os.utime(file)
    assert ran(make(made)) == set()


def test_a_run_that_is_locked_out_removes_nothing(folder: Path) -> None:
    """What looks damaged may be what the run that holds the lock is writing."""
    make(folder)
    locks = folder / ".snakemake/locks"
    locks.mkdir(exist_ok=True)
    (locks / "0.input.lock").write_text("results/mine/main/answers/prompts.eval/answers.jsonl\n")
    (locks / "0.output.lock").write_text("results/mine/main/answers/prompts.eval/answers.jsonl\n")
    damaged = folder / WANTED[0]
    damaged.write_text("changed\n")
    assert "missing, damaged, or changed" not in make(folder, check=False)
    assert damaged.exists()
    shutil.rmtree(locks, ignore_errors=True)  # Snakemake may have removed it
    locks.mkdir()
    (locks / "0.output.lock").write_text("results/another/report.html\n")
    assert "missing, damaged, or changed" in make(folder), "another run's lock is none on these files"


def test_other_prompts_rerun_what_reads_them(folder: Path) -> None:
    before = (folder / WANTED[0]).read_bytes()
    write_prompts(folder / "mine.jsonl", "tally")
    assert ran(make(folder)) == {"fetch", "clean", "tokenizer", "target", "draft", "answer"}
    assert (folder / WANTED[0]).read_bytes() != before
    assert ran(make(folder)) == set()


def test_other_weights_of_the_draft_rerun_the_draft_alone(folder: Path) -> None:
    small_llama(16, 7).save(folder / "other")
    shutil.copyfile(folder / "other/model.safetensors", folder / "own/draft/model.safetensors")
    (folder / "own/draft/sealed.json").unlink()  # without this, the change is taken for damage
    assert ran(make(folder)) == {"draft"}


def test_other_weights_of_the_target_rerun_target_and_answers(folder: Path) -> None:
    small_llama(16, 7).save(folder / "other")
    shutil.copyfile(folder / "other/model.safetensors", folder / "own/target/model.safetensors")
    (folder / "own/target/sealed.json").unlink()  # without this, the change is taken for damage
    assert ran(make(folder)) == {"target", "answer"}


def test_a_cut_intermediate_is_made_again_by_a_plain_rerun(folder: Path) -> None:
    file = folder / Path(WANTED[0]).with_name("distributions.safetensors")
    before = file.read_bytes()
    file.write_bytes(before[:-9])
    for looks in (["-n"], ["--summary"], ["--unlock"]):
        assert "damaged" not in snakemake(folder, WANTED[0], *looks, *WORDS)
        assert file.read_bytes() == before[:-9]
    output = make(folder)
    assert "missing, damaged, or changed since it was written; it is made again when a job needs it" in output
    assert ran(output) == {"answer"}
    assert file.read_bytes() == before


def test_a_missing_cell_and_a_cut_table_are_made_again_up_to_the_report(tmp_path: Path) -> None:
    folder = copy_checkout(tmp_path / "checkout")
    words = ("--quiet", "host", "reason", "--config", "scale=smoke", "experiments=osd_speedup_theory")
    snakemake(folder, *words)
    table, report = (folder / "results/smoke" / name for name in ("osd_speedup_theory.csv", "report.html"))
    before = table.read_bytes()
    (rows,) = folder.glob("results/smoke/cells/*/*/rows.csv")
    rows.unlink()
    made_of_tables = {"collect", "figure", "claims", "report", "all"}
    assert ran(snakemake(folder, *words)) == {"speedup_theory"} | made_of_tables
    table.write_bytes(before[: before.rindex(b"\n", 0, -1) + 1])
    assert ran(snakemake(folder, *words)) == made_of_tables
    assert table.read_bytes() == before
    assert report.exists()
    assert ran(snakemake(folder, *words)) == set()


def test_a_server_at_another_address_keeps_the_answers(folder: Path) -> None:
    """Its address, and how many requests it gets at once, change no answer; how long the answers may be does."""

    def planned(**changes: object) -> set[str]:
        given = {"engine": "openai", "url": "http://a:1/v1", "batch": 4} | changes
        answers = "{" + ", ".join(f"{key}: '{value}'" for key, value in given.items()) + "}"
        how = ["--touch"] if not changes else ["-n"]
        return ran(snakemake(folder, WANTED[0], *how, "--quiet", "host", "reason", *WORDS, f"answers={answers}"))

    assert planned()
    assert planned(url="http://b:2/v1", batch=8) == set()
    assert "answer" in planned(max_new_tokens=7)
