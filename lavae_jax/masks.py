"""Masks: which pixels belong to which object, where no pixel belongs to two.

    labels = label(location, sprites, levels)    in the pixels of the user's image
    encode(labels, number)                       run lengths, as COCO stores masks

A label image has 0 for the background and k + 1 for object k.
"""

import itertools
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy
from PIL import Image

from lavae_jax import placement
from lavae_jax.errors import UserError

# The lowest pixel mean with which a sprite explains a foreground pixel. It is higher than the pixel
# means of a sprite's background, and low enough for objects whose sprites are slightly wrong.
EXPLAINS = 1e-5
# A pixel belongs to an object if its level is this share of the object's brightness: a percentile
# of the levels where the sprite is at least `CORE` times as bright as at its brightest pixel.
# Chosen on training images of examples/nuclei.py.
SHARE, BRIGHT, CORE = 0.55, 75, 0.5
MOST_LABELS = 2**16 - 1  # in a 16-bit file

RunLengths = dict[str, Any]  # COCO's uncompressed RLE: {"size": [height, width], "counts": [...]}


def label(
    location: np.ndarray,
    sprites: np.ndarray,
    levels: np.ndarray,
    canvas: tuple[int, int] | None = None,
) -> np.ndarray:
    """Assigns pixels of an image to objects.

    A pixel is assigned to the object whose sprite is brightest there (the first of equally bright
    ones), provided that its level is high enough for that object (see `SHARE`). In a binary image,
    every foreground pixel is bright enough.

    Args:
        location: [n, 2], row and column of each object on the canvas.
        sprites: [n, h, w, C], their pixel means.
        levels: [H, W], the user's image at its own resolution, without background, from 0 to 1.
        canvas: height and width of what the model sees of the image; by default, those of `levels`.

    Returns:
        [H, W], int32: the label image.
    """
    size = levels.shape
    canvas = canvas or size
    brightest = np.full(size, EXPLAINS, np.float32)
    least = np.zeros(size, np.float32)  # pixels above this level belong to the object
    labels = np.zeros(size, np.int32)
    for number, (at, sprite) in enumerate(zip(location, sprites, strict=True), 1):
        on_canvas, on_sprite = placement.overlap(at, sprite.shape[:2], canvas)
        seen = sprite.max(-1)[on_sprite]
        if canvas != size:
            (rows, down), (columns, across) = map(_interpolation, on_canvas, canvas, size)
            seen, on_image = down @ seen @ across.T, (rows, columns)
        else:
            on_image = on_canvas
        core = levels[on_image][seen >= CORE * seen.max(initial=0)]
        is_brighter = seen > brightest[on_image]
        brightest[on_image][is_brighter] = seen[is_brighter]
        least[on_image][is_brighter] = SHARE * np.percentile(core, BRIGHT) if core.size else 0
        labels[on_image][is_brighter] = number
    return np.where(levels > least, labels, 0)


def _interpolation(part: slice, before: int, after: int) -> tuple[slice, np.ndarray]:
    """The pixels of the new axis that a part of the old one reaches; their weights [new, old]."""
    step = before / after
    reach = max(step, 1.0)
    first = max(int((part.start - reach) / step), 0)
    last = min(int((part.stop + reach) / step) + 1, after)
    centres = (np.arange(first, last) + 0.5) * step - 0.5
    distance = np.abs(centres[:, None] - np.arange(part.start, part.stop))
    return slice(first, last), np.maximum(1 - distance / reach, 0) / reach


# --- run lengths -------------------------------------------------------------


def encode(labels: np.ndarray, number: int) -> list[RunLengths]:
    """Encodes masks as COCO's uncompressed run lengths.

    Args:
        labels: [H, W], a label image.
        number: number of objects. Those without a pixel have an empty mask.

    Returns:
        For each object, `size` [H, W] and `counts`: the lengths of runs of 0 and 1 in turn, column
        after column, beginning with 0.
    """
    flat = labels.ravel(order="F")
    pixels = np.flatnonzero(flat)
    pixels = pixels[np.argsort(flat[pixels], kind="stable")]
    starts = np.searchsorted(flat[pixels], np.arange(1, number + 2))
    return [
        {"size": list(labels.shape), "counts": _run_lengths(pixels[start:stop], flat.size)}
        for start, stop in itertools.pairwise(starts)
    ]


def _run_lengths(pixels: np.ndarray, total: int) -> list[int]:
    is_first = np.diff(pixels, prepend=-2) > 1
    is_last = np.diff(pixels, append=total + 1) > 1
    edges = np.stack([pixels[is_first], pixels[is_last] + 1], axis=-1).ravel()
    counts = np.diff(edges, prepend=0, append=total).tolist()
    return counts[:-1] if counts[-1] == 0 else counts


def decode(masks: Sequence[RunLengths], canvas: tuple[int, int]) -> np.ndarray:
    """Decodes masks; the inverse of `encode`.

    Args:
        masks: the run lengths of each object's mask.
        canvas: height and width of the image.

    Returns:
        [H, W], int32: the label image.
    """
    flat = np.zeros(canvas[0] * canvas[1], np.int32)
    for number, mask in enumerate(masks, 1):
        edges = np.cumsum(mask["counts"])
        for start, stop in zip(edges[::2], edges[1::2], strict=False):
            flat[start:stop] = number
    return flat.reshape(canvas, order="F")


def area(mask: RunLengths) -> int:
    """Counts the pixels of a mask.

    Args:
        mask: run lengths.

    Returns:
        The number of pixels.
    """
    return sum(mask["counts"][1::2])


def box(mask: RunLengths) -> list[int] | None:
    """Computes the bounding box of a mask.

    Args:
        mask: run lengths.

    Returns:
        [left, top, width, height], as in COCO; None if the mask is empty.
    """
    height, edges = mask["size"][0], np.cumsum(mask["counts"])
    first, last = edges[:-1:2], edges[1::2] - 1  # pixels of each run
    if not len(last):
        return None
    left, right = first[0] // height, last[-1] // height
    top, bottom = (first % height).min(), (last % height).max()
    if (first // height < last // height).any():  # a run from one column into the next
        top, bottom = 0, height - 1
    return [int(side) for side in (left, top, right - left + 1, bottom - top + 1)]


# --- files and outlines ------------------------------------------------------


def write(labels: np.ndarray, path: pathlib.Path) -> None:
    """Writes a label image with 16 bits.

    Args:
        labels: [H, W].
        path: the file to write; its ending determines the format.

    Raises:
        UserError: there are more objects than 16 bits can number.
    """
    if labels.max(initial=0) > MOST_LABELS:
        raise UserError(
            f"{path}: the image has {labels.max():,} objects, but a 16-bit label image can number "
            f"only {MOST_LABELS:,}; .json and .jsonl files have no such limit"
        )
    compression = {"compression": "tiff_deflate"} if path.suffix.startswith(".tif") else {}
    Image.fromarray(labels.astype(np.uint16)).save(path, **compression)


def outlines(labels: np.ndarray, width: int = 1) -> np.ndarray:
    """Outlines objects, also where they touch.

    Args:
        labels: [H, W], a label image.
        width: the width of the lines, in pixels.

    Returns:
        [H, W], bool: the pixels of the lines.
    """
    return scipy.ndimage.grey_dilation(labels, (2 * width + 1, 2 * width + 1)) != labels
