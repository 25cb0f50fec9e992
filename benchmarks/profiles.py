"""The shipped hardware profiles from published operator times: python -m benchmarks.profiles NAME --data CHECKOUT --out FILE.yaml"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

import benchmarks
from draftlab.errors import UserError
from draftlab.files.tables import read_table
from draftlab.serving.measure import fit_relative
from draftlab.serving.profiles import Attention, Costs, Profile, save

PER_STEP = ("embedding", "final_layernorm")
TWICE = ("layernorm",)
KEPT = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024,
        1280, 1536, 1792, 2048, 3072, 4096, 8192)  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """The place of operator times of one layer, and what is not in them: depth and width of the model, the server's limits, the link between
    GPUs, and (where attention was not timed) how many bytes a GPU reads per cached token, and how fast."""

    path: str
    hardware: str
    model: str
    layers: int
    kv_tokens: int
    max_sequences: int = 256
    gpus: int = 1
    hidden: int = 0
    link_gbps: float = 0.0
    link_us: float = 0.0
    kv_bytes: int = 0
    memory_gbps: float = 0.0

    def exchange(self, tokens: int) -> float:
        """Milliseconds of two sums over all GPUs in each layer (bf16)."""
        if not self.link_gbps:
            return 0.0
        return 2 * self.layers * (self.link_us * 1e-3 + tokens * self.hidden * 2 / self.link_gbps * 1e-6)


def from_llmservingsim(name: str, folder: Path, machine: Machine) -> Profile:
    """A profile from operator times as LLMServingSim's profiler writes them (``dense.csv``, ``per_sequence.csv``, ``attention.csv``)."""
    dense = read_table(folder / "dense.csv").pivot(index="tokens", columns="layer", values="time_us") / 1e3
    often = [1 if c in PER_STEP else machine.layers * (2 if c in TWICE else 1) for c in dense.columns]
    head = read_table(folder / "per_sequence.csv").groupby("sequences")["time_us"].sum() / 1e3
    attention = read_table(folder / "attention.csv")
    decoding = attention[attention["prefill_chunk"] == 0]
    target = Costs(
        tokens=_with_exchange(dense.mul(often, axis=1).sum(axis=1), machine),
        rows=_kept(head),
        decode=_fit(decoding, machine.layers, ["fixed", "per_sequence", "per_cached"]),
        mixed=_fit(attention.drop(decoding.index), machine.layers, list(Attention.model_fields)),
    )
    return _profile(name, machine, target, "casys-kaist/LLMServingSim", LLMSERVINGSIM, engine="vllm 0.19.0")


def from_vidur(name: str, file: Path, machine: Machine) -> Profile:
    """A profile from Vidur's ``mlp.csv``, which times all of a layer but attention.

    Attention is then what reading ``kv_bytes`` a token and GPU from memory at ``memory_gbps`` takes.
    """
    table = read_table(file)
    rows = table[table["num_tensor_parallel_workers"] == machine.gpus]
    inside = [c for c in rows.columns if c.endswith(".median") and ".emb." not in c]
    total = rows[inside].sum(axis=1) * machine.layers + rows["time_stats.emb.median"]
    per_cached = machine.kv_bytes / machine.memory_gbps * 1e-6 if machine.memory_gbps else 0.0
    linear = _with_exchange(total.groupby(rows["num_tokens"]).median(), machine)
    target = Costs(tokens=linear, decode=Attention(per_cached=per_cached))
    note = f"attention is not in the source: {machine.kv_bytes} bytes a token read at {machine.memory_gbps:g} GB/s; no head"
    return _profile(name, machine, target, "microsoft/vidur", VIDUR, engine="as vllm 0.19.0", note=note)


def _profile(
    name: str, machine: Machine, target: Costs, repository: str, commit: str, *, engine: str, note: str = ""
) -> Profile:
    return Profile(
        name=name,
        hardware=machine.hardware,
        model=machine.model,
        engine=engine,
        source=f"{repository}, {machine.path} (operator times of one layer), summed over the layers",
        commit=commit,
        licence="MIT",
        note=note,
        target=target,
        kv_tokens=machine.kv_tokens,
        max_sequences=machine.max_sequences,
    )


def _with_exchange(times: Any, machine: Machine) -> dict[int, float]:
    return {n: ms + machine.exchange(n) for n, ms in _kept(times).items()}


def _kept(times: Any) -> dict[int, float]:
    return {int(n): float(ms) for n, ms in times.items() if n in KEPT}


def _fit(rows: Any, layers: int, terms: Sequence[str]) -> Attention:
    """Attention's times as a sum of ``terms``, none negative, by least squares of relative errors; caches up to 4,096 tokens."""
    near = rows[(rows["kv_decode"] <= 4096) & (rows["kv_prefill"] <= 4096)]
    chunk, before, sequences, cached, time = (
        near[c].to_numpy(float) for c in ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")
    )
    parts = {
        "fixed": np.ones(len(near)),
        "per_sequence": sequences,
        "per_cached": sequences * cached,
        "per_token": chunk,
        "per_pair": chunk * (before + chunk / 2),
        "per_mix": sequences * chunk,
    }
    design = np.stack([parts[term] for term in terms], axis=1)
    return Attention(
        **{term: value * layers / 1e3 for term, value in zip(terms, fit_relative(design, time), strict=True)}
    )


LLMSERVINGSIM, VIDUR = "5daddb21a545658d5150b535712d0494584b5278", "7d47513363ec447a741ac5e47241580b47724fbf"
BLACKWELL = "NVIDIA RTX PRO 6000 Blackwell"
MACHINES = {
    "rtx4090-llama-3.1-8b": Machine("profiler/perf/RTX4090/meta-llama/Llama-3.1-8B/bf16/tp1", "NVIDIA RTX 4090",
                                    "meta-llama/Llama-3.1-8B", 32, kv_tokens=41_408),
    "rtxpro6000-llama-3.1-8b": Machine("profiler/perf/RTXPRO6000/meta-llama/Llama-3.1-8B/bf16/tp1", BLACKWELL,
                                       "meta-llama/Llama-3.1-8B", 32, kv_tokens=530_000, max_sequences=128),
    "rtxpro6000x2-qwen3-32b": Machine("profiler/perf/RTXPRO6000/Qwen/Qwen3-32B/bf16/tp2", f"2 x {BLACKWELL}",
                                      "Qwen/Qwen3-32B", 64, kv_tokens=400_000, max_sequences=128, hidden=5120,
                                      link_gbps=16, link_us=20),
    "h100-llama-2-7b": Machine("data/profiling/compute/h100/meta-llama/Llama-2-7b-hf/mlp.csv", "NVIDIA H100",
                               "meta-llama/Llama-2-7b-hf", 32, kv_tokens=110_000, kv_bytes=524_288, memory_gbps=2700),
    "h100x4-llama-2-70b": Machine("data/profiling/compute/h100/meta-llama/Llama-2-70b-hf/mlp.csv", "4 x NVIDIA H100",
                                  "meta-llama/Llama-2-70b-hf", 80, kv_tokens=450_000, gpus=4, kv_bytes=81_920,
                                  memory_gbps=2700, hidden=8192, link_gbps=200, link_us=10),
    "a100-llama-3-8b": Machine("data/profiling/compute/a100/meta-llama/Meta-Llama-3-8B/mlp.csv", "NVIDIA A100",
                               "meta-llama/Meta-Llama-3-8B", 32, kv_tokens=400_000, kv_bytes=131_072, memory_gbps=1600),
}  # fmt: skip
"""The sources of the shipped profiles. The link of the two Blackwells is from the source's ``config.json``; the link of the H100s and the
share of the memory's bandwidth (80 %) are assumed."""


def derive(name: str, data: Path) -> Profile:
    """The shipped profile ``name`` from its source: a checkout of the repository, or the file or folder in it."""
    if name not in MACHINES:
        raise UserError(f"no source is known for {name!r}", remedy=f"give one of {', '.join(MACHINES)}")
    machine = MACHINES[name]
    place = data / machine.path if (data / machine.path).exists() else data
    if machine.path.endswith(".csv"):
        return from_vidur(name, place, machine)
    return from_llmservingsim(name, place, machine)


def main(name: tyro.conf.Positional[str], *, data: Path, out: Path) -> None:
    """Write the hardware profile NAME; DATA is a checkout of its source's repository, or the file in it."""
    save(derive(name, data), out)


if __name__ == "__main__":
    benchmarks.run(main)
