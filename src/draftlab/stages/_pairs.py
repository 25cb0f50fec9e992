"""Settings, columns and inputs of the stages that read recorded probability pairs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field

from draftlab.core.settings import Dataset, Distinct, PairName, Seed, Settings, TopP
from draftlab.stages._places import Places
from draftlab.stages._stage import Files, NoInputs, column

if TYPE_CHECKING:
    from draftlab.core.sampling import Sampling
    from draftlab.engine.recorded_pairs import Pairs


class OnPairs(Settings):
    """Settings of experiments on recorded probability pairs."""

    pair: PairName = "multidraft"
    datasets: Distinct[Dataset] = Field([], description="which of the pair's datasets to use; if none is named, all")
    synthetic: bool = Field(False, description="also use the synthetic family of model-like distributions")
    distilled: bool = Field(False, description="use for each dataset the draft that osd_offline distilled on it")
    positions: int = Field(gt=0, default=1_000_000, description="most positions used of each dataset")
    top_k: int = Field(ge=0, default=0, description="most probable tokens that are kept; 0: all")
    top_p: TopP = 1.0
    seed: Seed = Field(0, description="seed of the synthetic family")

    def sampling(self, temperature: float) -> Sampling:
        """How a model is sampled at this temperature."""
        from draftlab.core.sampling import Sampling

        return Sampling(temperature, top_k=self.top_k or None, top_p=self.top_p)


class PairsRow:
    """A text, its dataset, and how its tokens are drafted."""

    request_id: int = column("number of the text; in the synthetic family each context is a text")
    dataset: str = column("dataset of the text")
    draft_temperature: float = column("temperature of the draft")
    num_drafts: int = column("drafted tokens of a position")


class RecordedPairs(NoInputs):
    """The folder of recorded logits of target and draft; those of a distilled draft end in ``.distilled``.

    **Fields:**
    - `pairs`: folder of the recorded logits, a file for each dataset
    """

    pairs: Path

    @classmethod
    def locate(cls, variants: Sequence[Any], places: Places) -> Self:
        return cls(pairs=places.distributions(variants[0].pair))

    def reads(self, variants: Sequence[Any]) -> Files:
        return {"pairs": list(dict.fromkeys(path for settings in variants for path in self._files(settings).values()))}

    def load(self, settings: OnPairs) -> dict[str, Pairs]:
        """The pairs of every dataset of the settings, and those of the synthetic family if it is asked for."""
        from draftlab.engine.recorded_pairs import load_all

        synthetic = settings.seed if settings.synthetic else None
        return load_all(self._files(settings), settings.positions, synthetic)

    def _files(self, settings: OnPairs) -> dict[str, Path]:
        """The file of each dataset."""
        drafted = ".distilled" if settings.distilled else ""
        return {name: self.pairs / f"{name}{drafted}.safetensors" for name in settings.datasets}
