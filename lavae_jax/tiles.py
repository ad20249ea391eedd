"""Images that are too large to be taken apart at once.

The location network looks at overlapping tiles, whose logits are put together: each pixel's are
those of a tile that has all that the network sees from there, so they are the same as for the
whole image. Objects are then found, and their windows cut out, on the host. Memory is that of a
few tiles and of some maps as large as the image.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.ndimage
import scipy.spatial

from lavae_jax.settings import LocationSettings

SIDE = 512  # of a tile, in pixels


class Span(NamedTuple):
    """Rows, or columns, of a tile; those from `first` to before `last` are its own."""

    start: int
    stop: int
    first: int
    last: int


def spans(length: int, margin: int, multiple: int, side: int) -> list[Span]:
    """Tiles that cover a length. All start at a multiple, and what is a tile's own is at least
    `margin` away from its ends, but for the ends of the image."""
    margin = -(-margin // multiple) * multiple
    side = max(side // multiple * multiple, 2 * margin + multiple)
    if length <= side:
        return [Span(0, length, 0, length)]
    last_start = (length - side) // multiple * multiple
    starts = [*range(0, last_start, side - 2 * margin), last_start]
    stops = [*(start + side for start in starts[:-1]), length]
    firsts = [0, *(start + margin for start in starts[1:])]
    return [Span(*s) for s in zip(starts, stops, firsts, [*firsts[1:], length], strict=True)]


def logits(
    image: np.ndarray,
    settings: LocationSettings,
    compute: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """The map [H, W] that `compute` gives for tiles [1, h, w, C] of an image [H, W, C]."""
    reach, multiple = settings.reach, settings.space_to_depth
    rows, columns = (spans(n, reach, multiple, SIDE) for n in image.shape[:2])
    whole = np.empty(image.shape[:2], np.float32)
    for row in rows:
        for column in columns:
            tile = image[None, row.start : row.stop, column.start : column.stop]
            own_rows = slice(row.first - row.start, row.last - row.start)
            own_columns = slice(column.first - column.start, column.last - column.start)
            whole[row.first : row.last, column.first : column.last] = compute(tile)[
                0, own_rows, own_columns
            ]
    return whole


def peaks(logits: np.ndarray, threshold: float, radius: int) -> np.ndarray:
    """[n, 2]: what `counting.peaks` finds in a map [H, W], highest first."""
    pool = scipy.ndimage.maximum_filter(logits, 2 * radius + 1, mode="constant", cval=-np.inf)
    found = np.argwhere((logits == pool) & (logits > threshold))
    # Of equal ones, the first in reading order.
    equal = scipy.spatial.KDTree(found).query_pairs(radius, p=np.inf, output_type="ndarray")
    found = np.delete(found, np.unique(equal.max(1)), axis=0) if len(equal) else found
    return found[np.argsort(-logits[tuple(found.T)], kind="stable")]


def windows(image: np.ndarray, centres: np.ndarray, radius: int) -> np.ndarray:
    """[n, 2 radius + 1, 2 radius + 1, C] around pixels of an image [H, W, C]; black beyond it."""
    padded = np.pad(image, ((radius, radius), (radius, radius), (0, 0)))
    side = 2 * radius + 1
    cut = [padded[row : row + side, column : column + side] for row, column in centres]
    return np.array(cut, np.float32).reshape(-1, side, side, image.shape[-1])


def compose(sprites: np.ndarray, location: np.ndarray, canvas: tuple[int, int]) -> np.ndarray:
    """λ [H, W, C]: the sum of sprites [n, h, w, C], each on its location [n, 2]."""
    height, width, channels = sprites.shape[1:]
    whole = np.zeros((canvas[0] + 2 * height, canvas[1] + 2 * width, channels), np.float32)
    location = np.clip(location, 0, np.array(canvas) - 1)
    corner = location + np.array([height, width]) - np.array([height // 2, width // 2])
    for sprite, (row, column) in zip(sprites, corner, strict=True):
        whole[row : row + height, column : column + width] += sprite
    return whole[height : height + canvas[0], width : width + canvas[1]]
