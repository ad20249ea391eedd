"""The scenes of Attend, Infer, Repeat (Eslami et al., 2016), drawn as in their public version.

Each digit is scaled down to int(28 / s) pixels, s ~ N(1.3, 0.1^2), by Pillow's bicubic filter, and
placed at a uniform location. The levels of overlapping digits add up. While the sum at any pixel is
above 255, all digits of the scene are drawn again.
"""

import math

import numpy as np
from PIL import Image

from datasets.scenes import Bank, Examples, centres_of_mass, integers, too_close

SCALE, SPREAD = 1.3, 0.1
HIGHEST = 255
MOST_TRIES = 1_000
OWN = 127  # a pixel belongs to the digit above this level; only one can be, as sums are below 256


def draw_sizes(bits: np.random.Philox, shape, size: int, canvas: int) -> np.ndarray:
    """Draws int(size / s) for s ~ N(1.3, 0.1^2), at most canvas - 1, by inversion.

    Args:
        bits: the random stream.
        shape: the shape of the result.
        size: the size of a digit before it is divided by s.
        canvas: height and width of a scene.

    Returns:
        Sizes in pixels, int64.
    """
    largest = np.arange(1, canvas - 1)
    # int(size / s) is at most k if s is above size / (k + 1).
    below = [
        math.erfc((size / (k + 1) - SCALE) / SPREAD / math.sqrt(2)) / 2 for k in largest.tolist()
    ]
    thresholds = np.round(2**32 * np.array(below)).astype(np.int64)
    return 1 + np.searchsorted(thresholds, integers(bits, 2**32, shape), side="right")


def scale_down(digit: np.ndarray, size: int) -> np.ndarray:
    """Scales a digit.

    Args:
        digit: uint8 [28, 28].
        size: its new height and width.

    Returns:
        The digit, uint8 [size, size].
    """
    return np.asarray(Image.fromarray(digit).resize((size, size), Image.Resampling.BICUBIC))


def compose(
    bits: np.random.Philox,
    bank: Bank,
    num_scenes: int,
    counts: tuple[int, int],
    canvas: int,
    max_objects: int,
    size: int,
    apart: int,
) -> Examples:
    """Draws scenes whose number of digits is uniform on counts[0]..counts[1].

    Args:
        bits: the random stream.
        bank: digits as they are stored, [K, 28, 28, 1].
        num_scenes: the number of scenes.
        counts: the fewest and the most digits in a scene.
        canvas: height and width of a scene.
        max_objects: S, the number of slots for objects.
        size: the size of a digit before it is divided by s.
        apart: the minimum distance between two corners; see `datasets.scenes.place`.

    Returns:
        The scenes.

    Raises:
        ValueError: if a scene is still invalid after `MOST_TRIES` tries.
    """
    low, high = counts
    count = low + integers(bits, high - low + 1, num_scenes)
    corners = np.full((num_scenes, max_objects, 2), -1, np.int64)
    objects, sizes = (np.full((num_scenes, max_objects), -1, np.int64) for _ in range(2))
    image = np.zeros((num_scenes, canvas, canvas), np.int64)
    mask = np.zeros((num_scenes, canvas, canvas), np.uint8)
    centres = np.full((num_scenes, max_objects, 2), -1, np.float32)
    pending = np.flatnonzero(count)
    for _ in range(MOST_TRIES):
        if not len(pending):
            break
        shape = (len(pending), max_objects)
        objects[pending] = integers(bits, len(bank.sprites), shape)
        sizes[pending] = draw_sizes(bits, shape, size, canvas)
        # The public version never uses the last row and column.
        free = (canvas - sizes[pending])[..., None]
        corners[pending] = integers(bits, 2**32, (*shape, 2)) * free >> 32
        is_bad = np.zeros(len(pending), bool)
        for i, scene in enumerate(pending):
            image[scene] = mask[scene] = 0
            corner = corners[scene, : count[scene]]
            for k, (row, column) in enumerate(corner):
                digit = scale_down(bank.sprites[objects[scene, k], ..., 0], sizes[scene, k])
                box = np.s_[row : row + len(digit), column : column + len(digit)]
                image[scene][box] += digit
                mask[scene][box][digit > OWN] = k + 1
                centres[scene, k] = corner[k] + centres_of_mass(digit[None])[0]
                is_bad[i] |= too_close(corner[k : k + 1], corner[None, :k], apart).any()
            is_bad[i] |= image[scene].max() > HIGHEST
        pending = pending[is_bad]
    if len(pending):
        raise ValueError(
            f"no valid scene of up to {high} digits on {canvas}x{canvas} pixels was found in "
            f"{MOST_TRIES:,} tries; use fewer digits or a larger canvas"
        )

    absent = np.arange(max_objects) >= count[:, None]
    locations = np.where(absent[..., None], -1, corners + (sizes[..., None] - 1) // 2)
    objects = np.where(absent, -1, objects)
    as_int32 = [a.astype(np.int32) for a in (count, locations, objects)]
    hidden = np.where(absent, -1, 0).astype(np.float32)
    return Examples(image[..., None].astype(np.uint8), mask, *as_int32, centres, hidden)
