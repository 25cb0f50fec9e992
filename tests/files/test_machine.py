"""How the machine behind a number is described."""

import platform
import subprocess
from pathlib import Path

import pytest

from draftlab.files import machine
from tests.checkout import stand_in


@pytest.mark.parametrize(
    ("cpuinfo", "processor"),
    [
        ("cpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n", "AMD EPYC (family 25 model 17)"),
        ("cpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n", "AMD EPYC (family 26 model 2)"),
        ("processor\t: 0\nmodel name\t: ARMv7 Processor rev 4 (v7l)\n", "ARMv7 Processor rev 4 (v7l)"),
        ("processor\t: 0\nCPU implementer\t: 0x41\n", "arm"),
        (None, "arm"),
    ],
)
def test_processors_of_one_name_are_told_apart_by_family_and_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpuinfo: str | None, processor: str
) -> None:
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(platform, "processor", lambda: "arm")
    if cpuinfo is not None:
        (tmp_path / "cpuinfo").write_text(f"{cpuinfo}\nprocessor\t: 1\nmodel name\t: another\n")
    assert machine.machine()["processor"] == processor


def test_a_mac_says_which_processor_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(platform, "processor", lambda: "arm")
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.machine()["processor"] == "arm"
    stand_in(tmp_path / "sysctl", '[ "$*" = "-n machdep.cpu.brand_string" ] && echo Apple M2')
    assert machine.machine()["processor"] == "Apple M2"


def test_the_commit_of_a_repository_that_only_contains_the_package_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / ".venv/lib/draftlab"
    package.mkdir(parents=True)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "another project"], check=True)
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    assert machine.machine()["commit"]
    monkeypatch.setattr(machine, "ROOT", package)
    assert machine.machine()["commit"] is None
