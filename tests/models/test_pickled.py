"""The process that reads a pickle opens no file and no socket, whatever the pickle does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

READ = """
import socket, sys, torch
from draftlab.models import pickled

load = torch.load

def taken_over(file, **options):
    return load(file, **options) if file is not sys.stdin.buffer else {act}

torch.load = taken_over
pickled.main()
"""


@pytest.mark.parametrize("act", ["open(pickled.__file__)", "socket.socket()"])
def test_the_reader_of_a_pickle_opens_nothing(act):
    command = [sys.executable, "-c", READ.replace("{act}", act)]
    child = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert child.returncode == 1
    assert "Too many open files" in child.stderr


@pytest.mark.parametrize("attempt", ["open('file', 'w')", "socket.socket()", "assert os.system('touch file') == 0"])
def test_the_process_that_reads_a_pickle_can_open_nothing(attempt: str, tmp_path: Path) -> None:
    code = f"import os, socket, resource; from draftlab.models import pickled; pickled.open_nothing_more(); {attempt}"
    child = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, env=os.environ, check=False)
    assert child.returncode == 1
    assert list(tmp_path.iterdir()) == []
    allowed = code.replace("pickled.open_nothing_more(); ", "")
    assert subprocess.run([sys.executable, "-c", allowed], cwd=tmp_path, check=False).returncode == 0
