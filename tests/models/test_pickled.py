"""Whatever a pickle makes of its reader: that process opens no file and no socket."""

import subprocess
import sys

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
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Too many open files" in done.stderr
