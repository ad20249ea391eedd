"""Figures, drawn with matplotlib and written without a display.

Each function returns a figure; `save` writes it. Images are [H, W, C] from 0 to 1, as arrays of
numpy or JAX; a location is a row and a column.
"""

import pathlib
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.textpath import TextPath
from matplotlib.ticker import EngFormatter

from lavae_jax.scene import Scene

DOTS_PER_INCH = 200
LARGEST_FONT = 7.0  # in points
_CHARACTER = 0.052  # inches: the approximate width of a character of that size
COLORS = ("#ff9a1f", "#57b8ff")  # of marks; no object of multi-dSprites has these colours
_SPACE = 0.02  # inches between panels


def save(figure: Figure, *paths: str | pathlib.Path) -> None:
    """Writes a figure to files.

    Args:
        figure: the figure.
        *paths: files to write; their endings determine the formats.
    """
    with matplotlib.rc_context({"pdf.fonttype": 42}):  # publishers refuse matplotlib's default
        for path in paths:
            figure.savefig(path, dpi=DOTS_PER_INCH)


def in_rows(items: Sequence, columns: int) -> list[Sequence]:
    """Splits items into rows.

    Args:
        items: items in reading order.
        columns: the length of a row.

    Returns:
        The rows; the last one may be shorter.
    """
    return [items[i : i + columns] for i in range(0, len(items), columns)]


# --- panels ------------------------------------------------------------------


class Frame(NamedTuple):
    """A square around an object.

    Attributes:
        location: row and column of its centre.
        size: side in pixels.
        label: text in a corner of the square.
        color: colour of the line and the label.
        label_left: whether the label is on the left rather than on the right.
    """

    location: np.ndarray
    size: int
    label: str = ""
    color: str = COLORS[0]
    label_left: bool = True


class Cross(NamedTuple):
    """A mark at a location.

    Attributes:
        location: row and column.
        label: text next to the mark.
        color: colour of the mark.
    """

    location: np.ndarray
    label: str = ""
    color: str = COLORS[0]


class Panel(NamedTuple):
    """An image with a title and marks.

    Attributes:
        image: [H, W, C].
        title: the text above the image.
        frames: squares that are drawn on it.
        crosses: marks that are drawn on it.
    """

    image: np.ndarray
    title: str = ""
    frames: Sequence[Frame] = ()
    crosses: Sequence[Cross] = ()


def panels(
    rows: Sequence[Sequence[Panel]],
    *,
    column_titles: Sequence[str] = (),
    row_titles: Sequence[str] = (),
    blocks: Mapping[str, int] | None = None,
    caption: str = "",
    panel_inches: float = 1.0,
) -> Figure:
    """Draws rows of panels; the figure is `panel_inches` wide for each column.

    Titles are above what they name, so that they take no width; the title of a row is left-aligned.
    There is a gap between blocks. All text has the same size, the largest at which every text fits.

    Args:
        rows: panels, which need not fill a row.
        column_titles: one for each column.
        row_titles: one for each row.
        blocks: titles of blocks of columns, and their numbers of columns, from left to right.
        caption: the text below the panels.
        panel_inches: the side of a panel.

    Returns:
        The figure.
    """
    columns = max((len(row) for row in rows), default=1)
    blocks = blocks or {"": columns}
    row_titles = row_titles or [""] * len(rows)
    gap = 0.2 * panel_inches
    ends = np.cumsum(list(blocks.values()))
    left = [c * panel_inches + gap * np.sum(ends <= c) for c in range(columns)]
    width = columns * panel_inches + gap * (len(blocks) - 1)
    caption = textwrap.fill(caption, max(int(width / _CHARACTER), 1))

    texts = [(panel.title, panel_inches) for row in rows for panel in row]
    texts += [(title, panel_inches) for title in column_titles]
    texts += [(title, n * panel_inches) for title, n in blocks.items()]
    texts += [(title, width) for title in (*row_titles, caption)]
    font = _font_that_fits(texts)

    def height_of(*texts: str) -> float:
        lines = max(text.count("\n") + 1 if text else 0 for text in ("", *texts))
        return font / 72 * (1.2 * lines + 0.5) if lines else 0.0

    heights = [height_of(*blocks), height_of(*column_titles)]
    for row_title, row in zip(row_titles, rows, strict=True):
        heights += [height_of(row_title), height_of(*(panel.title for panel in row))]
        heights += [panel_inches]
    heights += [height_of(caption)]
    height = sum(heights) + _SPACE
    bottoms = iter(height - np.cumsum(heights))

    figure = Figure(figsize=(width, height))

    def write(text: str, x: float, y: float, align: str) -> None:
        """Writes text at inches from the left and from the bottom."""
        position = (x / width, (y + 0.3 * font / 72) / height)
        figure.text(*position, text, fontsize=font, ha=align, va="baseline", linespacing=1.1)

    bottom = next(bottoms)
    for (title, n), end in zip(blocks.items(), ends, strict=True):
        write(title, (left[end - n] + left[end - 1] + panel_inches) / 2, bottom, "center")
    bottom = next(bottoms)
    for title, x in zip(column_titles, left, strict=False):
        write(title, x + panel_inches / 2, bottom, "center")
    side = panel_inches - _SPACE
    for row_title, row in zip(row_titles, rows, strict=True):
        write(row_title, _SPACE, next(bottoms), "left")
        under_titles, bottom = next(bottoms), next(bottoms)
        for panel, x in zip(row, left, strict=False):
            write(panel.title, x + panel_inches / 2, under_titles, "center")
            corner = ((x + _SPACE / 2) / width, (bottom + _SPACE / 2) / height)
            axis = figure.add_axes((*corner, side / width, side / height))
            _show(axis, panel, scale=panel_inches)
    write(caption, _SPACE, next(bottoms), "left")
    return figure


def _font_that_fits(texts: Iterable[tuple[str, float]]) -> float:
    """The largest size in points at which no text exceeds its width in inches."""
    size = LARGEST_FONT
    for line, inches in {(line, n) for text, n in texts for line in text.split("\n") if line}:
        width = TextPath((0, 0), line, size=LARGEST_FONT).get_extents().width / 72
        size = min(size, LARGEST_FONT * (inches - 2 * _SPACE) / width)
    return size


def _show(axis: Axes, panel: Panel, scale: float) -> None:
    """Draws a panel. Marks are drawn over the image, at the figure's resolution."""
    image = np.clip(np.asarray(panel.image), 0, 1)
    axis.imshow(image.squeeze(-1) if image.shape[-1] == 1 else image, cmap="gray", vmin=0, vmax=1)
    axis.axis("off")
    for frame in panel.frames:
        _draw_frame(axis, frame, image.shape[:2], scale)
    for cross in panel.crosses:
        _draw_cross(axis, cross, image.shape[:2], scale)


def _draw_frame(axis: Axes, frame: Frame, canvas: tuple[int, int], scale: float) -> None:
    """Draws the part of a frame on the canvas, with the label in a corner, away from the object."""
    middle = np.asarray(frame.location)
    top, left = np.maximum(middle - frame.size / 2, -0.5)
    bottom, right = np.minimum(middle + frame.size / 2, np.array(canvas) - 0.5)
    line: dict[str, Any] = {"edgecolor": frame.color, "linewidth": max(0.8 * scale, 0.4)}
    axis.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, **line))
    inside = 0.02 * canvas[1]
    x, align = (left + inside, "left") if frame.label_left else (right - inside, "right")
    _write_on(axis, frame.label, frame.color, scale, x=x, y=top + inside, ha=align, va="top")


def _draw_cross(axis: Axes, cross: Cross, canvas: tuple[int, int], scale: float) -> None:
    """Draws a cross. The label is on the right, or on the left where the canvas ends."""
    row, column = cross.location
    size: dict[str, Any] = {"markersize": max(5 * scale, 3), "markeredgewidth": max(scale, 0.6)}
    axis.plot(column, row, "+", color=cross.color, path_effects=_outline(scale), **size)
    height, width = canvas
    away, is_room = 0.05 * width, column < 0.85 * width
    x, align = (column + away, "left") if is_room else (column - away, "right")
    y = np.clip(row, 0.05 * height, 0.95 * height - 1)
    _write_on(axis, cross.label, "white", scale, x=x, y=y, ha=align, va="center")


def _write_on(axis: Axes, text: str, color: str, scale: float, **position) -> None:
    font = max(5.5 * scale, 3.5)
    axis.text(s=text, color=color, fontsize=font, path_effects=_outline(scale), **position)


def _outline(scale: float) -> list[patheffects.AbstractPathEffect]:
    """A black outline, so that marks are visible on bright objects."""
    return [patheffects.withStroke(linewidth=max(2 * scale, 1), foreground="black")]


# --- reconstructions ---------------------------------------------------------


def reconstructions(images, means, scene: Scene | None = None, sprites=None, **kwargs) -> Figure:
    """Draws a row for each image: input, reconstruction, locations, and the objects' sprites.

    Args:
        images: [B, H, W, C].
        means: reconstructions [B, H, W, C].
        scene: the inferred scenes; None for a model without objects, whose rows end there.
        sprites: [B, M, h, w, C].
        **kwargs: passed on to `panels`.

    Returns:
        The figure.
    """
    images, means = np.asarray(images), np.asarray(means)
    rows = [[Panel(image), Panel(mean)] for image, mean in zip(images, means, strict=True)]
    if scene is not None:
        empty_canvas = np.zeros((*scene.canvas, 1))
        count, location = np.asarray(scene.count), np.asarray(scene.location)
        sprites = np.asarray(sprites)
        for b, row in enumerate(rows):
            crosses = [Cross(location[b, k], str(k)) for k in range(count[b])]
            row.append(Panel(empty_canvas, crosses=crosses))
            row += [Panel(sprites[b, k]) for k in range(count[b])]
    columns = max(map(len, rows))
    titles = ["input", "reconstruction", "locations", *(f"sprite {k}" for k in range(columns))]
    return panels(rows, column_titles=titles[:columns], **kwargs)


# --- training and counting ---------------------------------------------------


class Curve(NamedTuple):
    """A metric of training.

    Attributes:
        name: its name in metrics.jsonl.
        title: title of its panel.
        unit: label of its axis.
        highest: its highest possible value.
    """

    name: str
    title: str
    unit: str
    highest: float = np.inf


_IN_TRAINING = {"label": "training batches", "color": "0.65", "linewidth": 0.6}
_HELD_OUT = {"label": "held-out scenes", "color": "black", "linewidth": 1, "marker": "."}


def training_curves(
    records: Sequence[dict], curves: Sequence[Curve], panel_inches: float
) -> Figure:
    """Draws metrics over steps, one panel each.

    Values above the 95th percentile are cut off, because those of the first steps would hide the
    rest. A metric with a highest possible value is shown up to that value.

    Args:
        records: the lines of metrics.jsonl.
        curves: the metrics.
        panel_inches: scales the figure.

    Returns:
        The figure.
    """
    size = (2.6 * panel_inches * len(curves), 2.4 * panel_inches)
    font = LARGEST_FONT * min(panel_inches, 1)
    figure = Figure(figsize=size, layout="constrained")
    for axis, curve in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves, strict=True):
        bounded = np.isfinite(curve.highest)
        values = []
        for key, style in ((curve.name, _IN_TRAINING), (f"held_out_{curve.name}", _HELD_OUT)):
            points = [(r["step"], r[key]) for r in records if key in r]
            if points:
                axis.plot(*zip(*points, strict=True), **style, ms=3, clip_on=not bounded)
            values += [value for _, value in points]
        low, high = min(values), curve.highest if bounded else np.quantile(values, 0.95)
        margin = 0.05 * max(high - low, 0.1)
        axis.set_ylim(low - margin, high if bounded else high + margin)
        axis.yaxis.get_major_formatter().set_useOffset(False)
        _over_steps(axis, curve.title, font)
        axis.locator_params(nbins=4)
        axis.set_ylabel(curve.unit, fontsize=font)
    lines = {line.get_label(): line for axis in figure.axes for line in axis.lines}
    legend: dict[str, Any] = {
        "loc": "outside upper left",
        "ncols": 2,
        "fontsize": font,
        "frameon": False,
    }
    figure.legend(handles=list(lines.values()), **legend)
    return figure


def _over_steps(axis: Axes, title: str, font: float) -> None:
    """Formats an axis of a metric over steps."""
    axis.set_xlim(left=0)
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))  # 10k rather than 10 000
    axis.set_title(title, fontsize=1.15 * font)
    axis.set_xlabel("step", fontsize=font)
    axis.tick_params(labelsize=0.9 * font)
    axis.spines[["top", "right"]].set_visible(False)


def compared(
    runs: Mapping[str, Sequence[dict]],
    metrics: Sequence[str],
    highest: float | None = None,
    panel_inches: float = 1.0,
) -> Figure:
    """Draws metrics over steps, a panel for each metric and a line for each run.

    Args:
        runs: the lines of each run's metrics.jsonl, by the run's name.
        metrics: their names in metrics.jsonl.
        highest: larger values are cut off.
        panel_inches: scales the figure.

    Returns:
        The figure.
    """
    font = LARGEST_FONT * min(panel_inches, 1)
    size = (4 * panel_inches * len(metrics), 3 * panel_inches)
    figure = Figure(figsize=size, layout="constrained")
    for axis, metric in zip(
        figure.subplots(1, len(metrics), squeeze=False)[0], metrics, strict=True
    ):
        for name, records in runs.items():
            points = [(r["step"], r[metric]) for r in records if metric in r]
            steps, values = zip(*points, strict=True) if points else ((), ())
            axis.plot(steps, values, marker=".", ms=4, lw=1, label=name)
        low, high = axis.get_ylim()
        axis.set_ylim(low, min(high, highest if highest is not None else high))
        _over_steps(axis, metric.replace("_", " "), font)
    figure.axes[0].legend(fontsize=font, frameon=False)
    return figure


def count_confusion(confusion: np.ndarray, title: str, panel_inches: float) -> Figure:
    """Draws a confusion matrix of counts.

    Args:
        confusion: numbers of scenes; rows are true counts, columns inferred ones. The larger a
            cell's share of its row, the darker it is.
        title: title of the figure.
        panel_inches: scales the figure.

    Returns:
        The figure.
    """
    confusion = np.asarray(confusion)
    share = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    side = panel_inches * (1 + 0.35 * len(confusion))
    font = LARGEST_FONT * min(panel_inches, 1)
    figure = Figure(figsize=(side, side), layout="constrained")
    axis = figure.subplots()
    axis.imshow(share, cmap="Greys", vmin=0, vmax=1)
    for row, column in np.argwhere(confusion):
        color = "white" if share[row, column] > 0.5 else "black"
        text = str(confusion[row, column])
        axis.text(column, row, text, ha="center", va="center", fontsize=0.85 * font, color=color)
    axis.set_xticks(range(len(confusion)))
    axis.set_yticks(range(len(confusion)))
    axis.set_title(title, fontsize=1.15 * font)
    axis.set_xlabel("inferred count", fontsize=font)
    axis.set_ylabel("true count", fontsize=font)
    axis.tick_params(labelsize=font)
    return figure


def calibration(results: Mapping[str, dict], panel_inches: float = 1.0) -> Figure:
    """Draws the share of true objects over the claimed probability, a line for each split.

    Args:
        results: results of `evaluation.calibration`, by split. The area of a dot grows with the
            number of objects in its bin.
        panel_inches: scales the figure.

    Returns:
        The figure.
    """
    font = LARGEST_FONT * min(panel_inches, 1)
    figure = Figure(figsize=(3 * panel_inches, 3 * panel_inches), layout="constrained")
    axis = figure.subplots()
    axis.plot([0, 1], [0, 1], color="0.7", lw=1, ls="--")
    for name, result in results.items():
        number = np.array(result["objects"])
        columns = (np.array(result[key], float)[number > 0] for key in ("claimed", "true"))
        claimed, true = columns
        error = result["expected_calibration_error"]
        label = name if error is None else f"{name}: error {error:.3f}"
        (line,) = axis.plot(claimed, true, lw=1, label=label)
        area = 4 + 40 * number[number > 0] / max(number.sum(), 1)
        axis.scatter(claimed, true, s=area * panel_inches, color=line.get_color())
    axis.set_xlim(-0.02, 1.02)
    axis.set_ylim(-0.02, 1.02)
    axis.set_aspect("equal")
    axis.set_xlabel("claimed probability of an object", fontsize=font)
    axis.set_ylabel("share that is a true object", fontsize=font)
    axis.tick_params(labelsize=0.9 * font)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=font, frameon=False, loc="lower right")
    return figure


def sizes(
    sides: np.ndarray,
    chosen: float,
    name: str = "sprite_size",
    what: str = "the longer side of a connected component",
    panel_inches: float = 1.0,
) -> Figure:
    """Draws a histogram of sizes, with a line at the chosen size.

    Args:
        sides: sizes in pixels.
        chosen: the size to mark.
        name: name of the chosen size.
        what: what the sizes describe.
        panel_inches: scales the figure.

    Returns:
        The figure.
    """
    font = LARGEST_FONT * min(panel_inches, 1)
    figure = Figure(figsize=(4 * panel_inches, 2.4 * panel_inches), layout="constrained")
    axis = figure.subplots()
    axis.hist(sides, bins=np.arange(0.5, max(*sides, chosen) + 2).tolist(), color="0.65")
    axis.axvline(chosen, color=COLORS[0])
    axis.text(chosen, axis.get_ylim()[1], f" {name} {chosen:g}", fontsize=font, va="top")
    axis.set_xlabel(f"{what}, in pixels", fontsize=font)
    axis.set_ylabel("components", fontsize=font)
    axis.tick_params(labelsize=0.9 * font)
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def generalisation(results: Sequence[dict], panel_inches: float = 1.0) -> Figure:
    """Draws count accuracy and location error over the number of objects, a line for each canvas.

    Args:
        results: scores with the `kind` of objects, the `canvas` and the `count`; each kind has a
            column of panels.
        panel_inches: scales the figure.

    Returns:
        The figure.
    """
    kinds = list(dict.fromkeys(result["kind"] for result in results))
    canvases = sorted({result["canvas"] for result in results})
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, len(canvases)))
    font = LARGEST_FONT * min(panel_inches, 1)
    size = (3 * panel_inches * len(kinds), 4 * panel_inches)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(2, len(kinds), squeeze=False, sharex=True, sharey="row")
    rows = (
        ("count_accuracy", "count accuracy"),
        ("centre_distance_95", "95th-percentile error, pixels"),
    )
    for column, kind in enumerate(kinds):
        for (name, title), axis in zip(rows, axes[:, column], strict=True):
            for canvas, shade in zip(canvases, shades, strict=True):
                points = [
                    (r["count"], r[name])
                    for r in results
                    if (r["kind"], r["canvas"]) == (kind, canvas) and name in r
                ]
                if points:
                    x, y = zip(*points, strict=True)
                    axis.plot(x, y, color=shade, marker=".", ms=4, lw=1, label=f"{canvas}x{canvas}")
            axis.set_ylabel(title if not column else "", fontsize=font)
            axis.tick_params(labelsize=0.9 * font)
            axis.spines[["top", "right"]].set_visible(False)
        axes[0, column].set_title(f"{kind} objects", fontsize=1.15 * font)
        axes[1, column].set_xlabel("objects in a scene", fontsize=font)
    axes[0, 0].set_ylim(min(0.9, axes[0, 0].get_ylim()[0]), 1.005)  # rows share their axes
    axes[1, 0].set_ylim(bottom=0)
    axes[0, 0].legend(fontsize=font, frameon=False, loc="lower left")
    return figure
