"""Pictures of scenes, drawn with matplotlib and written without a display."""

import pathlib
from collections.abc import Sequence

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure


def image_grid(
    images: np.ndarray, titles: Sequence[str], columns: int, panel_inches: float = 1.2
) -> Figure:
    """Images [N, H, W, C] in rows of `columns`, each under its title."""
    rows = -(-len(images) // columns)
    figure, axes = plt.subplots(
        rows,
        columns,
        figsize=(columns * panel_inches, rows * (panel_inches + 0.25)),
        squeeze=False,
        layout="constrained",
    )
    for axis in axes.flat:
        axis.axis("off")
    for axis, image, title in zip(axes.flat, images, titles, strict=False):
        _show(axis, image)
        axis.set_title(title, fontsize=7, pad=2)
    return figure


def _show(axis, image: np.ndarray) -> None:
    image = np.clip(image, 0, 1)
    axis.imshow(image.squeeze(-1) if image.shape[-1] == 1 else image, cmap="gray", vmin=0, vmax=1)


def save(figure: Figure, path: str | pathlib.Path) -> None:
    figure.savefig(path, dpi=150)
    plt.close(figure)


def explanations(images: np.ndarray, explained) -> Figure:
    """A row for each image: input, reconstruction, locations and sprites.

    `explained` is a `tasks.Explanation`; a model without objects has two columns.
    """
    panels = []
    for b, image in enumerate(images):
        row = [image, explained.reconstruction[b]]
        if explained.count is not None:
            where = np.zeros((*image.shape[:2], 1))
            where.reshape(-1)[explained.index[b, : explained.count[b]]] = 1
            row += [where, *explained.sprites[b, : explained.count[b]]]
        panels.append(row)
    columns = max(len(row) for row in panels)
    names = ["input", "reconstruction", "locations", *(f"sprite {i}" for i in range(1, columns))]
    figure, axes = plt.subplots(
        len(panels),
        columns,
        figsize=(columns, 0.2 + len(panels)),
        squeeze=False,
        layout="constrained",
    )
    for axis in axes.flat:
        axis.axis("off")
    for axis, name in zip(axes[0], names, strict=False):
        axis.set_title(name, fontsize=7, pad=2)
    for row, images_in_row in zip(axes, panels, strict=True):
        for axis, panel in zip(row, images_in_row, strict=False):
            _show(axis, panel)
    return figure
