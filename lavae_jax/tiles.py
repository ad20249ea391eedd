"""Tiles of an image that is too large to be processed as a whole.

Tiles overlap. Each pixel belongs to one tile, which also covers all pixels on which the result at
this pixel depends. Results are therefore the same as for the whole image.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

SIDE = 512  # of a tile, in pixels
LARGE = 1024 * 1024  # pixels; larger images are cut into tiles
MULTIPLE = 32  # pixels: sizes are padded to multiples of this, since each is compiled separately


class Span(NamedTuple):
    """The rows, or columns, of a tile.

    Attributes:
        start: the first row (or column) that the tile covers.
        stop: one past the last row that it covers.
        first: the first row that belongs to it.
        last: one past the last row that belongs to it.
    """

    start: int
    stop: int
    first: int
    last: int


class Tile(NamedTuple):
    """A rectangle of an image.

    Attributes:
        rows: the tile's rows.
        columns: the tile's columns.
    """

    rows: Span
    columns: Span

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.rows.stop - self.rows.start, self.columns.stop - self.columns.start

    @property
    def padded_size(self) -> tuple[int, int]:
        """Height and width after padding."""
        height, width = (-(-side // MULTIPLE) * MULTIPLE for side in self.size)
        return height, width

    @property
    def pixels(self) -> tuple[slice, slice]:
        """Slices of the image: all pixels of the tile."""
        return slice(self.rows.start, self.rows.stop), slice(self.columns.start, self.columns.stop)

    @property
    def own(self) -> tuple[slice, slice]:
        """Slices of the tile: the pixels that belong to it."""
        row, column = self.rows, self.columns
        rows = slice(row.first - row.start, row.last - row.start)
        return rows, slice(column.first - column.start, column.last - column.start)

    @property
    def own_in_image(self) -> tuple[slice, slice]:
        """Slices of the image: the pixels that belong to the tile."""
        row, column = self.rows, self.columns
        return slice(row.first, row.last), slice(column.first, column.last)


def is_large(canvas: Sequence[int]) -> bool:
    """Decides whether an image is cut into several tiles.

    Args:
        canvas: height and width, H and W.

    Returns:
        Whether it is.
    """
    return math.prod(canvas) > LARGE


def spans(length: int, margin: int, multiple: int, side: int) -> list[Span]:
    """Covers a side of an image with overlapping spans.

    What belongs to a span is at least `margin` away from its ends, except at the ends of the image.

    Args:
        length: the length of the side, in pixels.
        margin: the largest distance, in pixels, at which a pixel affects a result.
        multiple: spans start at multiples of it.
        side: the length of a span, in pixels; it is increased if the margin requires it.

    Returns:
        The spans, in order.
    """
    margin = -(-margin // multiple) * multiple
    side = max(side // multiple * multiple, 2 * margin + multiple)
    if length <= side:
        return [Span(0, length, 0, length)]
    last_start = (length - side) // multiple * multiple
    starts = [*range(0, last_start, side - 2 * margin), last_start]
    stops = [*(start + side for start in starts[:-1]), length]
    firsts = [0, *(start + margin for start in starts[1:])]
    return [Span(*s) for s in zip(starts, stops, firsts, [*firsts[1:], length], strict=True)]


def cut(canvas: Sequence[int], margin: int, multiple: int) -> list[Tile]:
    """Cuts an image into tiles.

    Args:
        canvas: height and width, H and W.
        margin: the largest distance, in pixels, at which a pixel affects the result at another.
        multiple: tiles start at multiples of this many pixels.

    Returns:
        The tiles; one if the image is not large.
    """
    if not is_large(canvas):
        return [Tile(*(Span(0, side, 0, side) for side in canvas))]
    rows, columns = (spans(side, margin, multiple, SIDE) for side in canvas)
    return [Tile(*both) for both in itertools.product(rows, columns)]


def padded(image: np.ndarray, tile: Tile) -> np.ndarray:
    """Reads a tile and pads it with black, below and to the right.

    Args:
        image: [H, W, C].
        tile: a tile of the image.

    Returns:
        [*tile.padded_size, C] float32.
    """
    part = image[tile.pixels]
    whole = np.zeros((*tile.padded_size, image.shape[-1]), np.float32)
    whole[: part.shape[0], : part.shape[1]] = part
    return whole
