"""``python -IS fork_client.py SOCKET VERB ...`` runs ``draftlab VERB ...`` in a fork of the process that listens (``draftlab.forks``).

If no process listens yet, or the verb may use several threads, it runs the command itself instead. It imports little, because every
job starts with it.
"""

import json
import os
import signal
import socket
import sys

ALONE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")
"""Settings for a single thread; libraries read them only when they are loaded, so a fork cannot change them."""


def ask(place: str, command: list[str]) -> int:
    """Run a verb in a fork of the process that listens at ``place``; return its exit code."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        if any(os.environ.get(name) != value for name, value in ALONE.items()):
            raise OSError
        connection.connect(place)
    except OSError:
        os.execvp("draftlab", ["draftlab", *command])
    request = json.dumps({"arguments": command, "cwd": os.getcwd(), "environment": dict(os.environ)}).encode()
    for number in (signal.SIGINT, signal.SIGTERM):  # ask the verb to end; its exit code still arrives
        signal.signal(number, lambda *_: connection.shutdown(socket.SHUT_WR))
    socket.send_fds(connection, [len(request).to_bytes(8, "big")], [0, 1, 2])
    connection.sendall(request)
    code = connection.recv(1)
    return code[0] if code else 1


if __name__ == "__main__":
    sys.exit(ask(sys.argv[1], sys.argv[2:]))
