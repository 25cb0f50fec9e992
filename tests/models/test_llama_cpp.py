"""What llama.cpp would abort on is an error, and what a context is opened with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import gguf
import pytest

from draftlab.errors import UserError
from draftlab.files.amx import WITHOUT_AMX
from draftlab.models import llama_cpp
from draftlab.models.backend import EngineOptions
from draftlab.models.gguf import export
from draftlab.models.llama_cpp import LlamaCpp
from tests.models.test_gguf import toy


def test_truncated_gguf_files_are_refused(tmp_path: Path) -> None:
    export(toy(tmp_path / "toy"), tmp_path / "toy.gguf")
    whole = (tmp_path / "toy.gguf").read_bytes()
    last = gguf.GGUFReader(tmp_path / "toy.gguf").tensors[-1]
    for length in (0, 3, 24, 500, 8000, len(whole) // 2, int(last.data_offset + last.n_bytes) - 1):
        (tmp_path / "cut.gguf").write_bytes(whole[:length])
        with pytest.raises(UserError, match="cannot load"):
            LlamaCpp(tmp_path / "cut.gguf")


def test_engine_limits_are_errors_not_aborts(tmp_path: Path) -> None:
    file = tmp_path / "toy.gguf"
    export(toy(tmp_path / "toy"), file)
    with pytest.raises(UserError, match="no such file"):
        LlamaCpp(tmp_path / "absent.gguf")
    with pytest.raises(UserError, match="finds no GPU"):
        LlamaCpp(file, EngineOptions(gpu_layers=-1))
    with pytest.raises(UserError, match="cores"):
        EngineOptions(threads=len(os.sched_getaffinity(0)) + 1)
    with LlamaCpp(file, EngineOptions(context_length=256)) as model:
        with pytest.raises(UserError, match="do not fit the context of 256"):
            model.prefill([1] * 300)
        model.trim(0)
        with pytest.raises(UserError, match="check the token ids"):
            model.extend([320])
        assert len(model.extend([1, 2])) == 2, "the model stays usable"
        with pytest.raises(ValueError, match="cannot trim"):
            model.trim(5)
        model.close()


TOGETHER = """
import sys
import torch
from draftlab.models.llama_cpp import LlamaCpp
with LlamaCpp(sys.argv[1]) as model:
    before = model.extend(range(3, 43)).copy()
    model.trim(0)
    rows = torch.ones(1, 1, 256, 256, dtype=torch.bfloat16)
    if sys.argv[2] == "oneDNN":
        assert (rows @ rows == 256).all()
    else:
        assert (torch.nn.functional.scaled_dot_product_attention(rows, rows, rows) == 1).all()
    assert (model.extend(range(3, 43)) == before).all()
"""


@pytest.mark.parametrize("library", ["oneDNN", "MKL"])
def test_torch_and_llama_cpp_share_a_process(tmp_path: Path, library: str) -> None:
    """On a processor with AMX, a product of torch would end the process in the next call of llama.cpp, if that uses AMX too."""
    export(toy(tmp_path / "toy"), tmp_path / "toy.gguf", "q8_0")
    command = [sys.executable, "-c", TOGETHER, str(tmp_path / "toy.gguf"), library]
    env = {name: value for name, value in os.environ.items() if name not in WITHOUT_AMX}
    assert subprocess.run(command, env=env, stderr=subprocess.PIPE, text=True, check=False).returncode == 0


def test_gpus_are_named_as_llama_cpp_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp, "GPU_TYPES", (0,))  # processors, which every machine has
    (found,) = llama_cpp._gpus.__wrapped__()
    assert found
    assert found.isprintable()


@pytest.mark.parametrize(("gpu_layers", "flash", "cache"), [(0, 0, 0), (1, 1, 1)])
def test_flash_attention_a_half_precision_cache_and_gpu_work_are_for_gpus(gpu_layers, flash, cache, monkeypatch):
    """What a context is opened with; llama.cpp's own names for off, on, float32 and float16."""
    opened = []
    monkeypatch.setattr(llama_cpp.lib, "llama_model_has_encoder", lambda model: False)
    monkeypatch.setattr(llama_cpp.lib, "llama_init_from_model", lambda model, parameters: opened.append(parameters))
    with pytest.raises(UserError, match="cannot open a context"):
        llama_cpp._open_context(None, EngineOptions(gpu_layers=gpu_layers))
    assert (opened[0].flash_attn_type, opened[0].type_k, opened[0].type_v) == (flash, cache, cache)
    assert opened[0].op_offload == opened[0].offload_kqv == bool(gpu_layers)
