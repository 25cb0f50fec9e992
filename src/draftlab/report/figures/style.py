"""The one look of every figure: sizes, colours, names, and the line that says scale, n and interval.

Colours are Okabe and Ito's, apart for the colour-blind; line styles and markers tell the series apart in grey.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from PIL import Image

from draftlab.files.atomic import atomic_path

WIDE = 7.0  # inches: the text width of a two-column paper
COLUMN = 3.4
DPI = 200
COLOURS = 128
TITLE: dict[str, Any] = {"size": 9}  # not bold: each font in a PDF costs a third of a second
INK, GREY, PALE = "#222222", "#6b6b6b", "#d9d9d9"

mpl.rcParams.update(
    {
        "font.family": "DejaVu Sans",
        "font.size": 7.5,
        "axes.titlesize": 8,
        "axes.labelsize": 7.5,
        "axes.edgecolor": GREY,
        "axes.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": "#e6e6e6",
        "grid.linewidth": 0.5,
        "xtick.labelsize": 7,
        "ytick.labelsize": 7,
        "xtick.color": INK,
        "ytick.color": INK,
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
        "xtick.major.size": 2.5,
        "ytick.major.size": 2.5,
        "lines.linewidth": 1.3,
        "lines.markersize": 4,
        "legend.fontsize": 7,
        "legend.frameon": False,
        "pdf.fonttype": 42,
    }
)


@dataclass(frozen=True)
class Look:
    """How one series is drawn in every figure where it stands."""

    label: str
    colour: str
    line: str = "-"
    marker: str = "o"

    def options(self, **more: Any) -> dict[str, Any]:
        """Keyword arguments of ``Axes.plot``."""
        return {"color": self.colour, "linestyle": self.line, "marker": self.marker, "label": self.label} | more


BLACK, BLUE, RED, GREEN, ORANGE, SKY, PINK = "#000000", "#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9", "#CC79A7"

LOOKS: dict[str, Look] = {
    # ways to know a speed-up
    "measured": Look("measured in llama.cpp", BLUE, "", "o"),
    "refined": Look("Eq. 1 with the measured cost of verifying", INK, ":", ""),
    "eq1": Look("Eq. 1", RED, "--", ""),
    # types of weights
    "f32": Look("f32", BLACK),
    "f16": Look("f16", BLUE, "--", "s"),
    "q8_0": Look("q8_0", GREEN, "-.", "^"),
    "q4_0": Look("q4_0", RED, ":", "v"),
    # methods of OSD
    "online": Look("online", BLUE, "-", "o"),
    "online_warm": Look("online, first 10 % beforehand", SKY, (0, (4, 1)), "P"),  # type: ignore[arg-type]
    "static": Look("undistilled draft", GREY, ":", "x"),
    "static_10": Look("static, first 10 %", RED, "--", "s"),
    "static_10_fair": Look("static 10 %, same updates", ORANGE, "-.", "^"),
    "offline": Look("offline, all data", BLACK, (0, (1, 1)), "D"),  # type: ignore[arg-type]
    "static_20": Look("static, first 20 %", RED, "--", "s"),
    "static_30": Look("static, 30 %", ORANGE, "-.", "^"),
    "static_50": Look("static, 50 %", GREEN, (0, (3, 1, 1, 1)), "D"),  # type: ignore[arg-type]
    "static_70": Look("static, 70 %", PINK, (0, (5, 2)), "p"),  # type: ignore[arg-type]
    "static_100": Look("static, 100 %", BLACK, (0, (4, 1)), "*"),  # type: ignore[arg-type]
    "online_replay": Look("online, replay buffer", GREEN, "--", "^"),
    "online_all": Look("online, all positions", GREEN, "-.", "^"),
    "shared": Look("one shared draft", RED, "--", "s"),
    "separate": Look("a draft per class", BLUE, "-", "o"),
    "rejected": Look("rejected positions", BLUE, "-", "o"),
    "all": Look("all positions", GREEN, "-.", "^"),
    "block_end": Look("ends of blocks", ORANGE, (0, (3, 1, 1, 1)), "D"),  # type: ignore[arg-type]
    "repository": Look("the repository's, one late", RED, "--", "s"),
    # before and after distillation
    "original": Look("undistilled draft", RED, "--", "s"),
    # serving with and without a draft that trains beside it
    "alone": Look("serving alone", BLUE, "-", "o"),
    "training": Look("while the draft trains", RED, "--", "s"),
    # drafts served by one engine
    "before": Look("undistilled draft", RED, "--", "s"),
    "before_adaptive": Look("undistilled draft, adaptive length", ORANGE, "-.", "^"),
    "distilled": Look("distilled draft", BLUE, "-", "o"),
    "distilled_adaptive": Look("distilled draft, adaptive length", SKY, ":", "D"),
    # multi-draft schemes
    "optimal": Look("optimal", BLACK, "-", "o"),
    "importance": Look("importance sampling, full LP", SKY, (0, (4, 1)), "P"),  # type: ignore[arg-type]
    "importance_truncated": Look("importance sampling, s = 5", BLUE, "--", "s"),
    "hybrid": Look("better of the two beforehand", PINK, "-", "p"),
    "lookup": Look("prompt lookup", GREEN, ":", "v"),
    "lookup_first": Look("lookup first, distilled draft else", PINK, "-.", "D"),
    "k_seq": Look("K-SEQ (SpecTr)", GREEN, "-.", "^"),
    "importance_truncated+block": Look("importance sampling, then block", SKY, (0, (4, 1)), "P"),  # type: ignore[arg-type]
    "k_seq+block": Look("K-SEQ, then block", ORANGE, "-.", "D"),
    "specinfer": Look("SpecInfer", RED, ":", "v"),
    "plain": Look("no draft", INK, (0, (1, 1)), ""),  # type: ignore[arg-type]
    "single": Look("single draft", GREY, (0, (1, 2)), "x"),  # type: ignore[arg-type]
    "rrs": Look("without replacement (RRS)", ORANGE, (0, (3, 1, 1, 1)), "D"),  # type: ignore[arg-type]
    "greedy": Look("greedy drafts", PINK, (0, (5, 2)), "*"),  # type: ignore[arg-type]
    "block": Look("block verification", PINK, (0, (5, 2)), "p"),  # type: ignore[arg-type]
}
SEQUENCE = (
    Look("", BLACK, "-", "o"),
    Look("", BLUE, "--", "s"),
    Look("", GREEN, "-.", "^"),
    Look("", RED, ":", "v"),
    Look("", ORANGE, (0, (3, 1, 1, 1)), "D"),  # type: ignore[arg-type]
    Look("", PINK, (0, (5, 2)), "p"),  # type: ignore[arg-type]
    Look("", SKY, (0, (1, 1)), "*"),  # type: ignore[arg-type]
)
NAMES: dict[str, str] = {
    "spider": "Spider",
    "gsm8k": "GSM8K",
    "code_search_net": "CodeSearchNet",
    "finance_alpaca": "Finance-Alpaca",
    "forward_kl": "forward KL",
    "reverse_kl": "reverse KL",
    "hard_label": "hard labels",
    **{f"jsd_{beta}": f"JSD[{beta}]" for beta in (0.1, 0.5, 0.9)},
    **{f"length {part}": f"{part}/8" for part in range(1, 9)},
    "tvd": "TVD",
    "jeffreys_0.9": "0.9 fwd + 0.1 rev",
    "none": "undistilled",
    "none_again": "no draft, against itself",
    "draft_small": "small",
    "draft": "middle",
    "draft_large": "large",
    "learning_rate": "learning rate",
    "buffer": "replay buffer",
    "sharp": "sharp shift",
    "smooth": "smooth shift",
    "Business_Corporate": "Business",
    "Computers and Technology": "Computers",
    "Social Networking and Messaging": "Social",
    "gsm8k_drift": "GSM8K, short to long",
    "gsm8k_shuffled": "GSM8K, shuffled",
    "code_drift": "code, short to long",
    "code_shuffled": "code, shuffled",
    "draft_base": "base",
    "cnn_dailymail": "CNN/DailyMail",
    "xsum": "XSum",
    "typical": "typical acceptance, not lossless",
    "arena": "Arena",
    "dolly": "Dolly",
    "wmt16": "WMT16",
    "two": "two topics",
    "four": "four topics",
}


SETTINGS = {
    "num_drafts": "{:g} drafts",
    "draft_len": "draft length {:g}",
    "num_tokens": "{:g} tokens",
    "verified": "{:g} verified",
    "requests": "{:g} requests",
    "after": "after {:g} requests",
    "update_interval": "an update per {:g} requests",
    "period": "a switch per {:g} requests",
    "top_k": "top-k {:g}",
    "lp_threshold": "s = {:g}",
}
KEYS = {
    "num_drafts": "drafts",
    "draft_len": "draft length",
    "num_tokens": "tokens",
    "group": "class",
    "group_by": "classes",
    "vocab": "vocabulary",
    "way": "how known",
    "peak_mb": "peak memory, MB",
    "served": "requests served",
    "after": "requests served",
    "identical": "identical drafts",
    "lp_threshold": "s",
    "top_k": "top-k",
    "sample_source": "answers of",
    "update_interval": "requests per update",
    "requests_per_second": "requests per second",
}
"""What a reader calls a column."""


MEANINGS: dict[str, dict[str, str]] = {
    "contender": {
        "none": "no draft",
        "draft": "draft",
        "draft_osd": "draft + OSD",
        "medusa": "Medusa",
        "medusa_osd": "Medusa + OSD",
        "larger": "larger static draft",
    },
    "system": {
        "original": "no draft",
        "vsd": "static draft",
        "osd": "online draft",
        "serving": "target alone",
        "online": "with drafting and training",
    },
    "drafts": {
        "original": "undistilled draft, K times",
        "shared, one": "shared draft, once",
        "shared": "shared draft, K times",
        "routed, one": "the topic's specialist, once",
        "routed": "the topic's specialist, K times",
        "specialists": "all K specialists",
    },
}
"""What a value of a column means there, where that is another thing elsewhere."""


def setting(key: str, value: object) -> str:
    """A setting as a reader writes it: a number needs its name, a word does not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return MEANINGS.get(key, {}).get(str(value)) or name(value)
    return SETTINGS.get(key, f"{key_name(key)} {{:g}}").format(value)


def key_name(key: str) -> str:
    """What a reader calls a column of a table."""
    return KEYS.get(key, key.replace("_", " "))


def name(value: object) -> str:
    """What a reader calls a value of a table."""
    text = str(value)
    return NAMES.get(text, LOOKS[text].label if text in LOOKS else text.replace("_", " "))


def look(value: object, index: int) -> Look:
    """The look of a known series, else the ``index``-th of the general sequence."""
    found = LOOKS.get(str(value))
    general = SEQUENCE[index % len(SEQUENCE)]
    return found or Look(name(value), general.colour, general.line, general.marker)


def panels(rows: int, columns: int, *, width: float = WIDE, height: float = 1.7, **options: Any) -> tuple[Figure, Any]:
    """A figure of ``rows`` x ``columns`` axes, ``height`` inches a row; ``axes[row, column]``."""
    figure = Figure(figsize=(width, rows * height + 0.55), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, axes


def legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend above all panels, each label once, in as many columns as fit."""
    found: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    labels, room = list(found), 19 * figure.get_figwidth()
    rows = next(rows for rows in range(1, len(labels) + 1) if _width(labels, rows) <= room or rows == len(labels))
    columns = -(-len(labels) // rows)
    figure.legend(list(found.values()), labels, loc="outside upper center", ncols=columns, columnspacing=1.4)


def _width(labels: Sequence[str], rows: int) -> int:
    """Letters that a legend of so many rows is wide."""
    columns = [labels[start : start + rows] for start in range(0, len(labels), rows)]
    return sum(7 + max(map(len, column)) for column in columns)


def footer(figure: Figure, scale: str, *facts: str) -> None:
    """The lines under the figure: scale, n, interval and whatever else a reader must know."""
    text = " · ".join([f"scale: {scale}", *filter(None, facts)])
    figure.supxlabel(wrap(text, int(23 * figure.get_figwidth())), fontsize=6, color=GREY)


def finish(figure: Figure, title: str) -> None:
    """The title above all; labels of axes on one line, and no longer than their row of panels."""
    for ax in figure.axes:
        height = figure.get_figheight() / ax.get_gridspec().nrows  # type: ignore[union-attr]
        ax.set_ylabel(wrap(ax.get_ylabel(), max(int(10 * height), 12)))
    figure.align_labels()
    if title:
        text = wrap(title, int(15 * figure.get_figwidth()))
        figure.set_figheight(figure.get_figheight() + 0.16 * (1 + text.count("\n")))
        if figure.legends:  # which stands at the very top
            figure.legends[0].set_title(text, prop=TITLE)  # type: ignore[arg-type]
            figure.legends[0].get_title().set_multialignment("center")
        else:
            figure.suptitle(text, **TITLE)


def wrap(text: str, width: int) -> str:
    """Lines of nearly the same length, ``width`` at most."""
    lines = -(-len(text) // width)
    return text if lines < 2 else textwrap.fill(text, min(width, len(text) // lines + 4))


def points(ax: Axes, x: ArrayLike, rows: pd.DataFrame, style: Look, **options: Any) -> None:
    """Estimates with their intervals (columns ``estimate, ci_low, ci_high``)."""
    y = rows["estimate"].to_numpy(float)
    low, high = rows["ci_low"].to_numpy(float), rows["ci_high"].to_numpy(float)
    errors = np.nan_to_num(np.clip(np.stack([y - low, high - y]), 0, None))
    drawn = style.options(capsize=1.5, elinewidth=0.8, **options)
    ax.errorbar(np.asarray(x, float), y, yerr=errors, **drawn)


def marks(ax: Axes, rows: pd.DataFrame, y: ArrayLike, style: Look, **options: Any) -> None:
    """Estimates with their intervals, as marks at the heights ``y``."""
    estimate = rows["estimate"].to_numpy(float)
    error = np.clip(np.stack([estimate - rows["ci_low"], rows["ci_high"] - estimate]), 0, None)
    drawn: dict[str, Any] = {
        "fmt": style.marker,
        "color": style.colour,
        "ms": 3.5,
        "capsize": 1.5,
        "label": style.label,
    } | options
    ax.errorbar(estimate, np.broadcast_to(y, estimate.shape), xerr=np.nan_to_num(error), **drawn)


def diamonds(ax: Axes, x: ArrayLike, y: ArrayLike, label: str | None = "printed", **options: Any) -> None:
    """Printed numbers as hollow diamonds."""
    drawn: dict[str, Any] = {"mfc": "none", "mec": BLACK, "ms": 4.5, "label": label} | options
    ax.plot(x, y, "D", **drawn)


def counted(values: pd.Series) -> str:
    """``n`` of several groups in words: one number, or its range."""
    low, high = int(values.min()), int(values.max())
    return f"n = {low}" if low == high else f"n = {low}–{high}"


def seeds(table: pd.DataFrame) -> str:
    """Which seeds a table holds, in words."""
    found = sorted(table["seed"].unique()) if "seed" in table else []
    return f"seeds {', '.join(map(str, found))}" if len(found) > 1 else f"seed {found[0]}" if found else ""


def held(table: pd.DataFrame, keys: Sequence[str]) -> list[str]:
    """The settings that are the same in every row, in words."""
    one = [key for key in keys if key in table and table[key].nunique() == 1]
    return [setting(key, value) for key in one for value in table[key].head(1).tolist()]


def in_order(values: Sequence[Any], order: Mapping[str, Any] | Sequence[str]) -> list[Any]:
    """The values present, those of ``order`` first and in its order."""
    known = list(order)
    present = list(dict.fromkeys(values))
    return sorted(
        present, key=lambda value: (known.index(value) if value in known else len(known), present.index(value))
    )


def save(figure: Figure, prefix: Path) -> None:
    """Write ``prefix.pdf`` and ``prefix.png`` without the time of day, so that equal figures are equal files.

    The layout takes most of the time, so the PNG's serves the PDF too.
    """
    figure.set_dpi(DPI)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    pixels = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")  # type: ignore[no-untyped-call]
    with atomic_path(prefix.with_name(prefix.name + ".png")) as temporary:
        few = pixels.quantize(COLOURS, method=Image.Quantize.FASTOCTREE)  # a quarter of the bytes, to the eye the same
        few.save(temporary, "PNG", optimize=True, dpi=(DPI, DPI))
    figure.set_layout_engine("none")
    with atomic_path(prefix.with_name(prefix.name + ".pdf")) as temporary:
        FigureCanvasPdf(figure).print_pdf(temporary, metadata={"CreationDate": None})  # type: ignore[no-untyped-call]
