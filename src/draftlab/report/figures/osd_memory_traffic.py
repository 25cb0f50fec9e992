"""OSD Table 5: bytes moved for a request, by the printed formula and with the terms that it leaves out, and when updates save bytes."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from draftlab.report.figures.style import BLUE, GREEN, GREY, ORANGE, RED, SEQUENCE, diamonds, footer, panels, setting
from draftlab.report.published import Published
from draftlab.report.tidy import records

TERMS = {
    "target_gb": (BLUE, "target"),
    "draft_gb": (GREEN, "draft"),
    "cache_gb": (ORANGE, "caches"),
    "update_gb": (RED, "updates"),
}
GROUPS = {
    ("printed", "printed"): "Table 5",
    ("unrounded", "printed"): "unrounded",
    ("unrounded", "all"): "all terms",
    ("ours", "all"): "this run's pair, all terms",
}
SYSTEMS = {system: setting("system", system) for system in ("original", "vsd", "osd")}


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """Plot the share of each term at batch 1 with an update per 8 requests (left), and the block length from which updates pay (right)."""
    interval = 8 if (table["update_interval"] == 8).any() else table["update_interval"].min()
    one = table[(table["batch"] == 1) & (table["update_interval"] == interval)]
    figure, axes = panels(1, 2, height=2.9)
    left, right = axes[0]
    ticks = []
    for place, ((inputs, terms), label) in enumerate(GROUPS.items()):
        rows = one[(one["inputs"] == inputs) & (one["terms"] == terms)]
        cells: dict[str, Any] = {row["system"]: row for row in records(rows)}
        for number, system in enumerate(SYSTEMS):
            y, start = place * 4 + number, 0.0
            ticks.append((y, f"{label}: {SYSTEMS[system]}" if number == 0 else SYSTEMS[system]))
            for term, (colour, term_name) in TERMS.items():
                width = cells[system][term] / cells[system]["original_gb"]
                left.barh(y, width, left=start, color=colour, label=term_name, height=0.8)
                start += width
            printed = published.of("T5.memory_loading", variant=system)["value"]
            if (inputs, terms) == ("printed", "printed") and len(printed):
                diamonds(left, printed / cells[system]["original_gb"], [y], ms=4)
    left.axvline(1, color=GREY, linewidth=0.6)
    left.set_yticks([y for y, _ in ticks], [text for _, text in ticks])
    left.set(
        xlabel="bytes over those of plain decoding",
        xlim=(0, 1.05 * left.get_xlim()[1]),
        ylim=(ticks[-1][0] + 0.7, -0.7),
    )
    updated = table[(table["terms"] == "all") & (table["system"] == "osd") & (table["inputs"] != "printed")]
    updated = updated[updated["update_interval"] <= interval]
    for number, ((pair, _), rows) in enumerate(updated.groupby(["inputs", "update_interval"], sort=False)):
        style, inputs, each = SEQUENCE[number % len(SEQUENCE)], str(pair), int(rows["update_interval"].iloc[0])
        needed = rows["break_even"] / _static_block_length(table, inputs)
        right.plot(rows["batch"], needed, **style.options(label=f"{_pair_name(inputs)}, update per {_requests(each)}"))
    for inputs in dict.fromkeys(updated["inputs"]):
        reached = updated[updated["inputs"] == inputs]["block_length"].iloc[0] / _static_block_length(table, inputs)
        line = "--" if inputs == "ours" else ":"
        right.axhline(reached, color=GREY, linestyle=line, linewidth=0.9, label=f"{_pair_name(inputs)}, length reached")
    right.set(
        xscale="log",
        xlabel="requests that share a load of weights",
        ylabel="block length needed, over a static draft's",
    )
    _legend(left, 3)
    _legend(right, 2)
    footer(figure, scale, "exact, so no interval", f"left: batch 1, one update per {interval} requests")
    return figure


def _legend(ax: Axes, columns: int) -> None:
    """Draw a legend above one panel, with each label once."""
    handles = {label: handle for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    place: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1, 1.0), "columnspacing": 1.0, "fontsize": 6.5}
    ax.legend(list(handles.values()), list(handles), ncols=columns, **place)


def _static_block_length(table: pd.DataFrame, inputs: str) -> float:
    return float(table[(table["inputs"] == inputs) & (table["system"] == "vsd")]["block_length"].iloc[0])


def _requests(number: object) -> str:
    return "request" if number == 1 else f"{number} requests"


def _pair_name(inputs: str) -> str:
    return {"unrounded": "7B", "ours": "ours"}.get(inputs, inputs)
