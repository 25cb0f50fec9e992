"""Intel's AMX in a process in which both torch and llama.cpp compute.

llama.cpp loads AMX's configuration once in a thread. torch (oneDNN and MKL) releases it after a product of bfloat16 or int8, and the next call of
llama.cpp would end the process (SIGILL). So one of the two must do without AMX.
"""

import os

WITHOUT_AMX = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "MKL_ENABLE_INSTRUCTIONS": "AVX512_E3"}
"""The newest instructions before AMX, for each library of torch. It reads its variable before its first product."""


def leave_to_llama_cpp() -> None:
    """Let torch do without AMX in this process and its children. In a process in which torch has already multiplied, it is too late."""
    for name, newest in WITHOUT_AMX.items():
        os.environ.setdefault(name, newest)
