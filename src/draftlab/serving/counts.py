"""What an engine counted of its speculation: blocks, and the tokens drafted and accepted in them."""

from __future__ import annotations

from dataclasses import dataclass

MOST = 1e15
"""No server counts further: a larger number is broken."""


@dataclass(frozen=True)
class SpeculationCounts:
    """Blocks verified, tokens drafted (NaN: the engine does not say) and accepted, of one request or of ``requests`` together.

    ``histogram`` counts the blocks that accepted 0, 1, 2, ... tokens; ``by_length`` holds one for each draft length, where the engine says.
    """

    engine: str
    drafts: float
    drafted: float
    accepted: float
    requests: float = 1
    histogram: tuple[float, ...] | None = None
    by_length: tuple[tuple[float, ...], ...] = ()
