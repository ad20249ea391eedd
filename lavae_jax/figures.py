"""Pictures, drawn with matplotlib and written without a display.

Each function returns a figure; `save` writes it. Images are [H, W, C] in 0..1.
"""

import pathlib
from collections.abc import Sequence

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure


def panels(
    rows: Sequence[Sequence[np.ndarray]],
    *,
    column_titles: Sequence[str] = (),
    titles: Sequence[Sequence[str]] = (),
    panel_inches: float = 1.0,
) -> Figure:
    """Rows of images; `titles` names every panel, `column_titles` the first row's."""
    columns = max((len(row) for row in rows), default=1)
    head = 0.3 if titles else 0.05
    figure, axes = plt.subplots(
        len(rows),
        columns,
        figsize=(columns * panel_inches, 0.2 + len(rows) * (panel_inches + head)),
        squeeze=False,
        layout="constrained",
    )
    figure.get_layout_engine().set(w_pad=0.01, h_pad=0.01, wspace=0.02, hspace=0.02)
    for axis in axes.flat:
        axis.axis("off")
    for r, row in enumerate(rows):
        for c, image in enumerate(row):
            _show(axes[r, c], image)
            if titles:
                axes[r, c].set_title(titles[r][c], fontsize=7, pad=2)
    for axis, title in zip(axes[0], column_titles, strict=False):
        axis.set_title(title, fontsize=7, pad=2)
    return figure


def _show(axis, image: np.ndarray) -> None:
    image = np.clip(image, 0, 1)
    axis.imshow(image.squeeze(-1) if image.shape[-1] == 1 else image, cmap="gray", vmin=0, vmax=1)


def in_rows(items: Sequence, columns: int) -> list[Sequence]:
    return [items[i : i + columns] for i in range(0, len(items), columns)]


def save(figure: Figure, *paths: str | pathlib.Path) -> None:
    for path in paths:
        figure.savefig(path, dpi=200)
    plt.close(figure)


# --- what a model sees -------------------------------------------------------


def explanations(images, reconstruction, count=None, index=None, sprites=None, **kwargs) -> Figure:
    """A row for each image: input, reconstruction, locations and sprites.

    index [B, S] are flat pixels; a model without objects has the first two columns.
    """
    rows = []
    for b, image in enumerate(images):
        row = [image, reconstruction[b]]
        if count is not None:
            where = np.zeros((*image.shape[:2], 1))
            where.reshape(-1)[index[b, : count[b]]] = 1
            row += [where, *sprites[b, : count[b]]]
        rows.append(row)
    names = ["input", "reconstruction", "locations", *(f"sprite {i}" for i in range(1, 99))]
    return panels(rows, column_titles=names[: max(map(len, rows))], **kwargs)


def marked(image: np.ndarray, location: np.ndarray, size: int) -> np.ndarray:
    """The image in colour, with a thin frame around the object at a location."""
    image = np.repeat(image, 3, -1) if image.shape[-1] == 1 else image.copy()
    top, left = np.maximum(np.asarray(location) - size // 2 - 1, 0)
    bottom, right = np.minimum(np.asarray(location) + size // 2 + 1, np.array(image.shape[:2]) - 1)
    color = (0.9, 0.45, 0.1)
    image[[top, bottom], left : right + 1] = color
    image[top : bottom + 1, [left, right]] = color
    return image


# --- how training went, and how counting goes --------------------------------


_IN_TRAINING = {"color": "0.7", "linewidth": 0.6}
_HELD_OUT = {"color": "black", "linewidth": 1, "marker": ".", "markersize": 3}


def training_curves(records: Sequence[dict], names: Sequence[str], panel_inches: float) -> Figure:
    """Metrics over steps, one panel each, out of the lines of metrics.jsonl.

    Grey on training batches, black on held-out scenes. The worst twentieth of the values
    lies beyond the panel, so that a first step's does not hide the rest.
    """
    figure, axes = plt.subplots(
        1,
        len(names),
        figsize=(2.6 * panel_inches * len(names), 2.2 * panel_inches),
        squeeze=False,
        layout="constrained",
    )
    for axis, name in zip(axes[0], names, strict=True):
        values = []
        for key, style in ((name, _IN_TRAINING), (f"held_out_{name}", _HELD_OUT)):
            points = [(r["step"], r[key]) for r in records if key in r]
            if points:
                axis.plot(*zip(*points, strict=True), **style)
            values += [value for _, value in points]
        low, high = min(values), np.quantile(values, 0.95)
        margin = 0.05 * max(high - low, 0.1)
        axis.set_ylim(low - margin, high + margin)
        axis.ticklabel_format(useOffset=False)
        axis.locator_params(nbins=4)
        axis.set_title(name.replace("_", " "), fontsize=8)
        axis.set_xlabel("step", fontsize=7)
        axis.tick_params(labelsize=6)
        axis.spines[["top", "right"]].set_visible(False)
    return figure


def count_confusion(confusion: np.ndarray, panel_inches: float) -> Figure:
    """Rows are true counts, columns inferred ones; shares of each row, numbers in cells."""
    confusion = np.asarray(confusion)
    share = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    side = panel_inches * (1 + 0.35 * len(confusion))
    figure, axis = plt.subplots(figsize=(side, side), layout="constrained")
    axis.imshow(share, cmap="Greys", vmin=0, vmax=1)
    for row, column in np.argwhere(confusion):
        color = "white" if share[row, column] > 0.5 else "black"
        text = str(confusion[row, column])
        axis.text(column, row, text, ha="center", va="center", fontsize=6, color=color)
    axis.set_xticks(range(len(confusion)))
    axis.set_yticks(range(len(confusion)))
    axis.set_xlabel("inferred count", fontsize=8)
    axis.set_ylabel("true count", fontsize=8)
    axis.tick_params(labelsize=7)
    return figure
