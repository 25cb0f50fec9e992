"""Hardware profiles: what a step of a model costs on a machine, as YAML files that say where their numbers come from.

A step of n tokens costs ``f(n) + head(rows) + attention``, attention being ``fixed + per_sequence B + per_cached (sum of lengths)``
plus, where c tokens of prompts are read, ``per_token c + per_pair (pairs of tokens) + per_mix B c``: the kernel of such steps is another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from draftlab.errors import UserError
from draftlab.files.atomic import write_text
from draftlab.files.tables import read_table
from draftlab.files.yaml_files import Place, read_yaml

SHIPPED = Path(__file__).parent / "profiles"
Milliseconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
LONGEST = 16_384
"""Tokens in a step up to which costs are looked up; beyond, the last slope goes on."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Attention(_Strict):
    """Milliseconds of all layers' attention in one step."""

    fixed: Milliseconds = 0.0
    per_sequence: Milliseconds = 0.0
    per_cached: Milliseconds = 0.0
    per_token: Milliseconds = 0.0
    per_pair: Milliseconds = 0.0
    per_mix: Milliseconds = 0.0


class Costs(_Strict):
    """Milliseconds of one model's step: ``tokens`` and ``rows`` map a number to a time, with straight lines between."""

    tokens: dict[int, Milliseconds]
    rows: dict[int, Milliseconds] = {1: 0.0}
    decode: Attention = Attention()
    mixed: Attention | None = None
    """Attention in a step that also reads prompts; None: as ``decode``."""

    @field_validator("tokens", "rows")
    @classmethod
    def _ascending(cls, table: dict[int, float]) -> dict[int, float]:
        if not table or min(table) < 1:
            raise ValueError("needs at least one number of tokens, each 1 or more")
        return dict(sorted(table.items()))

    @cached_property
    def _looked_up(self) -> tuple[np.ndarray, np.ndarray]:
        return _filled(self.tokens), _filled(self.rows)

    def step(self, tokens: int, rows: int, sequences: int, cached: float, chunk: int = 0, pairs: float = 0.0) -> float:
        """Milliseconds of a step that reads ``tokens`` in all, ``chunk`` of them prompts with ``pairs`` pairs of tokens, beside
        ``sequences`` that decode with ``cached`` tokens before them, and asks for the next token at ``rows`` places."""
        linear, head = self._looked_up
        attention = self.mixed if chunk and self.mixed else self.decode
        return float(
            _at(linear, tokens)
            + (_at(head, rows) if rows else 0.0)
            + attention.fixed
            + attention.per_sequence * sequences
            + attention.per_cached * cached
            + attention.per_token * chunk
            + attention.per_pair * pairs
            + attention.per_mix * sequences * chunk
        )

    def scaled(self, by: float) -> Costs:
        """The costs of a model that takes ``by`` times as long in everything."""
        parts = {name: Attention(**{k: v * by for k, v in part}) for name, part in self._attentions().items()}
        tables = {
            n: {k: v * by for k, v in table.items()} for n, table in (("tokens", self.tokens), ("rows", self.rows))
        }
        return Costs.model_validate({**tables, **parts})

    def _attentions(self) -> dict[str, Attention]:
        return {n: part for n, part in (("decode", self.decode), ("mixed", self.mixed)) if part is not None}


def _filled(table: Mapping[int, float]) -> np.ndarray:
    """The times of 0 to ``LONGEST`` tokens; below the first known one its time, beyond the last the last slope goes on."""
    known = np.array(list(table))
    times = np.array(list(table.values()))
    wanted = np.arange(LONGEST + 1)
    filled = np.interp(wanted, known, times)
    if len(known) > 1:
        # Between the last two of many points noise decides; the slope is that over the second half of the range.
        half = np.searchsorted(known, known[-1] / 2)
        half = min(int(half), len(known) - 2)
        slope = (times[-1] - times[half]) / (known[-1] - known[half])
        filled[known[-1] :] = times[-1] + slope * (wanted[known[-1] :] - known[-1])
    return np.asarray(filled)


def _at(filled: np.ndarray, tokens: int) -> float:
    if tokens <= LONGEST:
        return float(filled[tokens])
    return float(filled[-1] + (filled[-1] - filled[-2]) * (tokens - LONGEST))


class Profile(_Strict):
    """A machine with a model on it, and where its numbers come from.

    ``engine`` is the one that the limits are those of: ``kv_tokens`` in the cache, ``max_sequences`` at once, ``max_tokens`` in a step.
    ``overhead`` is what a step takes outside the models (ms).
    """

    name: str
    hardware: str
    model: str
    engine: str
    source: str
    commit: str = ""
    licence: str
    note: str = ""
    target: Costs
    draft: Costs | None = None
    overhead: Milliseconds = 0.0
    kv_tokens: Annotated[int, Field(gt=0)]
    kv_block: Annotated[int, Field(gt=0)] = 16
    max_sequences: Annotated[int, Field(gt=0)] = 256
    max_tokens: Annotated[int, Field(gt=0)] = 2048


def shipped() -> list[str]:
    """The names of the profiles that come with draftlab."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def load(name: str | Path) -> Profile:
    """A shipped profile by its name, or one of the user's own by its path; a wrong value is an error with its line."""
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        path = SHIPPED / f"{name}.yaml"
        if not path.is_file():
            raise UserError(f"no profile {str(name)!r}", remedy=f"give a YAML file, or one of {', '.join(shipped())}")
    values = read_yaml(path)
    try:
        return Profile.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        names = [part for part in first["loc"] if part != "[key]"]
        what = f"{'.'.join(map(str, names)) or 'the file'}: {first['msg']}"
        raise Place(path).blame(what, names, remedy="repair the profile, or derive it again") from None


def save(profile: Profile, out: Path) -> None:
    """Write a profile as YAML, times rounded to a tenth of a microsecond."""
    values = _rounded(profile.model_dump(exclude_none=True))
    write_text(out, yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=10_000))


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value


# --- from what others measured ---------------------------------------------------------------------------------------

PER_STEP = ("embedding", "final_layernorm")
TWICE = ("layernorm",)
KEPT = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024,
        1280, 1536, 1792, 2048, 3072, 4096, 8192)  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """Where operator times of one layer lie, and what they do not say: depth and width of the model, the server's limits, the link
    between GPUs, and (where attention was not timed) what a GPU reads per cached token, and how fast."""

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
    linear = {n: ms + machine.exchange(n) for n, ms in _kept(dense.mul(often, axis=1).sum(axis=1)).items()}
    head = read_table(folder / "per_sequence.csv").groupby("sequences")["time_us"].sum() / 1e3
    attention = read_table(folder / "attention.csv")
    decoding = attention[attention["prefill_chunk"] == 0]
    return Profile(
        name=name,
        hardware=machine.hardware,
        model=machine.model,
        engine="vllm 0.19.0",
        source=f"casys-kaist/LLMServingSim, {machine.path} (operator times of one layer), summed over the layers",
        commit=LLMSERVINGSIM,
        licence="MIT",
        target=Costs(
            tokens=linear,
            rows=_kept(head),
            decode=_fit(decoding, machine.layers, ["fixed", "per_sequence", "per_cached"]),
            mixed=_fit(attention.drop(decoding.index), machine.layers, list(Attention.model_fields)),
        ),
        kv_tokens=machine.kv_tokens,
        max_sequences=machine.max_sequences,
    )


def _kept(times: Any) -> dict[int, float]:
    return {int(n): float(ms) for n, ms in times.items() if n in KEPT}


def _fit(rows: Any, layers: int, terms: Sequence[str]) -> Attention:
    """Attention's times as a sum of ``terms``, none negative, by least squares of relative errors; caches up to 4,096 tokens."""
    from scipy.optimize import nnls

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
    found, _ = nnls(design / time[:, None], np.ones(len(time)))
    return Attention(**{term: float(value) * layers / 1e3 for term, value in zip(terms, found, strict=True)})


def from_vidur(name: str, file: Path, machine: Machine) -> Profile:
    """A profile from Vidur's ``mlp.csv``, which times all of a layer but attention.

    Attention is then what reading ``kv_bytes`` a token and GPU from memory at ``memory_gbps`` takes.
    """
    table = read_table(file)
    rows = table[table["num_tensor_parallel_workers"] == machine.gpus]
    inside = [c for c in rows.columns if c.endswith(".median") and ".emb." not in c]
    total = rows[inside].sum(axis=1) * machine.layers + rows["time_stats.emb.median"]
    linear = {n: ms + machine.exchange(n) for n, ms in _kept(total.groupby(rows["num_tokens"]).median()).items()}
    per_cached = machine.kv_bytes / machine.memory_gbps * 1e-6 if machine.memory_gbps else 0.0
    return Profile(
        name=name,
        hardware=machine.hardware,
        model=machine.model,
        engine="as vllm 0.19.0",
        source=f"microsoft/vidur, {machine.path} (operator times of one layer), summed over the layers",
        commit=VIDUR,
        licence="MIT",
        note=f"attention is not in the source: {machine.kv_bytes} bytes a token read at {machine.memory_gbps:g} GB/s; no head",
        target=Costs(tokens=linear, decode=Attention(per_cached=per_cached)),
        kv_tokens=machine.kv_tokens,
        max_sequences=machine.max_sequences,
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
"""What the shipped profiles are made of. The link of the two Blackwells is the one in the source's own ``config.json``; that of the H100s
and the share of the memory's bandwidth (80 %) are assumed."""


def derive(name: str, data: Path) -> Profile:
    """The shipped profile ``name`` from its source: a checkout of the repository, or the file or folder in it."""
    if name not in MACHINES:
        raise UserError(f"no source is known for {name!r}", remedy=f"give one of {', '.join(MACHINES)}")
    machine = MACHINES[name]
    place = data / machine.path if (data / machine.path).exists() else data
    if machine.path.endswith(".csv"):
        return from_vidur(name, place, machine)
    return from_llmservingsim(name, place, machine)
