"""Pictures of scenes, drawn with matplotlib and written without a display."""

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
        axis.imshow(image.squeeze(-1) if image.shape[-1] == 1 else image, cmap="gray", vmin=0)
        axis.set_title(title, fontsize=7, pad=2)
    return figure


def save(figure: Figure, path: str) -> None:
    figure.savefig(path, dpi=150)
    plt.close(figure)
