"""Parts of an image, for images that are too large to be processed as a whole.

Tiles overlap. Each pixel belongs to one of them, which also covers everything that the pixel's
result depends on, so results are the same as for the whole image.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np

SIDE = 512  # of a tile, in pixels
LARGE = 1024 * 1024  # pixels; larger images are cut into tiles
MULTIPLE = 32  # pixels, to which tiles are padded: each size is compiled once


class Span(NamedTuple):
    """Rows, or columns, of a tile; those from `first` to before `last` are its own."""

    start: int
    stop: int
    first: int
    last: int


class Tile(NamedTuple):
    """A rectangle of an image."""

    rows: Span
    columns: Span

    @property
    def size(self) -> tuple[int, int]:
        return self.rows.stop - self.rows.start, self.columns.stop - self.columns.start

    @property
    def padded_size(self) -> tuple[int, int]:
        height, width = (-(-side // MULTIPLE) * MULTIPLE for side in self.size)
        return height, width

    @property
    def pixels(self) -> tuple[slice, slice]:
        """Where it is in the image."""
        return slice(self.rows.start, self.rows.stop), slice(self.columns.start, self.columns.stop)

    @property
    def own(self) -> tuple[slice, slice]:
        """Its own pixels, in the tile."""
        row, column = self.rows, self.columns
        rows = slice(row.first - row.start, row.last - row.start)
        return rows, slice(column.first - column.start, column.last - column.start)

    @property
    def own_in_image(self) -> tuple[slice, slice]:
        row, column = self.rows, self.columns
        return slice(row.first, row.last), slice(column.first, column.last)


def is_large(canvas: tuple[int, int]) -> bool:
    return math.prod(canvas) > LARGE


def spans(length: int, margin: int, multiple: int, side: int) -> list[Span]:
    """Tiles that cover a length.

    All start at a multiple, and what is a tile's own is at least `margin` away from its ends, but
    for the ends of the image.
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


def cut(canvas: tuple[int, int], margin: int, multiple: int) -> list[Tile]:
    """The tiles of an image: one, if it is not large.

    Args:
        canvas: the size of the image.
        margin: pixels around a pixel that its result depends on.
        multiple: tiles start at multiples of so many pixels.
    """
    if not is_large(canvas):
        return [Tile(*(Span(0, side, 0, side) for side in canvas))]
    rows, columns = (spans(side, margin, multiple, SIDE) for side in canvas)
    return [Tile(*both) for both in itertools.product(rows, columns)]


def padded(image: np.ndarray, tile: Tile) -> np.ndarray:
    """The tile of an image [H, W, C], with black below and to the right."""
    part = image[tile.pixels]
    whole = np.zeros((*tile.padded_size, image.shape[-1]), np.float32)
    whole[: part.shape[0], : part.shape[1]] = part
    return whole
