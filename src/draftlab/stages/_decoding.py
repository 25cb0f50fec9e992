"""Settings, columns and inputs of the stages that decode held-out requests with several drafts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field

from draftlab.core.settings import Dataset, Distinct, PairName, Seed, TopP
from draftlab.core.settings import Settings as Base
from draftlab.engine.settings import Answers
from draftlab.stages._inputs import TargetAndDraft
from draftlab.stages._places import Places
from draftlab.stages._stage import Files, column

if TYPE_CHECKING:
    from draftlab.core.sampling import Sampling
    from draftlab.engine.held_out import Work


class Decoding(Base):
    """Held-out requests are decoded in batches."""

    pair: PairName = "multidraft"
    datasets: Distinct[Dataset] = Field([], description="which of the pair's datasets to use; if none is named, all")
    distilled: Dataset | None = Field(
        None, description="use the draft that osd_offline distilled on this dataset, not the pair's undistilled one"
    )
    draft_len: int = Field(gt=0, description="tokens of a drafted sequence")
    top_p: TopP = 1.0
    requests: int = Field(gt=0, description="held-out requests decoded of each dataset")
    batch: int = Field(gt=0, description="requests decoded at once")
    max_new_tokens: int = Field(gt=0, description="most tokens of an answer")
    seed: Seed = Field(0, description="seed of the sampling")

    def sampling(self, temperature: float, top_k: int) -> Sampling:
        """How a model is sampled at this temperature."""
        from draftlab.core.sampling import Sampling

        return Sampling(temperature, top_k or None, self.top_p)


class DecodedRow:
    """A request, and how target and draft were sampled."""

    request_id: int = column("line of the request in its dataset's held-out file")
    dataset: str = column("dataset of the request")
    target_temperature: float = column("temperature of the target")
    top_k: int = column("most probable tokens kept; 0: all")
    top_p: float = column("probability mass kept")
    seed: int = column("seed of the sampling")


class Inputs(TargetAndDraft):
    """A pair, the held-out requests by dataset, and how its target answers.

    **Fields:**
    - `prompts`: the held-out requests of each dataset: its name, then a file that draftlab data make wrote
    """

    same: ClassVar[tuple[str, ...]] = ("pair", "datasets", "distilled")
    prompts: dict[str, Path]
    answers: Answers

    @classmethod
    def locate(cls, variants: Sequence[Any], places: Places) -> Self:
        settings = variants[0]
        draft = places.model("draft", settings.pair)
        if settings.distilled:
            draft = places.other_cell("osd_offline", settings.distilled) / "draft"
        return cls(
            target=places.model("target", settings.pair),
            draft=draft,
            prompts={name: places.prompts(name, "eval") for name in settings.datasets},
            answers=places.answers[settings.pair],
        )

    def reads(self, variants: Sequence[Any]) -> Files:
        return {"models": [self.target, self.draft], "data": list(self.prompts.values())}

    def open(self, settings: Decoding) -> Work:
        """The pair, and the held-out requests that leave room for an answer and the block that passes its end."""
        from draftlab.engine.held_out import open_work

        after = settings.max_new_tokens + 2 * settings.draft_len
        files = (self.target, self.draft, self.answers, self.prompts)
        return open_work(*files, settings.requests, settings.batch, after)
