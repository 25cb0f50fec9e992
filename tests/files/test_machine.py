"""How the machine behind a number is described."""

import platform
from pathlib import Path

import pytest

from draftlab.files import machine


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
