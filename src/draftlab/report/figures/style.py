"""The look that all figures share: sizes, colours, names, and the footer with scale, n and interval.

style.yaml defines them. Colours are Okabe and Ito's, which colour-blind readers can distinguish, and two dark ones; line styles and markers
distinguish series in grey.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.text import Text
from matplotlib.textpath import TextToPath
from numpy.typing import ArrayLike
from PIL import Image

from draftlab.files.atomic import atomic_path
from draftlab.files.registries import short
from draftlab.files.yaml_files import read_yaml_of_module

WIDE = 7.0  # inches: the text width of a two-column paper
COLUMN = 3.4
DPI = 200
COLOURS = 128
BETWEEN = 1.4
"""The space between two columns of a legend, in sizes of its letters."""
HELD = "\N{NO-BREAK SPACE}"
EXACT = "exact: no n, no interval"
TITLE: dict[str, Any] = {"size": 9}  # not bold: each font in a PDF costs a third of a second

mpl.rcParams.update(mpl.rc_params_from_file(Path(__file__).with_suffix(".mplstyle"), use_default_template=False))


@dataclass(frozen=True)
class Look:
    """How one series is drawn, the same in every figure."""

    label: str
    colour: str
    line: str | tuple[float, tuple[float, ...]] = "-"
    marker: str = "o"

    def options(self, **more: Any) -> dict[str, Any]:
        """Keyword arguments for ``Axes.plot``."""
        return {"color": self.colour, "linestyle": self.line, "marker": self.marker, "label": self.label} | more


STYLE = read_yaml_of_module(__file__)
BLACK, BLUE, RED, GREEN, ORANGE, SKY, PINK, GREY, INK, *_ = STYLE["colours"].values()
PALE = "#d9d9d9"


def _look(label: str, colour: str, line: Any, marker: str) -> Look:
    return Look(label, STYLE["colours"][colour], line if isinstance(line, str) else (line[0], tuple(line[1])), marker)


LOOKS: dict[str, Look] = {name: _look(*parts) for name, parts in STYLE["looks"].items()}
SEQUENCE = tuple(_look(*parts) for parts in STYLE["sequence"])
NAMES: dict[str, str] = STYLE["names"]


def setting(key: str, value: object) -> str:
    """A setting as text for readers: a number comes with the name of its setting, a word stands alone."""
    if text := meaning(key, value):
        return text
    if isinstance(value, bool) or not isinstance(value, int | float):
        return name(value)
    text = str(STYLE["settings"].get(key, f"{key_name(key)} {{:g}}")).format(value)
    return re.sub(r"\b1 (\w+)s\b", r"1 \1", text) if value == 1 else text  # 1 draft, 2 drafts


def meaning(key: str, value: object) -> str:
    """The text that style.yaml gives for this value of a column; empty if there is none."""
    return str(STYLE["meanings"].get(key, {}).get(str(value), ""))


def key_name(key: str) -> str:
    """The name of a table's column for readers."""
    return str(STYLE["keys"].get(key, key.replace("_", " ")))


def name(value: object) -> str:
    """The name of a table's value for readers; a text with spaces is a name already."""
    text = str(value)
    if (own := short(text)) != text:
        return own
    return NAMES.get(text, LOOKS[text].label if text in LOOKS else text if " " in text else text.replace("_", " "))


def look(value: object, index: int) -> Look:
    """The look of a known series, otherwise the ``index``-th look of the general sequence."""
    return LOOKS.get(str(value)) or replace(SEQUENCE[index % len(SEQUENCE)], label=name(value))


def looks(series: Iterable[object]) -> dict[Any, Look]:
    """The look of each series of one figure: as ``look`` by its place, or the next of the general sequence that no other series has."""
    distinct = list(dict.fromkeys(series))
    found = {value: LOOKS[str(value)] for value in distinct if str(value) in LOOKS}
    for place, value in enumerate(distinct):
        if value not in found:
            taken = {(one.colour, one.marker) for one in found.values()}
            nearest = [look(value, place + more) for more in range(len(SEQUENCE))]
            free = [one for one in nearest if (one.colour, one.marker) not in taken]
            found[value] = (free or nearest)[0]
    return {value: found[value] for value in distinct}


def panels(rows: int, columns: int, *, width: float = WIDE, height: float = 1.7, **options: Any) -> tuple[Figure, Any]:
    """Create a figure with ``rows`` x ``columns`` axes, each row ``height`` inches high; return it with ``axes[row, column]``."""
    figure = Figure(figsize=(width, rows * height + 0.55), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, axes


def legend(figure: Figure) -> None:
    """Draw one legend above all panels, with each label once, known series first and in their order, in as many columns as fit."""
    handles: dict[str, Any] = {}
    for ax in figure.axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle[0] if isinstance(handle, ErrorbarContainer) else handle)
    if not handles:
        return
    labels = in_order(handles, [known.label for known in LOOKS.values()])
    room = 71 * figure.get_figwidth()  # points: an inch has 72
    rows = next(rows for rows in range(1, len(labels) + 1) if _width(labels, rows) <= room or rows == len(labels))
    columns = -(-len(labels) // rows)
    figure.legend(
        [handles[label] for label in labels], labels, loc="outside upper center", ncols=columns, columnspacing=BETWEEN
    )


def _width(labels: Sequence[str], rows: int) -> float:
    """The width of a legend with this many rows, in points."""
    columns = np.array_split(np.array(labels), -(-len(labels) // rows))  # as matplotlib fills them
    font = FontProperties(size=mpl.rcParams["legend.fontsize"])
    of_text = TextToPath().get_text_width_height_descent
    widest = [max(of_text(str(label), font, ismath=False)[0] for label in column) for column in columns]
    handle = mpl.rcParams["legend.handlelength"] + mpl.rcParams["legend.handletextpad"]
    edges = 2 * (mpl.rcParams["legend.borderpad"] + mpl.rcParams["legend.borderaxespad"])
    letters = len(columns) * (handle + BETWEEN) - BETWEEN + edges
    return float(sum(widest) + letters * font.get_size_in_points())


def footer(figure: Figure, scale: str, *facts: str) -> None:
    """Write the scale and the ``facts`` (n, interval, ...) under the figure; lines break only between facts."""
    width = int(23 * figure.get_figwidth())
    parts = [f"scale: {scale}", *filter(None, facts)]
    text = f"{HELD}· ".join(fact.replace(" ", HELD) if len(fact) < width else fact for fact in parts)
    lines = wrap(text, width).replace(HELD, " ").split("\n")
    figure.supxlabel("\n".join(line.removesuffix(" ·") for line in lines), fontsize=6, color=GREY)


def finish(figure: Figure, title: str) -> None:
    """Add the title, align the labels of axes, and wrap labels that are longer than their row of panels."""
    for ax in figure.axes:
        height = figure.get_figheight() / ax.get_gridspec().nrows  # type: ignore[union-attr]
        ax.set_ylabel(wrap(ax.get_ylabel(), max(int(10 * height), 12)))
    figure.align_xlabels()
    figure.align_ylabels([ax for ax in figure.axes if ax.get_ylabel()])  # axes without a label show wide names of rows
    if title:
        text = wrap(title, int(15 * figure.get_figwidth()))
        figure.set_figheight(figure.get_figheight() + 0.16 * (1 + text.count("\n")))
        if figure.legends:  # a legend is at the very top, so the title goes into it
            figure.legends[0].set_title(text, prop=TITLE)  # type: ignore[arg-type]
            figure.legends[0].get_title().set_multialignment("center")
        else:
            figure.suptitle(text, **TITLE)
    for drawn in figure.findobj(Text):
        if "$" in drawn.get_text() and r"\mathdefault" not in drawn.get_text():  # a price in a name, not a power of ten
            drawn.set_parse_math(False)


def wrap(text: str, width: int) -> str:
    """Wrap ``text`` into as few lines as possible, of similar length, at most ``width`` letters wide."""
    if len(text) <= width:
        return text

    def split(width: int) -> list[str]:
        return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)

    fewest = split(width)
    narrower = map(split, range(len(text) // len(fewest), width))
    return "\n".join(next((lines for lines in narrower if len(lines) == len(fewest)), fewest))


def points(ax: Axes, x: ArrayLike, rows: pd.DataFrame, style: Look, **options: Any) -> None:
    """Draw estimates with their intervals (columns ``estimate, ci_low, ci_high``) at the values ``x``."""
    estimate, errors = _errors(rows)
    drawn = style.options(capsize=1.5, elinewidth=0.8, **options)
    ax.errorbar(np.asarray(x, float), estimate, yerr=errors, **drawn)


def marks(ax: Axes, rows: pd.DataFrame, y: ArrayLike, style: Look, **options: Any) -> None:
    """Draw estimates with their intervals along the horizontal axis, as marks at the heights ``y``; a series that has a line alone gets a bar."""
    estimate, errors = _errors(rows)
    drawn: dict[str, Any] = {"color": style.colour, "ms": 3.5, "capsize": 1.5, "label": style.label} | options
    ax.errorbar(estimate, np.broadcast_to(y, estimate.shape), xerr=errors, fmt=style.marker or "|", **drawn)


def _errors(rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """The estimates, and how far their intervals extend below and above them; 0 without an interval."""
    estimate, low, high = (rows[column].to_numpy(float) for column in ("estimate", "ci_low", "ci_high"))
    return estimate, np.nan_to_num(np.clip(np.stack([estimate - low, high - estimate]), 0, None))


def level(ax: Axes, row: Mapping[str, Any], style: Look, alpha: float, **options: Any) -> None:
    """Draw an estimate that does not vary along ``x`` as a horizontal line, with its interval as a band."""
    ax.axhline(row["estimate"], **style.options(marker="", **options))
    if np.isfinite(row["ci_low"]):
        ax.axhspan(row["ci_low"], row["ci_high"], color=style.colour, alpha=alpha, linewidth=0)


def diamonds(ax: Axes, x: ArrayLike, y: ArrayLike, label: str | None = "printed", **options: Any) -> None:
    """Draw printed numbers as hollow diamonds; where there is none, the legend does not name them."""
    drawn: dict[str, Any] = {"mfc": "none", "mec": BLACK, "ms": 4.5, "label": label} | options
    if np.size(y):
        ax.plot(x, y, "D", **drawn)


def counted(values: pd.Series) -> str:
    """The ``n`` of several groups as text: one number, or a range; 0 without a group."""
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    return f"n = {low}" if low == high else f"n = {low}–{high}"


def seeds(table: pd.DataFrame) -> str:
    """The seeds of a table as text; empty if it has none."""
    values = sorted(table["seed"].unique()) if "seed" in table else []
    return f"seeds {', '.join(map(str, values))}" if len(values) > 1 else f"seed {values[0]}" if values else ""


def in_points(difference: float) -> str:
    """A difference of shares in points, with a second decimal where one would show 0, and without a sign where two would.

    >>> in_points(0.012), in_points(-0.0003), in_points(-0.00002)
    ('+1.2', '-0.03', '0.00')
    """
    points = 100 * difference
    return f"{points:+.1f}" if abs(points) >= 0.05 else f"{points:+.2f}" if abs(points) >= 0.005 else "0.00"


def held(table: pd.DataFrame, keys: Sequence[str]) -> list[str]:
    """Describe the settings among ``keys`` that are the same in every row."""
    constant = [key for key in keys if key in table and table[key].nunique() == 1]
    return [setting(key, table[key].head(1).tolist()[0]) for key in constant]


def in_order(values: Iterable[Any], order: Iterable[Any]) -> list[Any]:
    """The distinct ``values``: first those in ``order``, in its order, then the others as they come."""
    known, distinct = list(order), list(dict.fromkeys(values))
    return sorted(distinct, key=lambda value: known.index(value) if value in known else len(known))


def save(figure: Figure, prefix: Path) -> None:
    """Write ``prefix.pdf`` and ``prefix.png`` without the time of day, so that equal figures are equal files.

    The layout takes most of the time, so the PNG's serves the PDF too.
    """
    figure.set_dpi(DPI)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    pixels = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")  # type: ignore[no-untyped-call]
    with atomic_path(prefix.with_name(prefix.name + ".png")) as temporary:
        # A quarter of the bytes, with no visible difference.
        few = pixels.quantize(COLOURS, method=Image.Quantize.FASTOCTREE)
        few.save(temporary, "PNG", optimize=True, dpi=(DPI, DPI))
    figure.set_layout_engine("none")
    with atomic_path(prefix.with_name(prefix.name + ".pdf")) as temporary:
        FigureCanvasPdf(figure).print_pdf(temporary, metadata={"CreationDate": None})  # type: ignore[no-untyped-call]
